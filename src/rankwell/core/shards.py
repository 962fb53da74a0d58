"""Long work over a collection in shards: each is written whole or not at all, and finished shards are never redone.

A folder of shards has ``shards.json``, which records what made them, and one file for each range of items. A shard is
done when its file exists, because a file gets its name last, by a rename. A process that works on a shard holds a lock
on it, which the system releases when the process ends, however it ends. So interrupted work resumes where it stopped,
any number of processes (the same command several times, on one machine or on a shared disk) can share it, and the files
are the same in any case.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from numpy.typing import DTypeLike

from rankwell.core.checksums import FileChecksums, checksums_beside
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import TEMPORARY_PREFIX, atomic_binary, checked_binary, disk_errors, open_binary
from rankwell.core.locks import lock_byte, unlock_byte
from rankwell.core.manifest import Manifest, check_seal, digest, write_sealed
from rankwell.core.mapped import MappedArray, map_file
from rankwell.core.progress import progress

MANIFEST = "shards.json"
LOCK = "lock"
POLL_SECONDS = 0.2


def shards_folder(out: Path) -> Path:
    """``OUT.shards``, the folder for unfinished work on ``out``. It remains after a failure, to resume from."""
    return out.absolute().with_name(f"{out.name}.shards")


def remove_shards(out: Path) -> None:
    """Delete ``OUT.shards``; call it when ``out`` is written."""
    shutil.rmtree(shards_folder(out), ignore_errors=True)


ShardWork = Callable[[range, IO[bytes]], None]
"""Writes the results of some items. Must depend on the items alone, because any process may run it."""


@dataclass(frozen=True)
class Shards:
    """``count`` items in ranges of ``size``, each a file in ``folder``. Their bytes depend on ``config`` alone."""

    folder: Path
    count: int
    size: int
    config: Mapping[str, Any] = field(default_factory=dict)
    suffix: str = ".jsonl"
    """Suffix of the files; if it ends in ``.gz``, they are compressed."""

    def __post_init__(self) -> None:
        if self.count < 0 or self.size < 1:
            raise ValueError(f"{self.count} items in shards of {self.size}")

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def items(self, number: int) -> range:
        """The items of a shard."""
        return range(number * self.size, min((number + 1) * self.size, self.count))

    def path(self, number: int) -> Path:
        """The file of a shard; the names sort in the order of the items."""
        return self.folder / f"shard-{number:06d}{self.suffix}"

    def paths(self) -> list[Path]:
        """The files of all shards, in order."""
        return [self.path(number) for number in range(len(self))]

    def pending(self) -> list[int]:
        """The shards that are not done."""
        return [number for number in range(len(self)) if not self.path(number).exists()]

    def check(self) -> None:
        """Raise unless every shard is done."""
        if pending := self.pending():
            raise InputError(self.folder, None, f"{len(pending):,} of {len(self):,} shards are not done")

    def checksums(self, number: int) -> FileChecksums | None:
        """The checksums of a shard's file; None if it is compressed."""
        return checksums_beside(self.path(number))

    def map(self, number: int, dtype: DTypeLike, shape: tuple[int, ...]) -> MappedArray:
        """Memory-map a shard that holds nothing but an array."""
        return map_file(self.path(number), dtype, shape, self.checksums(number))

    def join(self, path: Path) -> None:
        """Concatenate all shards into one file, compressed if its name ends in ``.gz``."""
        self.check()
        with atomic_binary(path) as joined:
            for number, shard in enumerate(self.paths()):
                if (checksums := self.checksums(number)) is not None:
                    checksums.check_file(shard)
                with open_binary(shard) as file:
                    shutil.copyfileobj(file, joined, 1 << 20)


def map_shards(shards: Shards, work: ShardWork, *, description: str = "working", wait: bool = True) -> None:
    """Do the shards that no other process has done or is doing. With ``wait``, return only when all are done.

    Call it from one thread of a process at a time, because the locks belong to the process.
    """
    total = sum(len(shards.items(number)) for number in shards.pending())
    with _locks(shards) as locks, progress(description, total=total, unit="documents") as shown:
        for number in _claims(shards, locks, wait):
            path, items = shards.path(number), shards.items(number)
            shown.expect(len(items), len(items))
            # gzip has a checksum of its own
            with atomic_binary(path) if path.suffix == ".gz" else checked_binary(path) as file:
                work(items, file)
            shown.finish(len(items))


def recorded_size(folder: Path) -> int | None:
    """The number of items in each shard of a folder; ``None`` if the folder has none yet."""
    try:
        size = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["config"]["shard size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # opening the shards reports what is wrong with them
    return size if isinstance(size, int) and size > 0 else None


def read_plan(path: Path) -> dict[str, Any]:
    """What made a folder of shards, from its ``shards.json``. Raises if the file is damaged."""
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        recorded, config = written["config_hash"], written["config"]
    except (ValueError, KeyError, TypeError):
        raise InputError(path, None, "not the manifest of a folder of shards") from None
    check_seal(path, written)
    # A key of no manifest is the damaged name of the checksum.
    if recorded != digest(config) or not written.keys() <= Manifest("shards", {}, {}).as_dict().keys():
        raise InputError(path, None, "damaged: has a wrong checksum")
    return dict(config)


def open_shards(shards: Shards) -> None:
    """Record in the folder what makes these shards. Raises if it holds shards of other work."""
    with _locks(shards):
        pass


def _claims(shards: Shards, locks: IO[bytes], wait: bool) -> Iterator[int]:
    """Claim shards one by one. If other processes have the last ones, wait: one of them may be killed."""
    while pending := shards.pending():
        claimed = False
        for number in pending:
            if not _claim(locks, number):
                continue
            if not shards.path(number).exists():  # another process may just have done it
                _remove_leftovers(shards.path(number))
                claimed = True
                yield number
            unlock_byte(locks, number)
        if not claimed:
            if not wait:
                return
            time.sleep(POLL_SECONDS)


def _claim(locks: IO[bytes], number: int) -> bool:
    """Lock the shard's byte of the lock file."""
    try:
        lock_byte(locks, number, wait=False)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _remove_leftovers(path: Path) -> None:
    """Delete what interrupted writers of this shard or its checksums left. Call it only while holding its lock."""
    for leftover in path.parent.glob(f"{TEMPORARY_PREFIX}*{path.name}"):
        leftover.unlink(missing_ok=True)


@contextmanager
def _locks(shards: Shards) -> Iterator[IO[bytes]]:
    """The open lock file of the folder. Raises if the folder holds shards of other work."""
    with disk_errors(shards.folder):
        shards.folder.mkdir(parents=True, exist_ok=True)
        locks = (shards.folder / LOCK).open("ab")
    with locks:
        # The byte after those of the shards: one process writes the manifest, even if several start together.
        lock_byte(locks, len(shards), wait=True)
        try:
            _check_manifest(shards)
        finally:
            unlock_byte(locks, len(shards))
        yield locks


def _check_manifest(shards: Shards) -> None:
    path = shards.folder / MANIFEST
    plan = {"items": shards.count, "shard size": shards.size, "suffix": shards.suffix, **shards.config}
    manifest = Manifest("shards", plan, {}).as_dict()
    if not path.exists():
        _remove_leftovers(path)
        if shards.pending() != list(range(len(shards))):
            raise InputError(
                shards.folder, None, f"has shards but no {MANIFEST} that records what made them; remove the folder"
            )
        write_sealed(path, manifest)
        return
    config = read_plan(path)
    if digest(config) != manifest["config_hash"]:
        names = sorted({*plan, *config})
        other = next((name for name in names if str(plan.get(name)) != str(config.get(name))), "config")
        problem = f"{other} was {config.get(other)!r}, now {plan.get(other)!r}"
        raise RankwellError(
            f"{shards.folder} holds shards of other work ({problem}); remove it or choose another folder"
        )


# Long work over a collection, done by this process or by the workers of a cluster


class Job(Protocol):
    """Work in shards. Jobs are sent to other processes, so they hold paths and options, never open files or models."""

    def prepare(self) -> Shards:
        """Do what must be done once, before any worker starts, and return the shards."""
        ...

    def work(self, shards: Shards) -> None:
        """Do shards until none is left, as :func:`~rankwell.core.shards.map_shards` does."""
        ...


class Workers(Protocol):
    """Processes that work on a job together, such as those of ``rankwell_ray.workers.Cluster``."""

    def run(self, job: Job, shards: Shards, description: str) -> None:
        """Let every worker do shards of ``job`` until none is left."""
        ...


def do(job: Job, workers: Workers | None = None, *, description: str = "working") -> Shards:
    """Do the shards of a job that are not done yet: in this process, or by ``workers``."""
    shards = job.prepare()
    if workers is None or not shards.pending():
        job.work(shards)  # also checks that finished shards belong to this job
    else:
        workers.run(job, shards, description)
    shards.check()
    return shards
