"""Texts: queries, query types and documents, from tables of any format.

Documents are streamed. Repeated document ids are found by the index builder, which has all ids in memory anyway. The
lines of an id are looked up only then, so that reading need not store them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.corpus.formats.fields import DOCUMENT_ID_KEYS, DOCUMENTS, QUERIES, Columns, choose_fields
from rankwell.corpus.formats.lines import (
    FilePath,
    Lines,
    check_id,
    json_line,
    names_jsonl,
    open_lines,
    read_objects,
    take,
    take_id,
    take_text,
    take_texts,
    writable_cell,
    writable_id,
    write_lines,
    wrong_columns,
)
from rankwell.corpus.formats.tables import open_table
from rankwell.corpus.records import Document, Query, TermWeights


def read_queries(path: FilePath, columns: Columns | None = None) -> list[Query]:
    """Read queries from a file of any format that :mod:`~rankwell.corpus.formats.tables` knows.

    ``columns`` names the fields of ids and texts; by default they are recognised.
    """
    table = open_table(path, QUERIES.layout(columns))
    fields = choose_fields(table, QUERIES, columns)
    pairs = ((number, qid, text) for number, qid, text, *_ in fields.records(table))
    return [Query(qid, text) for qid, text in _unique(path, pairs).items()]


def read_types(path: FilePath) -> dict[str, str]:
    """Read the kind of answer each query asks for, ``qid<TAB>label``."""
    _, lines = open_lines(path, "query types")
    return _unique(path, _labels(path, lines))


def _labels(path: FilePath, lines: Lines) -> Iterator[tuple[int, str, str]]:
    for number, line in lines:
        if not line:
            continue
        qid, tab, label = line.partition("\t")
        if not tab or "\t" in label or not label:
            raise wrong_columns(path, number, line, line.split("\t"), ("query id", "label"))
        check_id(path, number, "query id", qid)
        yield number, qid, label


def _unique(path: FilePath, pairs: Iterable[tuple[int, str, str]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    seen: dict[str, int] = {}
    for number, qid, text in pairs:
        if qid in seen:
            raise InputError(path, number, f"query id {excerpt(qid)} was already on line {seen[qid]}, expected once")
        texts[qid], seen[qid] = text, number
    return texts


class DocumentFile(Iterator[Document]):
    """The documents of one file, streamed once."""

    def __init__(self, path: FilePath, columns: Columns | None = None):
        self.path = path
        self._layout = DOCUMENTS.layout(columns)
        table = open_table(path, self._layout)
        self._fields = choose_fields(table, DOCUMENTS, columns)
        self.numbered = table.stated and not self._fields.ids  # though its fields have names
        self._documents = (Document(*record[1:]) for record in self._fields.records(table))

    def __iter__(self) -> Iterator[Document]:
        return self._documents  # the generator itself, so that iterating adds no cost

    def __next__(self) -> Document:
        return next(self._documents)

    def lines_of(self, docid: str) -> Iterator[int]:
        """The numbers of the lines with this id. Reads the file again; empty for a pipe."""
        if Path(self.path).is_file():
            table = open_table(self.path, self._layout)
            yield from (number for number, known, *_ in self._fields.records(table) if known == docid)


def blame_line(documents: Iterable[Document], docid: str, problem: str, *, time: int = 1) -> RankwellError:
    """An error at the line where an id occurs for the first or second ``time``, if the documents come from a file."""
    if not isinstance(documents, DocumentFile):
        return RankwellError(problem)
    lines = list(islice(documents.lines_of(docid), time))
    before = f" (first on line {lines[0]})" if len(lines) == 2 else ""
    return InputError(documents.path, lines[-1] if len(lines) == time else None, problem + before)


def read_documents(path: FilePath, columns: Columns | None = None) -> DocumentFile:
    """Stream documents from a file of any format that :mod:`~rankwell.corpus.formats.tables` knows.

    ``columns`` names the fields of ids, texts and titles; by default they are recognised.
    """
    return DocumentFile(path, columns)


def write_queries(queries: Iterable[Query], path: FilePath) -> None:
    """Write BEIR jsonl if the name ends in ``.jsonl`` or ``.jsonl.gz``, else tsv. Types are not written."""
    pairs = ((query.qid, query.text) for query in queries)
    if names_jsonl(path):
        write_lines(path, "queries", (json_line(path, _beir(path, "query id", *pair)) for pair in pairs))
    else:
        write_lines(path, "queries", (_tsv_line(path, "query id", *pair) for pair in pairs))


def write_types(types: Mapping[str, str], path: FilePath) -> None:
    """Write ``qid<TAB>label``."""
    for qid, label in types.items():
        if not label:
            raise RankwellError(f"cannot write {path}: the label of query {excerpt(qid)} is empty")
    write_lines(path, "query types", (_tsv_line(path, "query id", *pair) for pair in types.items()))


def write_documents(documents: Iterable[Document], path: FilePath) -> None:
    """Write BEIR jsonl if the name ends in ``.jsonl`` or ``.jsonl.gz``, else tsv, which has no titles."""
    line = _document_object if names_jsonl(path) else _passage
    write_lines(path, "documents", (line(path, document) for document in documents))


def _document_object(path: FilePath, document: Document) -> str:
    return json_line(path, {**_beir(path, "document id", document.docid, document.text), "title": document.title})


def _passage(path: FilePath, document: Document) -> str:
    if document.title:
        raise RankwellError(
            f"cannot write {path}: document {excerpt(document.docid)} has a title, which a tsv file cannot hold; "
            "use a .jsonl file"
        )
    return _tsv_line(path, "document id", document.docid, document.text)


def _beir(path: FilePath, name: str, identifier: str, text: str) -> dict[str, str]:
    return {"_id": writable_id(path, name, identifier), "text": text}


def _tsv_line(path: FilePath, name: str, identifier: str, text: str) -> str:
    return f"{writable_id(path, name, identifier)}\t{writable_cell(path, 'text', text)}\n"


# Expansions


@dataclass(frozen=True, slots=True)
class Expansion:
    """Queries that a document probably answers."""

    docid: str
    queries: tuple[str, ...]


def read_expansions(path: FilePath) -> Iterator[Expansion]:
    """Stream documents' expansions."""
    for number, record in read_objects(path, "expansions"):
        docid = take_id(path, number, record, DOCUMENT_ID_KEYS, "document id")
        yield Expansion(docid, take_texts(path, number, record, "queries"))


def expansion_line(path: FilePath, expansion: Expansion) -> str:
    """An expansion as a line of the file."""
    record = {"docid": writable_id(path, "document id", expansion.docid), "queries": list(expansion.queries)}
    return json_line(path, record)


# Term weights


VECTOR_KEYS = ("vector", "weights")


def read_weights(path: FilePath) -> Iterator[TermWeights]:
    """Stream documents' term weights. A weight is any finite number; 0 and negative weights count as absent."""
    for number, record in read_objects(path, "term weights"):
        docid = take_id(path, number, record, DOCUMENT_ID_KEYS, "document id")
        vector = take(path, number, record, VECTOR_KEYS)
        if not isinstance(vector, dict):
            raise InputError(
                path, number, f"expected an object of words and weights, found {excerpt(json.dumps(vector))}"
            )
        for word, weight in vector.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not _finite(weight):
                problem = f"the weight of {excerpt(word)} is {excerpt(json.dumps(weight))}, expected a number"
                raise InputError(path, number, problem)
        yield TermWeights(docid, vector)


def _finite(weight: float) -> bool:
    """Like math.isfinite, which fails on the whole numbers of over 308 digits that JSON allows."""
    return abs(weight) <= sys.float_info.max


# Training examples


TRIPLE = ("query", "positive", "negative")


@dataclass(frozen=True, slots=True)
class Example:
    """A query with its relevant and non-relevant documents: texts, or in triples perhaps ids."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


def read_triples(path: FilePath, *, ids: bool = False) -> Iterator[Example]:
    """Stream ``query<TAB>positive<TAB>negative``, one example per line. With ``ids``, the columns must be ids."""
    _, lines = open_lines(path, "triples")
    return (_triple(path, number, line, ids) for number, line in lines if line)


def _triple(path: FilePath, number: int, line: str, ids: bool) -> Example:
    cells = line.split("\t")
    if len(cells) != len(TRIPLE):
        raise wrong_columns(path, number, line, cells, TRIPLE)
    if ids:
        for name, cell in zip(TRIPLE, cells, strict=True):
            check_id(path, number, f"{name}'s id", cell)
    return Example(cells[0], (cells[1],), (cells[2],))


def read_examples(path: FilePath) -> Iterator[Example]:
    """Stream ``{"query": text, "pos": [text, …], "neg": [text, …]}``. Only ``neg`` may be empty."""
    return (_example(path, number, record) for number, record in read_objects(path, "training examples"))


def _example(path: FilePath, number: int, record: Mapping[str, Any]) -> Example:
    query = take_text(path, number, record, ("query",))
    positives, negatives = (take_texts(path, number, record, key) for key in ("pos", "neg"))
    if not positives:
        raise InputError(path, number, "key 'pos': found an empty list, expected at least one text")
    return Example(query, positives, negatives)
