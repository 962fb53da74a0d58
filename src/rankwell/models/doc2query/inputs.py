"""What a query writer is given: passages as ``[CLS] D [SEP]``, and queries as a grid that begins with ``[CLS]``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwell.inputs.batching import Sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.templates import SpecialTokens, Template, lay_out_pairs
from rankwell.inputs.windows import fit_windows


def lay_out_passages(pieces: Pieces, special: SpecialTokens, max_length: int) -> Sequences:
    """``[CLS] D [SEP]`` for each row, of which at most ``max_length - 2`` pieces are kept."""
    # The cap of a query means nothing here; 1 is within any length.
    template = Template("single", max_length=max_length, max_query=1)
    return lay_out_pairs(template, special, {"query": pieces})


def cut_passages(pieces: Pieces, max_length: int) -> tuple[Pieces, NDArray[np.int64]]:
    """The windows a writer reads long passages in, each overlapping the next by half, and whose each one is."""
    room = np.full(len(pieces), max_length - 2, np.int64)
    begins, ends, owners = fit_windows(pieces, np.ones(len(pieces.ids), np.int64), room)
    return pieces.cut(begins, ends - begins), owners


def passage_grid(ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each place of a padded grid (B, L) lies among the packed rows, and whether it is one of them."""
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    lengths = ends - begins
    places = np.arange(int(lengths.max()))
    real = places < lengths[:, None]
    return np.where(real, begins[:, None] + places, 0), real


class QueryGrid(NamedTuple):
    """Queries to be learned: what the decoder is given (B, M), and of its flattened grid the ``rows`` (K,) that count
    with the piece that follows each, ``targets`` (K,).
    """

    inputs: NDArray[np.int64]
    rows: NDArray[np.int64]
    targets: NDArray[np.int64]


def query_grid(queries: Pieces, special: SpecialTokens, max_query: int, pad: int) -> QueryGrid:
    """``[CLS] q1 q2 …`` and what follows: ``q1 q2 … [SEP]``, of which ``max_query`` at most (then without ``[SEP]``,
    because a query that was cut does not end there).
    """
    lengths = np.minimum(queries.lengths(), max_query)
    pieces = queries.cut(queries.begins, lengths)
    counts = np.minimum(queries.lengths() + 1, max_query)  # of targets
    width = int(counts.max(initial=1))
    places = np.arange(width)
    whole = np.full((len(queries), width + 1), pad, np.int64)
    whole[:, 0] = special.cls
    whole[:, 1:][places < lengths[:, None]] = pieces.ids
    fits = np.flatnonzero(counts > lengths)
    whole[fits, 1 + lengths[fits]] = special.sep
    counted = places < counts[:, None]
    return QueryGrid(np.ascontiguousarray(whole[:, :-1]), np.flatnonzero(counted), whole[:, 1:][counted])
