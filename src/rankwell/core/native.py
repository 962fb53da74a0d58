"""How native code is compiled: once per machine, in as few and as small pieces as possible.

The first command of a new installation waits for the compiler, so compile time counts as well as speed. A kernel
receives all the memory it needs from Python, because each kind of array that it creates itself takes the compiler
another tenth of a second, as do slices, ``min`` and ``max``. Indexes of inner loops are unsigned: numba then leaves out
the check for negative ones.

A kernel is plain Python, too. Where a command allows it, small work is done uncompiled, with the same results: numba is
then not even imported.
"""

from __future__ import annotations

import math
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.errors import Notice
from rankwell.core.manifest import digest, file_digest

# Code without arrays of its own needs neither reference counts nor the rewriting of array expressions.
_PLAIN: dict[str, Any] = {"error_model": "numpy", "no_rewrites": True, "_nrt": False}
_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


LONG = 5.0
SMALL = 400_000
"""Steps that take Python about as long as the compiler takes to start: indexing some 160 kB of text."""
LOADED = 8
"""How many times faster compiled code is loaded than made."""
_uncompiled_steps = 0.0
_lock = threading.RLock()


def allow_uncompiled(steps: int = SMALL) -> None:
    """Let kernels run uncompiled until they have taken ``steps`` steps, for a command that may be a short one.

    With 0 steps the next kernel is compiled at once, for what is known to be long.
    """
    global _uncompiled_steps
    _uncompiled_steps = steps


class _Compiler:
    """What a first command waits for. It says so if the compiler takes over ``LONG`` seconds."""

    seconds, depth, begin = 0.0, 0, 0.0

    def on_start(self, _: object) -> None:
        if self.depth == 0:
            self.begin = time.monotonic()
        self.depth += 1

    def on_end(self, _: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            before, self.seconds = self.seconds, self.seconds + time.monotonic() - self.begin
            if before < LONG <= self.seconds:
                line = "compiling native code, once per machine: the next commands start at once"
                warnings.warn(line, Notice, stacklevel=1)


_COMPILER = _Compiler()


@cache
def _listen() -> None:
    """Let the compiler be timed."""
    from numba.core.event import Listener, register

    listener = type("Listener", (Listener,), {"on_start": _COMPILER.on_start, "on_end": _COMPILER.on_end})
    register("numba:compile", listener())  # type: ignore[no-untyped-call]


def working_time() -> float:
    """The seconds of a clock that stands still while native code is compiled."""
    return (_COMPILER.begin if _COMPILER.depth else time.monotonic()) - _COMPILER.seconds


@cache
def _imported_code(module: str) -> str:
    """A digest of the files from which a module of a package imports names of the same package."""
    text = Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8")
    names = re.findall(rf"^from ({re.escape(module.partition('.')[0])}[\w.]*) import", text, re.MULTILINE)
    return digest([file_digest(Path(str(sys.modules[name].__file__))) for name in sorted(set(names))])


class _Later:
    """A function that is compiled when it is first needed. ``work`` counts the steps of a call from its arguments."""

    def __init__(self, function: Any, options: dict[str, Any], work: Callable[..., float] | None = None):
        self._function, self._options, self._work = function, options, work
        self.__doc__, self.__name__, self.__module__ = function.__doc__, function.__name__, function.__module__

    @cached_property
    def _compiled(self) -> Any:
        from numba import njit

        _listen()
        if "no_cpython_wrapper" in self._options:
            return njit(**self._options)(self._function)
        try:
            compiled = njit(cache=True, nogil=True, **self._options)(self._function)
        except RuntimeError:  # no folder for the cache can be written
            return njit(nogil=True, **self._options)(self._function)
        # numba sees changes of the kernel's own file alone, but its code has the helpers and constants of others in it.
        with suppress(AttributeError):  # numba may name it otherwise some day; a test would see it
            stored: Any = compiled._cache._cache_file
            stored._source_stamp = (stored._source_stamp, _imported_code(self.__module__))
        return compiled

    @cached_property
    def _made(self) -> bool:
        """Whether the compiled code lies where numba leaves it, beside the source; if elsewhere, nobody looks."""
        code = self._function.__code__
        path = Path(code.co_filename)
        return any(path.parent.glob(f"__pycache__/{path.stem}.{self.__name__}-{code.co_firstlineno}.*.nbi"))

    @property
    def _numba_type_(self) -> Any:
        """What numba takes it for in the code of others."""
        with _lock:
            return self._compiled._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        global _uncompiled_steps
        if self._work is None:  # called by a kernel that is not compiled
            return self._function(*arguments)
        if "_compiled" in vars(self):
            return self._compiled(*arguments)
        if _uncompiled_steps:
            work = self._work(*arguments) * (LOADED if self._made else 1)
            with _lock:
                _uncompiled_steps = left = max(0, _uncompiled_steps - work)
            if left:
                with np.errstate(all="ignore"):  # hashes overflow
                    return self._function(*arguments)
        with _lock:  # so that two threads do not compile it twice
            compiled = self._compiled
        return compiled(*arguments)


def native(**options: Any) -> Callable[[Any], Any]:
    """Compile a function with options of numba's; it releases the GIL, and is cached on disk.

    The cache is next to the package or in the user's cache folder. If neither can be written, as in some containers,
    each process compiles anew.
    """
    return partial(_Later, options=options, work=lambda *_: math.inf)


kernel = partial(_Later, options=_PLAIN, work=lambda *arguments: len(arguments[0]))
"""Compile a function that Python calls and that creates no arrays; the length of its first argument is its ``work``."""
helper = partial(_Later, options={**_PLAIN, **_WITHOUT_WRAPPERS})
"""Compile a function that only kernels call, as part of them."""
