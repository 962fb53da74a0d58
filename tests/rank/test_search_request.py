"""A request for a search: what it finds, refuses and records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Query
from rankwell.rank.requests import SearchRequest
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index


@pytest.fixture
def request_(tmp_path: Path) -> SearchRequest:
    texts = ["bees make honey", "the river has fish", "honey in winter"]
    Index.build([Document(f"d{n}", text) for n, text in enumerate(texts)], tmp_path / "index")
    (tmp_path / "queries.tsv").write_text("q1\thoney\nq2\tnothing matches\n")
    return SearchRequest(tmp_path / "index", tmp_path / "queries.tsv", k=5, bm25=BM25(k1=0.7))


def test_the_run_is_the_indexs(request_: SearchRequest) -> None:
    result = request_.execute()
    assert dict(result.run) == dict(Index.open(request_.index).search([Query("q1", "honey")], BM25(k1=0.7), k=5))
    assert (result.run.name, request_.execute(name="mine").run.name) == ("BM25", "mine")
    assert result.report == "1 of 2 queries, 2 documents"


def test_a_wrong_share_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    request = SearchRequest(tmp_path / "none", tmp_path / "none.tsv", hybrid=1.5)
    for refused in (request.check, request.execute, replace(request, hybrid=0.0).check):
        with pytest.raises(RankwellError, match="weight"):
            refused()
