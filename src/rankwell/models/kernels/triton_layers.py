"""The operations between an encoder's matrix products, each as one pass over the tokens: Triton kernels. This is the
forward pass; the backward pass is in :mod:`rankwell.models.kernels.triton_training_layers`.

Torch would need two to four passes for each, and between large products on a GPU the passes over memory are the cost.
Sums, means and variances are fp32 for tensors of any type.
"""

# A kernel's arguments have no Python types, nor has Triton.
# mypy: disable-error-code="no-untyped-def,import-untyped,import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from rankwell.models.kernels.triton_dropout import drop, readable, seed_at

ROWS = 4  # tokens of a program: one warp each


@triton.jit
def _normalise(x, inside, weight, bias, feature, epsilon, WIDTH: tl.constexpr):  # noqa: N803
    mean = tl.sum(x, axis=1) / WIDTH
    centred = tl.where(inside, x - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, axis=1) / WIDTH
    scaled = centred * tl.rsqrt(variance + epsilon)[:, None]
    known = feature < WIDTH
    gain = tl.load(weight + feature, mask=known, other=0.0).to(tl.float32)
    shift = tl.load(bias + feature, mask=known, other=0.0).to(tl.float32)
    return scaled * gain[None, :] + shift[None, :]


@triton.jit(do_not_specialize=["count", "site"])
def _add_norm_kernel(
    x,
    y,
    weight,
    bias,
    out,
    count,
    epsilon,
    seeds,
    site,
    WIDTH: tl.constexpr,  # noqa: N803  (constants of the compilation are capitals in Triton)
    BLOCK: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    DROPPED: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (feature < WIDTH)[None, :]
    place = row[:, None] * WIDTH + feature[None, :]
    summed = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    added = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
    if DROPPED > 0:
        added = drop(added, seed_at(seeds, site), row, feature, DROPPED)
    summed += added
    normal = _normalise(summed, inside, weight, bias, feature, epsilon, WIDTH)
    tl.store(out + place, normal.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count", "site"])
def _embed_norm_kernel(
    tokens,
    segments,
    positions,
    token_table,
    segment_table,
    position_table,
    weight,
    bias,
    out,
    count,
    epsilon,
    seeds,
    site,
    WIDTH: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    DROPPED: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.arange(0, BLOCK)
    real = row < count
    inside = real[:, None] & (feature < WIDTH)[None, :]
    token = tl.load(tokens + row, mask=real, other=0).to(tl.int64)
    segment = tl.load(segments + row, mask=real, other=0).to(tl.int64)
    position = tl.load(positions + row, mask=real, other=0).to(tl.int64)
    summed = tl.load(token_table + token[:, None] * WIDTH + feature[None, :], mask=inside, other=0.0).to(tl.float32)
    summed += tl.load(segment_table + segment[:, None] * WIDTH + feature[None, :], mask=inside, other=0.0)
    summed += tl.load(position_table + position[:, None] * WIDTH + feature[None, :], mask=inside, other=0.0)
    normal = _normalise(summed, inside, weight, bias, feature, epsilon, WIDTH)
    if DROPPED > 0:
        normal = drop(normal, seed_at(seeds, site), row, feature, DROPPED)
    tl.store(out + row[:, None] * WIDTH + feature[None, :], normal.to(out.dtype.element_ty), mask=inside)


def add_norm(
    x: Tensor, y: Tensor, norm: nn.LayerNorm, dropped: int = 0, seeds: Tensor | None = None, site: int = 0
) -> Tensor:
    """``norm(x + dropout(y))`` of (T, H); for the last three see :mod:`rankwell.models.kernels.triton_dropout`."""
    count, width = x.shape
    out = torch.empty_like(x)
    _add_norm_kernel[(triton.cdiv(count, ROWS),)](
        x,
        y,
        norm.weight,
        norm.bias,
        out,
        count,
        norm.eps,
        readable(seeds, dropped, out),
        site,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        ROWS=ROWS,
        DROPPED=dropped,
        num_warps=ROWS,
    )
    return out


def embed_norm(
    ids: tuple[Tensor, Tensor, Tensor],
    tables: tuple[Tensor, Tensor, Tensor],
    norm: nn.LayerNorm,
    dropped: int = 0,
    seeds: Tensor | None = None,
    site: int = 0,
) -> Tensor:
    """``dropout(norm(tokens + segments + positions))`` of three vectors of ids (T,) of any whole type → (T, H), in the
    tables' type; under autocast in its.
    """
    count, width = len(ids[0]), tables[0].shape[1]
    device = ids[0].device
    short = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if short else tables[0].dtype
    out = torch.empty(count, width, dtype=dtype, device=device)
    _embed_norm_kernel[(triton.cdiv(count, ROWS),)](
        *ids,
        *tables,
        norm.weight,
        norm.bias,
        out,
        count,
        norm.eps,
        readable(seeds, dropped, out),
        site,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        ROWS=ROWS,
        DROPPED=dropped,
        num_warps=ROWS,
    )
    return out
