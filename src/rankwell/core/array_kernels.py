"""Native code that checks, for a few rows of a large array, what a check of the whole array would take too long for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def unverified_blocks(
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    offset: int,
    row_bytes: int,
    block: int,
    verified: NDArray[np.uint8],
) -> Any:
    """The blocks of rows ``begins[i] … ends[i] - 1`` that are not verified yet, some of them several times."""
    size = 64
    blocks, count = np.empty(size, np.int64), 0
    for i in range(len(begins)):
        if begins[i] >= ends[i]:
            continue
        first, last = (offset + begins[i] * row_bytes) // block, (offset + ends[i] * row_bytes - 1) // block
        for number in range(first, last + 1):
            if verified[number] == 0:
                if count == size:
                    size *= 2
                    larger = np.empty(size, np.int64)
                    for j in range(count):  # assigning a slice would take seconds to compile
                        larger[j] = blocks[j]
                    blocks = larger
                blocks[count] = number
                count += 1
    return blocks[:count]


@njit(cache=True, nogil=True)
def find_spans(
    rows: NDArray[np.int64],
    row_ends: NDArray[np.int64],
    ends_offset: int,
    ends_verified: NDArray[np.uint8],
    size: int,
    values_offset: int,
    value_bytes: int,
    values_verified: NDArray[np.uint8],
    block: int,
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> bool:
    """Fill ``begins`` and ``ends`` of rows of a ragged array of ``size`` values.

    Returns False, with the rest not filled, if a row lies outside the arrays or in a block that is not verified yet.
    """
    for i in range(len(rows)):
        row = rows[i]
        if not 0 <= row < len(row_ends):
            return False
        first, last = (ends_offset + 8 * max(row - 1, 0)) // block, (ends_offset + 8 * row) // block
        if ends_verified[first] == 0 or ends_verified[last] == 0:
            return False
        begin = row_ends[row - 1] if row else np.int64(0)
        end = row_ends[row]
        if not 0 <= begin <= end <= size:
            return False
        if begin < end:
            first = (values_offset + begin * value_bytes) // block
            last = (values_offset + end * value_bytes - 1) // block
            for number in range(first, last + 1):
                if values_verified[number] == 0:
                    return False
        begins[i], ends[i] = begin, end
    return True
