"""Jobs in shards, done by this process or by the workers of a Ray cluster.

A job is prepared once and then worked on by any number of processes, each of which claims shards until none is left
(:mod:`rankwell.core.shards`). Ray finds the machines, starts the processes and starts lost ones again; who does which
shard is decided by locks on files that all of them see. So a lost worker costs the shard it had, a job that is killed
goes on where it stood, and the same job without Ray is one process that claims every shard.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.core.progress import track
from rankwell.core.shards import Shards

LOCAL = "local"
OBJECT_STORE_BYTES = 512 * 2**20
RETRIES = 8
POLL_SECONDS = 0.5


class Job(Protocol):
    """Work in shards. It travels to the workers, so it holds paths and options, nothing that is open."""

    def prepare(self) -> Shards:
        """What is done once, before any worker starts; gives the shards."""
        ...

    def work(self, shards: Shards) -> None:
        """Do shards until none is left, as :func:`~rankwell.core.shards.map_shards` does."""
        ...


@dataclass(frozen=True)
class Cluster:
    """Where workers run.

    ============  ======================================================================================
    ``address``   of a running cluster, as ``ray.init`` takes it; ``local`` starts one on this machine
    ``workers``   how many; 0 takes as many as the cluster has room for
    ``cpus``      cores a worker
    ``gpus``      GPUs a worker; a fraction lets several share one
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
        """The module ray, connected; what this call started, and no more, is shut down at the end."""
        ray = import_ray()
        if ray.is_initialized():
            yield ray
            return
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if self.address == LOCAL:
                # A cluster that happens to run on this machine is someone else's: it is joined only by its address.
                cores = max(os.cpu_count() or 1, self.workers)
                store = OBJECT_STORE_BYTES
                ray.init(address=LOCAL, num_cpus=cores, object_store_memory=store, include_dashboard=False, **quiet)
            else:
                ray.init(address=self.address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RankwellError(f"no Ray cluster answers at {self.address}: {said}") from None
        try:
            yield ray
        finally:
            ray.shutdown()

    def room(self, ray: Any) -> int:
        """How many workers there is room for, at least 1."""
        found = ray.cluster_resources()
        rooms = [int(found.get(name, 0) // need) for name, need in (("CPU", self.cpus), ("GPU", self.gpus)) if need > 0]
        if min(rooms) < 1:
            raise RankwellError(
                f"no machine of the cluster has {self.cpus:g} cores and {self.gpus:g} GPUs for a worker"
            )
        return min(rooms)


def local_device(cluster: Cluster | None, device: str | None) -> str | None:
    """The device of models in this process: with a cluster its workers have the GPUs, so this process uses the CPU."""
    return device if cluster is None else "cpu"


def import_ray() -> Any:
    """The module ray."""
    # Ray asks its makers' server for statistics of use unless told not to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "scale", "working on a cluster") from None
    return ray


def do(job: Job, cluster: Cluster | None = None, *, description: str = "working") -> Shards:
    """Do a job, in this process or on a cluster. What is done already is not done again."""
    shards = job.prepare()
    if cluster is None or not shards.pending():
        job.work(shards)  # with nothing left to do it sees that the shards are of this job
    else:
        with cluster.connected() as ray:
            _spread(ray, job, shards, cluster, description)
    shards.check()
    return shards


def _spread(ray: Any, job: Job, shards: Shards, cluster: Cluster, description: str) -> None:
    count = min(cluster.workers or cluster.room(ray), len(shards.pending()))
    # A task, not an actor: while it runs it keeps what it has loaded, and Ray runs it anew where its process is lost.
    options = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, "max_retries": RETRIES}
    remote = ray.remote(_work).options(scheduling_strategy="SPREAD", **options)
    given = ray.put((job, shards))
    running = [remote.remote(given) for _ in range(count)]
    try:
        for _ in track(_finished(ray, running, shards), description, total=len(shards.pending()), unit="shards"):
            pass
    except BaseException:
        # Only those still running, and not by force: Ray 2.60 aborts this process where a task ends as it is cancelled.
        for task in ray.wait(running, num_returns=len(running), timeout=0)[1]:
            ray.cancel(task)
        raise


def _finished(ray: Any, running: list[Any], shards: Shards) -> Iterator[int]:
    """Each shard as it gets done. A worker lost for good matters only if shards are left when all have ended."""
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


def _work(given: tuple[Job, Shards]) -> str | None:
    """What a worker does. What is wrong with the user's files comes back as a line, not as an error of Ray's."""
    job, shards = given
    try:
        job.work(shards)
    except RankwellError as error:
        return str(error)
    return None
