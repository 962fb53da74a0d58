"""What all formats share: the first line, checks of ids and columns, and refusing what would not survive a round trip.

An id is one or more characters, none of them whitespace, in every format, and a query id does not start with ``#``: an
id that TREC files cannot hold would only fail hours later, when the run is written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.core.files import atomic_text, read_lines

FilePath = str | os.PathLike[str]
Lines = Iterator[tuple[int, str]]
Value = TypeVar("Value")

# U+FEFF opening a file is read as a byte-order mark; half a surrogate pair has no UTF-8; NUL marks a binary file.
BYTE_ORDER_MARK = "\ufeff"
_UNWRITABLE_ID = re.compile(rf"[\s\0\ud800-\udfff]|^{BYTE_ORDER_MARK}")
_SUSPECT_IDS = re.compile(rf"[\s\0\ud800-\udfff{BYTE_ORDER_MARK}]")
_UNWRITABLE_CELL = re.compile(r"[\t\n\r\0\ud800-\udfff]")
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")


def open_lines(path: FilePath, kind: str, *, comments: bool = False) -> tuple[str, Lines]:
    """The first non-empty line of ``path``, and all numbered lines from that one on.

    ``comments``: lines that open with ``#`` hold nothing, as in trec_eval.
    """
    lines = read_lines(path)
    for number, line in lines:
        content = line.lstrip() if comments else line
        if content and not (comments and content.startswith("#")):
            return line, chain([(number, line)], lines)
    raise InputError(path, None, f"is empty, expected {kind}")


def is_jsonl(line: str) -> bool:
    """Whether ``line`` is the first of a jsonl file. A tsv line always has a tab; JSON as tools write it never does."""
    return line.lstrip().startswith("{") and "\t" not in line


def wrong_columns(
    path: FilePath, number: int, line: str, cells: Sequence[str], expected: Sequence[str], hint: str = ""
) -> InputError:
    """The error for a line whose ``cells`` are not the ``expected`` columns."""
    apart = line.split("\t")
    if len(apart) == len(expected) and "" in apart:
        return InputError(path, number, f"the {expected[apart.index('')]} is empty: {excerpt(line)}")
    count = f"found {len(cells)} column{'s' * (len(cells) != 1)}, expected {len(expected)}"
    return InputError(path, number, f"{count} ({', '.join(expected)}): {excerpt(line)}{hint}")


def check_id(path: FilePath, number: int | None, name: str, value: str) -> None:
    """Raise unless ``value`` is an id; ``name`` says which (query id, document id)."""
    if not value:
        raise InputError(path, number, f"the {name} is empty")
    if value.split() != [value]:
        raise InputError(path, number, f"the {name} {excerpt(value)} holds whitespace, expected none")
    if bad := _UNWRITABLE_ID.search(value):
        raise InputError(path, number, f"the {name} {excerpt(value)} holds {excerpt(bad[0])}, which is not text")
    if value[0] == "#" and name.startswith("query"):
        raise InputError(path, number, f"the {name} {excerpt(value)} starts with '#', which marks a comment in a run")


def whole_number(text: str) -> int:
    """``int(text)``, but :class:`ValueError` for forms that only Python reads as a whole number (1_000)."""
    if not text.isascii() or "_" in text:
        raise ValueError(text)
    return int(text)


def by_query(path: FilePath, rows: Iterable[tuple[int, str, str, Value]]) -> dict[str, dict[str, Value]]:
    """Gather ``(line, qid, docid, value)`` rows, in any order, as ``{qid: {docid: value}}``; no pair may repeat."""
    table: dict[str, dict[str, Value]] = {}
    current, documents = None, {}
    for number, qid, docid, value in rows:
        if qid != current:
            current, documents = qid, table.setdefault(qid, {})
        if BYTE_ORDER_MARK in (qid[0], docid[0]):
            check_id(path, number, "query id", qid)
            check_id(path, number, "document id", docid)
        if docid in documents:
            raise InputError(
                path, number, f"document {excerpt(docid)} is listed again for query {excerpt(qid)}, expected once"
            )
        documents[docid] = value
    return table


def decode_json(path: FilePath, number: int, shown: str, decode: Callable[[], Value]) -> Value:
    """What ``decode`` makes of the JSON that ``shown`` begins."""
    try:
        return decode()
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise InputError(path, number, f"not JSON ({reason}): {excerpt(shown)}") from None


def may_hold_half_pairs(text: str) -> bool:
    """Whether JSON may have strings that no UTF-8 file could hold afterwards: it can escape half a surrogate pair."""
    return _ESCAPED_HALF.search(text) is not None


def refuse_half_pairs(path: FilePath, number: int, value: Any) -> None:
    """Raise if a value of JSON holds half a surrogate pair."""
    text = decode_json(path, number, "", lambda: json.dumps(value, ensure_ascii=False))
    if broken := _HALF_PAIR.search(text):
        raise InputError(path, number, f"holds half a surrogate pair, {excerpt(broken[0])}, which is not text")


def parse_object(path: FilePath, number: int, line: str) -> dict[str, Any]:
    """The JSON object in ``line``."""
    record = decode_json(path, number, line, lambda: json.loads(line))
    if not isinstance(record, dict):
        raise InputError(path, number, f"expected a JSON object, found {excerpt(line)}")
    if may_hold_half_pairs(line):
        refuse_half_pairs(path, number, record)
    return record


def read_objects(path: FilePath, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The line number and the JSON object of each line that is not blank. ``kind`` says what the objects are."""
    _, lines = open_lines(path, kind)
    return ((number, parse_object(path, number, line)) for number, line in lines if line.strip())


def json_kind(value: object) -> str:
    """The JSON name of the type of ``value``."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def take(path: FilePath, number: int | None, record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """The value of the first of ``keys`` that ``record`` has."""
    for key in keys:
        if key in record:
            return record[key]
    raise InputError(
        path, number, f"no key {' or '.join(map(repr, keys))}; found {', '.join(map(repr, record)) or 'none'}"
    )


def take_text(path: FilePath, number: int | None, record: Mapping[str, Any], keys: Sequence[str]) -> str:
    """:func:`take` for a string."""
    value = take(path, number, record, keys)
    if not isinstance(value, str):
        key = next(key for key in keys if key in record)
        raise InputError(path, number, f"key {key!r}: expected a string, found {json_kind(value)}")
    return value


def take_texts(path: FilePath, number: int, record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """:func:`take` for a list of strings."""
    texts = take(path, number, record, (key,))
    if not isinstance(texts, list):
        raise InputError(path, number, f"key {key!r}: expected a list of strings, found {json_kind(texts)}")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(path, number, f"key {key!r}: expected a list of strings, found {json_kind(text)} in it")
    return tuple(texts)


def take_id(path: FilePath, number: int | None, record: Mapping[str, Any], keys: Sequence[str], name: str) -> str:
    """:func:`take` for an id; a whole number counts as one."""
    value = take(path, number, record, keys)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InputError(path, number, f"the {name} is {json_kind(value)}, expected a string")
    check_id(path, number, name, value)
    return value


def write_lines(path: FilePath, kind: str, lines: Iterable[str]) -> None:
    """Write ``lines`` whole or not at all. Raises if there are none, because an empty file could not be read back."""
    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        raise RankwellError(f"cannot write {path}: there are no {kind}")
    with atomic_text(path) as file:
        file.write(first)
        file.writelines(lines)


def names_jsonl(path: FilePath) -> bool:
    """Whether a file of this name is written as jsonl."""
    return os.fspath(path).removesuffix(".gz").endswith(".jsonl")


def writable_id(path: FilePath, name: str, value: str) -> str:
    """``value``; raises unless it is an id that can be read back."""
    if not value or _UNWRITABLE_ID.search(value):
        raise RankwellError(
            f"cannot write {path}: the {name} is {excerpt(value)}, expected characters other than whitespace"
        )
    if value[0] == "#" and name == "query id":
        raise RankwellError(f"cannot write {path}: the query id {excerpt(value)} would be read as a comment")
    return value


def writable_ids(path: FilePath, qid: str, docids: Collection[str]) -> None:
    """Raise unless a TREC file can contain these ids."""
    writable_id(path, "query id", qid)
    if not all(docids) or _SUSPECT_IDS.search("".join(docids)):  # one search costs a sixth of one for each
        for docid in docids:
            writable_id(path, "document id", docid)


def writable_cell(path: FilePath, name: str, value: str) -> str:
    """``value``; raises unless a tsv file can contain it."""
    if bad := _UNWRITABLE_CELL.search(value):
        raise RankwellError(
            f"cannot write {path}: the {name} holds {excerpt(bad[0])}, which a tsv file cannot; use a .jsonl file"
            if bad[0] in "\t\n\r"
            else f"cannot write {path}: the {name} holds {excerpt(bad[0])}, which is not text"
        )
    return value


def json_line(path: FilePath, record: Mapping[str, Any]) -> str:
    """``record`` as one line of a jsonl file."""
    line = json.dumps(record, ensure_ascii=False)
    if bad := _HALF_PAIR.search(line):
        raise RankwellError(f"cannot write {path}: a string holds {excerpt(bad[0])}, which is not text")
    return line + "\n"
