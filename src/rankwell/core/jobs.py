"""Long work over a collection, done by this process or by the workers of a cluster.

A job is prepared once; then any number of processes claim its shards until none is left (:mod:`rankwell.core.shards`),
with locks on files that all of them see. An interrupted job resumes where it stopped, whether it was started locally or
on a cluster.
"""

from __future__ import annotations

from typing import Protocol

from rankwell.core.shards import Shards


class Job(Protocol):
    """Work in shards. Jobs are sent to other processes, so they hold paths and options, never open files or models."""

    def prepare(self) -> Shards:
        """Do what must be done once, before any worker starts, and return the shards."""
        ...

    def work(self, shards: Shards) -> None:
        """Do shards until none is left, as :func:`~rankwell.core.shards.map_shards` does."""
        ...


class Workers(Protocol):
    """Processes that work on a job together, such as those of :class:`rankwell.scale.workers.Cluster`."""

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
