"""Products of fp16 vectors with one query, for Arm: a number is converted to fp32 in a register and never stored.

numba has no fp16, so :func:`_products_of_four` is written as LLVM's own instructions. It reads four documents at a
time: each number of the query is loaded once for all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rankwell.core.native import native
from rankwell.models.kernels.tile_kernels import multiply_add

TOGETHER = 4
WIDTH_UNIT = 8
"""The width of the vectors must be a multiple of this."""
_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _HALVES = ir.VectorType(_F32, 4), ir.VectorType(ir.HalfType(), WIDTH_UNIT)


def _instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    documents, stride, query, steps, out = arguments

    def number(value: int) -> Any:
        return ir.Constant(_I64, value)

    def load(address: Any, vector: Any, align: int) -> Any:
        return builder.load(builder.inttoptr(address, vector.as_pointer()), align=align)

    before, loop, after = builder.block, builder.append_basic_block("steps"), builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    step = builder.phi(_I64)
    step.add_incoming(number(0), before)
    sums = [builder.phi(_FLOATS) for _ in range(2 * TOGETHER)]
    for value in sums:
        value.add_incoming(ir.Constant(_FLOATS, [0.0] * 4), before)
    begin = builder.add(query, builder.mul(step, number(4 * WIDTH_UNIT)))
    factors = [load(builder.add(begin, number(16 * part)), _FLOATS, 4) for part in range(2)]
    added = []
    for document in range(TOGETHER):
        row = builder.add(documents, builder.mul(stride, number(document)))
        halves = load(builder.add(row, builder.mul(step, number(2 * WIDTH_UNIT))), _HALVES, 2)
        for part in range(2):
            lanes = ir.Constant(ir.VectorType(_I32, 4), [4 * part + lane for lane in range(4)])
            four = builder.shuffle_vector(halves, ir.Constant(_HALVES, ir.Undefined), lanes)
            added.append(multiply_add(builder, builder.fpext(four, _FLOATS), factors[part], sums[2 * document + part]))
    following = builder.add(step, number(1))
    step.add_incoming(following, loop)
    for value, total in zip(sums, added, strict=True):
        value.add_incoming(total, loop)
    builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)

    builder.position_at_end(after)
    for document in range(TOGETHER):
        total = builder.fadd(added[2 * document], added[2 * document + 1])
        a, b, c, d = (builder.extract_element(total, ir.Constant(_I32, lane)) for lane in range(4))
        place = builder.inttoptr(builder.add(out, number(4 * document)), _F32.as_pointer())
        builder.store(builder.fadd(builder.fadd(a, b), builder.fadd(c, d)), place, align=4)
    return context.get_dummy_value()


@intrinsic
def _products_of_four(context, documents, stride, query, steps, out):
    """The products (4,) of four documents with a query of ``8 · steps`` numbers; arrays are given by address."""
    return types.void(*[types.intp] * 5), _instructions


@native()
def half_products(documents, query, out):
    """``out`` (N,) = the products of ``documents`` (N, W), fp16 given as uint16, with a query (W,), in fp32."""
    count, width = documents.shape
    whole = count - count % TOGETHER
    for first in range(0, whole, TOGETHER):
        _products_of_four(
            documents.ctypes.data + 2 * width * first,
            2 * width,
            query.ctypes.data,
            width // WIDTH_UNIT,
            out.ctypes.data + 4 * first,
        )
    if whole < count:  # the last few, as four with repetitions
        four, last = np.zeros((TOGETHER, width), np.uint16), np.zeros(TOGETHER, np.float32)
        four[: count - whole] = documents[whole:]
        _products_of_four(four.ctypes.data, 2 * width, query.ctypes.data, width // WIDTH_UNIT, last.ctypes.data)
        out[whole:] = last[: count - whole]
