"""Training examples: MS MARCO triples and ``{"query", "pos", "neg"}`` jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.corpus.formats.lines import (
    FilePath,
    check_id,
    json_kind,
    json_line,
    open_lines,
    parse_object,
    take,
    take_text,
    writable_cell,
    write_lines,
    wrong_columns,
)

TRIPLE = ("query", "positive", "negative")


@dataclass(frozen=True, slots=True)
class Triple:
    """A query, a relevant and a non-relevant document: three texts, or three ids."""

    query: str
    positive: str
    negative: str


@dataclass(frozen=True, slots=True)
class Example:
    """A query's text with the texts of its relevant and non-relevant documents."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


def read_triples(path: FilePath, *, ids: bool = False) -> Iterator[Triple]:
    """Stream ``query<TAB>positive<TAB>negative``; ``ids`` says that these are ids, not texts, and checks them."""
    _, lines = open_lines(path, "triples")
    return _triples(path, lines, ids)


def _triples(path: FilePath, lines: Iterable[tuple[int, str]], ids: bool) -> Iterator[Triple]:
    for number, line in lines:
        if not line:
            continue
        cells = line.split("\t")
        if len(cells) != len(TRIPLE):
            raise wrong_columns(path, number, line, TRIPLE, "\t")
        if ids:
            for name, cell in zip(TRIPLE, cells, strict=True):
                check_id(path, number, f"{name}'s id", cell)
        yield Triple(*cells)


def write_triples(triples: Iterable[Triple], path: FilePath) -> None:
    """Write ``query<TAB>positive<TAB>negative``."""
    write_lines(path, "triples", (_triple_line(path, triple) for triple in triples))


def _triple_line(path: FilePath, triple: Triple) -> str:
    cells = [writable_cell(path, name, getattr(triple, name)) for name in TRIPLE]
    if cells[0].startswith("\ufeff"):
        raise RankwellError(f"cannot write {path}: the query {excerpt(cells[0])} opens with a byte-order mark")
    return "\t".join(cells) + "\n"


def read_examples(path: FilePath) -> Iterator[Example]:
    """Stream ``{"query": text, "pos": [text, …], "neg": [text, …]}``; at least one positive, perhaps no negative."""
    _, lines = open_lines(path, "training examples")
    return _examples(path, lines)


def _examples(path: FilePath, lines: Iterable[tuple[int, str]]) -> Iterator[Example]:
    for number, line in lines:
        if line.strip():
            record = parse_object(path, number, line)
            query = take_text(path, number, record, ("query",))
            positives, negatives = _texts(path, number, record, "pos"), _texts(path, number, record, "neg")
            if not positives:
                raise InputError(path, number, "key 'pos': found an empty list, expected at least one text")
            yield Example(query, positives, negatives)


def _texts(path: FilePath, number: int, record: dict[str, Any], key: str) -> tuple[str, ...]:
    texts = take(path, number, record, (key,))
    if not isinstance(texts, list):
        raise InputError(path, number, f"key {key!r}: expected a list of strings, found {json_kind(texts)}")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(path, number, f"key {key!r}: expected a list of strings, found {json_kind(text)} in it")
    return tuple(texts)


def write_examples(examples: Iterable[Example], path: FilePath) -> None:
    """Write one JSON object a line."""
    write_lines(path, "training examples", (_example_line(path, example) for example in examples))


def _example_line(path: FilePath, example: Example) -> str:
    if not example.positives:
        raise RankwellError(f"cannot write {path}: the query {excerpt(example.query)} has no positive")
    return json_line(path, {"query": example.query, "pos": example.positives, "neg": example.negatives})
