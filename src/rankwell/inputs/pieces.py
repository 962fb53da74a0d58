"""Word pieces: the tokenized texts that templates put together, as flat arrays.

A text is a row of pieces. Beside its vocabulary id each piece knows whether it continues the word of the piece before
it (``##ue`` after ``bog``), which STRM needs, and, where markers are wanted, the stem of the word it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Array


@dataclass(frozen=True, eq=False)
class Pieces:
    """Rows of pieces end to end.

    ==============  ===========  ==================================================================================
    ``ids``         (T,) int32   the vocabulary
    ``continues``   (T,) bool    whether the piece belongs to the same pre-tokenized word as the one before it
    ``ends``        (N,) int64   where each text ends
    ``stems``       (T,) int32   the stem's number where the piece belongs to a word that can be marked, else -1
    ``opens``       (T,) bool    whether the piece is the first of such a word
    ==============  ===========  ==================================================================================

    ``stems`` and ``opens`` are empty where no markers are wanted.
    """

    ids: NDArray[np.int32]
    continues: NDArray[np.bool_]
    ends: NDArray[np.int64]
    stems: NDArray[np.int32]
    opens: NDArray[np.bool_]

    @classmethod
    def plain(cls, ids: Array, continues: Array, ends: NDArray[np.int64]) -> Pieces:
        """Pieces without stems."""
        return cls(ids, continues, ends, np.zeros(0, np.int32), np.zeros(0, np.bool_))

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def begins(self) -> NDArray[np.int64]:
        """Where each text begins."""
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]]) if len(self) else self.ends

    def lengths(self) -> NDArray[np.int64]:
        """The number of pieces of each text."""
        return self.ends - self.begins

    def take(self, rows: NDArray[np.integer] | Sequence[int]) -> Pieces:
        """The rows with these numbers, in this order; a row may be taken several times."""
        rows = np.asarray(rows, np.int64)
        lengths = self.lengths()[rows]
        return self.cut(self.begins[rows], lengths)

    def cut(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> Pieces:
        """New rows: ``lengths[i]`` pieces from ``begins[i]`` on."""
        ends = np.cumsum(lengths)
        # One long index: within each row it counts on, at each row's start it jumps to where the row lies.
        index = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(begins - (ends - lengths), lengths)
        stems, opens = (self.stems[index], self.opens[index]) if len(self.stems) else (self.stems, self.opens)
        return Pieces(self.ids[index], self.continues[index], ends, stems, opens)


def pack_pieces(pieces: Pieces, vocabulary_size: int) -> Array:
    """Ids and continuation flags as one integer each, for the document store: the flag is the highest bit."""
    dtype = np.uint16 if vocabulary_size <= 1 << 15 else np.uint32
    flag = np.array(1 << (np.iinfo(dtype).bits - 1), dtype)
    packed: Array = pieces.ids.astype(dtype) | np.where(pieces.continues, flag, dtype(0))
    return packed


def unpack_pieces(values: Array, ends: NDArray[np.int64]) -> Pieces:
    """The inverse of :func:`pack_pieces`."""
    shift = np.iinfo(values.dtype).bits - 1
    mask = values.dtype.type((1 << shift) - 1)
    return Pieces.plain((values & mask).astype(np.int32), (values >> values.dtype.type(shift)).astype(np.bool_), ends)
