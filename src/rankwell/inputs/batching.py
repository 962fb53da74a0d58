"""Batches by token budget: sequences of like length together, so that little is padded and memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import gather
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


def row_blocks(lengths: NDArray[np.int64], pieces: int, rows: int) -> Iterator[tuple[int, int]]:
    """Rows together, as ``begin, end``, as long as there are not too many of them nor of their pieces."""
    before = np.concatenate([[0], np.cumsum(lengths)])
    begin = 0
    while begin < len(lengths):
        fitting = int(np.searchsorted(before, before[begin] + pieces, side="right")) - 1
        end = max(begin + 1, min(begin + rows, fitting))
        yield begin, end
        begin = end


def take_sequences(sequences: Sequences, rows: NDArray[np.int64]) -> Sequences:
    """The sequences with these numbers, in this order."""
    lengths = sequences.lengths()[rows]
    index = gather(sequences.ends[rows] - lengths, lengths)
    return Sequences(
        sequences.tokens[index],
        sequences.segments[index],
        sequences.positions[index],
        sequences.words[index],
        sequences.last[index],
        np.cumsum(lengths),
    )


def slice_sequences(sequences: Sequences, begin: int, end: int) -> Sequences:
    """The sequences from ``begin`` to ``end``, as views."""
    first = int(sequences.ends[begin - 1]) if begin else 0
    own = slice(first, int(sequences.ends[end - 1]))
    return Sequences(
        sequences.tokens[own],
        sequences.segments[own],
        sequences.positions[own],
        sequences.words[own],
        sequences.last[own],
        sequences.ends[begin:end] - first,
    )
