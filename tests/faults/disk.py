"""A layer under Python's file functions, which injects a fault at the n-th operation below a folder.

    with Disk(folder, 7, errno.EIO) as disk: ...   # the 7th operation raises
    with Disk(folder, 7, KILL) as disk: ...        # the process is killed at the 7th
    with Disk(folder, 7, CUT) as disk: ...         # power is lost at the 7th: PowerCut is raised
    disk.restart(seed)                             # what a disk may hold then, another for each seed

A disk keeps for certain what was synced: a file's contents by ``fsync``, names by ``fsync`` of their folder. After a
power cut, contents written since are lost, in part or as a whole, and of the names changed since some are as before,
in any combination. Equal seeds give equal disks, so a failure can be replayed.
"""

from __future__ import annotations

import builtins
import io
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

CUT, KILL = -1, -2
"""The faults that are no error numbers."""


class PowerCut(BaseException):
    """The process is gone; no handler of ordinary errors may catch it."""


@dataclass
class Change:
    """A change of names that is not certain yet: ``undo`` takes it back."""

    name: str
    folder: str
    undo: Callable[[Callable[[str], str]], None]
    moved: tuple[str, str] | None = None


@dataclass
class Disk:
    """Counts the operations below ``folder`` and injects a fault at one of them."""

    folder: Path
    at: int | None = None
    """The number of an operation, from 1 on, that is not done any more."""
    fault: int = CUT
    operations: int = 0
    changes: list[Change] = field(default_factory=list)
    synced: dict[int, bytes] = field(default_factory=dict)
    """What is certain of the files that were synced, by inode."""
    written: set[int] = field(default_factory=set)
    """The files that were opened for writing, by inode."""

    def __enter__(self) -> Self:
        self._thread, self._original, self._backups = threading.get_ident(), {}, 0
        self.spare = self.folder.with_name(f"{self.folder.name}-spare")
        self.spare.mkdir()
        for module, names in ((builtins, ["open"]), (io, ["open"]), (os, [*_OS])):
            for name in names:
                self._original[module, name] = original = getattr(module, name)
                wrapped = getattr(self, f"_{name}")
                setattr(
                    module, name, lambda *a, _wrapped=wrapped, _original=original, **k: _wrapped(_original, *a, **k)
                )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        for (module, name), original in self._original.items():
            setattr(module, name, original)
        return isinstance(error, PowerCut)

    def restart(self, seed: int) -> None:
        """Leave on the disk what may be there when power comes back."""
        chosen = random.Random(seed)
        for inode in self.written:
            held = next((file for file in self._files() if file.stat().st_ino == inode), None)
            if held is None or held.read_bytes() == self.synced.get(inode):
                continue
            certain, now = self.synced.get(inode, b""), held.read_bytes()
            base = certain if now.startswith(certain) else b""  # what is appended leaves what was synced
            tail = now[len(base) :]
            held.write_bytes(chosen.choice([certain, base + tail[: len(tail) // 2], base + b"\0" * len(tail), now]))
        kept: list[tuple[str, str]] = []

        def place(path: str) -> str:  # where a name is after the later changes that stay
            for source, target in reversed(kept):
                if path == source or path.startswith(source + os.sep):
                    path = target + path[len(source) :]
            return path

        for change in reversed(self.changes):
            if chosen.random() < 0.5:
                if change.moved is not None:
                    kept.append(change.moved)
                continue
            if change.moved is None and change.name in (source for source, _ in kept):
                continue  # a new file whose later name stays is there under that name
            with suppress(OSError):  # a later change that stays has made this one certain
                change.undo(place)
        shutil.rmtree(self.spare)

    def _files(self) -> list[Path]:
        return [path for root in (self.folder, self.spare) for path in root.rglob("*") if path.is_file()]

    # Operations

    def _step(self, *paths: Any) -> bool:
        """Count an operation below the folder; whether it is one."""
        inside = [str(Path(os.fsdecode(path)).absolute()) for path in paths if not isinstance(path, int)]
        if threading.get_ident() != self._thread or not any(
            f"{path}{os.sep}".startswith(f"{self.folder}{os.sep}") for path in inside
        ):
            return False
        self.operations += 1
        if self.at is None or self.operations < self.at:
            return True
        if self.fault == CUT:
            raise PowerCut  # at each later operation, too: nothing runs after it, clean-up neither
        if self.fault == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.operations == self.at:
            raise OSError(self.fault, os.strerror(self.fault), inside[0])
        return True

    def _spared(self, path: Any) -> str | None:
        """A second name of a file that is about to lose its own."""
        if not os.path.isfile(path):
            return None
        self._backups += 1
        spare = str(self.spare / str(self._backups))
        self._original[os, "link"](path, spare)
        return spare

    def _change(self, path: Any, undo: Callable[[Callable[[str], str]], None], moved: Any = None) -> None:
        name = Path(os.fsdecode(path)).absolute()
        self.changes.append(
            Change(str(name), str(name.parent), undo, None if moved is None else (str(moved[0]), str(moved[1])))
        )

    def _open(self, original: Callable[..., Any], path: Any, *args: Any, **options: Any) -> Any:
        mode = options.get("mode", args[0] if args else "r")
        writes = isinstance(mode, str) and bool({*mode} & {*"wax+"})
        if isinstance(mode, int) and not mode & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            writes = False
        watched = self._step(path)
        new = watched and writes and not os.path.exists(path)
        file = original(path, *args, **options)
        if watched and writes:
            self.written.add(os.fstat(file if isinstance(file, int) else file.fileno()).st_ino)
            if new:
                name = os.path.abspath(path)
                self._change(name, lambda place: os.unlink(place(name)))
        return file

    def _mkdir(self, original: Callable[..., Any], path: Any, *args: Any, **options: Any) -> None:
        watched = self._step(path)
        original(path, *args, **options)
        if watched:
            name = os.path.abspath(path)
            self._change(name, lambda place: shutil.rmtree(place(name)))

    def _rename(self, original: Callable[..., Any], source: Any, target: Any) -> None:
        watched = self._step(source, target)
        spare = self._spared(target) if watched else None
        original(source, target)
        if not watched:
            return
        before, after = os.path.abspath(source), os.path.abspath(target)

        def undo(place: Callable[[str], str]) -> None:
            os.rename(place(after), place(before))
            if spare is not None:
                os.link(spare, place(after))

        self._change(after, undo, (before, after))

    _replace = _rename

    def _link(self, original: Callable[..., Any], source: Any, target: Any, **options: Any) -> None:
        watched = self._step(target)
        original(source, target, **options)
        if watched:
            name = os.path.abspath(target)
            self._change(name, lambda place: os.unlink(place(name)))

    def _unlink(self, original: Callable[..., Any], path: Any, **options: Any) -> None:
        watched = "dir_fd" not in options and self._step(path)
        spare = self._spared(path) if watched else None
        original(path, **options)
        if spare is not None:
            name = os.path.abspath(path)
            self._change(name, lambda place: os.link(spare, place(name)))

    _remove = _unlink

    def _fsync(self, original: Callable[..., Any], descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        watched = self._step(path)
        original(descriptor)
        if watched and os.path.isdir(path):
            self.changes = [change for change in self.changes if change.folder != path]
        elif watched:
            self.synced[os.fstat(descriptor).st_ino] = Path(path).read_bytes()


_OS = ("mkdir", "rename", "replace", "link", "unlink", "remove", "fsync")
