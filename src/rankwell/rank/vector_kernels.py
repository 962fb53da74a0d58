"""Comparing vectors with a query: products of fp16 numbers, and counts of equal bits.

numba has neither fp16 nor vectors of bits, so the innermost steps are written as LLVM's own instructions. They read
several documents at a time: each part of the query is loaded once for all of them.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rankwell.core.native import kernel, native
from rankwell.models.kernels.tile_kernels import call_vector, fold_steps, multiply_add, number
from rankwell.rank.vector_records import CODE_UNIT, NUMBER_BITS

TOGETHER = 4
WIDTH_UNIT = 8
"""The width of fp16 vectors must be a multiple of this."""
CODES_TOGETHER = 8
_CODES_AT_A_TIME = 2048
"""Codes that stay in a core's cache while they are compared with several queries."""
ON_X86 = platform.machine().lower() in ("x86_64", "amd64")
_NUMBER = np.uint32((1 << NUMBER_BITS) - 1)
_ONES, _TOPS = np.uint64(0x0001000100010001), np.uint64(0x8000800080008000)
_I8, _I16, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _HALVES = ir.VectorType(_F32, WIDTH_UNIT), ir.VectorType(ir.HalfType(), WIDTH_UNIT)
_HALF_SUMS = ir.VectorType(_I64, 2)
_BYTES, _SHORTS = ir.VectorType(_I8, CODE_UNIT), ir.VectorType(_I16, CODE_UNIT)


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _product_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    addresses, query, steps, out = arguments
    rows = [_load(builder, builder.add(addresses, number(8 * d)), _I64, 8) for d in range(TOGETHER)]

    def add(step: Any, sums: list[Any]) -> list[Any]:
        factors = _load(builder, builder.add(query, builder.mul(step, number(4 * WIDTH_UNIT))), _FLOATS, 4)
        place = builder.mul(step, number(2 * WIDTH_UNIT))
        halves = [_load(builder, builder.add(row, place), _HALVES, 2) for row in rows]
        return [
            multiply_add(builder, builder.fpext(some, _FLOATS), factors, value)
            for some, value in zip(halves, sums, strict=True)
        ]

    sums = fold_steps(builder, steps, ir.Constant(_FLOATS, [0.0] * WIDTH_UNIT), TOGETHER, add)
    for document, value in enumerate(sums):
        parts = [builder.extract_element(value, ir.Constant(_I32, lane)) for lane in range(WIDTH_UNIT)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [builder.fadd(*pair) for pair in zip(parts[:half], parts[half:], strict=True)]
        place = builder.inttoptr(builder.add(out, number(4 * document)), _F32.as_pointer())
        builder.store(parts[0], place, align=4)
    return context.get_dummy_value()


@intrinsic
def _products_of_four(context, addresses, query, steps, out):
    """The products (4,) of a query of ``8 · steps`` numbers with documents at four addresses; arrays by address."""
    return types.void(*[types.intp] * 4), _product_instructions


@native()
def row_products(bases, size, rows, query, out):
    """``out`` (N,) = the products in fp32 of a query (W,) with rows of arrays in fp16, which are given by address.

    Each array has ``size`` rows; row r is in array ``r // size``.
    """
    addresses, four = np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.float32)
    width = len(query)
    for first in range(0, len(rows), TOGETHER):
        count = min(TOGETHER, len(rows) - first)
        for i in range(TOGETHER):
            row = rows[first + min(i, count - 1)]
            addresses[i] = bases[row // size] + 2 * width * (row % size)
        _products_of_four(addresses.ctypes.data, query.ctypes.data, width // WIDTH_UNIT, four.ctypes.data)
        for i in range(count):
            out[first + i] = four[i]


def _store_totals(builder: Any, counts: list[Any], out: Any) -> None:
    """Store the sum of the bytes of each vector, in 16 bits."""
    # x86 sums bytes by one instruction, which gives two halves; elsewhere LLVM knows what is best.
    name, kinds, total = f"llvm.vector.reduce.add.v{CODE_UNIT}i16", [_SHORTS], _I16
    if ON_X86:
        name, kinds, total = "llvm.x86.sse2.psad.bw", [_BYTES, _BYTES], _HALF_SUMS
    total_of = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(total, kinds), name)
    for document, value in enumerate(counts):
        if ON_X86:
            halves = builder.call(total_of, [value, ir.Constant(_BYTES, [0] * CODE_UNIT)])
            parts = [builder.extract_element(halves, ir.Constant(_I32, lane)) for lane in range(2)]
            value = builder.trunc(builder.add(*parts), _I16)
        else:
            value = builder.call(total_of, [builder.zext(value, _SHORTS)])
        place = builder.inttoptr(builder.add(out, number(2 * document)), _I16.as_pointer())
        builder.store(value, place, align=2)


def _counts_of(join: str) -> Any:
    """The intrinsic that counts the bits of eight codes, each joined with one other code by ``xor`` or ``and_``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, stride, other, steps, out = arguments
        rows = [builder.add(codes, builder.mul(stride, number(d))) for d in range(CODES_TOGETHER)]

        def add(step: Any, sums: list[Any]) -> list[Any]:
            begin = builder.mul(step, number(CODE_UNIT))
            right = _load(builder, builder.add(other, begin), _BYTES, 1)
            added = []
            for row, value in zip(rows, sums, strict=True):
                bits = getattr(builder, join)(_load(builder, builder.add(row, begin), _BYTES, 1), right)
                added.append(builder.add(value, call_vector(builder, f"llvm.ctpop.v{CODE_UNIT}i8", bits)))
            return added

        sums = fold_steps(builder, steps, ir.Constant(_BYTES, [0] * CODE_UNIT), CODES_TOGETHER, add)
        _store_totals(builder, sums, out)
        return context.get_dummy_value()

    @intrinsic
    def count(context, codes, stride, other, steps, out):  # type: ignore[no-untyped-def]
        return types.void(*[types.intp] * 5), generate

    return count


_count_different = _counts_of("xor")
_count_common = _counts_of("and_")


@native()
def bit_distances(codes, query, out):
    """``out`` (N,) uint16 = in how many bits each of the ``codes`` (N, ≥ B), whose rows may lie apart, differs from the
    query (B,).
    """
    stride, steps, whole = codes.strides[0], len(query) // CODE_UNIT, len(codes) - len(codes) % CODES_TOGETHER
    for first in range(0, whole, CODES_TOGETHER):
        begin = codes.ctypes.data + stride * first
        _count_different(begin, stride, query.ctypes.data, steps, out.ctypes.data + 2 * first)
    if whole < len(codes):
        last, distances = np.zeros((CODES_TOGETHER, len(query)), np.uint8), np.empty(CODES_TOGETHER, np.uint16)
        last[: len(codes) - whole] = codes[whole:, : len(query)]
        _count_different(last.ctypes.data, len(query), query.ctypes.data, steps, distances.ctypes.data)
        out[whole : len(codes)] = distances[: len(codes) - whole]


@native()
def scan_cells(
    records, numbers, factors, ends, span, first, limits, queries, planes, weights, bases, rows, scores, counts
):
    """Find the codes near each query, and estimate their similarity.

    ``records`` (N, R) begin with the codes of documents, cell by cell: cell c ends at ``ends[c]``. Those from
    ``span[0]`` to before ``span[1]`` are scanned. ``limits`` (Q, C) is in how many bits a code may differ from
    ``queries[q]``; a negative one leaves out the cell. For each code within the limit, ``rows[q]`` gets its document,
    ``first`` + the low bits of ``numbers[i, 0]``, and ``scores[q]`` the estimate ``bases[q, c]`` +
    ``factors[i, 2]`` + ``factors[i, 1]`` · (``weights[q, P]`` + the sum over p of ``weights[q, p]`` for each bit
    shared with ``planes[q, p]``). ``counts`` (Q,) counts them.
    """
    distances = np.zeros(_CODES_AT_A_TIME, np.uint16)
    fours = distances.view(np.uint64)
    near = np.empty(_CODES_AT_A_TIME, np.int64)
    width = queries.shape[1]
    together, shared = np.zeros((CODES_TOGETHER, width), np.uint8), np.empty(CODES_TOGETHER, np.uint16)
    estimates = np.empty(CODES_TOGETHER, np.float32)
    steps, planes_each = width // CODE_UNIT, planes.shape[1]
    for cell in range(len(ends)):
        end = min(ends[cell], span[1])
        for begin in range(max(ends[cell - 1] if cell else 0, span[0]), end, _CODES_AT_A_TIME):
            block = records[begin : min(begin + _CODES_AT_A_TIME, end)]
            for q in range(len(queries)):
                limit, found = limits[q, cell], 0
                if limit < 0:
                    continue
                bit_distances(block, queries[q], distances)
                above = np.uint64(limit + 1) * _ONES
                for four in range((len(block) + 3) // 4):
                    # The top bit of a distance's 16 stays set if it exceeds the limit: four are tested at once.
                    if ((fours[four] | _TOPS) - above) & _TOPS != _TOPS:
                        for i in range(4 * four, min(4 * four + 4, len(block))):
                            near[found] = i
                            found += distances[i] <= limit
                total = counts[q]
                for group in range(0, found, CODES_TOGETHER):
                    count = min(CODES_TOGETHER, found - group)
                    for i in range(count):
                        code = block[near[group + i]]
                        for byte in range(width):
                            together[i, byte] = code[byte]
                    estimates[:] = weights[q, planes_each]
                    for p in range(planes_each):
                        _count_common(together.ctypes.data, width, planes[q, p].ctypes.data, steps, shared.ctypes.data)
                        for i in range(CODES_TOGETHER):
                            estimates[i] += weights[q, p] * np.float32(shared[i])
                    for i in range(count):
                        place = begin + near[group + i]
                        rows[q, total + i] = first + np.int64(numbers[place, 0] & _NUMBER)
                        scores[q, total + i] = bases[q, cell] + factors[place, 1] * estimates[i] + factors[place, 2]
                    total += count
                counts[q] = total


@kernel
def best_matches(codes, begins, ends, along, levels, rests, table, factors, best, places):
    """``best`` (N, Q) = the highest product of each of a query's words with a document's, ``places`` (N, Q) = whose.

    ``codes`` (T, B) are of word vectors (:mod:`rankwell.rank.word_codes`), of which document n has those from
    ``begins[n]`` to before ``ends[n]``. ``along`` (N, Q) is the product with the document's direction. A first byte
    stands for the lengths ``levels`` and ``rests`` (256,) of two parts, and ``table`` (Q, B − 1, 256) is what each
    other byte adds to the product with the second, in units of ``factors`` (Q,).
    """
    size, count = np.uint64(codes.shape[1] - 1), np.uint64(len(table))
    for n in range(len(begins)):
        for q in range(count):  # whose part of the table then stays in the cache
            for t in range(begins[n], ends[n]):
                total = np.int32(0)
                for j in range(size):
                    total += table[q, j, codes[t, j + np.uint64(1)]]
                level = codes[t, 0]
                product = levels[level] * along[n, q] + rests[level] * (factors[q] * np.float32(total))
                if t == begins[n] or product > best[n, q]:
                    best[n, q], places[n, q] = product, t - begins[n]
