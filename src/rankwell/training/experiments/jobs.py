"""Training several recipes at once, each in its own process, for small models that do not fill the device.

A recipe waits while another one runs a stage that both share, so no stage is computed twice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from typing import Any, Generic, TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.5


@dataclass(frozen=True, eq=False)
class RecipeJob(Generic[T]):
    """``work(*arguments)``, to be sent to another process; ``stages`` are the keys of its stages, in order."""

    name: str
    stages: tuple[str, ...]
    work: Callable[..., T]
    arguments: tuple[Any, ...]


def must_wait(job: RecipeJob[Any], other: RecipeJob[Any], begun: Callable[[str], bool]) -> bool:
    """Whether ``other``, which is running, has yet to finish a stage that both have.

    A stage's key holds those before it, so what two jobs share is a beginning. It is finished, and measured, when the
    stage after it has begun.
    """
    shared = 0
    for ours, theirs in zip(job.stages, other.stages, strict=False):
        if ours != theirs:
            break
        shared += 1
    if shared == 0:
        return False
    return shared == len(other.stages) or not begun(other.stages[shared])


def run_jobs(
    jobs: Sequence[RecipeJob[T]], at_once: int, begun: Callable[[str], bool]
) -> Iterator[tuple[RecipeJob[T], T | str]]:
    """Yields each finished job with its result, or with an error message if its process died.

    Jobs start in order, except those that must wait. ``begun`` says whether a stage has started.
    """
    waiting, idle = list(jobs), [_process(at_once) for _ in range(min(at_once, len(jobs)))]
    running: dict[Future[T], tuple[RecipeJob[T], ProcessPoolExecutor]] = {}
    try:
        while waiting or running:
            for job in list(waiting):
                if not idle:
                    break
                if not any(must_wait(job, other, begun) for other, _ in running.values()):
                    waiting.remove(job)
                    process = idle.pop()
                    running[process.submit(job.work, *job.arguments)] = (job, process)
            finished, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in finished:
                job, process = running.pop(future)
                try:
                    result: T | str = future.result()
                except BrokenProcessPool:
                    process.shutdown(wait=False)
                    process, result = _process(at_once), "its process died; is there memory for so many at once?"
                idle.append(process)
                yield job, result
    finally:
        for process in [*idle, *(process for _, process in running.values())]:
            process.shutdown(wait=False, cancel_futures=True)


def _process(at_once: int) -> ProcessPoolExecutor:
    """One process; a pool of several would lose them all with the first that dies."""
    threads = max(1, (os.cpu_count() or 1) // at_once)
    # Not forked: CUDA cannot be used in a fork of a process that used it.
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_settle, initargs=(threads,))


def _settle(threads: int) -> None:
    """Share the processor, and end when the process that started this one does."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
