"""Attention over packed sequences as Triton kernels: no padding, no mask tensors. This is the forward pass; the
backward pass is in :mod:`rankwell.models.kernels.triton_training`.

One program computes one head of one *tile*, a block of rows of one sequence, and goes over the keys of that sequence
alone, with an online softmax in fp32. The tiles are listed beforehand, so that no program is idle: with lengths of 100
to 180 tokens, a third of the programs of a grid as high as the longest sequence would have nothing to do.

Whether a row may attend to a column is the AND of two *codes*, made once per batch from words and last pieces. A word's
code is the bits of its number beside their complement, so a code is contained in another only if the words are the
same. The row has the complement of its word's code, so ``row & column == 0`` means "same word". The last piece of a
word has the column code 0, which every row matches. For the rule ``strict`` it keeps its word's code and has the sign
bit too, as do the rows that may attend to it: then ``row & column`` is negative. The codes are padded to whole tiles
with codes that match no row, so they are read without further checks.
"""

# A kernel's arguments have no Python types, nor has Triton.
# mypy: disable-error-code="no-untyped-def,import-untyped,import-not-found"

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from rankwell.models.kernels.triton_dropout import kept, readable, scale_kept, seed_at
from rankwell.models.layout import Blocks, Packed
from rankwell.models.spec import AttentionRule

RULES: dict[AttentionRule, int] = {"full": 0, "strm": 1, "strict": 2, "exact_match": 1}
WORDS = 1 << 15  # words of one sequence that have a code
# The score of masked keys. It is finite, so that a row whose first keys are all masked gives no NaN; what such keys add
# to the sums is multiplied by exp(-huge) = 0 at the first key that is not masked, and a token always attends to itself.
# It is far below any score, yet so small that a fused multiply-add leaves only a rounding error of CLOSED * scale -
# CLOSED * scale: with -1e30 that error overflowed exp2 in a block whose columns are all masked for a row.
CLOSED = tl.constexpr(-4.0e6)
CODE_BITS = tl.constexpr(0x3FFFFFFF)
WORD_BITS = tl.constexpr(0x7FFF)
SIGN_BIT = tl.constexpr(-0x80000000)


# By head size and whether there is a mask. Small blocks, because sequences are short: 64 rows waste fewer places at a
# sequence's end than 128. With a mask, 32 keys at a time keep its bits in the few predicate registers there are.
BLOCKS: dict[tuple[int, bool], Blocks] = {
    (size, masked): Blocks(64, 32, 4, 3) for size in (16, 32, 64, 128) for masked in (False, True)
}
FIRST_COLUMNS = 64


def blocks_for(head_size: int, rule: AttentionRule) -> Blocks | None:
    """The blocks for heads of this size; ``None`` if the kernels do not support it."""
    return BLOCKS.get((head_size, rule != "full"))


def make_tiles(ends: NDArray[np.int64], rows: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The tables of packed sequences: tiles (N, 3) of begin, length, the tile's first row; sequences (B, 3) of begin,
    length, first tile.
    """
    lengths = np.diff(ends, prepend=0)
    counts = -(-lengths // rows)
    firsts = np.cumsum(counts) - counts
    sequences = np.stack([ends - lengths, lengths, firsts], axis=1).astype(np.int32)
    tiles = np.repeat(sequences, counts, axis=0)
    tiles[:, 2] = (np.arange(len(tiles), dtype=np.int32) - tiles[:, 2]) * rows
    return tiles, sequences


def pack(
    words: Tensor,
    last: Tensor,
    tiles: Tensor,
    sequences: Tensor,
    rule: AttentionRule,
    blocks: Blocks,
    seeds: Tensor | None = None,
) -> Packed:
    """The layout of packed sequences from the tables of :func:`make_tiles`, ``words`` (T,) int32 and ``last`` (T,) int8
    or bool, all on the device; the rule ``full`` reads neither. A sequence has at most ``WORDS`` words. Tiles of length
    0 may follow those of the sequences: they compute nothing.
    """
    masked = rule != "full"
    row_codes, column_codes = tiles.new_empty(2, len(tiles) * blocks.rows if masked else 1)
    if masked:
        _codes_kernel[(len(tiles),)](
            words, last.view(torch.int8), tiles, row_codes, column_codes, STRICT=rule == "strict", ROWS=blocks.rows
        )
    return Packed(rule, blocks, tiles, sequences, row_codes, column_codes, seeds)


@triton.jit
def table_row(table, number, MULTIPLE: tl.constexpr):  # noqa: N803  (constants of the compilation are capitals)
    """The begin and length of a tile or sequence, and the first row of the tile or the first tile of the sequence,
    which is a multiple of MULTIPLE.
    """
    begin = tl.load(table + 3 * number)
    length = tl.load(table + 3 * number + 1)
    return begin, length, tl.multiple_of(tl.load(table + 3 * number + 2), MULTIPLE)


@triton.jit
def _codes_kernel(
    words,
    last,
    tiles,
    row_codes,
    column_codes,
    STRICT: tl.constexpr,  # noqa: N803  (constants of the compilation are capitals in Triton)
    ROWS: tl.constexpr,  # noqa: N803
):
    tile = tl.program_id(0)
    begin, length, first_row = table_row(tiles, tile, ROWS)
    row = first_row + tl.arange(0, ROWS)
    inside = row < length
    word = tl.load(words + begin + row, mask=inside, other=0)
    is_last = tl.load(last + begin + row, mask=inside, other=0) != 0
    code = (word << 15) | (~word & WORD_BITS)
    row_code = ~code & CODE_BITS
    if STRICT:
        row_code = tl.where(is_last, row_code | SIGN_BIT, row_code)
        column_code = tl.where(is_last, code | SIGN_BIT, code)
    else:
        column_code = tl.where(is_last, 0, code)
    column_code = tl.where(inside, column_code, CODE_BITS)
    place = tile * ROWS + tl.arange(0, ROWS)
    tl.store(row_codes + place, row_code)
    tl.store(column_codes + place, column_code)


@triton.jit
def product(a, b, c, PRECISION: tl.constexpr, WIDE: tl.constexpr):  # noqa: N803
    """``a @ b + c``."""
    if WIDE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), c, input_precision="ieee")
    else:  # noqa: RET505  (Triton leaves out a branch that does not hold only if the other is an else)
        return tl.dot(a, b, c, input_precision=PRECISION)


@triton.jit(do_not_specialize=["site"])
def _attend_kernel(
    qkv,
    out,
    sums,
    row_codes,
    column_codes,
    tiles,
    scale,
    seeds,
    site,
    HEADS: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    RULE: tl.constexpr,  # noqa: N803
    WINDOW: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    TRAINED: tl.constexpr,  # noqa: N803
    DROPPED: tl.constexpr,  # noqa: N803
):
    tile = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    begin, length, first_row = table_row(tiles, tile, ROWS)
    codes_at = tile * ROWS - first_row
    row = first_row + tl.arange(0, ROWS)
    feature = tl.arange(0, SIZE)
    width = HEADS * SIZE
    # 64 bits for the begin of the sequence: tokens times 3H may exceed 2^31. Within the sequence, 32 suffice.
    own = qkv + begin.to(tl.int64) * (3 * width) + head * SIZE
    inside_row = row < length
    query = tl.load(own + row[:, None] * (3 * width) + feature[None, :], mask=inside_row[:, None], other=0.0)
    if RULE > 0:
        row_code = tl.load(row_codes + codes_at + row)
    if DROPPED > 0:
        seed = seed_at(seeds, site)
    peak = tl.full([ROWS], CLOSED, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, SIZE], tl.float32)
    first_column = 0
    end = length
    if WINDOW > 0:
        first_column = tl.maximum(first_row - WINDOW, 0) // COLUMNS * COLUMNS
        end = tl.minimum(length, first_row + (ROWS + WINDOW))
    for start in range(first_column, end, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < length
        place = own + column[:, None] * (3 * width) + feature[None, :]
        key = tl.load(place + width, mask=inside[:, None], other=0.0)
        value = tl.load(place + 2 * width, mask=inside[:, None], other=0.0)
        score = product(query, tl.trans(key), tl.zeros([ROWS, COLUMNS], tl.float32), PRECISION, WIDE)
        if RULE == 0:
            allowed = inside[None, :]
        else:
            shared = tl.load(column_codes + codes_at + column)[None, :] & row_code[:, None]
            allowed = (shared == 0) if RULE == 1 else (shared <= 0)
        if WINDOW > 0:
            allowed = allowed & (tl.abs(row[:, None] - column[None, :]) <= WINDOW)
        score = tl.where(allowed, score, CLOSED)
        # `scale` holds log2(e) too, since exp2 is what the hardware computes.
        new_peak = tl.maximum(peak, tl.max(score, axis=1) * scale)
        weight = tl.exp2(score * scale - new_peak[:, None])
        decay = tl.exp2(peak - new_peak)
        total = total * decay + tl.sum(weight, axis=1)
        if DROPPED > 0:
            stays = kept(seed, ((codes_at + row) * HEADS + head)[:, None], column[None, :], DROPPED)
            weight = tl.where(stays, weight, 0.0)
        mixed = product(weight.to(value.dtype), value, mixed * decay[:, None], PRECISION, WIDE)
        peak = new_peak
    mixed = mixed / total[:, None]
    if DROPPED > 0:
        mixed = scale_kept(mixed, DROPPED)
    if TRAINED:
        # The sum of rows that pad a tile is 0: finite, as the backward pass needs it.
        own_sums = sums + (tile * HEADS + head) * ROWS + tl.arange(0, ROWS)
        tl.store(own_sums, tl.where(inside_row, peak + tl.log2(total), 0.0))
    place = out + begin.to(tl.int64) * width + head * SIZE + row[:, None] * width + feature[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), mask=inside_row[:, None])


@triton.jit(do_not_specialize=["site"])
def _attend_first_kernel(
    query,
    keys_values,
    out,
    sums,
    row_codes,
    column_codes,
    sequences,
    scale,
    seeds,
    site,
    HEADS: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    RULE: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    TRAINED: tl.constexpr,  # noqa: N803
    DROPPED: tl.constexpr,  # noqa: N803
):
    sequence = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    begin, length, first_tile = table_row(sequences, sequence, 1)
    codes_at = first_tile * ROWS
    feature = tl.arange(0, SIZE)
    width = HEADS * SIZE
    at = sequence.to(tl.int64) * width + head * SIZE + feature
    first = tl.load(query + at).to(tl.float32)
    own = keys_values + begin.to(tl.int64) * (2 * width) + head * SIZE
    if RULE > 0:
        row_code = tl.load(row_codes + codes_at)
    if DROPPED > 0:
        seed = seed_at(seeds, site)
    # Numbers that change in the loop are kept as vectors of one.
    peak = tl.full([1], CLOSED, tl.float32)
    total = tl.zeros([1], tl.float32)
    mixed = tl.zeros([SIZE], tl.float32)
    for start in range(0, length, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < length
        place = own + column[:, None] * (2 * width) + feature[None, :]
        key = tl.load(place, mask=inside[:, None], other=0.0).to(tl.float32)
        value = tl.load(place + width, mask=inside[:, None], other=0.0).to(tl.float32)
        score = tl.sum(key * first[None, :], axis=1)
        if RULE == 0:
            allowed = inside
        else:
            shared = tl.load(column_codes + codes_at + column, mask=inside, other=CODE_BITS) & row_code
            allowed = (shared == 0) if RULE == 1 else (shared <= 0)
        score = tl.where(allowed, score, CLOSED)
        new_peak = tl.maximum(peak, tl.max(score, axis=0) * scale)
        weight = tl.exp2(score * scale - new_peak)
        decay = tl.exp2(peak - new_peak)
        total = total * decay + tl.sum(weight, axis=0)
        if DROPPED > 0:
            weight = tl.where(kept(seed, tl.program_id(0), column, DROPPED), weight, 0.0)
        mixed = mixed * decay + tl.sum(weight[:, None] * value, axis=0)
        peak = new_peak
    mixed = mixed / total
    if DROPPED > 0:
        mixed = scale_kept(mixed, DROPPED)
    if TRAINED:
        tl.store(sums + tl.program_id(0), tl.max(peak + tl.log2(total), axis=0))
    tl.store(out + at, mixed.to(out.dtype.element_ty))


def launch(
    rows: Tensor, layout: Packed, heads: int, dropped: int, site: int, *, first: bool = False
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """How a kernel goes over the tiles of packed ``rows`` (T, 3H), or over the ``first`` rows of sequences (B, H).

    Returns its grid, its arguments from the codes on, and its constants.
    """
    size = rows.shape[1] // (heads if first else 3 * heads)
    constants: dict[str, Any] = {"HEADS": heads, "SIZE": size, "ROWS": layout.blocks.rows}
    constants |= {"RULE": RULES[layout.rule], "DROPPED": dropped}
    if first:
        assert not layout.window, "only attend_packed knows windows"
        count, table = len(rows), layout.sequences
        constants |= {"COLUMNS": FIRST_COLUMNS, "num_warps": 2}
    else:
        count, table = len(layout.tiles), layout.tiles
        constants |= {"COLUMNS": layout.blocks.columns, "num_warps": layout.blocks.warps}
        # Triton's default for fp32 is tf32, which loses half of the digits.
        constants["PRECISION"] = "ieee" if rows.dtype == torch.float32 else "tf32"
        # Triton's interpreter, on a CPU, stores bf16 as integers and would multiply those.
        constants["WIDE"] = not rows.is_cuda
    # The factor turns the product of a query and a key into an exponent of 2.
    scale, seeds = math.log2(math.e) / math.sqrt(size), readable(layout.seeds, dropped, layout.tiles)
    return (count * heads,), (layout.row_codes, layout.column_codes, table, scale, seeds, site), constants


def attend_packed(
    qkv: Tensor, layout: Packed, heads: int, sums: Tensor | None = None, dropped: int = 0, site: int = 0
) -> Tensor:
    """Attention of packed rows: ``qkv`` (T, 3H) → (T, H).

    For the backward pass, ``sums`` (tiles, heads, rows of a tile) is filled with each row's log2 Σ 2^score. For
    ``dropped`` and ``site`` see :mod:`rankwell.models.kernels.triton_dropout`.
    """
    out = qkv.new_empty(qkv.shape[0], qkv.shape[1] // 3)
    grid, shared, constants = launch(qkv, layout, heads, dropped, site)
    constants |= {"WINDOW": layout.window, "TRAINED": sums is not None, "num_stages": layout.blocks.stages}
    _attend_kernel[grid](qkv, out, out if sums is None else sums, *shared, **constants)
    return out


def attend_first_packed(
    query: Tensor,
    keys_values: Tensor,
    layout: Packed,
    heads: int,
    sums: Tensor | None = None,
    dropped: int = 0,
    site: int = 0,
) -> Tensor:
    """Attention of the first row of each sequence: ``query`` (B, H), ``keys_values`` (T, 2H) → (B, H); ``sums`` is
    (B, heads), and all else as for :func:`attend_packed`.
    """
    out = torch.empty_like(query)
    grid, shared, constants = launch(query, layout, heads, dropped, site, first=True)
    constants["TRAINED"] = sums is not None
    _attend_first_kernel[grid](query, keys_values, out, out if sums is None else sums, *shared, **constants)
    return out
