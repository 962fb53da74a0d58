"""Progress bars: on standard error, only in a terminal, only for work that takes over two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 2.0


def duration(seconds: float) -> str:
    """A time for people to read.

    >>> [duration(seconds) for seconds in (4, 75, 5400, 200_000)]
    ['4 s', '75 s', '90 min', '56 h']
    """
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{round(seconds / 3600)} h"


def track(items: Iterable[T], description: str, *, total: int | None = None, unit: str = "") -> Iterator[T]:
    """Yield ``items`` and show the progress. ``total`` defaults to ``len(items)`` if that is known."""
    if not sys.stderr.isatty():
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(description, total=total)
    begin, shown, pending = time.monotonic(), False, 0
    try:
        for item in items:
            yield item
            pending += 1
            if not shown and time.monotonic() - begin > PATIENCE_SECONDS:
                bar.start()
                shown = True
            if shown and (pending >= 256 or total is None or total < 10_000):
                bar.advance(task, pending)
                pending = 0
    finally:
        if shown:
            bar.advance(task, pending)
            bar.stop()
