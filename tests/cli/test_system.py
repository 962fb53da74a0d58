"""Systems on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell import sample
from rankwell.corpus.datasets import open_dataset
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import Shares
from rankwell.rank.system import System
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, tiny_bi_encoder: Path) -> System:
    folder = tmp_path_factory.mktemp("system")
    index = Index.build(open_dataset(sample.FOLDER).documents(), folder / "index")
    first, shares = FirstStage(index, BM25(1.2, 0.7), tiny_bi_encoder, 0.3), Shares(model=0.2, first=0.8)
    return System(first, ranker=tiny_checkpoint, depth=5, shares=shares).save(folder / "system")


def test_a_question_is_answered(rankwell: Call, system: System) -> None:
    done = rankwell("search", system.folder, "how do bees keep warm", "-k", "4", "--json")
    assert done.code == 0, done.err
    answers = json.loads(done.out)["results"]
    expected = system.search("how do bees keep warm", k=4)
    assert [(row["id"], row["text"]) for row in answers] == [(answer.docid, answer.text) for answer in expected]


@pytest.mark.parametrize("options", [["--k1", "1"], ["--hybrid", "0.5"], ["--encoder", "x"]])
def test_how_a_system_searches_is_not_changed_by_options(rankwell: Call, system: System, options: list[str]) -> None:
    done = rankwell("search", system.folder, "a question", *options)
    assert done.complaint == f"{options[0]} does not go with a system"
