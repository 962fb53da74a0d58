"""Time limits."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from rankwell.core import deadlines
from rankwell.core.deadlines import TimeIsUp, time_limit


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_work_is_stopped_when_the_time_is_up() -> None:
    with pytest.raises(TimeIsUp), time_limit(0.05):
        spin(60)


def test_work_that_ends_in_time_is_left_alone_afterwards() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(0.05):
        pass
    spin(0.1)
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_limit_that_was_swallowed_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def swallow_once() -> None:
        with suppress(TimeIsUp):  # as a callback of native code does
            spin(60)
        spin(60)

    monkeypatch.setattr(deadlines, "AGAIN", 0.05)
    with pytest.raises(TimeIsUp), time_limit(0.05):
        swallow_once()


def test_a_compiler_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "SOON", 0.05)
    compiler: dict[str, Any] = {"__name__": "llvmlite.binding", "spin": spin, "done": []}
    exec("def compile():\n    spin(0.3)\n    done.append(True)", compiler)

    def compile_and_go_on() -> None:
        compiler["compile"]()
        spin(60)

    with pytest.raises(TimeIsUp), time_limit(0.1):
        compile_and_go_on()
    assert compiler["done"]


def test_no_time_at_all_stops_at_once() -> None:
    with pytest.raises(TimeIsUp), time_limit(-1):
        spin(60)


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
