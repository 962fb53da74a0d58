"""A time limit for work that can be repeated or resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SOON, AGAIN = 0.2, 2.0
"""Seconds until a limit that met a compiler, which would print and swallow the exception, is raised, and until one that
was swallowed elsewhere is raised again."""
_COMPILERS = ("llvmlite", "numba")


class TimeIsUp(BaseException):
    """The time limit has passed. Not an ``Exception``, so that no handler of errors takes it for one."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TimeIsUp` from the work inside after so many seconds.

    Works in the main thread, on systems with timers; elsewhere there is no limit.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if _compiles(frame):
            signal.setitimer(signal.ITIMER_REAL, SOON, AGAIN)
            return
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _compiles(frame: FrameType | None) -> bool:
    """Whether a frame belongs to a compiler, or was called by one."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _COMPILERS:
            return True
        frame = frame.f_back
    return False
