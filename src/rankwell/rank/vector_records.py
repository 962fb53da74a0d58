"""The records of compressed vectors: each has a code of one bit per number, the document and cell, a factor, a term.

The kernels read them as they are on disk, so this is the one place that knows their layout.
"""

from __future__ import annotations

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
QUERY_BITS = 4
"""Bits of each number of a query whose product with a code is estimated."""
TAIL = 12
"""The bytes that follow a code in its record: a number, a factor and a term."""

ALWAYS = (127, 127, 127, 1)
"""What stands for positive signs at the end of a row of them."""


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
