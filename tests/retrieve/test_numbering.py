"""Documents by number: ids, numbers and texts over several stores, whole lists at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document
from rankwell.retrieve.index import Index


@pytest.fixture(params=[1, 3])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Index:
    documents = [Document(f"d{i}", f"text {i}") for i in range(6)]
    size = len(documents) // request.param
    for begin in range(0, len(documents), size):
        Index.build(documents[begin : begin + size], tmp_path / "index", append=begin > 0)
    return Index.open(tmp_path / "index")


@pytest.mark.parametrize("wanted", [[], ["d5"], ["d4", "d0", "d4", "d2", "d1"], ["d0", "d1"]])
def test_ids_numbers_and_texts_agree(index: Index, wanted: list[str]) -> None:
    numbers = index.documents.find(wanted)
    assert numbers.tolist() == [int(docid[1:]) for docid in wanted]
    assert index.docids(numbers) == wanted
    assert index.texts(wanted) == [f"text {docid[1:]}" for docid in wanted]
    covered = [rows for _, rows, _ in index.documents.split(numbers)]
    assert sorted(np.concatenate([np.zeros(0, np.int64), *covered]).tolist()) == list(range(len(wanted)))


def test_unknown_ids_have_no_number(index: Index) -> None:
    assert index.documents.find(["x", "d3", ""]).tolist() == [-1, 3, -1]


def test_texts_are_not_looked_up_one_by_one(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(lexicon: Lexicon, string: str) -> int:
        raise AssertionError(f"{string} was looked up alone")

    monkeypatch.setattr(Lexicon, "number", refuse)
    assert index.texts(["d5", "d1"]) == ["text 5", "text 1"]
