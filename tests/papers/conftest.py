"""Work that is interrupted, and the workers of a cluster without a cluster."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rankwell.core.shards as core_shards
from rankwell.core.shards import Job, Shards


class OtherProcess:
    """Workers of a cluster, in this process: the job reaches them as bytes, as it does other machines."""

    def __init__(self, shards: int | None = None):
        self.shards = shards

    def run(self, job: Job, shards: Shards, description: str) -> None:
        copy: Job = pickle.loads(pickle.dumps(job))  # noqa: S301
        with interrupted_after(self.shards):
            copy.work(shards)


@contextmanager
def interrupted_after(shards: int | None) -> Iterator[None]:
    """Interrupt the work when it begins to write one more shard than this."""
    begun: list[Path] = []

    def counted(write: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def begin(path: Path) -> Any:
            begun.append(path)
            if shards is not None and len(begun) > shards:
                raise KeyboardInterrupt
            return write(path)

        return begin

    with pytest.MonkeyPatch.context() as patch:
        for name in ("atomic_binary", "checked_binary"):
            patch.setattr(core_shards, name, counted(getattr(core_shards, name)))
        yield
