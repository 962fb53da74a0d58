"""Dropout, residual and norm with gradients: the backward pass of :mod:`rankwell.models.kernels.triton_layers`.

Only the inputs of the forward pass are stored: sums, means, variances and dropout are computed again in the pass that
reads the inputs anyway. A program goes over many rows and has its own sums for the norm's weight and bias, which are
added up afterwards. So the gradients have the same bits each time, except those of the embedding tables.
"""

# A kernel's arguments have no Python types, nor has Triton.
# mypy: disable-error-code="no-untyped-def,import-untyped,import-not-found"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from rankwell.models.kernels.triton_dropout import drop, parts, readable, seed_at
from rankwell.models.kernels.triton_layers import ROWS, add_norm, embed_norm, over_rows, row_constants

PROGRAMS = 512  # about four to a multiprocessor


@triton.jit
def _norm_gradient(summed, inside, grad, gain, epsilon, WIDTH: tl.constexpr):  # noqa: N803
    """The gradient of a norm's input, and the normalised input that the gradient of its weight needs."""
    mean = tl.sum(summed, axis=1) / WIDTH
    centred = tl.where(inside, summed - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, axis=1) / WIDTH
    scale = tl.rsqrt(variance + epsilon)[:, None]
    scaled = centred * scale
    passed = grad * gain[None, :]
    along = tl.sum(passed * scaled, axis=1) / WIDTH
    level = tl.sum(passed, axis=1) / WIDTH
    return (passed - level[:, None] - scaled * along[:, None]) * scale, scaled


@triton.jit(do_not_specialize=["count", "site"])
def _add_norm_gradient_kernel(
    x,
    y,
    weight,
    grad_out,
    grad_x,
    grad_y,
    partial,
    count,
    epsilon,
    seeds,
    site,
    WIDTH: tl.constexpr,  # noqa: N803  (constants of the compilation are capitals in Triton)
    BLOCK: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    DROPPED: tl.constexpr,  # noqa: N803
):
    feature = tl.arange(0, BLOCK)
    known = feature < WIDTH
    gain = tl.load(weight + feature, mask=known, other=0.0).to(tl.float32)
    if DROPPED > 0:
        seed = seed_at(seeds, site)
    grad_weight = tl.zeros([ROWS, BLOCK], tl.float32)
    grad_bias = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < count)[:, None] & known[None, :]
        place = row.to(tl.int64)[:, None] * WIDTH + feature[None, :]
        summed = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        added = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_out + place, mask=inside, other=0.0).to(tl.float32)
        if DROPPED > 0:
            added = drop(added, seed, row, feature, DROPPED)
        grad_sum, scaled = _norm_gradient(summed + added, inside, grad, gain, epsilon, WIDTH)
        grad_weight += grad * scaled
        grad_bias += grad
        tl.store(grad_x + place, grad_sum.to(grad_x.dtype.element_ty), mask=inside)
        if DROPPED > 0:
            grad_added = drop(grad_sum, seed, row, feature, DROPPED)
            tl.store(grad_y + place, grad_added.to(grad_y.dtype.element_ty), mask=inside)
    own = partial + tl.program_id(0) * (2 * WIDTH) + feature
    tl.store(own, tl.sum(grad_weight, axis=0), mask=known)
    tl.store(own + WIDTH, tl.sum(grad_bias, axis=0), mask=known)


@triton.jit(do_not_specialize=["count", "site"])
def _embed_norm_gradient_kernel(
    tokens,
    segments,
    positions,
    token_table,
    segment_table,
    position_table,
    weight,
    grad_out,
    grad_sums,
    partial,
    count,
    epsilon,
    seeds,
    site,
    WIDTH: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    DROPPED: tl.constexpr,  # noqa: N803
):
    feature = tl.arange(0, BLOCK)
    known = feature < WIDTH
    gain = tl.load(weight + feature, mask=known, other=0.0).to(tl.float32)
    if DROPPED > 0:
        seed = seed_at(seeds, site)
    grad_weight = tl.zeros([ROWS, BLOCK], tl.float32)
    grad_bias = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        real = row < count
        inside = real[:, None] & known[None, :]
        token = tl.load(tokens + row, mask=real, other=0).to(tl.int64)[:, None] * WIDTH + feature[None, :]
        segment = tl.load(segments + row, mask=real, other=0).to(tl.int64)[:, None] * WIDTH + feature[None, :]
        position = tl.load(positions + row, mask=real, other=0).to(tl.int64)[:, None] * WIDTH + feature[None, :]
        summed = tl.load(token_table + token, mask=inside, other=0.0).to(tl.float32)
        summed += tl.load(segment_table + segment, mask=inside, other=0.0).to(tl.float32)
        summed += tl.load(position_table + position, mask=inside, other=0.0).to(tl.float32)
        place = row.to(tl.int64)[:, None] * WIDTH + feature[None, :]
        grad = tl.load(grad_out + place, mask=inside, other=0.0).to(tl.float32)
        if DROPPED > 0:
            grad = drop(grad, seed, row, feature, DROPPED)
        grad_sum, scaled = _norm_gradient(summed, inside, grad, gain, epsilon, WIDTH)
        grad_weight += grad * scaled
        grad_bias += grad
        tl.store(grad_sums + place, grad_sum, mask=inside)
    own = partial + tl.program_id(0) * (2 * WIDTH) + feature
    tl.store(own, tl.sum(grad_weight, axis=0), mask=known)
    tl.store(own + WIDTH, tl.sum(grad_bias, axis=0), mask=known)


@triton.jit(do_not_specialize=["count", "site"])
def _drop_kernel(
    x,
    out,
    count,
    seeds,
    site,
    WIDTH: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    DROPPED: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    feature = tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (feature < WIDTH)[None, :]
    place = row.to(tl.int64)[:, None] * WIDTH + feature[None, :]
    found = drop(tl.load(x + place, mask=inside, other=0.0), seed_at(seeds, site), row, feature, DROPPED)
    tl.store(out + place, found, mask=inside)


def _cut(count: int, width: int, dropped: int) -> tuple[int, dict[str, int]]:
    """How many programs go over ``count`` rows, and the constants of their kernel."""
    constants = row_constants(width)
    warps = 8 if constants["BLOCK"] >= 1024 else 4
    return min(PROGRAMS, triton.cdiv(count, ROWS)), {**constants, "DROPPED": dropped, "num_warps": warps}


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        bias: Tensor,
        norm: nn.LayerNorm,
        dropped: int,
        seeds: Tensor | None,
        site: int,
    ) -> Tensor:
        ctx.save_for_backward(x, y, weight)
        ctx.rest = norm.eps, dropped, seeds, site
        return add_norm(x, y, norm, dropped, seeds, site)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight = ctx.saved_tensors
        epsilon, dropped, seeds, site = ctx.rest
        count, width = x.shape
        programs, constants = _cut(count, width, dropped)
        partial = torch.empty(programs, 2, width, dtype=torch.float32, device=x.device)
        grad_x = torch.empty_like(x)
        # Without dropout the two gradients are one.
        grad_y = torch.empty_like(y) if dropped else grad_x
        seeds = readable(seeds, dropped, partial)
        _add_norm_gradient_kernel[(programs,)](
            x, y, weight, grad_out.contiguous(), grad_x, grad_y, partial, count, epsilon, seeds, site, **constants
        )
        grad_weight, grad_bias = partial.sum(0).to(weight.dtype)
        return grad_x, grad_y.to(y.dtype), grad_weight, grad_bias, None, None, None, None


class _EmbedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        segments: Tensor,
        positions: Tensor,
        token_table: Tensor,
        segment_table: Tensor,
        position_table: Tensor,
        weight: Tensor,
        bias: Tensor,
        norm: nn.LayerNorm,
        dropped: int,
        seeds: Tensor | None,
        site: int,
    ) -> Tensor:
        ids, tables = (tokens, segments, positions), (token_table, segment_table, position_table)
        ctx.save_for_backward(*ids, *tables, weight)
        ctx.rest = norm.eps, dropped, seeds, site
        return embed_norm(ids, tables, norm, dropped, seeds, site)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, weight = ctx.saved_tensors
        tokens, segments, positions, *tables = inputs
        epsilon, dropped, seeds, site = ctx.rest
        count, width = grad_out.shape
        programs, constants = _cut(count, width, dropped)
        partial = torch.empty(programs, 2, width, dtype=torch.float32, device=grad_out.device)
        grad_sums = torch.empty(count, width, dtype=torch.float32, device=grad_out.device)
        seeds = readable(seeds, dropped, partial)
        _embed_norm_gradient_kernel[(programs,)](
            *inputs, weight, grad_out.contiguous(), grad_sums, partial, count, epsilon, seeds, site, **constants
        )
        grad_tokens, grad_positions = (
            torch.zeros(table.shape, dtype=torch.float32, device=table.device).index_add_(0, ids.int(), grad_sums)
            for table, ids in ((tables[0], tokens), (tables[2], positions))
        )
        # As a product: there are few segments, so atomic adds of all tokens to a row would wait for one another.
        known = torch.arange(len(tables[1]), device=segments.device)
        grad_segments = (segments == known[:, None]).to(torch.float32) @ grad_sums
        grad_tables = (grad_tokens, grad_segments, grad_positions)
        grad_weight, grad_bias = partial.sum(0).to(weight.dtype)
        return (
            *(None, None, None),
            *(grad.to(table.dtype) for grad, table in zip(grad_tables, tables, strict=True)),
            *(grad_weight, grad_bias, None, None, None, None),
        )


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int, seeds: Tensor, site: int) -> Tensor:
        ctx.rest = dropped, seeds, site
        return _drop_rows(x, dropped, seeds, site)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        return _drop_rows(grad_out, *ctx.rest), None, None, None


def _drop_rows(x: Tensor, dropped: int, seeds: Tensor, site: int) -> Tensor:
    x = x.contiguous()
    count, width = x.shape
    out = torch.empty_like(x)
    over_rows(_drop_kernel, count, width, x, out, count, seeds, site, DROPPED=dropped)
    return out


def add_norm_trained(
    x: Tensor, y: Tensor, norm: nn.LayerNorm, dropout: float, seeds: Tensor | None, site: int
) -> Tensor:
    """``norm(x + dropout(y))`` of (T, H), with gradients."""
    found: Tensor = _AddNorm.apply(  # type: ignore[no-untyped-call]
        x, y, norm.weight, norm.bias, norm, parts(dropout), seeds, site
    )
    return found


def embed_norm_trained(
    ids: tuple[Tensor, Tensor, Tensor],
    tables: tuple[Tensor, Tensor, Tensor],
    norm: nn.LayerNorm,
    dropout: float,
    seeds: Tensor | None,
    site: int,
) -> Tensor:
    """``dropout(norm(tokens + segments + positions))`` of three vectors of ids (T,) → (T, H), with gradients."""
    found: Tensor = _EmbedNorm.apply(  # type: ignore[no-untyped-call]
        *ids, *tables, norm.weight, norm.bias, norm, parts(dropout), seeds, site
    )
    return found


def dropout_trained(x: Tensor, dropout: float, seeds: Tensor | None, site: int) -> Tensor:
    """Dropout of (B, H) with the batch's seed and gradients; torch would draw from the GPU's generator."""
    dropped = parts(dropout)
    if not dropped:
        return x
    found: Tensor = _Dropout.apply(x, dropped, readable(seeds, dropped, x), site)  # type: ignore[no-untyped-call]
    return found
