"""Sequences: what every engine scores. A module of its own, so that scoring stored tokens needs numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Sequences:
    """A batch of sequences without padding, end to end.

    =============  =============  =====================================================================
    ``tokens``     (T,) int32     vocabulary ids
    ``segments``   (T,) int8      segment (token type) ids
    ``positions``  (T,) int32     0, 1, 2, … within each sequence
    ``words``      (T,) int32     word ids within each sequence: pieces of one word share one
    ``last``       (T,) bool      whether the token is the last kept piece of its word
    ``ends``       (B,) int64     where each sequence ends
    =============  =============  =====================================================================
    """

    tokens: NDArray[np.int32]
    segments: NDArray[np.int8]
    positions: NDArray[np.int32]
    words: NDArray[np.int32]
    last: NDArray[np.bool_]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each sequence."""
        return np.diff(self.ends, prepend=0)
