"""The verbs that change an index, and searches that are filtered."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell import Index, System

Rankwell = Callable[..., Any]


@pytest.fixture
def products(rankwell: Rankwell) -> None:
    Path("products.csv").write_text(
        "id,text,year,lang\n007,honey from bees,2014,de\n8,honey and wax,2016,en\n9,tea,2020,de\n"
    )
    made = rankwell("index", "products.csv", "--out", "index")
    assert made.code == 0
    assert made.out.startswith("index: 3 documents")


def docids(searched: Any) -> list[str]:
    assert searched.code == 0, searched.err
    return [row["id"] for row in json.loads(searched.out)["results"]]


def test_update_delete_and_merge(rankwell: Rankwell, products: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("more.jsonl").write_text('{"id": "8", "text": "milk", "year": 2024}\n{"id": "10", "text": "honey"}\n')
    refused = rankwell("index", "more.jsonl", "--out", "index", "--append")
    assert refused.code == 2
    assert "line 1: document '8' is in the index already; --update replaces documents" in refused.err
    updated = rankwell("index", "more.jsonl", "--out", "index", "--update")
    assert updated.out.startswith("index: 4 documents")
    assert docids(rankwell("search", "index", "honey", "--json")) == ["10", "007"]
    Path("9").write_text("8\n")  # an id, whatever files there are
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"007\nnowhere\n\n")))
    deleted = rankwell("delete", "index", "-", "9")
    assert deleted.out == "index: 2 deleted, 1 not in the index, 2 documents left\n"
    assert docids(rankwell("search", "index", "honey", "--json")) == ["10"]
    merged = rankwell("merge", "index")
    assert merged.out.startswith("index: 2 documents, ")
    assert docids(rankwell("search", "index", "honey milk", "--json")) == ["8", "10"]
    assert rankwell("check", "index").code == 0
    both = rankwell("index", "more.jsonl", "--out", "index", "--update", "--overwrite")
    assert (both.code, both.err) == (2, "rankwell: append, update and overwrite cannot be combined\n")


def test_answers_are_filtered_and_show_their_columns(rankwell: Rankwell, products: None) -> None:
    searched = rankwell("search", "index", "honey tea", "--json", "--filter", "year >= 2015 and lang = 'de'")
    assert docids(searched) == ["9"]
    assert json.loads(searched.out)["results"][0]["metadata"] == {"year": 2020, "lang": "de"}
    shown = rankwell("search", "index", "honey tea", "--filter", "lang = 'en'")
    assert "year: 2016  lang: en" in shown.out
    written = rankwell("search", "index", "honey tea", "--filter", "lang = 'en'", "--out", "filtered.run")
    assert written.code == 0
    assert [line.split()[2] for line in Path("filtered.run").read_text().splitlines()] == ["8"]


def test_queries_have_a_syntax_on_request(rankwell: Rankwell, products: None) -> None:
    assert set(docids(rankwell("search", "index", "honey -wax", "--json"))) == {"007", "8"}
    assert docids(rankwell("search", "index", "honey -wax", "--json", "--syntax")) == ["007"]
    assert docids(rankwell("search", "index", "--json", "--syntax", "--", "-wax honey")) == ["007"]
    wrong = rankwell("search", "index", 'honey "tea', "--syntax")
    assert (wrong.code, wrong.err) == (2, "rankwell: query, character 7: a quotation mark that is not closed\n")


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ("lang 'en'", "rankwell: filter, character 6: expected a comparison such as = or >=, found"),
        ("price > 3", "rankwell: filter: no document in the index index has a field 'price' (fields: lang, year)"),
    ],
)
def test_a_wrong_filter_is_one_line(rankwell: Rankwell, products: None, filter: str, message: str) -> None:
    searched = rankwell("search", "index", "honey", "--filter", filter)
    assert (searched.code, searched.out) == (2, "")
    assert searched.err.startswith(message)
    assert searched.err.count("\n") == 1


def test_what_is_neither_index_nor_system_is_refused(rankwell: Rankwell) -> None:
    for verb in (("delete", "nowhere", "id"), ("merge", "nowhere")):
        refused = rankwell(*verb)
        assert refused.code == 2
        assert "nowhere: no such folder; make an index" in refused.err


def test_an_update_reads_the_columns_that_the_index_was_built_with(rankwell: Rankwell) -> None:
    Path("a.csv").write_text("nr,label,about,brand\n1x,Rain jacket,Stays dry,NordPeak\n2x,Pan,Fries,Casa\n")
    Path("b.csv").write_text("nr,label,about,brand\n2x,Steel pan,Fries well,Casanova\n")
    named = ("--id", "nr", "--title", "label", "--text", "about", "--text", "brand")
    assert rankwell("index", "a.csv", "--out", "index", *named).code == 0
    assert rankwell("index", "b.csv", "--out", "index", "--update").code == 0
    index = Index.open("index")
    assert (index.search("casanova").docids, index.read("2x")[0].title) == (("2x",), "Steel pan")
    Index.build("b.csv", "index", update=True)
    index.reopened().update({"3x": "Plain text"})
    assert len(Index.open("index")) == 3
    index = Index.open("index")
    index.delete("3x")
    index.merge()
    Path("c.csv").write_text("sku,description\n2x,Other\n")
    refused = rankwell("index", "c.csv", "--out", "index", "--update")
    assert (refused.code, "no field 'nr' for the id; found 'sku', 'description'" in refused.err) == (2, True)
    assert rankwell("index", "c.csv", "--out", "index", "--update", "--id", "sku", "--text", "description").code == 0


def test_a_system_is_updated_as_an_index_is(rankwell: Rankwell, products: None) -> None:
    System.of_index("index").save("system")
    Path("more.jsonl").write_text('{"id": "8", "text": "milk"}\n{"id": "10", "text": "honey"}\n')
    refused = rankwell("index", "more.jsonl", "--out", "system")
    assert (refused.code, refused.err) == (2, "rankwell: system is a system; --update adds documents to it\n")
    updated = rankwell("index", "more.jsonl", "--out", "system", "--update")
    assert updated.out.startswith("system/index: 4 documents")
    assert docids(rankwell("search", "system", "honey", "--json")) == ["10", "007"]
    assert rankwell("delete", "system", "10").out.startswith("system: 1 deleted, 3 documents left")
    wrong = rankwell("index", "more.jsonl", "--out", "system", "--update", "--language", "de")
    assert "--language does not go with a system" in wrong.err
