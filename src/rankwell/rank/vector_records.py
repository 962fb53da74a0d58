"""The records of compressed vectors: each has a code of one bit per number, the document and cell, a factor, a term.

The code of a word vector, too, has one bit per number, its sign, and nothing else: all word vectors have length 1.
The kernels read them as they are on disk, so this is the one place that knows their layout.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows

Codes = NDArray[np.uint8]
CODE_UNIT = 16
"""The bytes of a code are a multiple of this, and at most 31 times as many, because the kernels count bits in bytes."""
WIDEST = 31 * 8 * CODE_UNIT
"""The most numbers of a vector that has a code."""
NUMBER_BITS = 20
"""The low bits of a record's number are that of the document within its shard, the others that of its cell."""
TAIL = 12
"""The bytes that follow a code in its record: a number, a factor and a term."""
WORD_BITS, FEW_WORDS = 320, 128
"""The signs that are stored of a word vector, and how many words are rotated by one thread."""
QUERY_LEVELS = 4095
"""The largest integer that stands for a number of a query's word vector: eight of them fit into 16 bits."""


class Records:
    """The records of a shard, in the order of their cells."""

    def __init__(self, records: Codes, width: int, cells: int):
        self.records = records
        tails = records.view(np.uint32)[:, width // 4 :]
        self.numbers, self.factors = tails, tails.view(np.float32)
        self.ends: Rows = np.searchsorted(self.cells(), np.arange(cells), side="right")

    def documents(self) -> NDArray[np.uint32]:
        """The number of each record's document within the shard."""
        return self.numbers[:, 0] & np.uint32((1 << NUMBER_BITS) - 1)

    def cells(self) -> Rows:
        """The cell of each record."""
        return (self.numbers[:, 0] >> NUMBER_BITS).astype(np.int64)


def code_bytes(width: int) -> int:
    """The bytes of the code of a vector."""
    return -(-width // (8 * CODE_UNIT)) * CODE_UNIT


def pack_bits(bits: NDArray[np.bool_]) -> Codes:
    """Bits (N, W) as codes (N, B)."""
    packed = np.packbits(bits, axis=1)
    codes = np.zeros((len(bits), code_bytes(bits.shape[1])), np.uint8)
    codes[:, : packed.shape[1]] = packed
    return codes


@lru_cache(maxsize=4)
def random_rotation(width: int) -> NDArray[np.float32]:
    """A random orthogonal matrix (W, W), the same on every machine."""
    # RandomState's numbers are the same in all versions of numpy, and with a positive diagonal a QR factorisation is
    # unique.
    normal = np.random.RandomState(0).standard_normal((width, width))
    orthogonal, triangle = np.linalg.qr(normal)
    rotation: NDArray[np.float32] = (orthogonal * np.sign(np.diag(triangle))).astype(np.float32)
    return rotation


def _rotate_words(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Word vectors (T, W) as the numbers (T, ``WORD_BITS``) whose signs are stored: a rotation spreads them evenly."""
    width = max(vectors.shape[1], WORD_BITS)
    rotation = random_rotation(width)[: vectors.shape[1], :WORD_BITS]
    # For a small matrix product other threads would start, and then wait busily for more; einsum has none.
    return np.einsum("th,hw->tw", vectors, rotation) if len(vectors) <= FEW_WORDS else vectors @ rotation


def word_codes(vectors: NDArray[np.float32]) -> Codes:
    """The codes (T, ``WORD_BITS`` / 8) of word vectors (T, W)."""
    return np.packbits(_rotate_words(vectors) >= 0, axis=1)


def word_table(query: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """What each byte of a code at each place adds to the product with a query's words (Q, W), as integers (Q, B, 256).

    A product is the sum over the bytes, times the word's factor (Q,). Integers make it exact in any order.
    """
    rotated = _rotate_words(query)
    step = np.maximum(np.abs(rotated).max(axis=1, initial=0), np.float32(1e-30)) / QUERY_LEVELS
    integers = np.rint(rotated / step[:, None]).astype(np.int16).reshape(len(query), -1, 8)
    # A byte without the highest of its bits adds as much as one with it, less twice that bit's number. (No matrix
    # product: of such a small one, other threads than this would do a part and then wait busily for more.)
    table = np.empty((*integers.shape[:2], 256), np.int16)
    table[..., 0] = -integers.sum(axis=2, dtype=np.int16)
    for place in range(8):
        half = 1 << place
        table[..., half : 2 * half] = table[..., :half] + 2 * integers[..., 7 - place, None]
    # The product with the signs of a vector of length 1 is, on average, so many times that with the vector.
    width = max(query.shape[1], WORD_BITS)
    return table, step * np.float32(math.sqrt(math.pi / 2 * width) / WORD_BITS)
