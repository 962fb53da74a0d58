"""Standard input and output, pipes and devices: ``-`` names the standard streams wherever a file is named.

What cannot be replaced by a rename is written through. What can be read only once is read once: within
:func:`reading_pipes_once`, which the command line uses, a pipe that is opened again gives the same bytes.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from rankwell.core.errors import RankwellError

STANDARD = "-"
FilePath = str | os.PathLike[str]
_Key = str | tuple[int, int]
_copies: dict[_Key, Path] | None = None
"""Copies of the pipes that were read; None outside :func:`reading_pipes_once`."""
_files = ExitStack()


@contextmanager
def reading_pipes_once() -> Iterator[None]:
    """Copy every pipe that is read to a temporary file, so that a format can be detected and a digest computed."""
    global _copies
    _copies = {}
    try:
        with _files:
            yield
    finally:
        _copies = None


def open_input(path: FilePath) -> BinaryIO:
    """Open a file, a pipe or, for ``-``, standard input."""
    if (key := _pipe(path)) is None:
        return Path(path).open("rb")
    if _copies is None:
        whole = io.BytesIO(_standard_input().read()) if key == STANDARD else None
        return Path(path).open("rb") if whole is None else cast("BinaryIO", io.BufferedReader(cast("Any", whole)))
    if key not in _copies:
        copy = _files.enter_context(tempfile.NamedTemporaryFile(prefix="rankwell-"))  # noqa: SIM115
        with nullcontext(_standard_input()) if key == STANDARD else Path(path).open("rb") as pipe:
            shutil.copyfileobj(pipe, copy)
        copy.flush()
        _copies[key] = Path(copy.name)
    return _copies[key].open("rb")


def _pipe(path: FilePath) -> _Key | None:
    """What identifies a pipe, a device or standard input; None for a file."""
    if os.fspath(path) == STANDARD:
        return STANDARD
    with suppress(OSError, ValueError):  # a name that is not there, or cannot be
        status = os.stat(path)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return status.st_dev, status.st_ino
    return None


def _standard_input() -> BinaryIO:
    return sys.stdin.buffer


def is_stream(path: FilePath) -> bool:
    """Whether what is written to ``path`` goes through it: standard output, under any name, a pipe or a device."""
    return _is_standard_output(path) or _pipe(path) is not None


def _is_standard_output(path: FilePath) -> bool:
    if os.fspath(path) == STANDARD:
        return True
    with suppress(OSError, ValueError):  # no such file, or standard output is not one
        return os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    return False


def check_output(path: FilePath) -> None:
    """Raise unless ``path`` can be written: a file in an existing folder, or something to write through."""
    if os.fspath(path) == STANDARD:
        return
    path = Path(path)
    if path.is_dir():
        raise RankwellError(f"cannot write {path}: is a directory")
    if is_stream(path):
        if stat.S_ISBLK(os.stat(path).st_mode):
            raise RankwellError(f"cannot write {path}: is a disk")
        if not os.access(path, os.W_OK):
            raise RankwellError(f"cannot write {path}: permission denied")
        return
    check_parent(path)


def check_parent(path: FilePath) -> None:
    """Raise unless the folder of ``path``, which is not created, exists and can be written."""
    folder = link_target(path).parent
    if not folder.exists():
        raise RankwellError(f"cannot write {path}: there is no folder {folder}")
    if not folder.is_dir():
        raise RankwellError(f"cannot write {path}: {folder.name} is not a directory")
    if not os.access(folder, os.W_OK):
        raise RankwellError(f"cannot write {path}: permission denied in {folder}")


def link_target(path: FilePath) -> Path:
    """The file that ``path`` names, at the end of symbolic links, which stay."""
    if not os.path.islink(path):
        return Path(path)
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise RankwellError(f"cannot write {path}: its symbolic links form a circle")
    return target


@contextmanager
def open_output(path: FilePath) -> Iterator[BinaryIO]:
    """Write through standard output, a pipe or a device."""
    check_output(path)
    if _is_standard_output(path):
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with Path(path).open("wb") as file:
        yield file
