"""Checksums of files by block: a flipped bit is an error, never a different ranking.

A table lists files with their lengths and the CRC-32 of each block of 16 KiB. Every folder that is written as a whole
(:func:`rankwell.core.files.atomic_folder`) has one, ``checksums``; a shard has its own beside it. Memory-mapped arrays
are verified block by block when a block is first read (:mod:`rankwell.core.arrays`), models when they are loaded.
The contents of folders without a table, such as models from elsewhere, are not verified.

A table is a line of text, a line of JSON, the checksums as 32-bit little-endian integers, and a checksum of all that.
"""

from __future__ import annotations

import json
import os
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, system_reason

TABLE = "checksums"
BLOCK = 1 << 14
"""Reading one text of a cold index verifies 16 KiB, some 8 microseconds; the table is 1/4096 of the files."""
NOT_COVERED = (".md",)
"""Model cards are for people, who may edit them."""
SETTINGS = (".json", ".txt")
"""Files of a model that users may edit."""
_SELF_CHECKED = {"index.json", "system.json", "shards.json", "lock"}
"""Files that change while the folder is in use. Their readers check them."""
_TITLE = b"rankwell checksums 1\n"
_AT_ONCE = 64 * BLOCK


@dataclass(frozen=True)
class FileChecksums:
    """The length of a file and the checksum of each of its blocks."""

    size: int
    sums: array[int]

    @classmethod
    def of(cls, path: Path) -> FileChecksums:
        """Compute the checksums of a file."""
        size, sums = 0, array("I")
        for data in _pieces(path):
            size += len(data)
            sums.extend(zlib.crc32(data[begin : begin + BLOCK]) for begin in range(0, len(data), BLOCK))
        return cls(size, sums)

    def check_size(self, path: Path, size: int) -> None:
        """Raise unless the file has its length."""
        if size != self.size:
            raise InputError(path, None, f"damaged: {size:,} bytes long, expected {self.size:,}")

    def check_block(self, path: Path, number: int, block: bytes | memoryview) -> None:
        """Raise unless a block has its checksum."""
        if zlib.crc32(block) != self.sums[number]:
            raise InputError(path, None, f"damaged: block {number + 1:,} of {len(self.sums):,} has a wrong checksum")

    def check_bytes(self, path: Path, data: bytes) -> None:
        """Raise unless ``data`` is the whole file as it was written."""
        self.check_size(path, len(data))
        for number, begin in enumerate(range(0, len(data), BLOCK)):
            self.check_block(path, number, memoryview(data)[begin : begin + BLOCK])

    def check_file(self, path: Path, pace: Callable[[int], None] = lambda size: None) -> None:
        """Read the file and raise unless it is as it was written. ``pace`` is called with the size of each piece."""
        try:
            self.check_size(path, path.stat().st_size)
            number = 0
            for data in _pieces(path):
                pace(len(data))
                for begin in range(0, len(data), BLOCK):
                    self.check_block(path, number, data[begin : begin + BLOCK])
                    number += 1
        except FileNotFoundError:
            raise InputError(path, None, "is missing") from None


Checksums = Mapping[str, FileChecksums]
"""The table of a folder, by file name."""


def table_beside(path: Path) -> Path:
    """The table of a single file."""
    return path.with_name(f"{TABLE}.{path.name}")


def checksums_beside(path: Path) -> FileChecksums | None:
    """The checksums of a single file; None if it has no table."""
    table = read_checksums(table_beside(path))
    if table is not None and path.name not in table:
        raise InputError(table_beside(path), None, f"has no checksums of {path.name}; remove it")
    return None if table is None else table[path.name]


def write_checksums(folder: Path) -> None:
    """Write the tables of a folder and those below it. The folder must not be in use yet."""
    for place, _, names in os.walk(folder):
        write_table(Path(place), names)


def write_table(folder: Path, names: Iterable[str]) -> None:
    """Write the table of some files of a folder."""
    files = sorted(name for name in names if name != TABLE and not name.endswith(NOT_COVERED))
    (folder / TABLE).unlink(missing_ok=True)  # it may be a link to another folder's
    if files:
        (folder / TABLE).write_bytes(encode_checksums({name: FileChecksums.of(folder / name) for name in files}))


def encode_checksums(files: Checksums) -> bytes:
    """A table as bytes."""
    header = {"block": BLOCK, "files": {name: sums.size for name, sums in files.items()}}
    data = _TITLE + json.dumps(header, ensure_ascii=True).encode() + b"\n"
    data += b"".join(sums.sums.tobytes() for sums in files.values())
    return data + zlib.crc32(data).to_bytes(4, "little")


def read_checksums(table: Path) -> Checksums | None:
    """Read a table; returns None if the file does not exist."""
    try:
        data = table.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(table, None, system_reason(error)) from None
    if len(data) < 4 or zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise InputError(table, None, "damaged: this table of checksums has a wrong checksum")
    if not data.startswith(_TITLE):
        raise InputError(table, None, "a table of checksums of another version of rankwell")
    end = data.index(b"\n", len(_TITLE)) + 1
    header: dict[str, Any] = json.loads(data[len(_TITLE) : end])
    files, begin = {}, end
    for name, size in header["files"].items():
        stop = begin + 4 * -(-size // BLOCK)
        files[name], begin = FileChecksums(size, array("I", data[begin:stop])), stop
    return files


@dataclass(frozen=True)
class Verified:
    """What was read and found as it was written, and how many files have no checksums."""

    files: int
    size: int
    without: int


def verify_folder(
    folder: Path,
    *,
    largest: int | None = None,
    skip: Collection[Path] = (),
    pace: Callable[[int], None] = lambda size: None,
) -> Verified:
    """Read all files of a folder, and of those below it, that have checksums. Raises if one is damaged or missing.

    Files of more than ``largest`` bytes and the folders ``skip`` are left out, and ``pace`` may wait between pieces.
    Times are not looked at: copying sets them in any order.
    """
    files = size = without = 0
    for place, below, names in os.walk(folder):
        below[:] = [name for name in below if Path(place, name) not in skip]
        tables = [name for name in names if name == TABLE or name.startswith(f"{TABLE}.")]
        known: dict[str, FileChecksums] = {}
        for table in tables:
            known |= read_checksums(Path(place) / table) or {}
        for name, checksums in known.items():
            path = Path(place) / name
            if largest is not None and checksums.size > largest:
                continue
            try:
                checksums.check_file(path, pace)
            except InputError as error:
                if path.suffix not in SETTINGS:
                    raise
                advice = f"if it was changed on purpose, delete the file {TABLE} beside it"
                raise InputError(path, None, f"{error.problem}; {advice}") from None
            files, size = files + 1, size + checksums.size
        without += sum(not name.endswith(NOT_COVERED) for name in {*names} - {*tables} - {*known} - _SELF_CHECKED)
    return Verified(files, size, without)


def _pieces(path: Path) -> Iterator[memoryview]:
    """The contents of a file, some blocks at a time."""
    buffer = bytearray(_AT_ONCE)
    with path.open("rb", buffering=0) as file:
        while count := _fill(file, buffer):
            yield memoryview(buffer)[:count]


def _fill(file: FileIO, buffer: bytearray) -> int:
    """Fill the buffer, unless the file ends before."""
    count = 0
    while count < len(buffer) and (got := file.readinto(memoryview(buffer)[count:])):
        count += got
    return count
