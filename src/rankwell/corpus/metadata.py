"""Metadata: what documents have besides id, title and text, kept as typed values that can be returned and filtered by.

A value is a text, a number, true or false, or a list of these; dates are texts in ISO order. Each field is a column of
arrays beside the documents' texts:

    N.rows.npy     the document of each value, ascending; missing if every document has one value
    N.numbers.npy  the values that are numbers; NaN for others
    N.codes.npy    the others, by their places in the lexicon ``N.texts``; -1 for numbers
    N.lists.npy    whether a value is one of a list
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import eq, ge, gt, le, lt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows, Values, save_array
from rankwell.core.errors import InputError, Notice, excerpt
from rankwell.core.mapped import ArrayFolder, MappedArray
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Metadata

FOLDER, DESCRIPTION = "fields", "fields.json"
LONGEST, LONGEST_LIST, MOST_FIELDS = 1000, 100, 100
"""The characters of a text, the values of a list, and the fields that are kept at most."""
LARGEST, EXACT = sys.float_info.max, 2**53
_SCALARS = (str, int, float, bool)
_COMPARISONS: Mapping[str, Any] = {"=": eq, "<": lt, "<=": le, ">": gt, ">=": ge}
_TYPES = {"rows": np.uint32, "numbers": np.float64, "codes": np.int32, "lists": np.bool_}
Mask = NDArray[np.bool_]


def encode_value(value: Any) -> float | str | None:
    """A value as columns hold it: a number, or a text behind a letter for its type; None if it cannot be kept.

    >>> encode_value(2015), encode_value("de"), encode_value(True), encode_value({})
    (2015.0, 'sde', 'btrue', None)
    """
    if isinstance(value, str):
        return f"s{value}" if 0 < len(value) <= LONGEST else None
    if (type(value) is float and value == value) or (type(value) is int and -EXACT <= value <= EXACT):
        return float(value)
    if isinstance(value, bool | np.bool_):
        return "btrue" if value else "bfalse"
    if isinstance(value, int | float | Decimal | np.number):
        if value != value:  # NaN
            return None
        number = float(value) if -LARGEST < value < LARGEST else math.inf
        return number if number == value else f"s{value}"  # whole numbers of over 53 bits
    return f"s{value.isoformat()}" if hasattr(value, "isoformat") else None


def decode_value(value: float | str) -> Any:
    """What :func:`encode_value` encoded."""
    if isinstance(value, str):
        return value[1:] if value.startswith("s") else value == "btrue"
    return int(value) if value.is_integer() else value


@dataclass(eq=False)
class _NewColumn:
    """A column that is being written."""

    rows: list[int] = field(default_factory=list)
    values: list[float | str] = field(default_factory=list)
    lists: list[bool] = field(default_factory=list)
    parts: list[tuple[Rows, Values, NDArray[np.int32], Mask]] = field(default_factory=list)
    texts: Lexicon = field(default_factory=Lexicon)

    def pack(self) -> None:
        """Turn the values since the last call into arrays, which take less memory."""
        words = [value for value in self.values if isinstance(value, str)]
        codes, numbers = np.full(len(self.values), -1, np.int32), np.full(len(self.values), np.nan)
        is_text = np.fromiter((isinstance(value, str) for value in self.values), bool, len(self.values))
        codes[is_text] = self.texts.add(words)
        numbers[~is_text] = [value for value in self.values if not isinstance(value, str)]
        self.parts.append((np.array(self.rows, np.int64), numbers, codes, np.array(self.lists, bool)))
        self.rows, self.values, self.lists = [], [], []


class MetadataWriter:
    """Collects the metadata of a store's documents."""

    def __init__(self, most_fields: int = MOST_FIELDS) -> None:
        self._most_fields = most_fields
        self._columns: dict[str, _NewColumn] = {}
        self._left_out: dict[str, Any] = {}

    def append(self, first: int, documents: Iterable[Metadata | None]) -> None:
        """Add documents, the first of which has the number ``first``."""
        for row, metadata in enumerate(documents, first):
            for name, value in (metadata or {}).items():
                self._add(row, name, value)
        for column in self._columns.values():
            column.pack()

    def _add(self, row: int, name: str, value: Any) -> None:
        # Nearly all values are of these types, and looking at others takes longer.
        several = type(value) not in _SCALARS and isinstance(value, list | tuple | np.ndarray | set | frozenset)
        if several and len(value) > LONGEST_LIST:
            self._left_out.setdefault(name, value)
            return
        for item in value if several else (value,):
            encoded = encode_value(item)
            if encoded is None:
                if item is not None and item != "" and item == item:  # neither missing nor NaN
                    self._left_out.setdefault(name, item)
                continue
            column = self._columns.get(name)
            if column is None and len(self._columns) == self._most_fields:
                self._left_out.setdefault(name, item)
                continue
            if column is None:
                column = self._columns[name] = _NewColumn()
            column.rows.append(row)
            column.values.append(encoded)
            column.lists.append(several)

    def close(self, folder: Path, documents: int) -> bool:
        """Write the columns into ``folder``; returns whether there are any."""
        if self._left_out:
            name, value = next(iter(self._left_out.items()))
            kept = f"texts of up to {LONGEST:,} characters, numbers, dates, short lists of these; {MOST_FIELDS} fields"
            problem = f"{excerpt(name)}, such as {excerpt(repr(value), 40)}"
            warnings.warn(f"values of the field {problem}, are left out (kept: {kept})", Notice, stacklevel=2)
        if not self._columns:
            return False
        (folder / FOLDER).mkdir()
        described = []
        for number, (name, column) in enumerate(self._columns.items()):
            rows, numbers, codes, lists = (np.concatenate(parts) for parts in zip(*column.parts, strict=True))
            whole = len(rows) == documents and bool((rows == np.arange(documents)).all())
            stored = {
                "rows": None if whole else rows.astype(np.uint32),
                "numbers": None if np.isnan(numbers).all() else numbers,
                "codes": codes if len(column.texts) else None,
                "lists": lists if lists.any() else None,
            }
            parts = {part: values for part, values in stored.items() if values is not None}
            for part, values in parts.items():
                save_array(folder / FOLDER / f"{number}.{part}.npy", values)
            if len(column.texts):
                column.texts.save(folder / FOLDER, f"{number}.texts")
            described.append({"name": name, "parts": list(parts)})
        (folder / FOLDER / DESCRIPTION).write_text(json.dumps({"fields": described}) + "\n", encoding="utf-8")
        return True


class Column:
    """The values of one field, memory-mapped and verified as a whole when they are first used."""

    def __init__(self, arrays: ArrayFolder, number: int, parts: Sequence[str], documents: int):
        self._documents, self._checked = documents, False
        self._files: dict[str, MappedArray] = {
            part: arrays.map(f"{number}.{part}", _TYPES[part])
            for part in ("rows", "numbers", "codes", "lists")
            if part in parts
        }
        self._texts = Lexicon.open(arrays, f"{number}.texts") if "codes" in parts else Lexicon()
        sizes = {len(file.values) for file in self._files.values()}
        if len(sizes) != 1 or ("rows" not in parts and sizes != {documents}):
            raise InputError(arrays.folder, None, "damaged: the columns of a field have different lengths")

    def _part(self, name: str) -> NDArray[Any] | None:
        return self._files[name].whole() if name in self._files else None

    def check(self) -> None:
        """Read the whole column, once. Raises if a file is damaged."""
        if self._checked:
            return
        self._texts.check()
        rows, codes = self._part("rows"), self._part("codes")
        self._part("numbers"), self._part("lists")
        if rows is not None and len(rows) and (rows[-1] >= self._documents or (rows[1:] < rows[:-1]).any()):
            raise InputError(self._files["rows"].path, None, "damaged: the documents of values do not ascend")
        if codes is not None and not -1 <= codes.min(initial=-1) <= codes.max(initial=-1) < len(self._texts):
            raise InputError(self._files["codes"].path, None, "damaged: a text that the lexicon does not have")
        self._checked = True

    def match(self, operator: str, wanted: float | str) -> Mask:
        """The documents with a value that compares so with ``wanted``; values of other types do not."""
        self.check()
        compare = _COMPARISONS[operator]
        values, rows = np.zeros(len(next(iter(self._files.values())).values), bool), self._part("rows")
        if isinstance(wanted, str):
            codes = self._part("codes")
            if codes is not None and operator == "=":
                number = self._texts.number(wanted)
                values = codes == number if number >= 0 else values
            elif codes is not None:
                texts = self._texts.strings(range(len(self._texts)))
                alike = (text[0] == wanted[0] and bool(compare(text, wanted)) for text in texts)
                values = np.append(np.fromiter(alike, bool, len(texts)), False)[codes]
        elif (numbers := self._part("numbers")) is not None:
            values = compare(numbers, wanted)
        if rows is None:
            return np.asarray(values)
        mask = np.zeros(self._documents, bool)
        mask[rows[values]] = True
        return mask

    def values(self) -> set[Any]:
        """The different values."""
        self.check()
        numbers = self._part("numbers")
        known = set() if numbers is None else set(map(decode_value, np.unique(numbers[~np.isnan(numbers)]).tolist()))
        return known | set(map(decode_value, self._texts.strings(range(len(self._texts)))))

    def at(self, documents: Rows) -> list[Any]:
        """The value, or list of values, of each document; None if it has none."""
        self.check()
        rows, numbers, codes, lists = (self._part(name) for name in ("rows", "numbers", "codes", "lists"))
        begins, ends = documents, documents + 1
        if rows is not None:  # in their type: numpy would convert all of them
            begins, ends = (np.searchsorted(rows, documents.astype(rows.dtype), side) for side in ("left", "right"))
        found: list[Any] = []
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            values = []
            for place in range(begin, end):
                is_text = codes is not None and codes[place] >= 0
                encoded = self._texts[int(codes[place])] if is_text and codes is not None else float(numbers[place])  # type: ignore[index]
                values.append(decode_value(encoded))
            as_list = begin < end and lists is not None and bool(lists[begin])
            found.append(values if as_list else (values[0] if values else None))
        return found


class Ids:
    """The ids of documents, as filters compare fields; an id written as a number is the same as in quotes."""

    def __init__(self, docids: Lexicon):
        self._docids = docids

    def match(self, operator: str, wanted: float | str) -> Mask:
        """The document with this id, if the operator is ``=``."""
        mask = np.zeros(len(self._docids), bool)
        number = self._docids.number(str(decode_value(wanted))) if operator == "=" else -1
        mask[number : number + 1] = number >= 0
        return mask


def open_columns(folder: Path, documents: int) -> dict[str, Column]:
    """The columns of a store with metadata, by the names of the fields."""
    arrays = ArrayFolder(folder / FOLDER)
    try:
        described = json.loads(arrays.read_bytes(DESCRIPTION))["fields"]
        return {
            str(entry["name"]): Column(arrays, number, entry["parts"], documents)
            for number, entry in enumerate(described)
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise InputError(folder / FOLDER / DESCRIPTION, None, "not the description of fields") from None


def read_metadata(columns: Mapping[str, Column], documents: Rows) -> list[Metadata]:
    """The metadata of some documents."""
    found: list[dict[str, Any]] = [{} for _ in documents]
    for name, column in columns.items():
        for metadata, value in zip(found, column.at(documents), strict=True):
            if value is not None:
                metadata[name] = value
    return list(found)
