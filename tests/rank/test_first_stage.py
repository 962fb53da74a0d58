"""A first stage finds what its parts find, and its record can be moved with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Query
from rankwell.rank.dense import search_hybrid
from rankwell.rank.first_stage import FIRST_STAGE, FirstStage
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

QUERIES = [Query("1", "bee honey in winter"), Query("2", "the king of the river")]
TEXTS = ["bee and honey", "river fish", "king of the city", "winter in the country", "a book of music"]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    Index.build([Document(f"d{number}", text) for number, text in enumerate(TEXTS)], tmp_path / "all" / "index")
    return Index.open(tmp_path / "all" / "index")


def test_without_a_share_bm25_searches_alone(index: Index) -> None:
    first = FirstStage(index, BM25(k1=0.7, k2=2.0))
    assert first.search(QUERIES, 3) == index.search(QUERIES, BM25(k1=0.7, k2=2.0), k=3)
    assert first.describe() == {"k1": 0.7, "b": 0.4, "k2": 2.0}


def test_with_a_share_it_is_hybrid_search(index: Index, tiny_bi_encoder: Path) -> None:
    first = FirstStage(index, BM25(b=0.2), tiny_bi_encoder, 0.4)
    assert first.dense is first.dense
    for share in (0.4, 1.0):
        changed = FirstStage(index, BM25(b=0.2), tiny_bi_encoder, share)
        expected = search_hybrid(index, first.dense, QUERIES, share, BM25(b=0.2), k=4)
        assert changed.search(QUERIES, 4) == expected
    assert first.describe()["hybrid"] == 0.4


def test_it_is_found_again_after_everything_was_moved(index: Index, tiny_bi_encoder: Path, tmp_path: Path) -> None:
    encoder = tmp_path / "all" / "encoder"
    shutil.copytree(tiny_bi_encoder, encoder)
    first = FirstStage(index, BM25(1.5, 0.3, 7.0), encoder, 0.5)
    first.save(tmp_path / "all" / "stage")
    before = first.search(QUERIES, 3)
    (tmp_path / "all").rename(tmp_path / "elsewhere")
    again = FirstStage.open(tmp_path / "elsewhere" / "stage")
    assert (again.bm25, again.share) == (BM25(1.5, 0.3, 7.0), 0.5)
    assert again.search(QUERIES, 3) == before


def test_the_name_of_a_model_stays_a_name(index: Index, tmp_path: Path) -> None:
    FirstStage(index, encoder="rankwell-mini", share=0.7).save(tmp_path / "stage")
    assert json.loads((tmp_path / "stage" / FIRST_STAGE).read_text())["encoder"] == "rankwell-mini"
    assert FirstStage.open(tmp_path / "stage").encoder == "rankwell-mini"


def test_a_share_needs_a_bi_encoder(index: Index) -> None:
    with pytest.raises(RankwellError, match=r"a weight of 0.5 for a bi-encoder, but no bi-encoder is given"):
        FirstStage(index, share=0.5)
    with pytest.raises(RankwellError, match=r"a weight of 1.5"):
        FirstStage(index, encoder="rankwell-mini", share=1.5)
    with pytest.raises(RankwellError, match="this first stage has no bi-encoder"):
        FirstStage(index).dense  # noqa: B018


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 9}, "a first stage of version 9, expected 2"),
        ({"bm25": {"k3": 1}}, "not the record of a first stage"),
        ({"share": None}, "not the record of a first stage"),
    ],
)
def test_a_record_that_cannot_be_used_is_named(
    index: Index, tmp_path: Path, change: dict[str, object], problem: str
) -> None:
    FirstStage(index).save(tmp_path / "stage")
    path = tmp_path / "stage" / FIRST_STAGE
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RankwellError, match=problem):
        FirstStage.open(tmp_path / "stage")


def test_a_folder_without_a_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match=r"not a first stage .it has no first-stage.json"):
        FirstStage.open(tmp_path)
