"""Attention over packed sequences with gradients: the backward pass of
:mod:`rankwell.models.kernels.triton_attention`.

The forward pass stores one number per row and head, log2 Σ 2^score, from which the backward pass computes the weights
again, block by block; dropout is hashed again from its seed. The backward pass has two kernels: one over the rows of a
tile computes dQ (and each row's Σ dO·O), one over its columns dK and dV. The scores are thus computed twice, but no two
programs add to the same place, and the gradients have the same bits each time.
"""

# A kernel's arguments have no Python types, nor has Triton.
# mypy: disable-error-code="no-untyped-def,import-untyped,import-not-found"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankwell.models.kernels.triton_attention import (
    CODE_BITS,
    attend_first_packed,
    attend_packed,
    launch,
    product,
    table_row,
)
from rankwell.models.kernels.triton_dropout import kept, parts, scale_kept, seed_at
from rankwell.models.layout import Packed

# Depth of the load pipeline by head size: the backward pass holds more at a time than the forward pass.
STAGES = {16: 2, 32: 3, 64: 3, 128: 1}
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["site"])
def _query_gradient_kernel(
    qkv,
    out,
    grad_out,
    grad_qkv,
    sums,
    deltas,
    row_codes,
    column_codes,
    tiles,
    scale,
    seeds,
    site,
    HEADS: tl.constexpr,  # noqa: N803  (constants of the compilation are capitals in Triton)
    SIZE: tl.constexpr,  # noqa: N803
    RULE: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DROPPED: tl.constexpr,  # noqa: N803
):
    tile = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    begin, length, first_row = table_row(tiles, tile, ROWS)
    codes_at = tile * ROWS - first_row
    row = first_row + tl.arange(0, ROWS)
    feature = tl.arange(0, SIZE)
    width = HEADS * SIZE
    begin = begin.to(tl.int64)
    own = qkv + begin * (3 * width) + head * SIZE
    inside_row = (row < length)[:, None]
    query = tl.load(own + row[:, None] * (3 * width) + feature[None, :], mask=inside_row, other=0.0)
    at = begin * width + head * SIZE + row[:, None] * width + feature[None, :]
    mixed = tl.load(out + at, mask=inside_row, other=0.0)
    grad = tl.load(grad_out + at, mask=inside_row, other=0.0)
    delta = tl.sum(mixed.to(tl.float32) * grad.to(tl.float32), axis=1)
    sums_at = (tile * HEADS + head) * ROWS + tl.arange(0, ROWS)
    row_sum = tl.load(sums + sums_at)
    tl.store(deltas + sums_at, delta)
    if RULE > 0:
        row_code = tl.load(row_codes + codes_at + row)
    if DROPPED > 0:
        seed = seed_at(seeds, site)
    grad_query = tl.zeros([ROWS, SIZE], tl.float32)
    for start in range(0, length, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < length
        place = own + column[:, None] * (3 * width) + feature[None, :]
        key = tl.load(place + width, mask=inside[:, None], other=0.0)
        value = tl.load(place + 2 * width, mask=inside[:, None], other=0.0)
        score = product(query, tl.trans(key), tl.zeros([ROWS, COLUMNS], tl.float32), PRECISION, WIDE)
        grad_weight = product(grad, tl.trans(value), tl.zeros([ROWS, COLUMNS], tl.float32), PRECISION, WIDE)
        if RULE == 0:
            allowed = inside[None, :]
        else:
            shared = tl.load(column_codes + codes_at + column)[None, :] & row_code[:, None]
            allowed = (shared == 0) if RULE == 1 else (shared <= 0)
        weight = tl.where(allowed, tl.exp2(score * scale - row_sum[:, None]), 0.0)
        if DROPPED > 0:
            stays = kept(seed, ((codes_at + row) * HEADS + head)[:, None], column[None, :], DROPPED)
            grad_weight = tl.where(stays, scale_kept(grad_weight, DROPPED), 0.0)
        grad_score = weight * (grad_weight - delta[:, None])
        grad_query = product(grad_score.to(key.dtype), key, grad_query, PRECISION, WIDE)
    place = grad_qkv + begin * (3 * width) + head * SIZE + row[:, None] * (3 * width) + feature[None, :]
    tl.store(place, (grad_query * (scale * LN2)).to(grad_qkv.dtype.element_ty), mask=inside_row)


@triton.jit(do_not_specialize=["site"])
def _key_value_gradient_kernel(
    qkv,
    grad_out,
    grad_qkv,
    sums,
    deltas,
    row_codes,
    column_codes,
    tiles,
    scale,
    seeds,
    site,
    HEADS: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    RULE: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DROPPED: tl.constexpr,  # noqa: N803
):
    # A program has ROWS columns of the scores and goes over their rows, COLUMNS at a time: everything is transposed.
    tile = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    begin, length, first_column = table_row(tiles, tile, ROWS)
    codes_at = tile * ROWS - first_column
    column = first_column + tl.arange(0, ROWS)
    feature = tl.arange(0, SIZE)
    width = HEADS * SIZE
    begin = begin.to(tl.int64)
    own = qkv + begin * (3 * width) + head * SIZE
    own_grad = grad_out + begin * width + head * SIZE
    inside_column = (column < length)[:, None]
    place = column[:, None] * (3 * width) + feature[None, :]
    key = tl.load(own + place + width, mask=inside_column, other=0.0)
    value = tl.load(own + place + 2 * width, mask=inside_column, other=0.0)
    if RULE > 0:
        column_code = tl.load(column_codes + codes_at + column)
    if DROPPED > 0:
        seed = seed_at(seeds, site)
    grad_key = tl.zeros([ROWS, SIZE], tl.float32)
    grad_value = tl.zeros([ROWS, SIZE], tl.float32)
    for start in range(0, length, COLUMNS):
        row = start + tl.arange(0, COLUMNS)
        inside_row = (row < length)[:, None]
        query = tl.load(own + row[:, None] * (3 * width) + feature[None, :], mask=inside_row, other=0.0)
        grad = tl.load(own_grad + row[:, None] * width + feature[None, :], mask=inside_row, other=0.0)
        # The rows of a block are all of one tile.
        sums_at = ((codes_at + start) // ROWS * HEADS + head) * ROWS + start % ROWS + tl.arange(0, COLUMNS)
        row_sum = tl.load(sums + sums_at)
        delta = tl.load(deltas + sums_at)
        score = product(key, tl.trans(query), tl.zeros([ROWS, COLUMNS], tl.float32), PRECISION, WIDE)
        grad_weight = product(value, tl.trans(grad), tl.zeros([ROWS, COLUMNS], tl.float32), PRECISION, WIDE)
        if RULE == 0:
            allowed = inside_column
        else:
            shared = column_code[:, None] & tl.load(row_codes + codes_at + row)[None, :]
            allowed = (shared == 0) if RULE == 1 else (shared <= 0)
        weight = tl.where(allowed, tl.exp2(score * scale - row_sum[None, :]), 0.0)
        dropped = weight
        if DROPPED > 0:
            stays = kept(seed, ((codes_at + row) * HEADS + head)[None, :], column[:, None], DROPPED)
            dropped = tl.where(stays, scale_kept(weight, DROPPED), 0.0)
            grad_weight = tl.where(stays, scale_kept(grad_weight, DROPPED), 0.0)
        grad_value = product(dropped.to(grad.dtype), grad, grad_value, PRECISION, WIDE)
        grad_score = weight * (grad_weight - delta[None, :])
        grad_key = product(grad_score.to(query.dtype), query, grad_key, PRECISION, WIDE)
    place = grad_qkv + begin * (3 * width) + head * SIZE + place
    tl.store(place + width, (grad_key * (scale * LN2)).to(grad_qkv.dtype.element_ty), mask=inside_column)
    tl.store(place + 2 * width, grad_value.to(grad_qkv.dtype.element_ty), mask=inside_column)


@triton.jit(do_not_specialize=["site"])
def _first_gradient_kernel(
    query,
    keys_values,
    out,
    grad_out,
    grad_query,
    grad_keys_values,
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
    grad = tl.load(grad_out + at).to(tl.float32)
    delta = tl.sum(tl.load(out + at).to(tl.float32) * grad, axis=0)
    row_sum = tl.load(sums + tl.program_id(0))
    offset = begin.to(tl.int64) * (2 * width) + head * SIZE
    if RULE > 0:
        row_code = tl.load(row_codes + codes_at)
    if DROPPED > 0:
        seed = seed_at(seeds, site)
    grad_first = tl.zeros([SIZE], tl.float32)
    for start in range(0, length, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < length
        place = offset + column[:, None] * (2 * width) + feature[None, :]
        key = tl.load(keys_values + place, mask=inside[:, None], other=0.0).to(tl.float32)
        value = tl.load(keys_values + place + width, mask=inside[:, None], other=0.0).to(tl.float32)
        score = tl.sum(key * first[None, :], axis=1)
        grad_weight = tl.sum(value * grad[None, :], axis=1)
        if RULE == 0:
            allowed = inside
        else:
            shared = tl.load(column_codes + codes_at + column, mask=inside, other=CODE_BITS) & row_code
            allowed = (shared == 0) if RULE == 1 else (shared <= 0)
        weight = tl.where(allowed, tl.exp2(score * scale - row_sum), 0.0)
        dropped = weight
        if DROPPED > 0:
            stays = kept(seed, tl.program_id(0), column, DROPPED)
            dropped = tl.where(stays, scale_kept(weight, DROPPED), 0.0)
            grad_weight = tl.where(stays, scale_kept(grad_weight, DROPPED), 0.0)
        grad_score = weight * (grad_weight - delta) * (scale * LN2)
        grad_first += tl.sum(grad_score[:, None] * key, axis=0)
        grad_key = (grad_score[:, None] * first[None, :]).to(grad_keys_values.dtype.element_ty)
        grad_value = (dropped[:, None] * grad[None, :]).to(grad_keys_values.dtype.element_ty)
        tl.store(grad_keys_values + place, grad_key, mask=inside[:, None])
        tl.store(grad_keys_values + place + width, grad_value, mask=inside[:, None])
    tl.store(grad_query + at, grad_first.to(grad_query.dtype.element_ty))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, layout: Packed, heads: int, dropped: int, site: int) -> Tensor:
        sums = qkv.new_empty(len(layout.tiles) * heads * layout.blocks.rows, dtype=torch.float32)
        out = attend_packed(qkv, layout, heads, sums, dropped, site)
        ctx.save_for_backward(qkv, out, sums)
        ctx.rest = layout, heads, dropped, site
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, sums = ctx.saved_tensors
        grid, shared, constants = launch(qkv, *ctx.rest)
        constants["num_stages"] = STAGES[constants["SIZE"]]
        grad_out, grad_qkv, deltas = grad_out.contiguous(), torch.empty_like(qkv), torch.empty_like(sums)
        # dQ comes first: its kernel computes the deltas that dK and dV need.
        _query_gradient_kernel[grid](qkv, out, grad_out, grad_qkv, sums, deltas, *shared, **constants)
        _key_value_gradient_kernel[grid](qkv, grad_out, grad_qkv, sums, deltas, *shared, **constants)
        return grad_qkv, None, None, None, None


class _AttendFirst(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys_values: Tensor, layout: Packed, heads: int, dropped: int, site: int
    ) -> Tensor:
        sums = query.new_empty(len(query) * heads, dtype=torch.float32)
        out = attend_first_packed(query, keys_values, layout, heads, sums, dropped, site)
        ctx.save_for_backward(query, keys_values, out, sums)
        ctx.rest = layout, heads, dropped, site
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, keys_values, out, sums = ctx.saved_tensors
        grad_query, grad_keys_values = torch.empty_like(query), torch.empty_like(keys_values)
        grid, shared, constants = launch(query, *ctx.rest, first=True)
        _first_gradient_kernel[grid](
            query, keys_values, out, grad_out.contiguous(), grad_query, grad_keys_values, sums, *shared, **constants
        )
        return grad_query, grad_keys_values, None, None, None, None


def attend_trained(qkv: Tensor, layout: Packed, heads: int, dropout: float, site: int) -> Tensor:
    """:func:`~rankwell.models.kernels.triton_attention.attend_packed` with dropout and gradients."""
    assert not layout.window, "the backward pass knows no windows"
    found: Tensor = _Attend.apply(qkv, layout, heads, parts(dropout), site)  # type: ignore[no-untyped-call]
    return found


def attend_first_trained(
    query: Tensor, keys_values: Tensor, layout: Packed, heads: int, dropout: float, site: int
) -> Tensor:
    """:func:`~rankwell.models.kernels.triton_attention.attend_first_packed` with dropout and gradients."""
    found: Tensor = _AttendFirst.apply(  # type: ignore[no-untyped-call]
        query, keys_values, layout, heads, parts(dropout), site
    )
    return found
