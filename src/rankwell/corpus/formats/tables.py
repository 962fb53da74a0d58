"""Tables: rows with named fields, from every kind of file that people have.

    ===================  ============================================  =====================================
    format               recognised by                                 names of the fields
    ===================  ============================================  =====================================
    jsonl, JSON array    the first character, ``{`` or ``[``           the objects' keys
    tsv                  a tab in the first line                       a header, or the order of the columns
    csv                  the file name, or a header with commas        a header, or the order of the columns
    parquet, Arrow       the first bytes                               the columns
    ``hf:OWNER/NAME``    the prefix                                    the columns
    plain lines          anything else                                 ``text``
    ===================  ============================================  =====================================

:mod:`~rankwell.corpus.formats.texts` makes records of the rows; no other module knows the formats.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, excerpt
from rankwell.core.files import MAX_LINE_BYTES
from rankwell.corpus.formats.binary_tables import BINARY, HF_PREFIX, hf_rows
from rankwell.corpus.formats.lines import (
    FilePath,
    Lines,
    decode_json,
    is_jsonl,
    json_kind,
    may_hold_half_pairs,
    open_lines,
    parse_object,
    refuse_half_pairs,
    wrong_columns,
)

_GAP = re.compile(r"[ \t\r\n]*(,?)[ \t\r\n]*")
_RUN_LINE = re.compile(r"\s*\S+\s+[Qq]0\s+\S+\s+[0-9]+\s+[-+0-9.eE]+\s+\S+\s*")
Row = tuple[int, Any]
"""The number of a row or line, and its values: a mapping, or a list of cells."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with named fields, read once.

    ``read`` streams the rows; a columnar format reads only the fields it is given. ``names`` are the fields of the
    first row. They are ``stated`` if the file has them, in its keys, columns or ``header``. Rows have the number of a
    line, the ``first`` one here, if the table has ``lines``. Rows are mappings, or cells at ``positions``. ``csv``: the
    cells are those of a csv file, which usually has a header.
    """

    path: FilePath
    names: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Row]]
    positions: tuple[int, ...] = ()
    stated: bool = True
    header: bool = False
    first: int = 1
    lines: bool = True
    csv: bool = False

    @property
    def base(self) -> int:
        """The number of the first record where records have no ids: 1 in files, 0 in Python."""
        return min(self.first, 1)

    def place(self, number: int) -> tuple[FilePath, int | None]:
        """Where a row is, for an error message: the file and the line."""
        return (self.path, number) if self.lines else (f"{os.fspath(self.path)}, row {number}", None)


@dataclass(frozen=True)
class Layout:
    """What a file of a ``kind`` contains that does not name its fields.

    ``columns`` has, for tsv and csv, the names of the columns by their number; ``is_header`` tells whether the cells
    of a first line, of tsv or not, are names. With ``by_number`` columns are called ``1``, ``2``, ….
    With ``by_name`` the first line must be a header, since the user names columns in it.
    """

    kind: str
    columns: Mapping[str, Mapping[int, tuple[str, ...]]]
    is_header: Callable[[Sequence[str], bool], bool]
    by_number: bool = False
    by_name: bool = False


def open_table(path: FilePath, layout: Layout) -> Table:
    """Open a file, or ``hf:OWNER/NAME``, as a table. ``layout`` says what files without field names contain."""
    name = os.fspath(path)
    if name.startswith(HF_PREFIX):
        return Table(path, *hf_rows(name), lines=False)
    start = _first_bytes(Path(path))
    for magic, opened in BINARY.items():
        if start.startswith(magic):
            return Table(path, *opened(path), lines=False)
    first, lines = open_lines(path, layout.kind)
    if is_jsonl(first):
        return _objects(path, ((number, parse_object(path, number, line)) for number, line in lines if line.strip()))
    if _opens_array(first):
        return _objects(path, _array(path, lines))
    if _RUN_LINE.fullmatch(first):
        (number, _), kind = next(lines), layout.kind
        raise InputError(
            path, number, f"a line of a run (six columns, Q0 the second), expected {kind}: {excerpt(first)}"
        )
    suffix = Path(name.removesuffix(".gz")).suffix.lower()
    if suffix == ".csv" or ("\t" not in first and layout.is_header(first.split(","), False)):
        separator = next((mark for mark in ",;\t" if mark in first), ",")
        return _cells(path, _csv_rows(path, lines, separator), layout, tabs=False)
    if "\t" in first or suffix == ".tsv":
        return _cells(path, ((number, line, line.split("\t")) for number, line in lines if line), layout, tabs=True)
    plain = ((number, {"text": line}) for number, line in lines if line.strip())
    return Table(path, ("text",), lambda _: plain, stated=False)


def _first_bytes(path: Path) -> bytes:
    """The first bytes of a file; none if reading it as text is to say what is wrong, or if it can be read only once."""
    try:
        with path.open("rb") if path.is_file() else BytesIO() as file:
            return file.read(8)
    except OSError:
        return b""


def _objects(path: FilePath, rows: Iterator[Row]) -> Table:
    first = next(rows, None)
    if first is None:
        raise InputError(path, None, "is empty, expected records")
    return Table(path, tuple(first[1]), lambda _: chain([first], rows), first=first[0])


def _cells(path: FilePath, rows: Iterator[tuple[int, str, list[str]]], layout: Layout, tabs: bool) -> Table:
    """A table of lines that are divided into cells; a header is recognised by the names in it."""
    first = next(rows)
    begin, line, cells = first
    known = layout.columns["\t" if tabs else ","]
    names = tuple(cell.strip() for cell in cells)
    header = layout.by_name or layout.is_header(names, tabs)
    if header and len(set(names)) < len(names):
        raise InputError(path, begin, f"the header names a column twice: {excerpt(line)}")
    if not header:
        names = tuple(str(i) for i in range(1, len(cells) + 1)) if layout.by_number else known.get(len(cells), ())
        if not names:
            raise wrong_columns(path, begin, line, cells, known[2], "; if it is a header, use --id and --text")
        rows = chain([first], rows)

    def read(_: Sequence[str]) -> Iterator[Row]:
        count = len(names)
        number = 0
        for number, text, values in rows:
            if len(values) != count:
                raise wrong_columns(path, number, text, values, names)
            yield number, values
        if not number:
            raise InputError(path, begin, f"a header without rows below it: {excerpt(line)}")

    positions = tuple(range(len(names)))
    stated = header or layout.by_number
    return Table(path, names, read, positions, stated=stated, header=header, first=begin, csv=not tabs)


def _csv_rows(path: FilePath, lines: Lines, separator: str) -> Iterator[tuple[int, str, list[str]]]:
    """The records of a csv file, each with the line it begins on. A quoted cell may contain line ends."""
    first = next(lines)
    number, line = first[0] - 1, ""

    def text() -> Iterator[str]:
        nonlocal number, line
        for number, line in chain([first], lines):  # noqa: B007  (read outside)
            yield line + "\n"

    records = csv.reader(text(), delimiter=separator, strict=True)
    while True:
        begin = number + 1
        try:
            with _long_cells():
                cells = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(path, begin, f"not csv ({error})") from None
        if cells:
            yield begin, line, cells


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let cells be as long as lines. The limit belongs to the whole process, so it is put back at once."""
    before = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _opens_array(first: str) -> bool:
    """Whether a line opens a JSON array of objects or strings, and is not a text such as ``[1] Smith et al.``

    A tab after the bracket makes it the id of a tsv line.
    """
    start = first.lstrip()
    return start.startswith("[") and start[1:2] != "\t" and start[1:].lstrip()[:1] in ("", "{", '"', "]")


def _array(path: FilePath, lines: Lines) -> Iterator[Row]:
    """The elements of a JSON array with the lines they begin on. The file is held in memory as text."""
    number, line = next(lines)
    text = "\n".join(chain([line], (line for _, line in lines)))
    decoder, place, expected = json.JSONDecoder(), text.index("[") + 1, ""
    halves = may_hold_half_pairs(text)
    while True:
        gap = _GAP.match(text, place)
        assert gap is not None  # it may be empty
        number += text.count("\n", place, gap.end())
        place = gap.end()
        if text.startswith("]", place) and not gap[1]:
            if rest := text[place + 1 :].strip():
                raise InputError(path, number, f"not a JSON array: found {excerpt(rest, 20)} after its end")
            return
        if gap[1] != expected or place == len(text):
            found = excerpt(text[place : place + 20]) if place < len(text) else "the end of the file"
            raise InputError(path, number, f"not a JSON array: expected {expected or 'a value'}, found {found}")
        element, end = decode_json(path, number, text[place : place + 60], partial(decoder.raw_decode, text, place))
        if isinstance(element, str):
            element = {"text": element}
        if not isinstance(element, dict):
            raise InputError(path, number, f"expected objects or strings in the array, found {json_kind(element)}")
        if halves:
            refuse_half_pairs(path, number, element)
        yield number, element
        number += text.count("\n", place, end)
        place, expected = end, ","
