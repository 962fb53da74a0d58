"""A ranker as a judge of queries."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwell.core.errors import InputError
from rankwell.papers.doc2query.expansion import find_judge, open_judge
from rankwell.rank.ranker import Ranker

PAIRS = [("bees", "bees make honey"), ("bank", "a bank lends money")]


def test_it_judges_as_its_ranker_does(tiny_checkpoint: Path) -> None:
    ranker = Ranker.from_pretrained(tiny_checkpoint, engine={"device": "cpu"})
    expected = ranker.predict(PAIRS, activation="probability")
    assert open_judge(find_judge(tiny_checkpoint), "cpu")(PAIRS).tolist() == expected.tolist()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected that of the judge"):
        find_judge(tmp_path)
