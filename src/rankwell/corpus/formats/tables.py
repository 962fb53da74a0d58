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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from rankwell.core.errors import InputError, MissingExtraError, RankwellError, excerpt, one_line
from rankwell.core.files import MAX_LINE_BYTES, Unpacked
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

HF_PREFIX = "hf:"
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
ROWS_AT_A_TIME, BATCH_BYTES = 1024, 2**24
_FLOATS = ("halffloat", "float", "double")

Rows = Iterator[tuple[int, Mapping[str, Any]]]
Opened = tuple[tuple[str, ...], Callable[[Sequence[str]], Rows]]
"""The names of the columns, and a function that streams the rows of some of them."""


def _parquet(path: FilePath) -> Opened:
    pyarrow = _pyarrow(path, "parquet")
    try:
        file = pyarrow.parquet.ParquetFile(os.fspath(path))
        names = _columns(path, file.schema_arrow.names)
    except Exception as error:
        raise _broken(path, "parquet file", error) from None

    def read(columns: Sequence[str]) -> Rows:
        wanted = _without_vectors(file.schema_arrow, columns)
        return _batches(path, "parquet file", _parquet_batches(path, file.metadata, wanted))

    return names, read


def _parquet_batches(path: FilePath, footer: Any, wanted: list[str]) -> Iterator[Any]:
    """Batches that take little memory even if the longest text of a dictionary stands in every row."""
    pyarrow, unpacked = _pyarrow(path, "compute"), Unpacked(path, os.stat(path).st_size)
    names = [footer.schema.column(i).path for i in range(footer.num_columns)]
    columns = [i for i, name in enumerate(names) if name in wanted or name.partition(".")[0] in wanted]
    opened = partial(pyarrow.parquet.ParquetFile, os.fspath(path))
    whole = opened()
    for group in range(footer.num_row_groups):  # damage is an error here, but below the end of the process
        next(whole.iter_batches(1, row_groups=[group], columns=wanted), None)
    groups = [[footer.row_group(group).column(i) for i in columns] for group in range(footer.num_row_groups)]
    for chunks in groups:
        unpacked.add(sum(c.total_uncompressed_size for c in chunks), max((c.num_values for c in chunks), default=0))
    texts = {c.path_in_schema for chunks in groups for c in chunks if c.physical_type == "BYTE_ARRAY"}
    # Here a text can repeat all of the one before.
    delta = {c.path_in_schema for chunks in groups for c in chunks if "DELTA_BYTE_ARRAY" in c.encodings}
    flat = sorted(texts.intersection(wanted) - delta)
    coded, file = opened(read_dictionary=flat), opened(read_dictionary=sorted(texts.difference(wanted, delta)))
    for group, chunks in enumerate(groups):
        longest = max((c.total_uncompressed_size for c in chunks if c.path_in_schema in delta), default=1)
        for first in coded.iter_batches(1, row_groups=[group], columns=flat) if flat else ():
            longest = max(longest, *(int(_lengths(pyarrow, c.dictionary).max(initial=0)) for c in first.columns))
            break
        rows = max(1, min(ROWS_AT_A_TIME, BATCH_BYTES // max(1, longest)))
        yield from file.iter_batches(rows, row_groups=[group], columns=wanted)


def _arrow(path: FilePath) -> Opened:
    pyarrow = _pyarrow(path, "ipc")
    try:
        file = pyarrow.ipc.open_file(pyarrow.memory_map(os.fspath(path)))
        names = _columns(path, file.schema.names)
    except Exception as error:
        raise _broken(path, "Arrow file", error) from None

    def read(columns: Sequence[str]) -> Rows:
        wanted = _without_vectors(file.schema, columns)
        batches = (file.get_batch(i).select(wanted) for i in range(file.num_record_batches))
        return _batches(path, "Arrow file", batches)

    return names, read


def _lengths(pyarrow: Any, values: Any) -> Any:
    """The bytes of each text, or of another plain value."""
    types, kind = pyarrow.types, values.type
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return np.frombuffer(values.buffers()[1], np.int32)[4 * values.offset :: 4][: len(values)]
    if types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind):
        return np.full(len(values), 8)
    return pyarrow.compute.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)


def _size(pyarrow: Any, values: Any) -> int:
    """The bytes of a column's values, each counted wherever it stands."""
    types, kind = pyarrow.types, values.type
    if types.is_dictionary(kind):
        return int(_lengths(pyarrow, values.dictionary)[values.indices.drop_null().to_numpy()].sum())
    if types.is_map(kind):
        return _size(pyarrow, values.keys) + _size(pyarrow, values.items)
    if types.is_struct(kind):
        return sum(_size(pyarrow, part) for part in values.flatten())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _size(pyarrow, values.flatten())
    return int(_lengths(pyarrow, values).sum())


def _columns(path: FilePath, names: Sequence[str]) -> tuple[str, ...]:
    """The names of a table's columns, which must differ."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(path, None, f"several columns are called {excerpt(repeated[0])}; rename all but one")
    return tuple(names)


def _without_vectors(schema: Any, columns: Sequence[str]) -> list[str]:
    """The columns but those of embeddings, which are large and of no use here."""
    types = {name: schema.field(name).type for name in columns}
    return [name for name, type in types.items() if str(getattr(type, "value_type", "")) not in _FLOATS]


def _batches(path: FilePath, kind: str, batches: Iterator[Any]) -> Rows:
    pyarrow, number = _pyarrow(path, "compute"), 0
    unpacked = Unpacked(path, os.stat(path).st_size)
    try:
        for batch in batches:
            batch.validate(full=True)  # a damaged one could read outside its memory
            unpacked.add(sum(_size(pyarrow, column) for column in batch.columns), batch.num_rows)
            for begin in range(0, batch.num_rows, ROWS_AT_A_TIME):
                for row in batch.slice(begin, ROWS_AT_A_TIME).to_pylist():
                    number += 1
                    yield number, row
    except Exception as error:
        raise _broken(path, kind, error, number + 1) from None


def _pyarrow(path: FilePath, part: str = "lib") -> Any:
    """The package, with one of its modules imported."""
    try:
        import_module(f"pyarrow.{part}")
        return import_module("pyarrow")
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", f"{os.fspath(path)}: a parquet or Arrow file") from None


def _broken(path: FilePath, kind: str, error: Exception, row: int | None = None) -> RankwellError:
    """What to raise for an error of pyarrow, which raises anything: KeyError, OverflowError, errors of the network."""
    if isinstance(error, RankwellError):
        return error
    return InputError(path, row, f"not a readable {kind} ({one_line(error)})")


def _no_text(path: FilePath, kind: str, remedy: str) -> NoReturn:
    raise InputError(path, None, f"{kind}, not text; {remedy}")


def _pdf(path: FilePath) -> Opened:
    text = Path(path).with_suffix(".txt").name
    _no_text(path, "a PDF", f"convert it first, for example with `pdftotext {Path(path).name} {text}`")


def _zip(path: FilePath) -> Opened:
    _no_text(path, "a zip archive or office document", "unpack it, or save it as text, first")


BINARY: Mapping[bytes, Callable[[FilePath], Opened]] = {
    b"PAR1": _parquet,
    b"ARROW1": _arrow,
    b"%PDF-": _pdf,
    b"PK\x03\x04": _zip,
}
"""Formats by their first bytes."""


def hf_rows(source: str) -> Opened:
    """Stream a data set of the Hugging Face hub or a local folder: ``hf:OWNER/NAME[/CONFIGURATION][:SPLIT]``."""
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "hf", f"the data set {source}") from None
    name, _, split = source.removeprefix(HF_PREFIX).partition(":")
    parts = [name] if os.path.isdir(name) else name.split("/", 2)
    arguments = [name] if len(parts) < 3 else ["/".join(parts[:2]), parts[2]]
    if not (os.path.isdir(name) or _HUB_NAME.fullmatch(arguments[0])):  # the package would look through folders
        raise InputError(source, None, "no such folder, and not OWNER/NAME")
    try:
        data = datasets.load_dataset(*arguments, split=split or None, streaming=True)
        if not split:
            if len(data) != 1:
                splits = ", ".join(data) or "none"
                raise InputError(source, None, f"say which split, as in {source}:SPLIT (splits: {splits})")
            (data,) = data.values()
        names = _columns(source, data.column_names or list(next(iter(data), {})))
    except Exception as error:
        raise _broken(source, "data set", error) from None

    def read(columns: Sequence[str]) -> Rows:
        number = 0
        try:
            for number, row in enumerate(data.select_columns(list(columns)), 1):
                yield number, row
        except Exception as error:
            raise _broken(source, "data set", error, number + 1) from None

    return names, read


MAX_ARRAY = 2**29
_WORD = re.compile(r"[^\W\d]+")
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
    return binary_table(path) or text_table(path, *open_lines(path, layout.kind), layout)


def binary_table(path: FilePath) -> Table | None:
    """A parquet or Arrow file as a table; None for text."""
    start = _first_bytes(Path(path))
    opened = next((opened for magic, opened in BINARY.items() if start.startswith(magic)), None)
    return None if opened is None else Table(path, *opened(path), lines=False)


def text_table(path: FilePath, first: str, lines: Lines, layout: Layout) -> Table:
    """The lines of a file, of which ``first`` is the first one, as a table."""
    if is_jsonl(first):
        return _objects(path, ((number, parse_object(path, number, line)) for number, line in lines if line.strip()))
    if opens_array(first):
        return _objects(path, _array(path, lines))
    if _RUN_LINE.fullmatch(first):
        (number, _), kind = next(lines), layout.kind
        raise InputError(
            path, number, f"a line of a run (six columns, Q0 the second), expected {kind}: {excerpt(first)}"
        )
    suffix = Path(os.fspath(path).removesuffix(".gz")).suffix.lower()
    if suffix == ".csv" or ("\t" not in first and layout.is_header(first.split(","), False)):
        separator = next((mark for mark in ",;\t|" if mark in first), ",")
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
        second = next(rows, first)
        if not tabs and not layout.by_number and _looks_like_header(cells, second[2]):
            ways = f"name its columns ({', '.join(cells)}) with --id, --title and --text, or --id 1 --text 2 if not"
            raise InputError(path, begin, f"looks like a header, but no column is known as the text: {ways}")
        rows = chain([first], [second] if second is not first else [], rows)

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


def _looks_like_header(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether a first line of words is above a number, or above texts of several words."""
    if not all(_WORD.fullmatch(cell.strip()) for cell in first):
        return False
    return any(re.fullmatch(r"\s*\d[\d.,]*\s*", cell) or len(cell.split()) > 1 for cell in second)


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


def opens_array(first: str) -> bool:
    """Whether a line opens a JSON array of objects or strings, and is not a text such as ``[1] Smith et al.``

    A tab after the bracket makes it the id of a tsv line.
    """
    start = first.lstrip()
    return start.startswith("[") and start[1:2] != "\t" and start[1:].lstrip()[:1] in ("", "{", '"', "]")


def _within(path: FilePath, lines: Iterator[str]) -> Iterator[str]:
    """The lines of a file that is held in memory; raises if it is too long for that."""
    size = 0
    for line in lines:
        if (size := size + len(line) + 1) > MAX_ARRAY:
            raise InputError(path, None, f"a JSON array of over {MAX_ARRAY >> 20} MiB; write it as jsonl, a line each")
        yield line


def _array(path: FilePath, lines: Lines) -> Iterator[Row]:
    """The elements of a JSON array with the lines they begin on. The file is held in memory as text."""
    number, line = next(lines)
    text = "\n".join(chain([line], _within(path, (line for _, line in lines))))
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
