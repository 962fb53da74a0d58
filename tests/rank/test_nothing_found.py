"""Empty documents are never found, and a search that finds nothing says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell import Document, Index, System
from rankwell.rank.answers import explain_nothing

DOCUMENTS = [
    Document("a", "rain jacket", "", {"category": "Jackets", "price": 120}),
    Document("b", "rain boots", "", {"category": "Shoes", "price": 80}),
    Document("empty", "", "", {"category": "Jackets"}),
]


@pytest.mark.parametrize(
    ("query", "filter", "line"),
    [
        ("rain", "category = 'jackets'", "(no category = jackets; category is Jackets)"),
        ("rain", "category = 'x'", "(no category = x; category is Jackets, Shoes)"),
        ("rain", "price < '100'", "(price has numbers: leave out the quotes)"),
        ("rain", "price < 100 and category = 'Jackets'", ""),
        ("the", None, "the question has only words that are not searched, such as the"),
        ("snow", "price < 100", "no document has a word of this question"),
    ],
)
def test_a_search_without_results_says_why(query: str, filter: str | None, line: str) -> None:
    before = "2 found, none passes the filter " if query == "rain" else ""
    assert explain_nothing(Index.build(DOCUMENTS), query, filter) == f"{before}{line}".rstrip()


def test_empty_documents_are_never_found(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    index = Index.build(DOCUMENTS, tmp_path / "index")
    for _ in range(2):
        system = System.of_index(index, hybrid=0.5, encoder=str(tiny_bi_encoder))
        assert "empty" not in {answer.docid for answer in system.search("rain", k=10)}
        assert len(system.search("rain", k=10)) == 2
        assert not index.search("empty").docids
        assert index.read(["empty"])[0].text == ""
        index.update([Document("c", "")])
        index.merge()
        index = Index.open(tmp_path / "index")
    index.update([Document("empty", "rain at last")])
    assert "empty" in index.search("rain").docids


def test_an_index_with_empty_documents_says_so(rankwell: Callable[..., Any]) -> None:
    Path("c.jsonl").write_text('{"id": "a", "text": "bees"}\n{"id": "b", "text": ""}\n')
    assert "1 of 2 documents is empty; no search finds it" in rankwell("index", "c.jsonl", "--out", "i").err
