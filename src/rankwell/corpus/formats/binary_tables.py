"""Tables that other packages read: parquet and Arrow files through pyarrow, ``hf:`` names through datasets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from rankwell.core.errors import InputError, MissingExtraError, one_line
from rankwell.corpus.formats.lines import FilePath

HF_PREFIX = "hf:"
ROWS_AT_A_TIME = 1024

Rows = Iterator[tuple[int, Mapping[str, Any]]]
Opened = tuple[tuple[str, ...], Callable[[Sequence[str]], Rows]]
"""The names of the columns, and a function that streams the rows of some of them."""


def _parquet(path: FilePath) -> Opened:
    pyarrow = _pyarrow(path, "parquet")
    try:
        file = pyarrow.parquet.ParquetFile(os.fspath(path))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _broken(path, "parquet", error) from None

    def read(columns: Sequence[str]) -> Rows:
        return _batches(path, "parquet", file.iter_batches(ROWS_AT_A_TIME, columns=list(columns)))

    return tuple(file.schema_arrow.names), read


def _arrow(path: FilePath) -> Opened:
    pyarrow = _pyarrow(path, "ipc")
    try:
        file = pyarrow.ipc.open_file(pyarrow.memory_map(os.fspath(path)))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _broken(path, "Arrow", error) from None

    def read(columns: Sequence[str]) -> Rows:
        batches = (file.get_batch(i).select(list(columns)) for i in range(file.num_record_batches))
        return _batches(path, "Arrow", batches)

    return tuple(file.schema.names), read


def _batches(path: FilePath, kind: str, batches: Iterator[Any]) -> Rows:
    pyarrow, number = _pyarrow(path), 0
    try:
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _broken(path, kind, error, number + 1) from None


def _pyarrow(path: FilePath, part: str = "lib") -> Any:
    """The package, with one of its modules imported."""
    try:
        import_module(f"pyarrow.{part}")
        return import_module("pyarrow")
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", f"{os.fspath(path)}: a parquet or Arrow file") from None


def _broken(path: FilePath, kind: str, error: Exception, row: int | None = None) -> InputError:
    return InputError(path, row, f"not a readable {kind} file ({one_line(error)})")


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
    parts = [name] if Path(name).is_dir() else name.split("/", 2)
    arguments = [name] if len(parts) < 3 else ["/".join(parts[:2]), parts[2]]
    try:
        data = datasets.load_dataset(*arguments, split=split or None, streaming=True)
        if not split:
            if len(data) != 1:
                splits = ", ".join(data) or "none"
                raise InputError(source, None, f"say which split, as in {source}:SPLIT (splits: {splits})")
            (data,) = data.values()
        names = data.column_names or list(next(iter(data), {}))
    except InputError:
        raise
    except Exception as error:  # the package raises anything, down to errors of the network
        raise InputError(source, None, f"cannot be loaded ({one_line(error)})") from None

    def read(columns: Sequence[str]) -> Rows:
        return enumerate(data.select_columns(list(columns)), 1)

    return tuple(names), read
