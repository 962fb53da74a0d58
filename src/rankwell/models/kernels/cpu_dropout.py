"""Dropout on a CPU: which elements go is a function of a seed and their places, computed again on the way back.

torch draws a number for each element one after the other, from one generator, which took 29 % of a training step of
MiniLM's. Here a hash of seed and place decides, many places at a time; nothing is kept for the way back, and an element
is dropped by clearing its bits, whatever its type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

WHOLE = 1 << 32
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def drop(x: Tensor, probability: float) -> Tensor:
    """Dropout, as torch's: an element is 0 with this probability, and else larger by what is lost."""
    return clear(x, probability) * scale(probability) if probability else x


def clear(x: Tensor, probability: float) -> Tensor:
    """The same without making the others larger: for those who multiply what they make of it by :func:`scale`."""
    seed = int(torch.randint(WHOLE, ()))
    cleared: Tensor = _Clear.apply(x, _dropped(probability), seed)  # type: ignore[no-untyped-call]
    return cleared


def scale(probability: float) -> float:
    """What makes up for elements that are cleared."""
    return 1 / (1 - probability)


class _Clear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int, seed: int) -> Tensor:
        ctx.dropped, ctx.seed = dropped, seed
        return _cleared(x, dropped, seed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _cleared(gradients[0], ctx.dropped, ctx.seed), None, None


def _dropped(probability: float) -> int:
    return min(WHOLE - 1, round(probability * WHOLE))


def _cleared(x: Tensor, dropped: int, seed: int) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    bits = _BITS[x.element_size()]
    given, cleared = (one.detach().view(bits).numpy().reshape(-1) for one in (x, out))
    clear_bits(given, cleared, np.uint32(seed), np.uint32(dropped))
    return out


@njit(cache=True, nogil=True)
def clear_bits(x: NDArray[Any], out: NDArray[Any], seed: np.uint32, dropped: np.uint32) -> None:
    """``out`` is ``x`` with elements set to 0 whose place and seed hash (murmur3) below ``dropped``."""
    for place in range(len(x)):
        z = np.uint32(np.uint32(place) * np.uint32(0x9E3779B9)) ^ seed
        z = np.uint32((z ^ (z >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        z = np.uint32((z ^ (z >> np.uint32(13))) * np.uint32(0xC2B2AE35))
        z = np.uint32(z ^ (z >> np.uint32(16)))
        # A product, not a choice: so the loop is computed sixteen places at a time.
        out[place] = x[place] * (z >= dropped)
