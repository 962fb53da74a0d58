"""Filters: the language, the dicts, and what they select; metadata on disk."""

from __future__ import annotations

import datetime
import json
import time
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.core.errors import InputError, Notice, RankwellError
from rankwell.corpus.filters import parse_filter
from rankwell.corpus.records import Document
from rankwell.corpus.sources import resolve_documents
from rankwell.corpus.store import DocumentStore

ROWS: dict[str, dict[str, Any]] = {
    "a": {"year": 2015, "lang": "de", "tags": ["x", "y"], "price": 9.5, "free": False, "on": "2024-05-01"},
    "b": {"year": 2020, "lang": "fr", "tags": ["x"], "free": True, "on": "2023-12-31"},
    "c": {"year": 1999.5, "lang": "it's", "and": 1, "two words": "z"},
    "d": {"year": "unknown", "tags": "y", "on": "2024-05-01T10:00:00"},
    "e": {},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DocumentStore:
    documents = [Document(docid, "text", metadata=row) for docid, row in ROWS.items()]
    return DocumentStore.build(documents, tmp_path_factory.mktemp("filters") / "store")


def selected(store: DocumentStore, filter: Any) -> str:
    mask = store.view(None, store.documents.resolve_filter(filter)).allowed
    assert mask is not None
    return "".join(store.docids.strings(np.flatnonzero(mask)))


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("year >= 2015", "ab"),
        ("year > 2015 or lang = 'de'", "ab"),
        ('year >= 2015 and lang == "de"', "a"),
        ("year = 1999.5", "c"),
        ("year < 2e3", "c"),
        ("year = 'unknown'", "d"),
        ("year != 2015", "bcde"),
        ("not year >= 2015 AND NOT lang = 'de'", "cde"),
        ("lang in ('de', 'fr', 7)", "ab"),
        ("lang not in ('de', 'fr')", "cde"),
        ("lang = 'it''s' or lang = 'nowhere'", "c"),
        (r"lang = 'it\'s'", "c"),
        ("lang > 'de'", "bc"),
        ("tags = 'y'", "ad"),
        ("tags in ('x') and (tags = 'y' or free = true)", "ab"),
        ("free = false", "a"),
        ("free <> true", "acde"),
        ("on >= '2024-05-01'", "ad"),
        ("`and` = 1 and `two words` = 'z'", "c"),
        ("price <= 9.5 and price > -1", "a"),
        ({"year": {"$gte": 2015}}, "ab"),
        ({"year": {"$gte": 2015, "$lt": 2020}}, "a"),
        ({"lang": "de", "tags": "y"}, "a"),
        ({"$or": [{"lang": "de"}, {"free": True}]}, "ab"),
        ({"$and": [{"lang": {"$in": ["de", "fr"]}}, {"$not": {"year": 2020}}]}, "a"),
        ({"lang": {"$nin": ["de", "fr"]}}, "cde"),
        ({"year": {"$ne": 2015}}, "bcde"),
        ("id = 'b'", "b"),
        ("id in ('e', 'a', 'nobody') and not id = 'e'", "a"),
        ("id > 'a' or id = 7", ""),
    ],
)
def test_what_filters_select(store: DocumentStore, filter: Any, expected: str) -> None:
    assert selected(store, filter) == expected


def test_a_number_may_have_any_length(store: DocumentStore) -> None:
    zeros = "0" * 5000
    assert selected(store, f"year = {zeros}2015") == selected(store, "year = 2015") == "a"
    assert selected(store, f"year < 9{zeros}") == selected(store, "year > 0")
    assert selected(store, f"year > 9{zeros}") == ""


@pytest.mark.parametrize("end", ["", "x", ".", "e", "e9x", " 9"])
def test_many_digits_are_read_or_refused_in_a_moment(end: str) -> None:
    begin = time.process_time()
    with suppress(RankwellError):
        parse_filter(f"year = {'9' * 30_000}{end}")
    assert time.process_time() - begin < 1  # nine seconds once


def test_numbers_texts_and_booleans_are_different_values(tmp_path: Path) -> None:
    rows = [1, "1", True, 0, False, "true"]
    documents = [Document(str(n), "", metadata={"v": value}) for n, value in enumerate(rows)]
    store = DocumentStore.build(documents, tmp_path / "store")
    assert [selected(store, {"v": value}) for value in rows] == list("012345")


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ("", "filter, character 1: expected a field, found the end"),
        (
            "year >=",
            "filter, character 8: expected a number, true, false, or a text in quotes, as in 'en', found",
        ),
        (
            "year >= and",
            "filter, character 9: expected a number, true, false, or a text in quotes, as in 'en'",
        ),
        ("year 2015", "filter, character 6: expected a comparison such as = or >=, found '2015'"),
        ("year = 2015 lang = 'de'", "filter, character 13: expected and, or, or the end, found 'lang'"),
        ("(year = 2015", r"filter, character 13: expected and, or, or \), found the end"),
        ("lang = 'de", "filter, character 8: expected a number, true, false, or a text in quotes, as in 'en', found"),
        ("lang in 'de'", r"filter, character 9: expected \( and a list of values, found"),
        ("lang in ('de' 'fr')", r"filter, character 15: expected , or \), found"),
        ("lang not 'de'", "filter, character 10: expected in, found"),
        ("on >= 2024-05-01", "filter, character 11: expected .*, found '-05'; put dates and texts in quotes"),
        ("year = 1 && year = 2", "filter, character 10: expected and, or, or the end, found '&'; write and"),
        ("lang = 2015x", "filter, character 8: expected a number"),
        ("yaer = 2015", r"filter: no document .* has a field 'yaer' \(fields: and, free, lang, on, price, tags, two"),
        ("(" * 99 + "year = 1" + ")" * 99, "filter: nested more than 50 deep"),
        ({}, "filter: expected a dict of fields and values, found"),
        ({"year": {"$like": 1}}, r"filter.year: expected one of \$eq, .*, found"),
        ({"$xor": []}, r"filter.\$xor: expected a field, or \$and, \$or, \$not"),
        ({"$or": {"year": 1}}, r"filter.\$or: expected a list of filters, found"),
        ({"year": {"$in": 3}}, r"filter.year.\$in: expected a list of values, found"),
        ({"year": None}, r"filter.year.\$eq: expected a number, a text, true or false, found"),
        (7, "filter: expected a text or a dict, found"),
        ({"year": {"$in": list(range(1001))}}, "filter: 1,001 comparisons; the limit is 1,000"),
        (" or ".join(["year = 1"] * 1001), "filter: 1,001 comparisons; the limit is 1,000"),
    ],
)
def test_errors_say_where_a_filter_is_wrong(store: DocumentStore, filter: Any, message: str) -> None:
    with pytest.raises(RankwellError, match=message) as error:
        selected(store, filter)
    assert "\n" not in str(error.value)


@settings(deadline=None)
@given(st.text(alphabet="year lang='de\"`()<>!,.5-andornti\\\n", max_size=40))
def test_any_text_is_a_filter_or_an_error_of_one_line(text: str) -> None:
    message = ""
    try:
        parse_filter(text)
    except RankwellError as error:
        message = str(error)
    assert "\n" not in message


def test_metadata_comes_back_as_it_was(store: DocumentStore) -> None:
    assert [document.metadata for document in store] == list(ROWS.values())
    assert store.read(["c", "a"])[1].metadata == ROWS["a"]


def test_values_of_other_types_are_converted_or_left_out(tmp_path: Path) -> None:
    row = {
        "date": datetime.date(2024, 5, 1),
        "decimal": Decimal("1.5"),
        "large": 2**60 + 1,
        "none": None,
        "nan": float("nan"),
        "empty": "",
        "object": {"a": 1},
        "array": np.array([1, 2]),
        "long": "x" * 5000,
    }
    with pytest.warns(Notice, match="values of the field 'object', such as .*, are left out"):
        store = DocumentStore.build([Document("a", "", metadata=row)], tmp_path / "store")
    kept = {"date": "2024-05-01", "decimal": 1.5, "large": str(2**60 + 1), "array": [1, 2]}
    assert store.read(["a"])[0].metadata == kept


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.tsv"])
@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_columns_of_files_are_metadata(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    rows = [{"id": "007", "title": "T", "text": "bees", "year": 2015, "zip": "01234", "lang": "de"}]
    if name.endswith("jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name.endswith("parquet"):
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        mark = "\t" if name.endswith("tsv") else ","
        path.write_text("\n".join(mark.join(map(str, line)) for line in (rows[0], rows[0].values())) + "\n")
    metadata = {"year": 2015, "zip": "01234", "lang": "de"}
    assert list(resolve_documents(str(path))) == [Document("007", "bees", "T", metadata)]
    assert [d.metadata for d in resolve_documents(str(path), passages=5)] == [metadata]


def test_a_damaged_column_is_an_error_before_it_selects(tmp_path: Path) -> None:
    documents = [Document(str(n), "", metadata={"n": n, "lang": "de"}) for n in range(9)]
    DocumentStore.build(documents, tmp_path / "store")
    for path in sorted((tmp_path / "store" / "fields").glob("*.n*")):
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(InputError, match="damaged"):
            selected(DocumentStore.open(tmp_path / "store"), "n > 3 or lang = 'de'")
        path.write_bytes(good)
