"""One process at a time in a folder.

The operating system releases a lock when its process ends, however it ends, so a lock is never left behind.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankwell.core.errors import RankwellError
from rankwell.core.files import disk_errors


@contextmanager
def lock(folder: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of ``folder``, which is created if missing.

    If another process holds it, wait for that process to finish, or without ``wait`` raise.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise RankwellError(f"another process is working in {folder}") from None
            yield
