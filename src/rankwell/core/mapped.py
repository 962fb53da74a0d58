"""Arrays on disk, memory-mapped and verified.

Opening verifies a file's length and first block. The other blocks are verified when they are first read, so opening
takes the same time whatever the size, and damage is found before it can change a result.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rankwell.core.arrays import Array, Rows, gather
from rankwell.core.checksums import BLOCK, TABLE, FileChecksums, read_checksums
from rankwell.core.errors import InputError

# Numpy reads a header as Python code, which takes half as long again as all else that opening an array needs.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\0..\{'descr': '([<|][biuf]\d)', 'fortran_order': False, 'shape': \((\d{1,15}),\), \} *\n",
    re.DOTALL,
)


class MappedArray:
    """A memory-mapped array whose blocks are verified when they are first read.

    Call :meth:`check` or :meth:`whole` before reading from ``values``. Files without
    ``checksums`` are not verified. ``offset`` is the position of the first value in the file.
    """

    def __init__(
        self, path: Path, mapped: mmap.mmap | None, checksums: FileChecksums | None, values: Array, offset: int = 0
    ):
        self.path = path
        self.values = values
        self._map = mapped
        self._size = len(mapped) if mapped is not None else 0
        self._checksums = checksums
        self.offset = offset
        self.row_bytes = values.strides[0] if values.ndim and len(values) else 1
        # Bytes and a view of them: Python reads an item of a bytearray several times faster than one of an array.
        blocks = -(-self._size // BLOCK)
        self._verified = bytearray(blocks) if checksums is not None else bytearray(b"\1" * blocks)
        self.verified: NDArray[np.uint8] = np.frombuffer(self._verified, np.uint8)
        self._pending = blocks if checksums is not None else 0
        self._counting = Lock()

    def check_size(self) -> None:
        """Raise if the file was truncated since it was mapped; reading its values would end the process."""
        if self._map is not None and self._map.size() != self._size:
            raise InputError(self.path, None, "was changed while it was open; open it again")

    def check_row(self, begin: int, end: int) -> None:
        """Like :meth:`check`, for one span."""
        self.check_size()
        if self._pending == 0 or begin >= end:
            return
        first = (self.offset + begin * self.row_bytes) // BLOCK
        last = (self.offset + end * self.row_bytes - 1) // BLOCK
        if last - first > 1 or not (self._verified[first] and self._verified[last]):
            self._verify(range(first, last + 1))

    def check(self, begins: Rows, ends: Rows) -> None:
        """Verify the blocks of ``values[begins[i]:ends[i]]``, which must lie within the array."""
        self.check_size()
        if self._pending == 0:
            return
        last = np.maximum(self.offset + ends * self.row_bytes - 1, 0) // BLOCK
        first = np.minimum((self.offset + begins * self.row_bytes) // BLOCK, last)  # an empty span may begin at the end
        if (last - first).max(initial=0) > 1 or not (self.verified[first].all() and self.verified[last].all()):
            blocks = np.unique(gather(first, np.where(begins < ends, last - first + 1, 0)))
            self._verify(blocks[self.verified[blocks] == 0].tolist())

    def whole(self) -> Array:
        """All values, verified."""
        self.check_size()
        if self._pending:
            self._verify(range(len(self._verified)))
        return self.values

    def _verify(self, blocks: Iterable[int]) -> None:
        assert self._checksums is not None
        assert self._map is not None
        data = memoryview(self._map)
        for number in blocks:
            if self._verified[number]:
                continue
            self._checksums.check_block(self.path, number, data[number * BLOCK : (number + 1) * BLOCK])
            with self._counting:  # another thread may have verified the same block
                self._pending -= not self._verified[number]
                self._verified[number] = 1


def map_file(
    path: Path, dtype: DTypeLike, shape: tuple[int, ...], checksums: FileChecksums | None = None
) -> MappedArray:
    """Memory-map a file that holds nothing but an array of this type and shape."""
    mapped = _map(path)
    stored, count = np.dtype(dtype), int(np.prod(shape))
    if (0 if mapped is None else len(mapped)) != count * stored.itemsize:
        raise InputError(path, None, "has the wrong size; remove it to compute it again")
    data: Array = np.zeros(0, stored) if mapped is None else np.frombuffer(mapped, stored)
    return MappedArray(path, mapped, checksums, data.reshape(shape))


def _map(path: Path) -> mmap.mmap | None:
    """A file's bytes; None if it has none."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else None
    except FileNotFoundError:
        raise InputError(path, None, "this file of the index or store is missing") from None


class ArrayFolder:
    """A folder of arrays, opened with its table of checksums."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.checksums = read_checksums(folder / TABLE)
        self._arrays: list[MappedArray] = []

    def read_bytes(self, name: str) -> bytes:
        """The contents of a small file, verified."""
        data = (self.folder / name).read_bytes()
        if (checksums := self._checksums_of(name)) is not None:
            checksums.check_bytes(self.folder / name, data)
        return data

    def map(self, name: str, dtype: DTypeLike | None = None) -> MappedArray:
        """Memory-map the array ``NAME.npy``. Raises if ``dtype`` is given and the file has another type."""
        path, checksums = self.folder / f"{name}.npy", self._checksums_of(f"{name}.npy")
        mapped = _map(path)
        if checksums is not None:
            checksums.check_size(path, 0 if mapped is None else len(mapped))
        try:
            if mapped is None:
                raise ValueError("is empty")
            if checksums is not None:
                checksums.check_block(path, 0, memoryview(mapped)[:BLOCK])
            if (header := _HEADER.match(mapped)) is None:
                raise ValueError("not a list of numbers in version 1.0 of the .npy format")
            stored, offset = np.dtype(header[1].decode()), header.end()
            if dtype is not None and stored != np.dtype(dtype):
                raise ValueError(f"holds {stored}")
            if len(mapped) != offset + int(header[2]) * stored.itemsize:
                raise ValueError("is cut short or too long")
        except (ValueError, TypeError) as error:
            raise InputError(path, None, f"not an array of this index or store ({error})") from None
        array = MappedArray(path, mapped, checksums, np.frombuffer(mapped, stored, offset=offset), offset)
        self._arrays.append(array)
        return array

    def check_sizes(self) -> None:
        """Raise if one of the mapped files was truncated; see :meth:`MappedArray.check_size`."""
        for array in self._arrays:
            array.check_size()

    def _checksums_of(self, name: str) -> FileChecksums | None:
        if self.checksums is None:
            return None
        if name not in self.checksums:
            raise InputError(self.folder / name, None, "is not in this folder's table of checksums")
        return self.checksums[name]


def map_array(path: Path, dtype: DTypeLike | None = None) -> Array:
    """Memory-map an array for reading, verified as a whole. Raises if ``dtype`` is given and the file has another."""
    return ArrayFolder(path.parent).map(path.name.removesuffix(".npy"), dtype).whole()


class Ragged:
    """A ragged array, in memory or memory-mapped: ``ragged[i]`` is row ``i`` without copying."""

    def __init__(self, values: Array, ends: NDArray[np.int64]):
        self.values = values
        self.ends = ends
        self._files: tuple[MappedArray, MappedArray] | None = None

    @classmethod
    def open(cls, arrays: ArrayFolder, name: str, dtype: DTypeLike) -> Ragged:
        """Map the ragged array ``name`` of a folder."""
        values, ends = arrays.map(name, dtype), arrays.map(f"{name}.ends", np.int64)
        rows = cls(values.values, ends.values)
        if (int(rows.ends[-1]) if len(rows) else 0) != len(rows.values):
            raise InputError(ends.path, None, "damaged: the last row does not end where the values end")
        rows._files = values, ends
        return rows

    def spans(self, rows: Rows) -> tuple[Rows, Rows]:
        """Where these rows begin and end in ``values``, which can be read there. Raises if the files are damaged."""
        if self._files is None:
            return np.where(rows > 0, self.ends[rows - 1], 0) if len(rows) else rows, self.ends[rows]
        values, ends = self._files
        if not len(rows):
            return rows, rows
        if not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows are numbered from 0 to {len(self) - 1}")
        ends.check(np.maximum(rows - 1, 0), rows + 1)
        begins, stops = np.where(rows > 0, self.ends[rows - 1], 0), self.ends[rows]
        if begins.min() < 0 or stops.max() > len(self.values) or (begins > stops).any():
            raise InputError(ends.path, None, "damaged: a row does not lie within the values")
        values.check(begins, stops)
        return begins, stops

    def span(self, row: int) -> tuple[int, int]:
        """Like :meth:`spans`, for one row."""
        if not 0 <= row < len(self.ends):
            raise IndexError(row)
        if self._files is None:
            return int(self.ends[row - 1]) if row else 0, int(self.ends[row])
        values, ends = self._files
        ends.check_row(row - 1 if row else 0, row + 1)
        begin, stop = int(self.ends[row - 1]) if row else 0, int(self.ends[row])
        if not 0 <= begin <= stop <= len(self.values):
            raise InputError(ends.path, None, "damaged: a row does not lie within the values")
        values.check_row(begin, stop)
        return begin, stop

    def strings(self, rows: Rows) -> list[str]:
        """These rows, which hold UTF-8, as strings."""
        begins, ends = self.spans(rows)
        values = self.values.data
        pairs = zip(begins.tolist(), ends.tolist(), strict=True)
        try:
            return [str(values[begin:end], "utf-8", "surrogatepass") for begin, end in pairs]
        except UnicodeDecodeError:
            path = self._files[0].path if self._files else "memory"
            raise InputError(path, None, "damaged: not UTF-8 text") from None

    def check_size(self) -> None:
        """See :meth:`MappedArray.check_size`."""
        for file in self._files or ():
            file.check_size()

    def check(self) -> None:
        """Verify all rows. Raises if the files are damaged."""
        if self._files is None:
            return
        values, ends = self._files
        ends.whole()
        self.check_ends()
        values.whole()

    def check_ends(self) -> None:
        """Raise unless all rows lie within the values. Their checksums are not compared."""
        ends = self.ends
        if len(ends) and (ends[0] < 0 or (ends[1:] < ends[:-1]).any() or ends[-1] != len(self.values)):
            path = self._files[1].path if self._files else "memory"
            raise InputError(path, None, "damaged: the ends of rows do not ascend")

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> Array:
        begin, end = self.span(row)
        return self.values[begin:end]
