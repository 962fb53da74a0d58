"""Reading lines and writing files so that nothing goes wrong silently.

Reading: gzip is recognised by its first bytes, not its name; broken gzip, bytes that are not UTF-8 and binary data
raise :class:`InputError` with a line number. Writing: a file is written under a temporary name in the same folder,
flushed to disk and then renamed, so readers see the old file or the complete new one, never half of it. Pipes, devices
and ``-`` are written through instead; symbolic links stay, and the file they name is replaced.
"""

from __future__ import annotations

import errno
import glob
import gzip
import io
import os
import secrets
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO, cast

from rankwell.core.checksums import FileChecksums, encode_checksums, table_beside, write_checksums
from rankwell.core.errors import InputError, RankwellError, WriteError, system_reason

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
        whole = io.BytesIO(sys.stdin.buffer.read()) if key == STANDARD else None
        return Path(path).open("rb") if whole is None else cast("BinaryIO", io.BufferedReader(cast("Any", whole)))
    if key not in _copies:
        copy = _files.enter_context(tempfile.NamedTemporaryFile(prefix="rankwell-"))  # noqa: SIM115
        with nullcontext(sys.stdin.buffer) if key == STANDARD else Path(path).open("rb") as pipe:
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


GZIP_MAGIC = b"\x1f\x8b"
MAX_LINE_BYTES = 32 * 2**20
"""Of a line, and of a cell of csv, which takes some ten times as much memory."""
UNPACKED_SETTING = "RANKWELL_MAX_UNPACKED"
MOST_UNPACKED, LEAST_UNPACKED, OF_A_ROW = 100, 2**28, 64
"""A packed file may unpack to this many times its size, or to this many bytes, unless the setting has another bound in
MiB. A row or line counts that many bytes more, for what becomes of it. Text unpacks to about ten times its size."""
TEMPORARY_PREFIX = ".partial-"
DISK_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),  # the disk
    *(errno.EROFS, errno.EACCES, errno.EPERM),  # permissions
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ENAMETOOLONG),  # the name
}


def open_raw(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file, a pipe or, for ``-``, standard input. A file that cannot be read is an :class:`InputError`."""
    try:
        return open_input(path)
    except FileNotFoundError:
        raise InputError(path, None, "no such file") from None
    except IsADirectoryError:
        raise InputError(path, None, "is a folder, expected a file") from None
    except PermissionError:
        raise InputError(path, None, "cannot be read (permission denied)") from None
    except OSError as error:
        raise InputError(path, None, f"cannot be read ({system_reason(error)})") from None


def open_binary(path: str | os.PathLike[str]) -> BinaryIO:
    """:func:`open_raw`, decompressed if it is gzip."""
    raw = cast("io.BufferedReader", open_raw(path))
    if raw.peek(2)[:2] == GZIP_MAGIC:
        unzipped = gzip.GzipFile(fileobj=raw, mode="rb")
        unzipped.myfileobj = cast("io.FileIO", raw)  # so that closing one closes both
        return cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", unzipped), 2**20))
    return cast("BinaryIO", raw)


class Unpacked:
    """Counts what a file of ``size`` bytes unpacks to, and refuses what no ordinary file of its size holds."""

    def __init__(self, path: FilePath, size: int):
        self.path, self.size, self.total = path, size, 0
        setting = os.environ.get(UNPACKED_SETTING, "")
        if setting and not (setting.isascii() and setting.isdecimal()):
            raise RankwellError(f"{UNPACKED_SETTING} is {setting!r}, expected a number of MiB")
        self.most = int(setting) << 20 if setting else max(MOST_UNPACKED * size, LEAST_UNPACKED)

    def add(self, count: int, rows: int = 0, line: int | None = None) -> None:
        """Count bytes and rows before they are used."""
        self.total += count + OF_A_ROW * rows
        if self.total > self.most:
            packed = f"takes over {self.most >> 20:,} MiB unpacked, the bound for a file of {self.size:,} bytes"
            raise InputError(self.path, line, f"{packed}; set {UNPACKED_SETTING} to more MiB to read it")

    @classmethod
    def zipped(cls, path: FilePath, file: BinaryIO) -> Unpacked:
        """For gzip. If its end claims too much, all is unpacked to see whether that is true: lines take far longer."""
        size = os.fstat(file.fileno()).st_size
        unpacked = cls(path, size)
        if size > len(GZIP_MAGIC) and file.seekable():
            file.seek(max(0, size - 4))
            if int.from_bytes(file.read(4), "little") > unpacked.most:
                file.seek(0)
                with suppress(EOFError, gzip.BadGzipFile, zlib.error), gzip.GzipFile(fileobj=file) as whole:
                    while chunk := whole.read(2**20):
                        unpacked.add(len(chunk))
            file.seek(0)
        return cls(path, size)


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield ``(line number, text without its line end)``, counting from 1. A byte-order mark is dropped."""
    number = size = 0
    with open_binary(path) as file:
        zipped = getattr(getattr(file, "raw", None), "fileobj", None)
        unpacked = Unpacked.zipped(path, zipped) if zipped else None
        try:
            # The bound keeps a binary file without line ends from filling the memory.
            while line := file.readline(MAX_LINE_BYTES):
                number, size = number + 1, size + len(line) + OF_A_ROW
                if unpacked is not None and size > MAX_LINE_BYTES:
                    unpacked.add(size, line=number)
                    size = 0
                if len(line) == MAX_LINE_BYTES:
                    raise InputError(path, number, f"a line of over {MAX_LINE_BYTES >> 20} MiB; is this a text file?")
                if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                    line = line[3:]
                text = line.decode("utf-8")
                if "\0" in text:
                    raise InputError(path, number, "holds a NUL character; is this a text file?")
                yield number, text.rstrip("\r\n")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            source = "utf-16" if number == 1 and byte in (0xFE, 0xFF) else "latin1"
            problem = f"not UTF-8 text (byte 0x{byte:02x} at column {error.start + 1}); `iconv -f {source} -t utf-8 "
            problem += f"{Path(path).name} > converted` converts it, if it is {source}"
            raise InputError(path, number, problem) from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(path, number + 1, f"broken gzip file ({error})") from None


@contextmanager
def disk_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Report a full disk or missing permissions while writing ``path`` as a :class:`WriteError`."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_ERRORS or _cannot_be_made(error, Path(path)):
            raise WriteError(f"cannot write {path}: {system_reason(error)}") from error
        raise


def _cannot_be_made(error: OSError, path: Path) -> bool:
    """Whether creating ``path`` failed with "not found", as in /proc. Any other missing file is a different error."""
    if error.errno != errno.ENOENT or not isinstance(error.filename, str | os.PathLike):
        return False
    named = Path(error.filename)
    return named in (path, *path.parents) or named.name.startswith(TEMPORARY_PREFIX)


def exchange(first: Path, second: Path) -> None:
    """Exchange two files or folders on one disk in a single rename, so that both names always exist."""
    import ctypes

    library = None if os.name == "nt" else ctypes.CDLL(None, use_errno=True)
    rename = getattr(library, "renameat2", None)  # Linux
    here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename is not None:
        failed = rename(here, os.fsencode(first), here, os.fsencode(second), flag)
    elif (rename := getattr(library, "renamex_np", None)) is not None:  # macOS; its RENAME_SWAP is 2, too
        failed = rename(os.fsencode(first), os.fsencode(second), flag)
    else:
        raise WriteError(f"cannot replace {second} in one step: this system has no way to exchange two folders")
    if failed:
        reason = os.strerror(ctypes.get_errno()).lower()
        raise WriteError(f"cannot replace {second} in one step: {reason}")
    for folder in {first.parent, second.parent}:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make renames within ``folder`` durable, if the system can open folders (Windows cannot)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """A fresh name beside ``path`` that readers ignore."""
    return path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}-{path.name}")


@contextmanager
def atomic_binary(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Write ``path`` whole or not at all. A name that ends in ``.gz`` means gzip, without a time stamp."""
    if is_stream(path):
        with disk_errors(path), open_output(path) as stream, _compressed(stream, path) as file:
            yield file
        return
    target = link_target(path)
    temporary = temporary_name(target)
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as written:
                with _compressed(written, path) as file:
                    yield file
                written.flush()
                os.fsync(written.fileno())
            os.replace(temporary, target)
            sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def checked_binary(path: Path) -> Iterator[IO[bytes]]:
    """:func:`atomic_binary` with a table of checksums beside the file, which gets its name first."""
    with atomic_binary(path) as file:
        yield file
        file.flush()
        checksums = encode_checksums({path.name: FileChecksums.of(Path(file.name))})
        with atomic_binary(table_beside(path)) as table:
            table.write(checksums)


@contextmanager
def _compressed(file: BinaryIO, path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """``file`` itself or, if the name ends in ``.gz``, what compresses into it."""
    if not os.fspath(path).endswith(".gz"):
        yield file
        return
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as zipped:
        yield cast("IO[bytes]", zipped)


@contextmanager
def atomic_text(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """:func:`atomic_binary` for UTF-8 text with ``\\n`` line ends."""
    with atomic_binary(path) as file:
        text = io.TextIOWrapper(cast("BinaryIO", file), encoding="utf-8", newline="\n")
        yield text
        text.flush()
        text.detach()


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, checksums: bool = True) -> Iterator[Path]:
    """Fill a temporary folder, then rename it to ``path``, which must not exist.

    ``checksums`` adds a table of them, unless the parts have their own.
    """
    path = Path(path)
    temporary = temporary_name(path)
    with disk_errors(path):
        temporary.mkdir(parents=True)
        try:
            yield temporary
            if checksums:
                write_checksums(temporary)
            for place, _, names in os.walk(temporary, topdown=False):
                for name in names:
                    with Path(place, name).open("rb") as written:
                        os.fsync(written.fileno())
                sync_folder(Path(place))
            temporary.rename(path)
            sync_folder(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def link_tree(source: Path, target: Path, *, skip: Callable[[Path], bool] = lambda path: False) -> None:
    """Hard-link all files below ``source`` into ``target``, or copy them if the file system has no hard links.

    Files and folders for which ``skip`` is true are left out.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        twin = target / path.name
        if skip(path) or path.name.startswith(TEMPORARY_PREFIX):
            continue
        if path.is_dir():
            link_tree(path, twin, skip=skip)
            continue
        try:
            os.link(path.resolve(), twin)  # a link to a symbolic link would break when the folder moves
        except OSError:  # another disk, or one without links
            shutil.copyfile(path, twin)


def folder_size(folder: Path) -> int:
    """The size of all files below a folder, in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def remove_folders(folders: Iterable[Path]) -> None:
    """Delete folders that others may read: all of each is gone at once, or is a leftover."""
    for folder in folders:
        gone = folder
        with suppress(OSError):
            gone = folder.rename(temporary_name(folder))
        shutil.rmtree(gone, ignore_errors=True)


def remove_leftovers(folder: Path, *, below: bool = False, of: str | None = None) -> None:
    """Delete what interrupted writers left in ``folder`` and, on request, in the folders ``below`` it.

    With ``of``, only what writers of a file or folder of this name left. Call it only while holding the folder's lock,
    or the lock that writers of that name hold.
    """
    pattern = f"{TEMPORARY_PREFIX}*" if of is None else f"{TEMPORARY_PREFIX}{'?' * 8}-{glob.escape(of)}"
    for leftover in list(folder.rglob(pattern) if below else folder.glob(pattern)):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                leftover.unlink()
