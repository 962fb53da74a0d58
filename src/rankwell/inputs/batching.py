"""Sequences, the input of every engine, and batches of them by token budget. Needs only numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows, gather


@dataclass(frozen=True, eq=False)
class Sequences:
    """A batch of sequences without padding, end to end.

    =============  =============  =====================================================================
    ``tokens``     (T,) int32     vocabulary ids
    ``segments``   (T,) int8      segment (token type) ids
    ``positions``  (T,) int32     0, 1, 2, … within each sequence
    ``words``      (T,) int32     word ids within each sequence: pieces of one word share one
    ``last``       (T,) bool      whether the token is the last piece of its word that was not truncated
    ``ends``       (B,) int64     where each sequence ends
    =============  =============  =====================================================================
    """

    tokens: NDArray[np.int32]
    segments: NDArray[np.int8]
    positions: NDArray[np.int32]
    words: NDArray[np.int32]
    last: NDArray[np.bool_]
    ends: NDArray[np.int64]

    @classmethod
    def concat(cls, parts: Sequence[Sequences]) -> Sequences:
        """The sequences of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        bases = np.cumsum([0, *(len(part.tokens) for part in parts)])
        return cls(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.segments for part in parts]),
            np.concatenate([part.positions for part in parts]),
            np.concatenate([part.words for part in parts]),
            np.concatenate([part.last for part in parts]),
            np.concatenate([part.ends + base for part, base in zip(parts, bases, strict=False)]),
        )

    def __len__(self) -> int:
        return len(self.ends)

    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each sequence."""
        return np.diff(self.ends, prepend=0)


def token_batches(lengths: Rows, budget: int, *, max_rows: int | None = None, skip: int = 0) -> Iterator[Rows]:
    """Numbers of sequences, longest first, so that (number of sequences) × (longest) stays within ``budget`` tokens.

    The longest come first so that a lack of memory shows at the start. A batch has at most ``max_rows`` sequences. The
    first ``skip`` sequences are left out, for work that is done already.
    """
    order = np.argsort(-lengths, kind="stable")
    begin = skip
    while begin < len(order):
        count = budget // max(1, int(lengths[order[begin]]))
        count = max(1, count if max_rows is None else min(count, max_rows))
        yield order[begin : begin + count]
        begin += count


def row_blocks(lengths: NDArray[np.int64], pieces: int, rows: int) -> Iterator[tuple[int, int]]:
    """Blocks of consecutive rows, as ``begin, end``, each of at most ``rows`` rows and ``pieces`` pieces."""
    before = np.concatenate([[0], np.cumsum(lengths)])
    begin = 0
    while begin < len(lengths):
        last = int(np.searchsorted(before, before[begin] + pieces, side="right")) - 1
        end = max(begin + 1, min(begin + rows, last))
        yield begin, end
        begin = end


def take_sequences(sequences: Sequences, rows: NDArray[np.int64]) -> Sequences:
    """The sequences with these numbers, in this order."""
    lengths = sequences.lengths()[rows]
    return _at(sequences, gather(sequences.ends[rows] - lengths, lengths), np.cumsum(lengths))


def slice_sequences(sequences: Sequences, begin: int, end: int) -> Sequences:
    """The sequences from ``begin`` to ``end``, as views."""
    first = int(sequences.ends[begin - 1]) if begin else 0
    return _at(sequences, slice(first, int(sequences.ends[end - 1])), sequences.ends[begin:end] - first)


def _at(sequences: Sequences, tokens: Rows | slice, ends: Rows) -> Sequences:
    """Some of the tokens, as sequences that end at ``ends``."""
    return Sequences(
        sequences.tokens[tokens],
        sequences.segments[tokens],
        sequences.positions[tokens],
        sequences.words[tokens],
        sequences.last[tokens],
        ends,
    )
