"""The operations between an encoder's matrix products, each as one pass over the tokens: Triton kernels. This is the
forward pass; the backward pass is in :mod:`rankwell.models.kernels.triton_training_layers`.

Torch would need two to four passes for each, and between large products on a GPU the passes over memory are the cost.
Sums, means and variances are fp32 for tensors of any type.
"""

# A kernel's arguments have no Python types, nor has Triton.
# mypy: disable-error-code="no-untyped-def,import-untyped,import-not-found"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from rankwell.models.kernels.triton_dropout import drop, readable, seed_at

ROWS = 4  # tokens of a program: one warp each
_HEADS = 64  # of a program that rotates
_GATED = (16, 128)  # tokens and features of a program that gates


@triton.jit
def _scale(x, inside, weight, feature, epsilon, WIDTH: tl.constexpr):  # noqa: N803
    """A norm without its bias."""
    mean = tl.sum(x, axis=1) / WIDTH
    centred = tl.where(inside, x - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, axis=1) / WIDTH
    scaled = centred * tl.rsqrt(variance + epsilon)[:, None]
    gain = tl.load(weight + feature, mask=feature < WIDTH, other=0.0).to(tl.float32)
    return scaled * gain[None, :]


@triton.jit
def _normalise(x, inside, weight, bias, feature, epsilon, WIDTH: tl.constexpr):  # noqa: N803
    shift = tl.load(bias + feature, mask=feature < WIDTH, other=0.0).to(tl.float32)
    return _scale(x, inside, weight, feature, epsilon, WIDTH) + shift[None, :]


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


@triton.jit(do_not_specialize=["count"])
def _add_then_norm_kernel(
    x,
    y,
    weight,
    bias,
    sums,
    out,
    count,
    epsilon,
    BIASED: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (feature < WIDTH)[None, :]
    place = row[:, None] * WIDTH + feature[None, :]
    summed = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    summed += tl.load(y + place, mask=inside, other=0.0)
    tl.store(sums + place, summed.to(sums.dtype.element_ty), mask=inside)
    if BIASED:
        normal = _normalise(summed, inside, weight, bias, feature, epsilon, WIDTH)
    else:
        normal = _scale(summed, inside, weight, feature, epsilon, WIDTH)
    tl.store(out + place, normal.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _rotate_kernel(
    qkv,
    cosines,
    sines,
    count,
    HEADS: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
):
    HALF: tl.constexpr = SIZE // 2  # noqa: N806
    # A row is a head of the queries or of the keys of a token.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (row < count)[:, None]
    token = (row // (2 * HEADS)).to(tl.int64)[:, None]
    half = tl.arange(0, HALF)[None, :]
    place = qkv + token * (3 * HEADS * SIZE) + (row % (2 * HEADS) * SIZE)[:, None] + half
    cosine = tl.load(cosines + token * HALF + half, mask=inside, other=0.0)
    sine = tl.load(sines + token * HALF + half, mask=inside, other=0.0)
    first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, (first * cosine - second * sine).to(qkv.dtype.element_ty), mask=inside)
    tl.store(place + HALF, (second * cosine + first * sine).to(qkv.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _gelu_gate_kernel(
    x,
    out,
    count,
    WIDTH: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    feature = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < count) & (feature < WIDTH)
    place = x + row * (2 * WIDTH) + feature
    inner = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(place + WIDTH, mask=inside, other=0.0).to(tl.float32)
    gelu = 0.5 * inner * (1.0 + tl.erf(inner * 0.7071067811865476))
    tl.store(out + row * WIDTH + feature, (gelu * factor).to(out.dtype.element_ty), mask=inside)


def row_constants(width: int) -> dict[str, int]:
    """The constants of a kernel that goes over rows of this width."""
    return {"WIDTH": width, "BLOCK": triton.next_power_of_2(width), "ROWS": ROWS}


def over_rows(kernel: Any, count: int, width: int, *arguments: Any, **constants: Any) -> None:
    """Launch a kernel over ``count`` rows, ROWS of them to a program."""
    kernel[(triton.cdiv(count, ROWS),)](*arguments, **constants, **row_constants(width), num_warps=ROWS)


def add_norm(
    x: Tensor, y: Tensor, norm: nn.LayerNorm, dropped: int = 0, seeds: Tensor | None = None, site: int = 0
) -> Tensor:
    """``norm(x + dropout(y))`` of (T, H); for the last three see :mod:`rankwell.models.kernels.triton_dropout`."""
    count, width = x.shape
    out = torch.empty_like(x)
    rest = norm.weight, norm.bias, out, count, norm.eps, readable(seeds, dropped, out), site
    over_rows(_add_norm_kernel, count, width, x, y, *rest, DROPPED=dropped)
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
    rest = norm.weight, norm.bias, out, count, norm.eps, readable(seeds, dropped, out), site
    over_rows(_embed_norm_kernel, count, width, *ids, *tables, *rest, DROPPED=dropped)
    return out


def add_then_norm(x: Tensor, y: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """``x + y`` of (T, H), and its norm: what a layer with the norm before it needs. The norm may lack a bias."""
    count, width = x.shape
    sums, out = torch.empty_like(x), torch.empty_like(x)
    biased = norm.bias is not None
    rest = norm.weight, norm.bias if biased else norm.weight, sums, out, count, norm.eps
    over_rows(_add_then_norm_kernel, count, width, x, y, *rest, BIASED=biased)
    return sums, out


def rotate_heads(qkv: Tensor, cosines: Tensor, sines: Tensor, heads: int) -> Tensor:
    """Turn queries and keys of ``qkv`` (T, 3H), in place, by each token's angles: tables (T, size of a head / 2)."""
    count = len(qkv) * 2 * heads
    size = qkv.shape[1] // (3 * heads)
    _rotate_kernel[(triton.cdiv(count, _HEADS),)](
        qkv, cosines, sines, count, HEADS=heads, SIZE=size, ROWS=_HEADS, num_warps=4
    )
    return qkv


def gelu_gate(x: Tensor) -> Tensor:
    """(T, 2I) → (T, I): gelu of the first half, times the second."""
    count, width = len(x), x.shape[1] // 2
    rows, columns = _GATED
    out = x.new_empty(count, width)
    _gelu_gate_kernel[(triton.cdiv(count, rows), triton.cdiv(width, columns))](
        x, out, count, WIDTH=width, ROWS=rows, COLUMNS=columns, num_warps=4
    )
    return out
