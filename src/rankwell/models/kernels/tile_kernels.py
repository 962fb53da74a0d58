"""Tiles of matrix products on a CPU, whose sums stay in registers, in int8 or in fp32.

The processor's dot-product instruction adds four products of 8 bits to each sum. LLVM does not find this form in a
loop, so a tile is written as LLVM's own instructions; where the processor has no such instruction, the same sums are
computed from plain ones. Arm multiplies signed bytes, four sums at once; x86 unsigned bytes of rows by signed ones of
columns, 8 or 16 sums at once. A tile has ROWS rows and PANEL columns, two vectors of sums for each row. Where the
processor multiplies whole tiles of bytes (AMX), 32 rows and columns are computed together: their sums, two panels of
rows and two of columns fill its eight registers. Elsewhere no instructions are written for that: it is never called.

    rows       (M, K) int8 or fp32, as they lie in memory; or (K, M) fp32, whose rows lie beside each other
    columns    (K / 4, PANEL, 4) int8 or (K, PANEL) fp32
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rankwell.models.devices import DOT_LANES, HAS_TILES, PANEL

_DOT = DOT_LANES
LANES = _DOT or 4
_VECTORS = 2
ROWS = 4 if LANES == 8 else 8
"""Rows of a tile: processors that have vectors of eight sums may have but 16 registers."""
TOGETHER = 32
"""Rows that AMX computes together: spare ones of buffers."""
LEAST = -128 if LANES == 4 else 0
"""The least of the whole numbers of a row: bytes are signed on Arm, and unsigned on x86."""
_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_BYTES = ir.VectorType(_I8, 4 * LANES)
_REGISTER = 1024
"""Bytes of one of AMX's registers: 16 rows of 64."""
# 2^f for f in [-½, ½]: Taylor's series, relative error at most 5e-5.
_POWER = tuple(math.log(2) ** n / math.factorial(n) for n in range(5))
_LEAST = -80.0
_ROUNDS = 1.5 * 2**23
"""Added to a small number, it leaves the nearest whole one in the lowest bits."""
# gelu(x) = x (½ + x p(x²)) for |x| < 4.3, and 1 - Φ(4.3) = 9e-6. The polynomial is a least-squares fit in
# 2 x² / 4.3² - 1; the error of gelu is at most 3e-5, a thousandth of what rounding to 8 bits adds.
_REACH = 4.3
_GELU = (
    0.164052754,
    -0.0800476865,
    0.0556062567,
    -0.0396331473,
    0.0258831427,
    -0.0146870296,
    0.00953989248,
    -0.00694504822,
    0.00250926558,
)


def call_vector(builder: Any, name: str, *arguments: Any) -> Any:
    """Call one of LLVM's vector instructions, whose result has the type of the first argument."""
    kind = ir.FunctionType(arguments[0].type, [argument.type for argument in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    # The largest of two numbers is one instruction where none is NaN.
    return builder.call(function, arguments, fastmath=("nnan", "nsz") if "num." in name else ())


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


def _place(builder: Any, base: Any, *offsets: Any) -> Any:
    """The address so many bytes behind another."""
    for offset in offsets:
        base = builder.add(base, number(offset) if isinstance(offset, int) else offset)
    return base


def _load(builder: Any, kind: Any, *place: Any) -> Any:
    return builder.load(builder.inttoptr(_place(builder, *place), kind.as_pointer()), align=4)


def _store(builder: Any, value: Any, *place: Any) -> None:
    builder.store(value, builder.inttoptr(_place(builder, *place), value.type.as_pointer()), align=4)


def _constant(value: float) -> Any:
    return ir.Constant(_FLOATS, [value] * LANES)


def _in_all_lanes(builder: Any, vector: Any, lane: int) -> Any:
    places = ir.Constant(ir.VectorType(_I32, LANES), [lane] * LANES)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)


def _repeated(builder: Any, kind: Any, *place: Any) -> Any:
    """The number at an address, in all lanes."""
    value = _load(builder, kind.element, *place)
    return _in_all_lanes(builder, builder.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0)), 0)


def _add_products(builder: Any, sums: Any, columns: Any, row: Any) -> Any:
    """``sums`` (LANES,) plus the dot products of as many columns (LANES, 4) and one row (4,), repeated."""
    columns, row = (builder.bitcast(value, _BYTES) for value in (columns, row))
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


def _sum_tile(
    builder: Any, operands: tuple[Any, ...], steps: Any, *, whole: bool, beside: bool = False
) -> Callable[[int, int], Any]:
    """The sums of a tile by row and vector. ``operands`` are two addresses, each with the bytes to what follows: to
    the next row, or to the next step where rows lie beside each other; and to the next step of the columns.
    """
    rows, row_stride, columns, column_stride = operands
    kind = _INTS if whole else _FLOATS
    # Four numbers of a row are one vector on Arm, which multiplies by any lane of it; so are four rows' numbers.
    at_once = 4 if LANES == 4 and not beside else 1
    begins = [_place(builder, rows, 4 * r if beside else builder.mul(row_stride, number(r))) for r in range(ROWS)]

    def numbers(turn: Any) -> list[list[Any]]:
        """For each step of a turn, each row's number in all lanes."""
        if LANES > 4:
            step = builder.mul(turn, row_stride if beside else number(4))
            return [[_repeated(builder, kind, begin, step) for begin in begins]]
        if beside:
            step = builder.mul(turn, row_stride)
            vectors = [_load(builder, kind, begin, step) for begin in begins[::4]]
            return [[_in_all_lanes(builder, vectors[r // 4], r % 4) for r in range(ROWS)]]
        vectors = [_load(builder, kind, begin, builder.mul(turn, number(16))) for begin in begins]
        return [[_in_all_lanes(builder, vector, lane) for vector in vectors] for lane in range(4)]

    def add(turn: Any, sums: list[Any]) -> list[Any]:
        first = _place(builder, columns, builder.mul(builder.mul(turn, number(at_once)), column_stride))
        for later, row_numbers in enumerate(numbers(turn)):
            place = _place(builder, first, builder.mul(column_stride, number(later)))
            right = [_load(builder, kind, place, 4 * LANES * part) for part in range(_VECTORS)]
            pairs = list(product(row_numbers, right))
            if whole:
                sums = [
                    _add_products(builder, value, column, row) for value, (row, column) in zip(sums, pairs, strict=True)
                ]
            else:
                sums = [
                    multiply_add(builder, column, row, value) for value, (row, column) in zip(sums, pairs, strict=True)
                ]
        return sums

    zero = ir.Constant(kind, [0 if whole else 0.0] * LANES)
    turns = builder.udiv(steps, number(at_once)) if at_once > 1 else steps
    sums = fold_steps(builder, turns, zero, ROWS * _VECTORS, add)
    return lambda row, part: sums[_VECTORS * row + part]


def _finish_int8(builder: Any, sums: Callable[[int, int], Any], rows: int, arguments: tuple[Any, ...]) -> None:
    out, stride, scales, middles, weights, totals, bias = arguments
    of_columns = [
        [_load(builder, _FLOATS, base, 4 * LANES * part) for base in (weights, totals, bias)]
        for part in range(_VECTORS)
    ]
    for row in range(rows):
        scale, middle = (_repeated(builder, _FLOATS, base, 4 * row) for base in (scales, middles))
        for part, (weight, total, constant) in enumerate(of_columns):
            value = builder.fmul(builder.sitofp(sums(row, part), _FLOATS), weight)
            constant = multiply_add(builder, middle, total, constant)
            value = multiply_add(builder, value, scale, constant)
            _store(builder, value, out, builder.mul(stride, number(row)), 4 * LANES * part)


def _int8_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    rows, stride, columns, steps, *rest = arguments
    sums = _sum_tile(builder, (rows, stride, columns, number(4 * PANEL)), steps, whole=True)
    _finish_int8(builder, sums, ROWS, tuple(rest))
    return context.get_dummy_value()


@intrinsic
def int8_tile(  # type: ignore[no-untyped-def]
    context, rows, row_stride, columns, steps, out, stride, scales, middles, weights, totals, bias
):
    """``out[r, c] = scales[r] · weights[c] · Σ_k rows[r, k] · columns[k, c] + middles[r] · totals[c] + bias[c]``.

    Strides are in bytes; a step is four numbers of each row and column.
    """
    return types.void(*[types.intp] * 11), _int8_instructions


def _scores_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    rows, stride, columns, steps, out = arguments
    sums = _sum_tile(builder, (rows, stride, columns, number(4 * PANEL)), steps, whole=False)
    for row, part in product(range(ROWS), range(_VECTORS)):
        _store(builder, sums(row, part), out, 4 * (PANEL * row + LANES * part))
    return context.get_dummy_value()


@intrinsic
def scores_tile(context, rows, row_stride, columns, steps, out):  # type: ignore[no-untyped-def]
    """``out[r, c] = Σ_k rows[r, k] · columns[k, c]`` in fp32; ``out`` is (ROWS, PANEL)."""
    return types.void(*[types.intp] * 5), _scores_instructions


def _mix_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    rows, columns, column_stride, steps, out, stride, factors = arguments
    operands = rows, number(4 * PANEL), columns, column_stride
    sums = _sum_tile(builder, operands, steps, whole=False, beside=True)
    for row in range(ROWS):
        factor = _repeated(builder, _FLOATS, factors, 4 * row)
        for part in range(_VECTORS):
            value = builder.fmul(sums(row, part), factor)
            _store(builder, value, out, builder.mul(stride, number(row)), 4 * LANES * part)
    return context.get_dummy_value()


@intrinsic
def mix_tile(context, rows, columns, column_stride, steps, out, stride, factors):  # type: ignore[no-untyped-def]
    """``out[r, c] = factors[r] · Σ_k rows[k, r] · columns[k, c]`` in fp32; ``rows`` are (K, PANEL)."""
    return types.void(*[types.intp] * 7), _mix_instructions


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


def _together_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    rows, stride, columns, steps, *rest = arguments
    if not HAS_TILES:
        return context.get_dummy_value()

    def pointer(*place: Any) -> Any:
        return builder.inttoptr(_place(builder, *place), _I8.as_pointer())

    def add(step: Any, _: list[Any]) -> list[Any]:
        row, column = builder.mul(step, number(64)), builder.mul(step, number(64 * PANEL))
        for register, place in ((4, (rows, row)), (5, (rows, builder.mul(stride, number(16)), row))):
            _call_amx(builder, "tileloadd64", register, pointer(*place), stride)
        for register in (6, 7):
            _call_amx(
                builder, "tileloadd64", register, pointer(columns, column, 64 * (register - 6)), number(4 * PANEL)
            )
        for register in range(4):
            _call_amx(builder, "tdpbusd", register, 4 + register // 2, 6 + register % 2)
        return []

    with builder.goto_entry_block():
        memory = builder.alloca(ir.ArrayType(_I8, 4 * _REGISTER))
        memory.align = 64
    for register in range(4):
        _call_amx(builder, "tilezero", register)
    fold_steps(builder, builder.udiv(steps, number(16)), stride, 0, add)
    address = builder.ptrtoint(memory, _I64)
    for register in range(4):
        _call_amx(builder, "tilestored64", register, pointer(address, _REGISTER * register), number(64))

    def sums(row: int, part: int) -> Any:
        return _load(builder, _INTS, address, _REGISTER * (2 * (row // 16) + part) + 64 * (row % 16))

    _finish_int8(builder, sums, TOGETHER, tuple(rest))
    return context.get_dummy_value()


@intrinsic
def int8_tiles(  # type: ignore[no-untyped-def]
    context, rows, row_stride, columns, steps, out, stride, scales, middles, weights, totals, bias
):
    """What :func:`int8_tile` computes, for TOGETHER rows, by AMX."""
    return types.void(*[types.intp] * 11), _together_instructions


def _softmax_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    scores, rows, factors = arguments
    maximum = f"llvm.maxnum.v{LANES}f32"

    def places(row: Any) -> list[tuple[Any, ...]]:
        begin = builder.mul(row, number(4 * PANEL))
        return [(scores, begin, 4 * LANES * part) for part in range(_VECTORS)]

    def find_largest(row: Any, values: list[Any]) -> list[Any]:
        loaded = [_load(builder, _FLOATS, *place) for place in places(row)]
        return [call_vector(builder, maximum, *pair) for pair in zip(values, loaded, strict=True)]

    def exponential(x: Any) -> Any:
        x = call_vector(builder, maximum, x, _constant(_LEAST))
        rounded = multiply_add(builder, x, _constant(1 / math.log(2)), _constant(_ROUNDS))
        whole = builder.fsub(rounded, _constant(_ROUNDS))
        rest = multiply_add(builder, x, _constant(1 / math.log(2)), builder.fneg(whole))
        value = _constant(_POWER[-1])
        for coefficient in reversed(_POWER[:-1]):
            value = multiply_add(builder, value, rest, _constant(coefficient))
        # Added to a number's exponent bits: 2^whole.
        exponent = builder.shl(builder.bitcast(rounded, _INTS), ir.Constant(_INTS, [23] * LANES))
        return builder.bitcast(builder.add(builder.bitcast(value, _INTS), exponent), _FLOATS)

    largest = fold_steps(builder, rows, _constant(-math.inf), _VECTORS, find_largest)

    def add_exponential(row: Any, values: list[Any]) -> list[Any]:
        sums = []
        for place, top, value in zip(places(row), largest, values, strict=True):
            raised = exponential(builder.fsub(_load(builder, _FLOATS, *place), top))
            _store(builder, raised, *place)
            sums.append(builder.fadd(value, raised))
        return sums

    for part, total in enumerate(fold_steps(builder, rows, _constant(0.0), _VECTORS, add_exponential)):
        _store(builder, builder.fdiv(_constant(1.0), total), factors, 4 * LANES * part)
    return context.get_dummy_value()


@intrinsic
def softmax_columns(context, scores, rows, factors):  # type: ignore[no-untyped-def]
    """Replace ``scores`` (rows, PANEL) by their exponentials, scaled so that the largest of a column is 1.

    ``factors`` (PANEL,) becomes 1 / the sums of the columns. Both are given by their addresses.
    """
    return types.void(*[types.intp] * 3), _softmax_instructions


def _gelu_instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    numbers, count = arguments

    def replace(turn: Any, _: list[Any]) -> list[Any]:
        place = numbers, builder.mul(turn, number(4 * LANES))
        x = _load(builder, _FLOATS, *place)
        near = call_vector(builder, f"llvm.minnum.v{LANES}f32", x, _constant(_REACH))
        near = call_vector(builder, f"llvm.maxnum.v{LANES}f32", near, _constant(-_REACH))
        square = builder.fmul(near, near)
        point = multiply_add(builder, square, _constant(2 / _REACH**2), _constant(-1.0))
        value = _constant(_GELU[-1])
        for coefficient in reversed(_GELU[:-1]):
            value = multiply_add(builder, value, point, _constant(coefficient))
        _store(builder, builder.fmul(x, multiply_add(builder, near, value, _constant(0.5))), *place)
        return []

    fold_steps(builder, builder.udiv(count, number(LANES)), numbers, 0, replace)
    return context.get_dummy_value()


@intrinsic
def gelu(context, numbers, count):  # type: ignore[no-untyped-def]
    """Replace numbers at an address by their gelu; their count is a multiple of LANES."""
    return types.void(*[types.intp] * 2), _gelu_instructions


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
