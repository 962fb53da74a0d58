"""Ctrl-C and time limits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from rankwell.core import stopping
from rankwell.core.stopping import TimeIsUp, interruptible, time_limit


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@contextmanager
def ctrl_c_after(seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with interruptible():
        yield
    timer.cancel()


def test_work_is_stopped_when_the_time_is_up() -> None:
    with pytest.raises(TimeIsUp), time_limit(0.05):
        spin(60)


def test_work_that_ends_in_time_is_left_alone_afterwards() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(600):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_limit_that_was_swallowed_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def swallow_once() -> None:
        with suppress(TimeIsUp):  # as a callback of native code does
            spin(60)
        spin(60)

    monkeypatch.setattr(stopping, "AGAIN", 0.05)
    with pytest.raises(TimeIsUp), time_limit(0.05):
        swallow_once()


def test_no_time_at_all_stops_at_once() -> None:
    with pytest.raises(TimeIsUp), time_limit(-1):
        spin(60)


def test_a_limit_counts_the_seconds_of_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(stopping, "SOON", 0.01)

    def work() -> None:
        spin(0.1)
        now[0] = 0.02  # only now does the clock go on
        spin(60)

    with pytest.raises(TimeIsUp), time_limit(0.01, lambda: now[0]):
        work()
    assert now == [0.02]


def test_there_is_no_limit_in_other_threads() -> None:
    done = []

    def work() -> None:
        with time_limit(0.001):
            spin(0.05)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done


def replacing(seconds: float, stop: type[BaseException]) -> None:
    """Work as native code does that replaces an exception by one of its own."""
    try:
        spin(seconds)
    except stop:
        raise ValueError("could not determine the shape") from None


def test_an_error_that_native_code_makes_of_a_stop_counts_as_the_stop() -> None:
    with pytest.raises(TimeIsUp), time_limit(0.05):
        replacing(60, TimeIsUp)
    with pytest.raises(KeyboardInterrupt), ctrl_c_after(0.05):
        replacing(60, KeyboardInterrupt)


def test_other_errors_stay_as_they_are() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="another"), interruptible(), time_limit(60):
        raise ValueError("another")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("module", ["llvmlite.binding", "triton.knobs"])
@pytest.mark.parametrize(("stop", "after"), [(TimeIsUp, time_limit), (KeyboardInterrupt, ctrl_c_after)])
def test_a_compiler_is_not_stopped(
    monkeypatch: pytest.MonkeyPatch, stop: type[BaseException], after: Any, module: str
) -> None:
    monkeypatch.setattr(stopping, "SOON", 0.05)
    compiler: dict[str, Any] = {"__name__": module, "spin": spin, "done": []}
    exec("def compile():\n    spin(0.3)\n    done.append(True)", compiler)

    def compile_and_go_on() -> None:
        compiler["compile"]()
        spin(60)

    with pytest.raises(stop), after(0.1):
        compile_and_go_on()
    assert compiler["done"]


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup and background shells set it
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
