"""Locks on folders: for one process at a time, or for processes that fill a folder together.

The operating system releases a lock when its process ends, however it ends, so no lock is ever left behind. Windows has
no such locks: there, only one process at a time may work in a folder, and nothing checks it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankwell.core.errors import RankwellError
from rankwell.core.files import disk_errors, temporary_name

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]


def _flock(file: IO[bytes], *, shared: bool = False, wait: bool = True) -> None:
    if fcntl is not None:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def lock_byte(file: IO[bytes], number: int, *, wait: bool) -> None:
    """Lock one byte of a file; if another process holds it, wait, or raise ``OSError`` without ``wait``."""
    if fcntl is not None:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, number)


def unlock_byte(file: IO[bytes], number: int) -> None:
    """Release a byte of a file."""
    if fcntl is not None:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, number)


@contextmanager
def lock(folder: Path, *, wait: bool, name: str = "lock") -> Iterator[None]:
    """Hold the lock ``name`` of ``folder``, which is created if missing.

    If another process holds it, wait for that process or, without ``wait``, raise. A folder that was created for work
    which failed and left nothing is removed.
    """
    with disk_errors(folder):
        created = not folder.exists()
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                file = (folder / name).open("ab")
            except FileNotFoundError:  # removed by a process whose work failed
                continue
            with file:
                try:
                    _flock(file, wait=wait)
                except BlockingIOError:
                    raise RankwellError(f"another process is working in {folder}") from None
                if not _is_at(folder / name, file):  # removed while we waited
                    continue
                try:
                    yield
                except BaseException:
                    if created and [path.name for path in folder.iterdir()] == [name]:
                        (folder / name).unlink()
                        folder.rmdir()
                    raise
                return


@dataclass(frozen=True)
class SharedFolder:
    """A folder that processes with the same work fill together. It is never deleted while another process uses it."""

    path: Path
    users: IO[bytes]
    """The lock that every user of the folder holds."""

    @classmethod
    @contextmanager
    def enter(cls, path: Path, work: Mapping[str, str] | None = None) -> Iterator[SharedFolder]:
        """Use the folder at ``path``, which is created if missing; raise if processes with other work are using it.

        ``work`` names everything that changes the result.
        """
        while True:
            with ExitStack() as files:
                try:
                    with disk_errors(path):
                        path.mkdir(parents=True, exist_ok=True)
                        opened = ((path / name).open("a+b") for name in ("work", "members", "users"))
                        plan, members, users = (files.enter_context(file) for file in opened)
                except FileNotFoundError:  # deleted before it could be locked
                    continue
                if not _is_at(path / "work", plan):  # replaced meanwhile: the later files belong to another folder
                    continue
                shared = cls(path, users)
                difference = _join(plan, members, dict(work or {}))
                if difference is not None and shared._exists():
                    problem = f"another process is working in {path} with another {difference}"
                    raise RankwellError(f"{problem}; wait until it is done, or choose another name to write to")
                if difference is None:
                    _flock(users, shared=True)
                    if shared._exists():  # else it was deleted while we waited
                        yield shared
                        return

    def alone(self, *, wait: bool) -> bool:
        """Become the folder's only user. False if others use it, or, after waiting for them, have removed it."""
        try:
            _flock(self.users, wait=wait)
        except BlockingIOError:
            return False
        return self._exists()

    def remove(self) -> None:
        """Delete the folder; call :meth:`alone` first. A process that arrives meanwhile starts a new folder."""
        with suppress(OSError):  # the work is done, even if files remain
            shutil.rmtree(self.path.rename(temporary_name(self.path)), ignore_errors=True)

    def _exists(self) -> bool:
        return _is_at(self.path / "users", self.users)


def _is_at(path: Path, file: IO[bytes]) -> bool:
    """Whether an open file is still the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _join(plan: IO[bytes], members: IO[bytes], work: dict[str, str]) -> str | None:
    """Become a member of a folder, or return the first entry of ``work`` that differs from its members' work.

    A process stays a member until it leaves. The lock ``users`` cannot tell whether members are left, because the last
    of them trades its shared lock for an exclusive one.
    """
    _flock(plan)
    try:
        try:
            _flock(members, wait=False)
        except BlockingIOError:
            plan.seek(0)
            theirs = json.loads(plan.read())
            if difference := next((name for name in work if theirs.get(name) != work[name]), None):
                return difference
        else:  # the first member, or the first since the previous ones were killed
            plan.truncate(0)
            plan.write(json.dumps(work).encode())
            plan.flush()
        _flock(members, shared=True)
    finally:
        if fcntl is not None:
            fcntl.flock(plan, fcntl.LOCK_UN)
    return None
