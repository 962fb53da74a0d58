"""What is written is read back, whatever it is; what is not a file of the format is an InputError, whatever it is."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankwell.core.errors import InputError, MissingExtraError
from rankwell.corpus.formats import (
    read_documents,
    read_qrels,
    read_queries,
    read_run,
    read_types,
    write_documents,
    write_qrels,
    write_queries,
    write_run,
    write_types,
)
from rankwell.corpus.formats.texts import read_examples, read_triples
from rankwell.corpus.records import Document, Qrels, Query, Run

# The separators that str.splitlines knows and files do not must survive, so they come up often.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r\0") | st.sampled_from(
    "\x85\u2028\x0b\x1c"
)
texts = st.text(characters, max_size=12)
any_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
trec_ids = st.text(characters, min_size=1, max_size=6).filter(
    lambda text: text.split() == [text] and text[0] not in "#\ufeff"
)
ids = trec_ids | trec_ids.map(lambda text: "#" + text)
names = st.sampled_from(["file", "file.gz"])
jsonl_names = st.sampled_from(["file.jsonl", "file.jsonl.gz"])
scores = st.floats(width=32, allow_nan=False, allow_infinity=False)


def table(values: st.SearchStrategy) -> st.SearchStrategy:  # type: ignore[type-arg]
    return st.dictionaries(trec_ids, st.dictionaries(trec_ids, values, min_size=1, max_size=4), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("properties")


@given(table(scores), trec_ids, names)
def test_runs(folder: Path, rankings: dict[str, dict[str, float]], run_name: str, name: str) -> None:
    run = Run.from_scores(rankings, name=run_name)
    write_run(run, folder / name)
    again = read_run(folder / name)
    assert (again.name, dict(again)) == (run.name, dict(run))
    assert list(again) == list(run)


@given(table(scores), names)
def test_msmarco_runs_keep_the_order(folder: Path, rankings: dict[str, dict[str, float]], name: str) -> None:
    run = Run.from_scores(rankings)
    write_run(run, folder / name, format="msmarco")
    again = read_run(folder / name)
    assert {qid: ranking.docids for qid, ranking in again.items()} == {qid: run[qid].docids for qid in run}


@given(table(st.integers(-5, 2**63 - 1)), names, st.sampled_from(["trec", "beir"]))
def test_qrels(folder: Path, grades: dict[str, dict[str, int]], name: str, style: str) -> None:
    write_qrels(Qrels(grades), folder / name, format=style)  # type: ignore[arg-type]
    assert dict(read_qrels(folder / name)) == grades


@given(st.dictionaries(trec_ids, texts, min_size=1, max_size=4), names)
@example({"[": ""}, "file")
@example({"[": '"'}, "file")
def test_queries_as_tsv(folder: Path, pairs: dict[str, str], name: str) -> None:
    queries = [Query(qid, text) for qid, text in pairs.items()]
    write_queries(queries, folder / name)
    assert read_queries(folder / name) == queries


@given(st.dictionaries(trec_ids, any_texts, min_size=1, max_size=4), jsonl_names)
def test_queries_as_jsonl(folder: Path, pairs: dict[str, str], name: str) -> None:
    queries = [Query(qid, text) for qid, text in pairs.items()]
    write_queries(queries, folder / name)
    assert read_queries(folder / name) == queries


@given(st.dictionaries(trec_ids, texts.filter(bool), min_size=1, max_size=4), names)
def test_types(folder: Path, types: dict[str, str], name: str) -> None:
    write_types(types, folder / name)
    assert read_types(folder / name) == types


@given(st.lists(st.builds(Document, ids, texts), min_size=1, max_size=4), names)
def test_documents_as_tsv(folder: Path, documents: list[Document], name: str) -> None:
    write_documents(documents, folder / name)
    assert list(read_documents(folder / name)) == documents


@given(st.lists(st.builds(Document, ids, any_texts, any_texts), min_size=1, max_size=4), jsonl_names)
def test_documents_as_jsonl(folder: Path, documents: list[Document], name: str) -> None:
    write_documents(documents, folder / name)
    assert list(read_documents(folder / name)) == documents


READERS: list[Callable[[Path], object]] = [
    read_run,
    read_qrels,
    read_queries,
    read_types,
    lambda path: list(read_documents(path)),
    lambda path: list(read_triples(path, ids=True)),
    lambda path: list(read_examples(path)),
]

# Pieces that lead far into the parsers, between arbitrary bytes that should stop them.
pieces = st.sampled_from(
    [
        *(b"q1", b"0", b"Q0", b"1", b"-1", b"nan", b"1e39", b"9" * 5000),
        *(b" ", b"\t", b"\n", b"\r\n", b"#", b"\xef\xbb\xbf", b"{", b"}"),
        *(b"q Q0 d 1 2 t\n", b"q 0 d 1\n", b"query-id\tcorpus-id\tscore\n"),
        *(b'{"_id": "1", "text": "x"}', b'{"_id": [], "text": null}', b'{"query": "x", "pos": ["x"], "neg": [1]}'),
        *(b"[" * 2000, b'{"a":' * 2000, b'{"_id": "1", "text": ' + b"[" * 900 + b"]" * 900 + b"}", b'"\\ud800"'),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(pieces | st.binary(max_size=5), max_size=14).map(b"".join), st.booleans())
def test_arbitrary_bytes_parse_or_are_an_input_error(folder: Path, content: bytes, zipped: bool) -> None:
    path = folder / "arbitrary"
    path.write_bytes(gzip.compress(content, 1) if zipped else content)
    for read in READERS:
        with suppress(InputError, MissingExtraError):
            read(path)
