"""The inputs of a query writer: where packed passages lie in a grid, and queries as a grid that begins with [CLS]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwell.inputs.pieces import Pieces
from rankwell.inputs.templates import SpecialTokens


def passage_grid(ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The packed row of each place of a padded grid (B, L), and whether there is one (false at padding)."""
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    lengths = ends - begins
    places = np.arange(int(lengths.max()))
    real = places < lengths[:, None]
    return np.where(real, begins[:, None] + places, 0), real


class QueryGrid(NamedTuple):
    """Queries to learn: the decoder's ``inputs`` (B, M), the ``rows`` (K,) of its flattened grid that count, and
    ``targets`` (K,), the piece that follows at each of these rows.
    """

    inputs: NDArray[np.int64]
    rows: NDArray[np.int64]
    targets: NDArray[np.int64]


def query_grid(queries: Pieces, special: SpecialTokens, max_query: int, pad: int) -> QueryGrid:
    """``[CLS] q1 q2 …`` and the targets ``q1 q2 … [SEP]``, at most ``max_query`` of them. A truncated query has no
    ``[SEP]``, because it does not end there.
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
