"""A folder for what several processes make together, which the last of them clears away."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankwell.core.errors import RankwellError
from rankwell.core.files import disk_errors, temporary_name
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore


@dataclass(frozen=True)
class SharedFolder:
    """A folder that processes with the same work fill together. While one of them has it, no other deletes it."""

    path: Path
    users: IO[bytes]
    """The lock that every user of the folder holds."""

    @classmethod
    @contextmanager
    def enter(cls, path: Path, work: Mapping[str, str] | None = None) -> Iterator[SharedFolder]:
        """Have the folder at ``path``, which is made where there is none; an error where others have it for other work.

        ``work`` says by name all that makes a difference to what is made.
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
                if not _is_at(path / "work", plan):  # replaced meanwhile: the later files are another folder's
                    continue
                shared = cls(path, users)
                other = _join(plan, members, dict(work or {}))
                if other is not None and shared._is_there():
                    problem = f"another process is at work in {path}, with another {other}"
                    raise RankwellError(f"{problem}; wait until it is done, or choose another name to write to")
                if other is None:
                    fcntl.flock(users, fcntl.LOCK_SH)
                    if shared._is_there():  # else it was deleted while we waited
                        yield shared
                        return

    def store(self, documents: Iterable[Document], source: str) -> DocumentStore:
        """The texts of ``documents``, whose digest is ``source``: one process makes them, the others wait."""
        texts = self.path / f"documents-{source}"
        # A lock of its own: to wait for sole use of the folder is to let go of it, and another might delete it then.
        with (self.path / "texts").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not texts.exists():
                DocumentStore.build(documents, texts)
        return DocumentStore.open(texts)

    def alone(self, *, wait: bool) -> bool:
        """Have the folder to oneself. False where others use it, or, after waiting for them, have removed it."""
        try:
            fcntl.flock(self.users, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return self._is_there()

    def remove(self) -> None:
        """Delete the folder, once alone; a process that comes meanwhile sees nothing of it."""
        with suppress(OSError):  # the work is done, whatever stays
            shutil.rmtree(self.path.rename(temporary_name(self.path)), ignore_errors=True)

    def _is_there(self) -> bool:
        return _is_at(self.path / "users", self.users)


def _is_at(path: Path, file: IO[bytes]) -> bool:
    """Whether an open file is still the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _join(plan: IO[bytes], members: IO[bytes], work: dict[str, str]) -> str | None:
    """Become one of those who have a folder; or else the name of what they, who have it now, do otherwise.

    Nobody gives up membership but by leaving: ``users``, which changes hands in the end, cannot tell whether any is
    left.
    """
    fcntl.flock(plan, fcntl.LOCK_EX)
    try:
        try:
            fcntl.flock(members, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            plan.seek(0)
            theirs = json.loads(plan.read())
            if other := next((name for name in work if theirs.get(name) != work[name]), None):
                return other
        else:  # the first, or the first since those before were killed
            plan.truncate(0)
            plan.write(json.dumps(work).encode())
            plan.flush()
        fcntl.flock(members, fcntl.LOCK_SH)
    finally:
        fcntl.flock(plan, fcntl.LOCK_UN)
    return None
