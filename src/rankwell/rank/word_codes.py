"""The codes of word vectors: what an index stores of them, and how those of a query are compared with them.

A word vector has a part along the vector of its passage and a rest. The first byte of its code is the length of that
part, the others are signs of the rest, which a rotation spreads evenly over its numbers. All word vectors have length
1, so the length of the rest need not be stored.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rankwell.core.arrays import Rows, positions
from rankwell.models.bi_encoder import Vectors
from rankwell.models.devices import PANEL
from rankwell.rank.vector_records import ALWAYS, Codes, random_rotation

CODE_BYTES = 40
SIGNS = 8 * (CODE_BYTES - 1)
LEVELS = np.linspace(-1, 1, 256, dtype=np.float32)
"""The lengths that the first byte stands for."""
RESTS = np.sqrt(1 - LEVELS**2)
WORDS_AT_A_TIME = 1 << 16
QUERY_LEVELS = 127
"""The largest integer that stands for a number of a query's word vector."""


def encode_words(words: Tensor, passages: Tensor, owners: Tensor) -> Tensor:
    """The codes (T, ``CODE_BYTES``) of word vectors (T, W) of passages with the vectors (N, H), by ``owners`` (T,)."""
    directions = word_directions(passages.half().float(), words.shape[1])
    rotation = torch.from_numpy(_rotation(words.shape[1])).to(words.device)
    places = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=words.device)
    codes = []
    for some, rows in zip(torch.split(words, WORDS_AT_A_TIME), torch.split(owners, WORDS_AT_A_TIME), strict=True):
        along = directions[rows]
        levels = ((some * along).sum(dim=1) + 1).mul(127.5).round().clamp(0, 255)
        signs = (some - (levels / 127.5 - 1)[:, None] * along) @ rotation >= 0
        packed = (signs.view(-1, CODE_BYTES - 1, 8) * places).sum(dim=2, dtype=torch.uint8)
        codes.append(torch.cat([levels.to(torch.uint8)[:, None], packed], dim=1))
    return torch.cat(codes)


def word_directions(passages: Tensor, width: int) -> Tensor:
    """The directions (N, ``width``) of passages among word vectors, which may have more or fewer numbers."""
    missing = max(0, width - passages.shape[1])
    return functional.normalize(functional.pad(passages[:, :width], (0, missing)), dim=1)


def _rotation(width: int) -> Vectors:
    return random_rotation(max(width, SIGNS))[:width, :SIGNS]


def _factor(width: int) -> np.float32:
    """The product with the signs of a vector of length 1 is, on average, the product with the vector over this."""
    return np.float32(math.sqrt(math.pi / 2 * max(width, SIGNS)) / SIGNS)


def word_integers(query: Vectors) -> tuple[NDArray[np.int8], Vectors]:
    """Integers (Q, SIGNS) for a query's words (Q, W): their sum by signs, times a factor (Q,), estimates a product.

    Integers make the sum exact in any order.
    """
    # For a small matrix product other threads would start, and then wait busily for more; einsum has none.
    rotated = np.einsum("qw,ws->qs", query, _rotation(query.shape[1]))
    step = np.maximum(np.abs(rotated).max(axis=1, initial=0), np.float32(1e-30)) / QUERY_LEVELS
    return np.rint(rotated / step[:, None]).astype(np.int8), step * _factor(query.shape[1])


def word_panels(integers: NDArray[np.int8]) -> NDArray[np.int8]:
    """The integers (Q, SIGNS) of words as the kernel reads them, (P, 2 · ``CODE_BYTES``, PANEL, 4).

    Positive signs are counted twice, so the sum of all is taken off, by numbers that are multiplied by ``ALWAYS``.
    """
    columns = np.zeros((-(-len(integers) // PANEL) * PANEL, 8 * CODE_BYTES), np.int8)
    columns[: len(integers), :SIGNS] = integers
    rest = -integers.sum(axis=1, dtype=np.int64)
    for place, factor in enumerate(ALWAYS, SIGNS):
        columns[: len(integers), place] = part = np.clip(np.rint(rest / factor), -QUERY_LEVELS, QUERY_LEVELS)
        rest -= factor * part.astype(np.int64)
    return np.ascontiguousarray(columns.reshape(-1, PANEL, 2 * CODE_BYTES, 4).transpose(0, 2, 1, 3))


def compare_codes(
    codes: Codes, lengths: Rows, along: Vectors, query: Vectors, device: torch.device
) -> tuple[Vectors, Rows]:
    """What :func:`~rankwell.rank.vector_kernels.best_matches` computes, on a device.

    The documents' ``codes`` (T, ``CODE_BYTES``) follow one another, ``lengths`` (N,) says how many each has.
    """
    rows, asked, directed = (torch.from_numpy(array).to(device) for array in (codes, query, along))
    levels, rests = (torch.from_numpy(numbers).to(device)[rows[:, 0].long()] for numbers in (LEVELS, RESTS))
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=device)
    signs = (rows[:, 1:, None] >> places & 1).flatten(1).float() * 2 - 1
    rotated = asked @ torch.from_numpy(_rotation(query.shape[1])).to(device) * float(_factor(query.shape[1]))
    counts, numbers = (torch.from_numpy(array).to(device) for array in (lengths, positions(lengths)))
    owners = torch.repeat_interleave(counts)
    products = torch.full((len(lengths), int(lengths.max()), len(query)), -torch.inf, device=device)
    products[owners, numbers] = levels[:, None] * directed[owners] + rests[:, None] * (signs @ rotated.T)
    best = products.max(dim=1)
    return best.values.cpu().numpy(), best.indices.cpu().numpy()
