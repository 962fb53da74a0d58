"""Progress of long work: a bar in a terminal or a notebook, and a line now and then in the log of a command.

Only work that takes over two seconds is shown, with an estimate of the time that is left. If work is part of other
work, the inner one is shown while it lasts. What models compute advances the work around it batch by batch
(:func:`computed`), so that one long step moves, too.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

T = TypeVar("T")

PATIENCE_SECONDS = 2.0
LOG_SECONDS = 30.0
"""The time between two lines in a log."""
_open: list[Progress] = []
"""The work under way in the main thread, the innermost last."""
_in_log = False


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
    if total is None and isinstance(items, Sized):
        total = len(items)
    with progress(description, total=total, unit=unit) as work:
        if work.view is None:
            yield from items
            return
        pending, step, last = 0, 1, time.monotonic()
        for item in items:
            yield item
            pending += 1
            if pending >= step:  # looking at the clock for each of a million items would take too long
                work.advance(pending)
                now = time.monotonic()
                step, pending, last = min(2 * step, 4096) if now - last < 0.05 else max(1, step // 2), 0, now


@contextmanager
def progress(description: str, *, total: int | None = None, unit: str = "") -> Iterator[Progress]:
    """Show how far work is that calls :meth:`Progress.advance` or lets a model compute."""
    work = Progress(description, total, unit)
    if work.view is not None:
        _open.append(work)
    try:
        yield work
    finally:
        if work.view is not None:
            _open.remove(work)
            work.clear()


def expect(items: int, sequences: int) -> None:
    """Announce that a model will compute ``sequences`` for the next ``items`` of the innermost work.

    There are more of them if long documents are read in windows.
    """
    if _open and threading.current_thread() is threading.main_thread():
        _open[-1].expect(items, sequences)


def computed(sequences: int) -> None:
    """Advance the innermost work by sequences that a model has computed, if they were expected."""
    if _open and threading.current_thread() is threading.main_thread():
        _open[-1].computed(sequences)


def clear() -> None:
    """Remove the bar from the terminal, so that something else can be printed; it comes back by itself."""
    for work in _open:
        work.clear()


def show_in_log() -> None:
    """From now on, write lines to standard error if it is not a terminal. The command line calls this."""
    global _in_log
    _in_log = True


class Progress:
    """How far some work is, and where that is shown."""

    def __init__(self, description: str, total: int | None = None, unit: str = ""):
        self.description, self.total, self.unit = description, total, unit
        self.done = 0.0
        self.view = _choose_view()
        self.begin = time.monotonic()
        self._next = self.begin + PATIENCE_SECONDS
        self._finished = self._limit = 0.0
        self._ratio = 1.0

    def advance(self, count: float = 1) -> None:
        """Add to what is done."""
        self.done += count
        self._show()

    def finish(self, items: int) -> None:
        """Count items as done, including those that no model had to compute."""
        self._finished += items
        self.advance(max(0.0, self._finished - self.done))

    def clear(self) -> None:
        """Remove its bar, if there is one; it comes back by itself."""
        if self.view is not None:
            self.view.clear()

    def _show(self) -> None:
        now = time.monotonic()
        if self.view is not None and now >= self._next and self is (_open[-1] if _open else self):
            self._next = now + self.view.every
            self.view.show(self, now)

    def expect(self, items: int, sequences: int) -> None:
        """See :func:`expect`."""
        self._ratio = items / max(1, sequences)
        self._limit = self.done + items

    def computed(self, sequences: int) -> None:
        """See :func:`computed`."""
        self.advance(max(0.0, min(self._limit - self.done, sequences * self._ratio)))

    def facts(self, now: float) -> list[str]:
        """How much is done, how much per second, and an estimate of the time that is left."""
        seconds = max(now - self.begin, 1e-9)
        count, rate = f"{self.done:,.0f}", self.done / seconds
        count += f" of {self.total:,}" if self.total is not None else ""
        facts = [f"{count} {self.unit}".rstrip(), f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"]
        if self.total and self.done:
            facts.append(f"about {duration(seconds * max(0.0, self.total - self.done) / self.done)} left")
        return facts


class _Bar:
    """A bar in a terminal or a notebook, drawn by rich."""

    every = 0.1

    def __init__(self) -> None:
        self._bars: Bars | None = None

    def show(self, work: Progress, now: float) -> None:
        for outer in _open[:-1]:  # one at a time
            outer.clear()
        if self._bars is None:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bars

            columns = TextColumn("{task.description}", markup=False), BarColumn(24), TextColumn("{task.fields[facts]}")
            self._bars = Bars(*columns, console=Console(file=sys.stderr), transient=True, auto_refresh=False)
            self._bars.add_task(work.description, total=work.total, facts="")
            self._bars.start()
        self._bars.update(self._bars.task_ids[0], completed=work.done, facts=", ".join(work.facts(now)), refresh=True)

    def clear(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class _Log:
    """A line now and then."""

    every = 1.0
    last = 0.0

    def show(self, work: Progress, now: float) -> None:
        if now - max(work.begin, _Log.last) < LOG_SECONDS or (work.total and work.done >= work.total):
            return
        _Log.last = now
        print(f"rankwell: {work.description}: {', '.join(work.facts(now))}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        pass


def _choose_view() -> _Bar | _Log | None:
    """Where progress can be shown; None if nowhere. Threads of a service show none."""
    if threading.current_thread() is not threading.main_thread():
        return None
    if "ipykernel" in sys.modules or sys.stderr.isatty():
        return _Bar()
    return _Log() if _in_log else None
