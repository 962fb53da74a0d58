"""Time limits."""

from __future__ import annotations

import signal
import threading
import time

import pytest

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
