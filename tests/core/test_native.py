"""Native code where nothing can be cached, and kernels that hold on to nothing."""

from __future__ import annotations

import sys
import warnings

import numba
import numpy as np
import pytest

from rankwell.core import native as native_module
from rankwell.core.native import kernel, native

SOURCE = """
def add_up(values):
    total = 0
    for i in range(len(values)):
        total += values[i]
    return total
"""


def test_code_is_compiled_where_no_folder_for_a_cache_can_be_written() -> None:
    place: dict[str, object] = {}
    exec(compile(SOURCE, "<nowhere>", "exec"), place)  # numba finds no place for the cache of such code
    for decorate in (kernel, native()):
        assert decorate(place["add_up"])(np.arange(5)) == 10


def test_what_is_waited_for_is_said_once_if_compiling_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    place: dict[str, object] = {}
    exec(compile(SOURCE, "<nowhere>", "exec"), place)
    listeners = numba.core.event._registered["numba:compile"]
    (compiler,) = (one for one in listeners if type(one) is native_module._Compiler)
    monkeypatch.setattr(native_module, "LONG", compiler.seconds + 1e-9)
    with pytest.warns(native_module.Notice, match="compiling native code, once per machine"):
        kernel(place["add_up"])(np.arange(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(place["add_up"])(np.arange(5.0))


def test_a_clock_stands_still_while_native_code_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    now, compiler = [100.0], native_module._Compiler()
    monkeypatch.setattr(native_module, "_COMPILER", compiler)
    monkeypatch.setattr(native_module.time, "monotonic", lambda: now[0])
    event = numba.core.event.Event("numba:compile", numba.core.event.EventStatus.START)
    times = [native_module.working_time()]
    compiler.on_start(event)
    now[0] = 102.0
    times.append(native_module.working_time())
    compiler.on_end(event)
    now[0] = 103.5
    times.append(native_module.working_time())
    assert times == [100.0, 100.0, 101.5]


def test_a_kernel_holds_no_arrays_after_it_returns() -> None:
    place: dict[str, object] = {}
    exec(compile(SOURCE, "<nowhere>", "exec"), place)
    add_up, values = kernel(place["add_up"]), np.arange(5)
    before = sys.getrefcount(values)
    for _ in range(10):
        add_up(values)
    assert sys.getrefcount(values) == before
