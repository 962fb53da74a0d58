"""Expansions: jsonl of ``{"docid": docid, "queries": [query, …]}``, the queries a model wrote for each document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rankwell.corpus.formats.fields import DOCUMENT_ID_KEYS
from rankwell.corpus.formats.lines import (
    FilePath,
    json_line,
    read_objects,
    take_id,
    take_texts,
    writable_id,
    write_lines,
)


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


def write_expansions(expansions: Iterable[Expansion], path: FilePath) -> None:
    """Write one JSON object per document."""
    write_lines(path, "expansions", (expansion_line(path, expansion) for expansion in expansions))
