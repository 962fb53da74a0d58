"""Dropout on a CPU: a hash of a seed and an element's place decides whether the element is dropped.

torch draws the numbers of all elements one after the other from one generator, which took 29 % of a training step of
MiniLM. The hash is computed for many places at a time and again in the backward pass, so nothing is stored in between.
An element of any type is dropped by clearing its bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.native import native

WHOLE = 1 << 32
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def drop(x: Tensor, probability: float) -> Tensor:
    """Dropout as in torch: an element becomes 0 with this probability, and the others are scaled up."""
    if not probability:
        return x
    dropped, seed = min(WHOLE - 1, round(probability * WHOLE)), int(torch.randint(WHOLE, ()))
    cleared: Tensor = _Clear.apply(x, dropped, seed)  # type: ignore[no-untyped-call]
    return cleared * (1 / (1 - probability))


class _Clear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int, seed: int) -> Tensor:
        ctx.dropped, ctx.seed = dropped, seed
        return _cleared(x, dropped, seed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _cleared(gradients[0], ctx.dropped, ctx.seed), None, None


def _cleared(x: Tensor, dropped: int, seed: int) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    bits = _BITS[x.element_size()]
    bits_in, bits_out = (tensor.detach().view(bits).numpy().reshape(-1) for tensor in (x, out))
    clear_bits(bits_in, bits_out, np.uint32(seed), np.uint32(dropped))
    return out


@native()
def clear_bits(x: NDArray[Any], out: NDArray[Any], seed: np.uint32, dropped: np.uint32) -> None:
    """Copy ``x`` to ``out``, setting elements to 0 whose place and seed hash (murmur3) to less than ``dropped``."""
    for place in range(len(x)):
        z = np.uint32(np.uint32(place) * np.uint32(0x9E3779B9)) ^ seed
        z = np.uint32((z ^ (z >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        z = np.uint32((z ^ (z >> np.uint32(13))) * np.uint32(0xC2B2AE35))
        z = np.uint32(z ^ (z >> np.uint32(16)))
        # A product, not a branch, so that the compiler vectorises the loop.
        out[place] = x[place] * (z >= dropped)
