"""Stopping work from outside, by Ctrl-C or a time limit, whatever code it is in."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SOON, AGAIN = 0.2, 2.0
"""Seconds until a stop that met a compiler, which would swallow the exception or abort, is tried again, and until a
time limit that was swallowed elsewhere is raised again."""
_COMPILERS = ("llvmlite", "numba", "triton")


class TimeIsUp(BaseException):
    """The time limit has passed. Not an ``Exception``, so that no handler of errors takes it for one."""


@contextmanager
def time_limit(seconds: float, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Raise :class:`TimeIsUp` from the work inside after ``seconds`` of a clock, which may stand still at times.

    Works in the main thread, on systems with timers; elsewhere there is no limit.
    """
    if not _main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    end = clock() + seconds

    def again() -> None:
        signal.setitimer(signal.ITIMER_REAL, max(end - clock(), SOON), AGAIN)

    with _stopped_by(signal.SIGALRM, TimeIsUp, again, early=lambda: clock() < end):
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), AGAIN)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def interruptible() -> Iterator[None]:
    """Stop the work inside with ``KeyboardInterrupt`` on Ctrl-C, also where native code makes another error of it."""
    if not _main_thread() or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield
        return
    with _stopped_by(signal.SIGINT, KeyboardInterrupt, _interrupt_soon):
        yield


@contextmanager
def _stopped_by(
    number: signal.Signals,
    kind: type[BaseException],
    later: Callable[[], object],
    early: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Raise an exception from the work inside on a signal, or call ``later`` if it is ``early`` or a compiler runs.

    Native code may replace the exception by one of its own (safetensors does): any error that follows counts as it.
    """
    stopped = False

    def stop(_: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if early() or _compiles(frame):
            later()
            return
        stopped = True
        raise kind

    before = signal.signal(number, stop)
    try:
        yield
    except Exception as error:
        if stopped:
            raise kind from error
        raise
    finally:
        signal.signal(number, before)


def _interrupt_soon() -> None:
    timer = threading.Timer(SOON, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()


def _main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _compiles(frame: FrameType | None) -> bool:
    """Whether a frame belongs to a compiler, or was called by one."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _COMPILERS:
            return True
        frame = frame.f_back
    return False
