"""Native code where nothing can be cached, and kernels that hold on to nothing."""

from __future__ import annotations

import sys

import numpy as np

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


def test_a_kernel_holds_no_arrays_after_it_returns() -> None:
    place: dict[str, object] = {}
    exec(compile(SOURCE, "<nowhere>", "exec"), place)
    add_up, values = kernel(place["add_up"]), np.arange(5)
    before = sys.getrefcount(values)
    for _ in range(10):
        add_up(values)
    assert sys.getrefcount(values) == before
