"""The signal handler of :mod:`rankwell.core.truncation`, in native code: Python's own run too late."""

from __future__ import annotations

import mmap
from typing import Any

from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic

_BUS_ADDRESS = 2
"""si_code of a page beyond the end of its file."""
_READ, _PRIVATE_FIXED_ANONYMOUS, _NO_FILE = 1, 0x32, -1
COUNT = 0
"""Not a signal: asks the handler how many pages were missing."""
_PAGE = mmap.PAGESIZE
_mmap: Any = types.ExternalFunction(
    "mmap", types.intp(types.intp, types.intp, types.int32, types.int32, types.int32, types.int64)
)
_signal: Any = types.ExternalFunction("signal", types.intp(types.int32, types.intp))


def _change_count(context: Any, more: Any) -> Any:
    """Add to a variable of the compiled module, and return its value before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        name, integer = "rankwell.missing_pages", ir.IntType(64)
        variable = builder.module.globals.get(name)
        if variable is None:
            variable = ir.GlobalVariable(builder.module, integer, name)
            variable.linkage, variable.initializer = "internal", ir.Constant(integer, 0)
        return builder.atomic_rmw("add", variable, arguments[0], "seq_cst")

    return types.int64(types.int64), generate


_add_to_count: Any = intrinsic(_change_count)
_Integers: Any = types.CPointer


def _handle_fault(number: int, info: Any, context: Any) -> None:
    """Put a page of zeros where one is missing. ``info`` is a siginfo_t: at byte 8 its code, at byte 16 the address."""
    if number == COUNT:
        info[0] = _add_to_count(0)
        return
    page = info[2] - info[2] % _PAGE
    is_missing = (info[1] & 0xFFFFFFFF) == _BUS_ADDRESS
    if not is_missing or _mmap(page, _PAGE, _READ, _PRIVATE_FIXED_ANONYMOUS, _NO_FILE, 0) != page:
        _signal(number, 0)  # back to the default: the process ends when it reads the address again
        return
    _add_to_count(1)


_SIGNATURE = types.void(types.int32, _Integers(types.int64), types.voidptr)
try:
    handle_fault = cfunc(_SIGNATURE, cache=True)(_handle_fault)
except RuntimeError:  # no folder for the cache can be written
    handle_fault = cfunc(_SIGNATURE)(_handle_fault)
