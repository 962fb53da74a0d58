"""Batches by token budget: sequences of like length together, so that little is padded and memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rankwell.inputs.sequences import Sequences


def token_batches(lengths: NDArray[np.int64], budget: int) -> Iterator[NDArray[np.int64]]:
    """Numbers of sequences, longest first, so that (number of sequences) × (longest) stays within ``budget`` tokens.

    The longest come first: if memory does not suffice it shows at once, not at the end.
    """
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        count = max(1, budget // max(1, int(lengths[order[begin]])))
        yield order[begin : begin + count]
        begin += count


def take_sequences(sequences: Sequences, rows: NDArray[np.int64]) -> Sequences:
    """The sequences with these numbers, in this order."""
    lengths = sequences.lengths()[rows]
    ends = np.cumsum(lengths)
    index = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(sequences.ends[rows] - ends, lengths)
    return Sequences(
        sequences.tokens[index],
        sequences.segments[index],
        sequences.positions[index],
        sequences.words[index],
        sequences.last[index],
        ends,
    )
