"""Surviving the truncation of a memory-mapped file.

If a mapped file is truncated, reading what is no longer there ends the process (SIGBUS). Sizes are checked before each
use of a mapped array (:mod:`rankwell.core.mapped`), but a file can also be truncated during a search. A process that
must not end, such as a service, calls :func:`survive_truncation` once: missing pages are then read as zeros, and
:func:`run_whole` raises if there were any.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from rankwell.core.errors import InputError

Result = TypeVar("Result")
_SA_SIGINFO, _SA_RESTART = 0x4, 0x10000000
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_handlers: list[int] = []
"""The address of the installed handler."""


class _SigAction(ctypes.Structure):
    """struct sigaction of Linux on 64-bit machines, as the C library declares it."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@cache
def survive_truncation() -> bool:
    """From now on read missing pages of mapped files as zeros. False where that is not supported."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return False
    from rankwell.core.truncation_kernels import handle_fault

    address = int(handle_fault.address or 0)
    action = _SigAction(handler=address, flags=_SA_SIGINFO | _SA_RESTART)
    if ctypes.CDLL(None).sigaction(int(signal.SIGBUS), ctypes.byref(action), None) != 0:
        return False
    _handlers.append(address)
    return True


def count_missing_pages() -> int:
    """How many missing pages were read as zeros so far."""
    count = ctypes.c_int64(0)
    for address in _handlers:
        _Handler(address)(0, ctypes.byref(count), None)
    return count.value


def run_whole(work: Callable[..., Result], *arguments: object) -> Result:
    """The result of ``work``. Raises if pages of a mapped file were missing meanwhile, here or in another thread."""
    before = count_missing_pages()
    result = work(*arguments)
    if count_missing_pages() != before:
        raise InputError("the index", None, "a file was truncated while it was read; open the index again")
    return result
