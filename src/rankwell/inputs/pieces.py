"""Word pieces: tokenised texts as flat arrays, which templates combine.

A text is a row of pieces. A piece has a vocabulary id, a flag for continuing the word of the piece before it (``##ue``
after ``bog``), which STRM needs, and for markers the stem of its word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Array, gather

UnmarkedWords = Literal["stop words", "function words"]
"""Query words without markers: Lucene's 33 stop words, or also *how*, *what*, *can*, *you* and their like."""


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

    ``stems`` and ``opens`` are empty if there are no markers.
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

    @classmethod
    def concat(cls, parts: Sequence[Pieces]) -> Pieces:
        """The rows of all parts, one part after the other."""
        bases = np.cumsum([0, *(len(part.ids) for part in parts)])
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.continues for part in parts]),
            np.concatenate([part.ends + base for part, base in zip(parts, bases, strict=False)]),
            np.concatenate([part.stems for part in parts]),
            np.concatenate([part.opens for part in parts]),
        )

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
        index = gather(begins, lengths)
        stems, opens = (self.stems[index], self.opens[index]) if len(self.stems) else (self.stems, self.opens)
        return Pieces(self.ids[index], self.continues[index], np.cumsum(lengths), stems, opens)

    def after(self, front: Pieces) -> Pieces:
        """These rows, each preceded by the single row of ``front``; without stems."""
        size, rows = len(front.ids), len(self)
        places = np.repeat(self.begins, size)
        return Pieces.plain(
            np.insert(self.ids, places, np.tile(front.ids, rows)),
            np.insert(self.continues, places, np.tile(front.continues, rows)),
            self.ends + size * np.arange(1, rows + 1),
        )


STEMS = (1 << 31) - 1
"""Stem numbers are below this, which means "no stem"; so a stem and a flag fit into 32 bits."""


def packed_dtype(vocabulary_size: int, *, stems: bool = False) -> np.dtype[Any]:
    """The integer that holds a packed piece: 16 bits for a vocabulary like BERT's, 64 with stems."""
    if stems:
        return np.dtype(np.uint64)
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 15 else np.uint32)


def pack_pieces(pieces: Pieces, vocabulary_size: int, *, stems: bool = False) -> Array:
    """Pack each piece into an integer for the document store: its id, with the continuation flag in the highest bit.

    With ``stems`` that is the lower half; the upper half holds the stem and the opening flag in the same way.
    """
    dtype = packed_dtype(vocabulary_size, stems=stems)
    if not stems:
        return _flagged(pieces.ids, pieces.continues, dtype)
    upper = _flagged(np.where(pieces.stems < 0, STEMS, pieces.stems), pieces.opens, np.dtype(np.uint32))
    lower = _flagged(pieces.ids, pieces.continues, np.dtype(np.uint32))
    packed: Array = upper.astype(dtype) << dtype.type(32) | lower
    return packed


def unpack_pieces(values: Array, ends: NDArray[np.int64]) -> Pieces:
    """The inverse of :func:`pack_pieces`."""
    if values.dtype.itemsize < 8:
        return Pieces.plain(*_unflagged(values), ends)
    ids, continues = _unflagged(values.astype(np.uint32))  # the lower half
    stems, opens = _unflagged((values >> values.dtype.type(32)).astype(np.uint32))
    return Pieces(ids, continues, ends, np.where(stems == STEMS, np.int32(-1), stems), opens)


def _flagged(numbers: Array, flags: NDArray[np.bool_], dtype: np.dtype[Any]) -> Array:
    flag = dtype.type(1 << (8 * dtype.itemsize - 1))
    joined: Array = numbers.astype(dtype) | np.where(flags, flag, dtype.type(0))
    return joined


def _unflagged(values: Array) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    flag = values.dtype.type(1 << (8 * values.dtype.itemsize - 1))
    return (values & ~flag).astype(np.int32), (values & flag) != 0


def stem_number(stem: str) -> int:
    """A hash rather than a count of stems, because stored numbers must mean the same in every process."""
    return int.from_bytes(hashlib.blake2b(stem.encode("utf-8"), digest_size=8).digest()) % STEMS
