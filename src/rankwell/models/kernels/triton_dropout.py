"""Dropout inside Triton kernels: a hash of a seed and an element's position decides whether the element is kept.

Only the seed is stored between the forward and the backward pass, and both hash it with the element's row and column.
The seed is data: a batch brings one number to the device, and each place of dropout in a model combines it with its own
number, its *site*. So a recorded step can be replayed with other seeds.

Philox, Triton's generator, costs some hundred instructions per element (a fifth of a training step for attention). This
hash costs ten, and its bits are good enough for dropout, as the tests show.
"""

# A kernel's arguments have no Python types, nor has Triton.
# mypy: disable-error-code="no-untyped-def,import-untyped,import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WHOLE = 1 << 24  # the kernels take a probability as a number of parts of this
GOLDEN = tl.constexpr(0x9E3779B9)
FIRST = tl.constexpr(0x7FEB352D)
SECOND = tl.constexpr(0x846CA68B)


@triton.jit
def scramble(x):
    """A permutation of 32-bit numbers whose every output bit depends on every input bit."""
    x = x ^ (x >> 16)
    x = x * FIRST
    x = x ^ (x >> 15)
    x = x * SECOND
    return x ^ (x >> 16)


@triton.jit
def seed_at(seeds, site):
    """The seed of one site."""
    return scramble(tl.load(seeds).to(tl.uint32) + site.to(tl.uint32) * GOLDEN)


@triton.jit
def kept(seed, row, column, DROPPED: tl.constexpr):  # noqa: N803  (constants of the compilation are capitals)
    """Whether the elements at ``row``, ``column``, two tensors that broadcast, stay: all but DROPPED / 2^24."""
    key = scramble((row.to(tl.uint32) * GOLDEN) ^ seed.to(tl.uint32))
    bits = scramble(key + column.to(tl.uint32) * GOLDEN)
    return (bits >> 8).to(tl.int32) >= DROPPED


@triton.jit
def scale_kept(x, DROPPED: tl.constexpr):  # noqa: N803
    """Elements that stay, scaled so that the expected sum is that without dropout."""
    return x * (16777216 / (16777216 - DROPPED))


@triton.jit
def drop(x, seed, row, column, DROPPED: tl.constexpr):  # noqa: N803
    """Dropout of a block at the positions ``row`` and ``column``, two vectors."""
    return tl.where(kept(seed, row[:, None], column[None, :], DROPPED), scale_kept(x, DROPPED), 0.0)


def parts(probability: float) -> int:
    """A probability as the kernels' ``DROPPED``."""
    return round(probability * WHOLE)


def draw_seed() -> int:
    """A batch's seed, from torch's generator on the CPU for every device: nothing waits for a GPU, and the same
    ``torch.manual_seed`` keeps the same elements.
    """
    return int(torch.randint(1 << 31, ()))


def readable(seeds: Tensor | None, dropped: int, other: Tensor) -> Tensor:
    """The kernels' ``seeds``. Without dropout they read none, so any tensor will do."""
    if not dropped:
        return other
    if seeds is None:
        raise ValueError("dropout in a packed batch that was placed without a seed")
    return seeds
