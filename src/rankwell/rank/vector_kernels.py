"""Comparing vectors with a query: products of fp16 numbers, and counts of equal bits.

numba has neither fp16 nor vectors of bits, so the innermost steps are written as LLVM's own instructions. They read
several documents at a time: each part of the query is loaded once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rankwell.core.native import native
from rankwell.models.devices import PANEL, cpu_flags
from rankwell.models.kernels.tile_kernels import ROWS, call_vector, fold_steps, int8_tile, multiply_add, number
from rankwell.rank.vector_records import ALWAYS, CODE_UNIT, NUMBER_BITS, QUERY_BITS

TOGETHER = 4
WIDTH_UNIT = 8
"""The width of fp16 vectors must be a multiple of this."""
CODES_TOGETHER = 8
PLANES = QUERY_BITS + 1
_CODES_AT_A_TIME = 2048
"""Codes that stay in a core's cache while they are compared with several queries."""
_AHEAD = 4096
"""Bytes between the codes that are compared and those that are fetched: processors do not fetch beyond a page."""
_PAIRED = "avx2" in cpu_flags()
"""Whether vectors hold the parts of two codes."""
_EIGHT, _PLACES, _CARRY, _TWOS = (
    np.uint64(value) for value in (0x0101010101010101, 0x0102040810204080, 0x7F7F7F7F7F7F7F7F, 0x0202020202020202)
)
_ALWAYS = np.array([*ALWAYS, 0, 0, 0, 0], np.uint8).view(np.uint64)[0]
_NUMBER = np.uint32((1 << NUMBER_BITS) - 1)
_I8, _I16, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _HALVES = ir.VectorType(_F32, WIDTH_UNIT), ir.VectorType(ir.HalfType(), WIDTH_UNIT)
_UNIT, _SHORTS = ir.VectorType(_I8, CODE_UNIT), ir.VectorType(_I16, CODE_UNIT)
_PAIR, _SUMS = ir.VectorType(_I8, 2 * CODE_UNIT), ir.VectorType(_I64, 4)


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


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), arguments)


def _shuffle(builder: Any, left: Any, right: Any, places: Sequence[int]) -> Any:
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, len(places)), list(places)))


def _sum_pairs(builder: Any, pairs: list[Any]) -> Any:
    """The sums of the bytes of eight codes (8,); each pair has the bytes of a code and those of the next but one."""
    zeros = ir.Constant(_PAIR, [0] * _PAIR.count)
    halves = [_call(builder, "llvm.x86.avx2.psad.bw", _SUMS, pair, zeros) for pair in pairs]  # two sums for each code
    fours = [
        builder.add(*(_shuffle(builder, *two, places) for places in ((0, 4, 2, 6), (1, 5, 3, 7))))
        for two in (halves[:2], halves[2:])
    ]
    return _shuffle(builder, *fours, range(8))


def _counts_of(join: str, rows: int) -> Any:
    """The intrinsic that counts the bits of eight codes, each joined with one other code by ``xor`` or ``and_``.

    There are but so many ``rows``, of which the last stands for the rest.
    """
    groups = [(0, 2), (1, 3), (4, 6), (5, 7)] if _PAIRED else [(d,) for d in range(CODES_TOGETHER)]
    kind = _PAIR if _PAIRED else _UNIT

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, stride, other, steps, out = arguments
        addresses = [builder.add(codes, builder.mul(stride, number(min(d, rows - 1)))) for d in range(CODES_TOGETHER)]
        if rows == CODES_TOGETHER:
            for address in addresses:
                place = builder.inttoptr(builder.add(address, number(_AHEAD)), _I8.as_pointer())
                _call(builder, "llvm.prefetch.p0i8", ir.VoidType(), place, _I32(0), _I32(3), _I32(1))

        def parts(some: list[Any], begin: Any) -> Any:
            loaded = [_load(builder, builder.add(address, begin), _UNIT, 1) for address in some]
            return _shuffle(builder, loaded[0], loaded[-1], range(kind.count))

        def add(step: Any, sums: list[Any]) -> list[Any]:
            begin, added = builder.mul(step, number(CODE_UNIT)), []
            right = parts([other, other], begin)
            for group, value in zip(groups, sums, strict=True):
                bits = getattr(builder, join)(parts([addresses[d] for d in group], begin), right)
                added.append(builder.add(value, call_vector(builder, f"llvm.ctpop.v{kind.count}i8", bits)))
            return added

        sums = fold_steps(builder, steps, ir.Constant(kind, [0] * kind.count), len(groups), add)
        if _PAIRED:
            totals = builder.trunc(_sum_pairs(builder, sums), ir.VectorType(_I16, CODES_TOGETHER))
            builder.store(totals, builder.inttoptr(out, totals.type.as_pointer()), align=2)
            return context.get_dummy_value()
        for place, value in enumerate(sums):  # LLVM knows what is best
            total = _call(builder, f"llvm.vector.reduce.add.v{CODE_UNIT}i16", _I16, builder.zext(value, _SHORTS))
            address = builder.add(out, number(2 * place))
            builder.store(total, builder.inttoptr(address, _I16.as_pointer()), align=2)
        return context.get_dummy_value()

    @intrinsic
    def count(context, codes, stride, other, steps, out):  # type: ignore[no-untyped-def]
        return types.void(*[types.intp] * 5), generate

    return count


_count_different = _counts_of("xor", CODES_TOGETHER)
_count_common = _counts_of("and_", PLANES)


@native()
def bit_distances(codes, query, out):
    """``out`` (N,) uint16 = in how many bits ``codes`` (N, ≥ B), whose rows may lie apart, differ from a query (B,)."""
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
    distances, near = np.empty(_CODES_AT_A_TIME, np.uint16), np.empty(_CODES_AT_A_TIME, np.int64)
    shared, width = np.empty(CODES_TOGETHER, np.uint16), queries.shape[1]
    stride, steps = records.strides[0], width // CODE_UNIT
    for cell in range(len(ends)):
        end = min(ends[cell], span[1])
        for begin in range(max(ends[cell - 1] if cell else 0, span[0]), end, _CODES_AT_A_TIME):
            block = records[begin : min(begin + _CODES_AT_A_TIME, end)]
            for q in range(len(queries)):
                limit, found = limits[q, cell], np.uint64(0)
                if limit < 0:
                    continue
                bit_distances(block, queries[q], distances)
                for i in range(np.uint64(len(block))):
                    near[found] = i  # unless it is near, the next one replaces it: a jump could not be foreseen
                    found += np.uint64(distances[i] <= limit)
                total, code, plane = counts[q], block.ctypes.data, planes[q].ctypes.data
                for place in near[:found]:
                    _count_common(plane, width, code + stride * place, steps, shared.ctypes.data)
                    estimate = weights[q, PLANES]
                    for p in range(PLANES):
                        estimate += weights[q, p] * np.float32(shared[p])
                    place += begin
                    rows[q, total] = first + np.int64(numbers[place, 0] & _NUMBER)
                    scores[q, total] = bases[q, cell] + factors[place, 1] * estimate + factors[place, 2]
                    total += 1
                counts[q] = total


@native()
def best_matches(codes, begins, ends, along, levels, rests, panels, factors, best, places):
    """``best`` (N, C) = the highest product of each of a query's words with a document's, ``places`` (N, C) = whose.

    ``codes`` (T, B) are of word vectors (:mod:`rankwell.rank.word_codes`), of which document n has those from
    ``begins[n]`` to before ``ends[n]``. ``along`` (N, C) is the product with the document's direction. A first byte
    stands for the lengths ``levels`` and ``rests`` (256,) of two parts. The others are signs, by which the integers of
    the query's words in ``panels`` (P, 2 · B, PANEL, 4) are summed; the product with the second part is that sum times
    ``factors`` (C,). C is P · PANEL.
    """
    longest, width, steps = 0, np.uint64(codes.shape[1] - 1), panels.shape[1]
    for n in range(len(begins)):
        longest = max(longest, ends[n] - begins[n])
    rows = np.empty((longest + ROWS, codes.shape[1]), np.uint64)
    rows[:, width] = _ALWAYS
    scales, middles = np.zeros(longest + ROWS, np.float32), np.zeros(longest + ROWS, np.float32)
    products, zeros = np.empty((ROWS, PANEL), np.float32), np.zeros(PANEL, np.float32)
    highest, place = np.empty(PANEL, np.float32), np.empty(PANEL, np.int32)
    for n in range(len(begins)):
        count = ends[n] - begins[n]
        for t in range(count):
            code = codes[begins[n] + t]
            scales[t], middles[t] = rests[code[0]], levels[code[0]]
            for j in range(width):
                # Eight bytes, 2 for each positive sign: the byte in all places, the bit of each, and its carry.
                signs = (np.uint64(code[j + np.uint64(1)]) * _EIGHT) & _PLACES
                rows[t, j] = ((signs + _CARRY) >> np.uint64(6)) & _TWOS
        for p in range(len(panels)):
            highest[:], place[:] = -np.inf, 0
            for first in range(0, count, ROWS):
                int8_tile(
                    rows.ctypes.data + first * rows.strides[0],
                    rows.strides[0],
                    panels.ctypes.data + p * panels.strides[0],
                    steps,
                    products.ctypes.data,
                    products.strides[0],
                    scales.ctypes.data + 4 * first,
                    middles.ctypes.data + 4 * first,
                    factors.ctypes.data + 4 * p * PANEL,
                    along.ctypes.data + n * along.strides[0] + 4 * p * PANEL,
                    zeros.ctypes.data,
                )
                for row in range(min(ROWS, count - first)):
                    number = np.int32(first + row)
                    for c in range(np.uint64(PANEL)):
                        higher = products[row, c] > highest[c]
                        place[c] = number if higher else place[c]
                        highest[c] = products[row, c] if higher else highest[c]
            best[n, p * PANEL : (p + 1) * PANEL] = highest
            places[n, p * PANEL : (p + 1) * PANEL] = place
