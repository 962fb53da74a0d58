"""How native code is compiled: once per machine, in as few and as small pieces as possible.

The first command of a new installation waits for the compiler, so compile time counts as well as speed. A kernel
receives all the memory it needs from Python, because each kind of array that it creates itself takes the compiler
another tenth of a second, as do slices, ``min`` and ``max``. Indexes of inner loops are unsigned: numba then leaves out
the check for negative ones.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.event import Event, Listener, register

from rankwell.core.errors import Notice

# Code without arrays of its own needs neither reference counts nor the rewriting of array expressions.
_PLAIN: dict[str, Any] = {"error_model": "numpy", "no_rewrites": True, "_nrt": False}
_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


LONG = 5.0


class _Compiler(Listener):
    """Says what a first command waits for if the compiler takes over ``LONG`` seconds."""

    seconds, depth, begin = 0.0, 0, 0.0

    def on_start(self, event: Event) -> None:
        if self.depth == 0:
            self.begin = time.monotonic()
        self.depth += 1

    def on_end(self, event: Event) -> None:
        self.depth -= 1
        if self.depth == 0:
            before, self.seconds = self.seconds, self.seconds + time.monotonic() - self.begin
            if before < LONG <= self.seconds:
                line = "compiling native code, once per machine: the next commands start at once"
                warnings.warn(line, Notice, stacklevel=1)


_COMPILER = _Compiler()
register("numba:compile", _COMPILER)  # type: ignore[no-untyped-call]


def working_time() -> float:
    """The seconds of a clock that stands still while native code is compiled."""
    return (_COMPILER.begin if _COMPILER.depth else time.monotonic()) - _COMPILER.seconds


def native(**options: Any) -> Callable[[Any], Any]:
    """Compile a function with options of numba's; it releases the GIL, and is cached on disk.

    The cache is next to the package or in the user's cache folder. If neither can be written, as in some containers,
    each process compiles anew.
    """

    def decorate(function: Any) -> Any:
        try:
            return njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:
            return njit(nogil=True, **options)(function)

    return decorate


kernel = native(**_PLAIN)
"""Compile a function that Python calls and that creates no arrays."""
helper: Any = njit(**_PLAIN, **_WITHOUT_WRAPPERS)
"""Compile a function that only kernels call, as part of them."""
