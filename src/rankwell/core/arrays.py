"""Arrays on disk: plain ``.npy`` files that are appended to while their length is unknown.

A *ragged* array is a sequence of rows of different lengths: ``NAME.npy`` holds the rows end to end and
``NAME.ends.npy`` the end of each row. Texts, ids and token ids are all stored this way.
:mod:`rankwell.core.mapped` reads all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Rows = NDArray[np.int64]
"""Row numbers, or the ends of rows in a ragged array."""
Scores = NDArray[np.float32]
Values = NDArray[np.float64]


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

    def __exit__(self, *error: object) -> None:
        self.close()


def save_array(path: Path, values: Array) -> None:
    """Write a whole array."""
    with ArrayWriter(path, values.dtype) as writer:
        writer.append(values)


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

    def __exit__(self, *error: object) -> None:
        self.close()


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
    # Writable like all other arrays of bytes, so that native code is compiled for one kind only.
    return np.frombuffer(bytearray().join(encoded), np.uint8), ends
