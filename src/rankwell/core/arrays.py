"""Arrays on disk: plain ``.npy`` files that are appended to while their length is unknown and memory-mapped afterwards.

A *ragged* array is a sequence of rows of different lengths: ``NAME.npy`` holds the rows end to end and
``NAME.ends.npy`` the end of each row. Texts, ids and token ids are all stored this way.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rankwell.core.errors import InputError
from rankwell.core.types import Rows

Array = NDArray[Any]

# numpy pads the header of every one-dimensional plain array to this length, so it can be written last.
HEADER_BYTES = 128


class ArrayWriter:
    """Append to a one-dimensional ``.npy`` file; its length is written when the writer is closed."""

    def __init__(self, path: Path, dtype: DTypeLike):
        self.dtype = np.dtype(dtype)
        self.size = 0
        self._file: IO[bytes] = path.open("wb")
        self._file.write(bytes(HEADER_BYTES))

    def append(self, values: Array) -> None:
        """Add ``values``, converted to the file's type."""
        values = np.ascontiguousarray(values, self.dtype)
        self.size += values.size
        self._file.write(values.data)

    def close(self) -> None:
        """Write the header and close the file."""
        if self._file.closed:
            return
        try:
            self._file.seek(0)
            header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.size,)}
            np.lib.format.write_array_header_1_0(self._file, header)
            if self._file.tell() != HEADER_BYTES:
                raise AssertionError("numpy's header has an unexpected length")
        finally:
            self._file.close()

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def save_array(path: Path, values: Array) -> None:
    """Write a whole array."""
    with ArrayWriter(path, values.dtype) as writer:
        writer.append(values)


def map_array(path: Path, dtype: DTypeLike | None = None) -> Array:
    """Memory-map an array for reading. Raises if ``dtype`` is given and the file has another type."""
    try:
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("not version 1.0 of the .npy format")
            shape, fortran_order, stored = np.lib.format.read_array_header_1_0(file)
            offset = file.tell()
        if len(shape) != 1 or fortran_order or stored.hasobject or (dtype is not None and stored != np.dtype(dtype)):
            raise ValueError(f"holds {stored} of shape {shape}")
        if path.stat().st_size != offset + shape[0] * stored.itemsize:
            raise ValueError("is cut short or too long")
    except FileNotFoundError:
        raise InputError(path, None, "this file of the index or store is missing") from None
    except ValueError as error:
        raise InputError(path, None, f"not an array of this index or store ({error})") from None
    if shape[0] == 0:
        return np.zeros(0, stored)
    # A plain view: slicing np.memmap itself costs several times more per access.
    return np.asarray(np.memmap(path, stored, "r", offset, shape))


class RaggedWriter:
    """Append rows to a ragged array."""

    def __init__(self, folder: Path, name: str, dtype: DTypeLike):
        self._values = ArrayWriter(folder / f"{name}.npy", dtype)
        self._ends = ArrayWriter(folder / f"{name}.ends.npy", np.int64)

    def append(self, values: Array, ends: NDArray[np.int64]) -> None:
        """Add rows that lie end to end in ``values``; ``ends`` counts from the first of them."""
        if (int(ends[-1]) if len(ends) else 0) != len(values):
            raise ValueError("the last row must end where the values end")
        base = self._values.size
        self._values.append(values)
        self._ends.append(ends + base)

    def close(self) -> None:
        """Finish both files."""
        self._values.close()
        self._ends.close()

    def __enter__(self) -> RaggedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Ragged:
    """A memory-mapped ragged array: ``ragged[i]`` is row ``i`` without copying."""

    def __init__(self, values: Array, ends: NDArray[np.int64]):
        self.values = values
        self.ends = ends

    @classmethod
    def open(cls, folder: Path, name: str, dtype: DTypeLike) -> Ragged:
        """Map the ragged array ``name`` of ``folder``."""
        return cls(map_array(folder / f"{name}.npy", dtype), map_array(folder / f"{name}.ends.npy", np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> Array:
        if not 0 <= row < len(self.ends):
            raise IndexError(row)
        return self.values[self.ends[row - 1] if row else 0 : self.ends[row]]


def gather(begins: Rows, lengths: Rows) -> Rows:
    """The index that copies rows of a ragged array: ``lengths[i]`` values starting at ``begins[i]``, row after row."""
    ends = np.cumsum(lengths)
    # Within a row the index counts up; at each row's start it jumps to where that row lies.
    index: Rows = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(begins - (ends - lengths), lengths)
    return index


def positions(lengths: Rows) -> Rows:
    """The position of each value of a ragged array within its row: 0, 1, … for every row."""
    return gather(np.zeros_like(lengths), lengths)


def pack_strings(strings: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The strings as UTF-8, end to end, and the end of each."""
    encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
    ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    return np.frombuffer(b"".join(encoded), np.uint8), ends
