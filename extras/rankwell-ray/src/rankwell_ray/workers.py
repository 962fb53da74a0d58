"""Jobs (:mod:`rankwell.core.shards`) done by the workers of a Ray cluster.

Ray finds the machines, starts the processes and restarts lost ones; locks on files that all of them see decide who does
which shard. So a lost worker costs only the shard it was working on, and an interrupted job resumes where it stopped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.core.shards import Job, Shards

LOCAL = "local"
OBJECT_STORE_BYTES = 512 * 2**20
RETRIES = 8
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Cluster:
    """Where workers run.

    ============  ======================================================================================
    ``address``   address of a running cluster for ``ray.init``; ``local`` starts one on this machine
    ``workers``   number of workers; 0 means as many as the cluster has room for
    ``cpus``      cores per worker
    ``gpus``      GPUs per worker; with a fraction, several workers share one
    ============  ======================================================================================
    """

    address: str = LOCAL
    workers: int = 0
    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        if self.workers < 0 or self.cpus < 0 or self.gpus < 0 or not self.cpus + self.gpus > 0:
            raise RankwellError(f"{self.workers} workers of {self.cpus:g} cores and {self.gpus:g} GPUs")

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """The module ray, connected. At the end, only what this call started is shut down."""
        # Unless this is set, Ray sends usage statistics to its makers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        if ray.is_initialized():
            yield ray
            return
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if self.address == LOCAL:
                # A cluster that already runs on this machine belongs to someone else: it is joined only by its address.
                cores = max(os.cpu_count() or 1, self.workers)
                store = OBJECT_STORE_BYTES
                ray.init(address=LOCAL, num_cpus=cores, object_store_memory=store, include_dashboard=False, **quiet)
            else:
                ray.init(address=self.address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RankwellError(f"no Ray cluster answers at {self.address}: {reason}") from None
        try:
            yield ray
        finally:
            ray.shutdown()

    def run(self, job: Job, shards: Shards, description: str) -> None:
        """See :class:`~rankwell.core.shards.Workers`."""
        with self.connected() as ray:
            room = self.room(ray)  # raises if a worker would wait for ever
            count = min(self.workers or room, len(shards.pending()))
            # A task, not an actor: it loads its model once too, and Ray reruns it if its process is lost.
            options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": RETRIES}
            remote = ray.remote(_work).options(scheduling_strategy="SPREAD", **options)
            shared = ray.put((job, shards))
            running = [remote.remote(shared) for _ in range(count)]
            done = _finished(ray, running, shards)
            try:
                for _ in track(done, description, total=len(shards.pending()), unit="shards"):
                    pass
            except BaseException:
                # Only running tasks, and not by force: Ray 2.60 aborts this process if a task ends as it is cancelled.
                for task in ray.wait(running, num_returns=len(running), timeout=0)[1]:
                    ray.cancel(task)
                raise

    def room(self, ray: Any) -> int:
        """The number of workers the cluster has room for, at least 1."""
        total = ray.cluster_resources()
        rooms = [int(total.get(name, 0) // need) for name, need in (("CPU", self.cpus), ("GPU", self.gpus)) if need > 0]
        if min(rooms) < 1:
            raise RankwellError(
                f"no machine of the cluster has {self.cpus:g} cores and {self.gpus:g} GPUs for a worker"
            )
        return min(rooms)


def for_workers(source: str) -> str:
    """An absolute path, which workers find from any folder; the name of a model or data set is left alone."""
    return str(Path(source).absolute()) if Path(source).exists() else source


def _finished(ray: Any, running: list[Any], shards: Shards) -> Iterator[int]:
    """Yield each shard when it is done. A lost worker matters only if shards are left when all workers have ended."""
    left, tasks = set(shards.pending()), list(running)
    while tasks:
        ended, tasks = ray.wait(tasks, timeout=POLL_SECONDS)
        for task in ended:
            try:
                problem = ray.get(task)
            except ray.exceptions.WorkerCrashedError:
                problem = None
            if problem is not None:
                raise RankwellError(problem)
        done = {number for number in left if shards.path(number).exists()}
        left -= done
        yield from sorted(done)
    if left:
        raise RankwellError(f"workers were lost {RETRIES} times; {len(left):,} of {len(shards):,} shards are not done")


def _work(shared: tuple[Job, Shards]) -> str | None:
    """A worker's task. Returns the message of a user error, which Ray would wrap in an error of its own."""
    job, shards = shared
    try:
        job.work(shards)
    except RankwellError as error:
        return str(error)
    return None
