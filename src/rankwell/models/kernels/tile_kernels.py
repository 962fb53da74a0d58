"""Tiles of matrix products on a CPU: as many rows as columns, whose sums stay in registers, in int8 or in fp32.

The processor's dot-product instruction adds four products of 8 bits to each sum. LLVM does not find this form in a
loop, so a tile is written as LLVM's own instructions; where the processor has no such instruction, the same sums are
computed from plain ones. Arm multiplies signed bytes, four sums at once; x86 unsigned bytes of rows by signed ones of
columns, 8 or 16 sums at once. A tile has 8 rows and columns, or 16 where a vector has 16 sums. Where the processor
multiplies whole tiles of bytes (AMX), SPAN² tiles are computed together: their sums, two panels of rows and two of
columns fill its eight registers. Elsewhere no instructions are written for that: it is never called.

    columns    (N / TILE, K, TILE) fp32 or (N / TILE, K / 4, TILE, 4) int8     panels of columns
    rows       (M / TILE, K, TILE) fp32 or (M / TILE, K / 4, TILE, 4) int8     panels of rows; with AMX (M, K) int8

AMX also multiplies pairs of bf16 numbers: columns (N / TILE, K / 2, TILE, 2), rows (M, K).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rankwell.models.devices import DOT_LANES, HAS_TILES

_DOT = DOT_LANES
SPAN = 2
LANES = _DOT or 4
TILE = max(8, LANES)
LEAST = -128 if LANES == 4 else 0
"""The least of the whole numbers of a row: bytes are signed on Arm, and unsigned on x86."""
_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTORS = TILE // LANES
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_BYTES = ir.VectorType(_I8, 4 * LANES)
_TILE_SIZE = 1024
"""Bytes of one of AMX's registers: 16 rows of 64."""
# 2^f for f in [0, 1): Taylor's series around ½, relative error at most 5e-5.
_POWER = tuple(math.sqrt(2) * math.log(2) ** n / math.factorial(n) for n in range(5))
_LEAST = -80.0


def call_vector(builder: Any, name: str, *arguments: Any) -> Any:
    """Call one of LLVM's vector instructions, whose result has the type of the first argument."""
    kind = ir.FunctionType(arguments[0].type, [argument.type for argument in arguments])
    return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), arguments)


def multiply_add(builder: Any, left: Any, right: Any, added: Any) -> Any:
    """``left · right + added`` on vectors of fp32 numbers, rounded once."""
    return call_vector(builder, f"llvm.fma.v{left.type.count}f32", left, right, added)


def number(value: int) -> Any:
    """A whole number of 64 bits."""
    return ir.Constant(_I64, value)


def fold_steps(
    builder: Any, steps: Any, start: Any, count: int, step: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Fold a loop over ``count`` values: ``step`` gets the step's number and the values before it."""
    before, loop, after = builder.block, builder.append_basic_block("steps"), builder.append_basic_block("folded")
    builder.branch(loop)
    builder.position_at_end(loop)
    turn = builder.phi(_I64)
    turn.add_incoming(number(0), before)
    values = [builder.phi(start.type) for _ in range(count)]
    for value in values:
        value.add_incoming(start, before)
    results = step(turn, values)
    following = builder.add(turn, number(1))
    turn.add_incoming(following, loop)
    for value, result in zip(values, results, strict=True):
        value.add_incoming(result, loop)
    builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)
    builder.position_at_end(after)
    return results


def _add_products(builder: Any, sums: Any, columns: Any, row: Any) -> Any:
    """``sums`` (LANES,) plus the dot products of as many columns (LANES, 4) and one row (4,), repeated."""
    if _DOT == 4:
        return call_vector(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", sums, columns, row)
    if _DOT:
        whole = [builder.bitcast(part, _INTS) for part in (row, columns)]
        return call_vector(builder, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", sums, *whole)
    wide = ir.VectorType(_I32, 4 * LANES)
    extend = builder.sext if LEAST else builder.zext
    products = builder.mul(builder.sext(columns, wide), extend(row, wide))
    for offset in range(4):
        places = ir.Constant(_INTS, [*range(offset, 4 * LANES, 4)])
        sums = builder.add(sums, builder.shuffle_vector(products, ir.Constant(wide, ir.Undefined), places))
    return sums


def _call_amx(builder: Any, name: str, *arguments: Any) -> None:
    """Call one of AMX's instructions; whole numbers of Python name registers."""
    values = [_I8(argument) if isinstance(argument, int) else argument for argument in arguments]
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    name = f"llvm.x86.{name}"
    if HAS_TILES:
        builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), values)


def _open_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    layout = bytearray(64)  # AMX's own: the palette, then the bytes of a row and the rows of each register
    layout[0], layout[16:32], layout[48:56] = 1, bytes([64, 0] * 8), bytes([16] * 8)
    with builder.goto_entry_block():
        place = builder.alloca(ir.ArrayType(_I8, 64))
    builder.store(ir.Constant(ir.ArrayType(_I8, 64), layout), place)
    _call_amx(builder, "ldtilecfg", builder.bitcast(place, _I8.as_pointer()))
    return context.get_dummy_value()


def _close_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    _call_amx(builder, "tilerelease")
    return context.get_dummy_value()


@intrinsic
def open_tiles(context):  # type: ignore[no-untyped-def]
    """Prepare AMX's registers, before the first tile."""
    return types.void(), _open_instructions


@intrinsic
def close_tiles(context):  # type: ignore[no-untyped-def]
    """Give them back."""
    return types.void(), _close_instructions


def _place(builder: Any, base: Any, *offsets: Any) -> Any:
    for offset in offsets:
        base = builder.add(base, offset)
    return builder.inttoptr(base, _I8.as_pointer())


def _sum_matrix(builder: Any, rows: Any, columns: Any, steps: Any) -> Any:
    """The address of the sums of SPAN² tiles, (SPAN, SPAN, TILE, TILE)."""
    place = partial(_place, builder)
    depth = builder.mul(steps, number(4))
    following = builder.mul(depth, number(TILE))
    for register in range(4):
        _call_amx(builder, "tilezero", register)

    def add(step: Any, _: list[Any]) -> list[Any]:
        row, column = builder.mul(step, number(64)), builder.mul(step, number(_TILE_SIZE))
        _call_amx(builder, "tileloadd64", 4, place(rows, row), depth)
        _call_amx(builder, "tileloadd64", 6, place(columns, column), number(64))
        _call_amx(builder, "tdpbusd", 0, 4, 6)
        _call_amx(builder, "tileloadd64", 7, place(columns, following, column), number(64))
        _call_amx(builder, "tdpbusd", 1, 4, 7)
        _call_amx(builder, "tileloadd64", 5, place(rows, following, row), depth)
        _call_amx(builder, "tdpbusd", 2, 5, 6)
        _call_amx(builder, "tdpbusd", 3, 5, 7)
        return []

    with builder.goto_entry_block():
        sums = builder.alloca(ir.ArrayType(_I8, 4 * _TILE_SIZE))
        sums.align = 64
    fold_steps(builder, builder.udiv(steps, number(16)), depth, 0, add)
    address = builder.ptrtoint(sums, _I64)
    for register in range(4):
        _call_amx(builder, "tilestored64", register, place(address, number(_TILE_SIZE * register)), number(64))
    return address


def _bf16_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    rows, stride, columns, steps, out = arguments
    place, below = partial(_place, builder), builder.mul(stride, number(TILE))

    def add(step: Any, _: list[Any]) -> list[Any]:
        offset = builder.mul(step, number(64))
        _call_amx(builder, "tileloadd64", 4, place(columns, builder.mul(step, number(_TILE_SIZE))), number(64))
        _call_amx(builder, "tileloadd64", 2, place(rows, offset), stride)
        _call_amx(builder, "tdpbf16ps", 0, 2, 4)
        _call_amx(builder, "tileloadd64", 3, place(rows, below, offset), stride)
        _call_amx(builder, "tdpbf16ps", 1, 3, 4)
        return []

    for register in range(SPAN):
        _call_amx(builder, "tilezero", register)
    fold_steps(builder, steps, stride, 0, add)
    for register in range(SPAN):
        _call_amx(builder, "tilestored64", register, place(out, number(_TILE_SIZE * register)), number(64))
    return context.get_dummy_value()


@intrinsic
def bf16_tiles(context, rows, stride, columns, steps, out):  # type: ignore[no-untyped-def]
    """``out[r, c] = Σ_k rows[r, k] · columns[k, c]`` for SPAN tiles, one below the other, by AMX in bf16.

    ``rows`` are ``stride`` bytes apart; a step is 32 numbers of each. ``out`` (SPAN · TILE, TILE) is fp32.
    """
    return types.void(*[types.intp] * 5), _bf16_instructions


def _pair(builder: Any, low: Any, high: Any) -> Any:
    """Two fp32 numbers, or vectors of them, as whole ones of 32 bits: rounded to bf16, the first in the lower half."""
    kind = ir.VectorType(_I32, low.type.count) if isinstance(low.type, ir.VectorType) else _I32

    def constant(value: int) -> Any:
        return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)

    low, high = (builder.add(builder.bitcast(value, kind), constant(0x8000)) for value in (low, high))
    return builder.or_(builder.lshr(low, constant(16)), builder.and_(high, constant(-0x10000)))


@intrinsic
def bf16_pair(context, low, high):  # type: ignore[no-untyped-def]
    """Two fp32 numbers as one of 32 bits: rounded to bf16, the first in its lower half."""
    return types.int32(types.float32, types.float32), lambda _, builder, __, pair: _pair(builder, *pair)


def _pair_rows_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    source, pairs, out = arguments

    def pair(turn: Any, _: list[Any]) -> list[Any]:
        for part in range(_VECTORS):
            first = builder.add(builder.mul(turn, number(8 * TILE)), number(4 * LANES * part))
            places = (_place(builder, source, first), _place(builder, source, first, number(4 * TILE)))
            rows = [builder.load(builder.bitcast(place, _FLOATS.as_pointer()), align=4) for place in places]
            place = _place(builder, out, builder.mul(turn, number(4 * TILE)), number(4 * LANES * part))
            builder.store(_pair(builder, *rows), builder.bitcast(place, _INTS.as_pointer()), align=4)
        return []

    fold_steps(builder, pairs, source, 0, pair)
    return context.get_dummy_value()


@intrinsic
def pair_rows(context, source, pairs, out):  # type: ignore[no-untyped-def]
    """Rows (2 · pairs, TILE) of fp32 numbers as :func:`bf16_pair` has them, each with the next, by addresses."""
    return types.void(*[types.intp] * 3), _pair_rows_instructions


def _tile_of(kind: str) -> Any:
    """The intrinsic for one tile; the arguments but the numbers of steps and bytes are addresses.

    ``fp32``: ``out[r, c] = scales[r] · Σ_k rows[k, r] · columns[k, c]``.
    ``int8``: ``out[r, c] = scales[r] · weights[c] · Σ_k … + middles[r] · totals[c] + bias[c]``; or SPAN² such tiles.
    """
    whole, together = kind != "fp32", kind == "int8 together"

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, columns, steps, out, stride, scales, middles, weights, totals, bias = arguments
        kept = _INTS if whole else _FLOATS

        def load(base: Any, offset: Any, kind: Any) -> Any:
            return builder.load(builder.inttoptr(builder.add(base, offset), kind.as_pointer()), align=4)

        def loaded(base: Any, begin: Any, kind: Any) -> list[Any]:
            """The numbers of a tile's columns."""
            return [load(base, builder.add(begin, number(4 * LANES * i)), kind) for i in range(_VECTORS)]

        def repeated(base: Any, begin: Any, kind: Any) -> list[Any]:
            """Each of the numbers of a tile's rows in all lanes of a vector."""
            empty = ir.Constant(kind, ir.Undefined)
            if LANES == 4:  # Arm multiplies by a lane, so a vector is loaded at once
                vectors = [(vector, lane) for vector in loaded(base, begin, kind) for lane in range(4)]
            else:  # x86 loads a number into all lanes
                numbers = [load(base, builder.add(begin, number(4 * row)), kind.element) for row in range(TILE)]
                vectors = [(builder.insert_element(empty, value, _I32(0)), 0) for value in numbers]
            return [
                builder.shuffle_vector(vector, empty, ir.Constant(_INTS, [lane] * LANES)) for vector, lane in vectors
            ]

        def add(step: Any, sums: list[Any]) -> list[Any]:
            begin = builder.mul(step, number(4 * TILE))
            right, added = loaded(columns, begin, _BYTES if whole else _FLOATS), []
            for row, factor in enumerate(repeated(rows, begin, kept)):
                for part in range(_VECTORS):
                    value = sums[_VECTORS * row + part]
                    if whole:
                        added.append(_add_products(builder, value, right[part], builder.bitcast(factor, _BYTES)))
                    else:
                        added.append(multiply_add(builder, right[part], factor, value))
            return added

        def finish(below: int, beside: int, added: Callable[[int], Any]) -> None:
            """Write the tile that is so many tiles below and beside the first one."""
            of_rows, of_columns = number(4 * TILE * below), number(4 * TILE * beside)
            row_scales, row_middles = repeated(scales, of_rows, _FLOATS), list[Any]()
            column_values = list[list[Any]]()
            if whole:
                row_middles = repeated(middles, of_rows, _FLOATS)
                column_values = [loaded(base, of_columns, _FLOATS) for base in (weights, totals, bias)]
            for row, part in product(range(TILE), range(_VECTORS)):
                total = added(_VECTORS * row + part)
                if whole:
                    weight, column, constant = (values[part] for values in column_values)
                    value = builder.fmul(builder.sitofp(total, _FLOATS), weight)
                    constant = multiply_add(builder, row_middles[row], column, constant)
                    value = multiply_add(builder, value, row_scales[row], constant)
                else:
                    value = builder.fmul(total, row_scales[row])
                offset = builder.mul(stride, number(TILE * below + row))
                offset = builder.add(offset, number(4 * (TILE * beside + LANES * part)))
                builder.store(value, builder.inttoptr(builder.add(out, offset), _FLOATS.as_pointer()), align=4)

        def sum_of_row(sums: Any, first: int, row: int) -> Any:
            return load(sums, number(first + 4 * TILE * row), _INTS)

        if together and HAS_TILES:
            sums = _sum_matrix(builder, rows, columns, steps)
            for below, beside in product(range(SPAN), repeat=2):
                first = _TILE_SIZE * (SPAN * below + beside)
                finish(below, beside, partial(sum_of_row, sums, first))
        elif not together:
            zero = ir.Constant(kept, [0 if whole else 0.0] * LANES)
            finish(0, 0, fold_steps(builder, steps, zero, TILE * _VECTORS, add).__getitem__)
        return context.get_dummy_value()

    @intrinsic
    def tile(  # type: ignore[no-untyped-def]
        context, rows, columns, steps, out, stride, scales, middles, weights, totals, bias
    ):
        return types.void(*[types.intp] * 10), generate

    return tile


int8_tile = _tile_of("int8")
int8_tiles = _tile_of("int8 together")
fp32_tile = _tile_of("fp32")


def _softmax_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    scores, rows, factors = arguments

    def constant(value: float) -> Any:
        return ir.Constant(_FLOATS, [value] * LANES)

    def places(row: Any) -> list[Any]:
        begin = builder.add(scores, builder.mul(row, number(4 * TILE)))
        return [
            builder.inttoptr(builder.add(begin, number(4 * LANES * i)), _FLOATS.as_pointer()) for i in range(_VECTORS)
        ]

    def find_largest(row: Any, values: list[Any]) -> list[Any]:
        loaded = [builder.load(place, align=4) for place in places(row)]
        return [call_vector(builder, f"llvm.maxnum.v{LANES}f32", *pair) for pair in zip(values, loaded, strict=True)]

    def exponential(x: Any) -> Any:
        x = call_vector(builder, f"llvm.maxnum.v{LANES}f32", x, constant(_LEAST))
        # Above 0, so that truncation rounds down.
        power = multiply_add(builder, x, constant(1 / math.log(2)), constant(128.0))
        whole = builder.fptosi(power, _INTS)
        rest = builder.fsub(builder.fsub(power, builder.sitofp(whole, _FLOATS)), constant(0.5))
        value = constant(_POWER[-1])
        for coefficient in reversed(_POWER[:-1]):
            value = multiply_add(builder, value, rest, constant(coefficient))
        # Added to a number's exponent bits: 2^(whole - 128).
        exponent = builder.shl(builder.sub(whole, ir.Constant(_INTS, [128] * LANES)), ir.Constant(_INTS, [23] * LANES))
        return builder.bitcast(builder.add(builder.bitcast(value, _INTS), exponent), _FLOATS)

    largest = fold_steps(builder, rows, constant(-math.inf), _VECTORS, find_largest)

    def add_exponential(row: Any, values: list[Any]) -> list[Any]:
        sums = []
        for place, top, value in zip(places(row), largest, values, strict=True):
            raised = exponential(builder.fsub(builder.load(place, align=4), top))
            builder.store(raised, place, align=4)
            sums.append(builder.fadd(value, raised))
        return sums

    for i, total in enumerate(fold_steps(builder, rows, constant(0.0), _VECTORS, add_exponential)):
        place = builder.inttoptr(builder.add(factors, number(4 * LANES * i)), _FLOATS.as_pointer())
        builder.store(builder.fdiv(constant(1.0), total), place, align=4)
    return context.get_dummy_value()


@intrinsic
def softmax_columns(context, scores, rows, factors):  # type: ignore[no-untyped-def]
    """Replace ``scores`` (rows, TILE) by their exponentials, scaled so that the largest of a column is 1.

    ``factors`` (TILE,) becomes 1 / the sums of the columns. Both are given by their addresses.
    """
    return types.void(*[types.intp] * 3), _softmax_instructions


def _comparison(name: str) -> Any:
    """An intrinsic for one of two fp32 numbers; a loop over it is computed on vectors, unlike Python's own."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_F32, [_F32, _F32])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(function, arguments, fastmath=("fast",))

    @intrinsic
    def compare(context, left, right):  # type: ignore[no-untyped-def]
        return types.float32(types.float32, types.float32), generate

    return compare


larger = _comparison("llvm.maxnum.f32")
smaller = _comparison("llvm.minnum.f32")
