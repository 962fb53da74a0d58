"""A ranker as a judge of queries."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rankwell.core.errors import InputError
from rankwell.papers.doc2query.judge import RankerJudge
from rankwell.rank.ranker import Ranker

PAIRS = [("bees", "bees make honey"), ("bank", "a bank lends money")]


def test_it_judges_as_its_ranker_does_in_another_process_too(tiny_checkpoint: Path) -> None:
    judge = pickle.loads(pickle.dumps(RankerJudge.find(tiny_checkpoint)))  # noqa: S301
    expected = Ranker.from_pretrained(tiny_checkpoint, engine={"device": "cpu"}).predict(
        PAIRS, activation="probability"
    )
    assert judge.open("cpu")(PAIRS).tolist() == expected.tolist()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected that of the judge"):
        RankerJudge.find(tmp_path)
