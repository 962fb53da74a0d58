"""Training examples: MS MARCO triples and ``{"query", "pos", "neg"}`` jsonl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rankwell.core.errors import InputError
from rankwell.corpus.formats.lines import (
    FilePath,
    check_id,
    open_lines,
    read_objects,
    take_text,
    take_texts,
    wrong_columns,
)

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
