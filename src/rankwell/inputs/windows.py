"""Windows: long documents in overlapping parts, so that nothing is cut silently, and one score from the parts'."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.inputs.pieces import Pieces

MOST_WINDOWS = 1000
"""The largest N of ``topN``."""


@dataclass(frozen=True, slots=True)
class Windows:
    """How documents are cut: windows of ``size`` words every ``stride`` words, their scores joined by ``aggregate``."""

    size: int = 100
    stride: int = 50
    aggregate: str = "max"

    def __post_init__(self) -> None:
        if not 1 <= self.stride <= self.size:
            raise RankwellError(
                f"windows of {self.size} words every {self.stride}: the stride must be from 1 to the size"
            )
        parse_aggregate(self.aggregate)


def cut_windows(documents: Pieces, windows: Windows) -> tuple[Pieces, NDArray[np.int64]]:
    """The windows of all documents as rows of their own, and the document each belongs to.

    A window begins and ends between words. The last one reaches the document's end and, where the document is long
    enough, is as long as the others; a document that fits is one window.
    """
    starts = np.flatnonzero(~documents.continues)  # where words begin; a text's first piece continues nothing
    bounds = np.append(starts, len(documents.ids))
    first = np.searchsorted(starts, documents.begins)
    words = np.searchsorted(starts, documents.ends) - first
    counts = np.maximum(1, -(-(words - windows.size) // windows.stride) + 1)
    owners = np.repeat(np.arange(len(documents)), counts)
    order = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.maximum(np.minimum(order * windows.stride, words[owners] - windows.size), 0)
    end = np.minimum(begin + windows.size, words[owners])
    begins = np.where(
        words[owners] > 0, bounds[np.minimum(first[owners] + begin, len(starts))], documents.begins[owners]
    )
    ends = np.where(words[owners] > 0, bounds[first[owners] + end], documents.begins[owners])
    return documents.cut(begins, ends - begins), owners


def parse_aggregate(name: str) -> tuple[str, tuple[float, ...]]:
    """``first``, ``max``, ``mean`` or ``topN`` as a name, and the weights of the N best windows.

    >>> parse_aggregate("top2"), parse_aggregate("top3:0.5,0.3,0.2")
    (('top', (1.0, 1.0)), ('top', (0.5, 0.3, 0.2)))
    """
    head, colon, rest = name.partition(":")
    if head.startswith("top") and head[3:].isdigit() and 0 < int(head[3:]) <= MOST_WINDOWS:
        n = int(head[3:])
        return "top", _parse_weights(name, rest, n) if colon else (1.0,) * n
    if name not in ("first", "max", "mean"):
        raise RankwellError(
            f"no aggregation is called {name!r} (known: first, max, mean, top1, top2, top3, …, top3:0.5,0.3,0.2)"
        )
    return name, (1.0,)


def _parse_weights(name: str, text: str, n: int) -> tuple[float, ...]:
    try:
        weights = tuple(map(float, text.split(",")))
    except ValueError:
        weights = ()
    # The first counts in a document of one window, too: at 0, that document had no score.
    if len(weights) != n or not all(0 <= weight < np.inf for weight in weights) or weights[0] == 0:
        raise RankwellError(f"{name!r}: expected {n} weights with commas, none negative and the first above 0")
    return weights


def aggregate_windows(scores: NDArray[np.float32], owners: NDArray[np.int64], how: str) -> NDArray[np.float32]:
    """One score for each document from those of its windows, which lie together.

    ``topN`` is the mean of the N best, weighted where there are weights; of a document of fewer windows, of those.
    """
    kind, weights = parse_aggregate(how)
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    if kind == "first":
        return scores[first]
    if kind == "max":
        return np.maximum.reduceat(scores, first) if len(first) else scores
    counts = np.diff(np.append(first, len(owners)))
    if kind == "top":
        order = np.lexsort((-scores, owners))
        rank = np.arange(len(owners)) - np.repeat(first, counts)
        weight_of = np.array([*weights, 0.0], np.float32)
        scores = np.where(rank < len(weights), scores[order] * weight_of[np.minimum(rank, len(weights))], np.float32(0))
        counts = np.cumsum(weight_of)[np.minimum(counts, len(weights)) - 1]
    return (np.add.reduceat(scores, first) / counts).astype(np.float32) if len(first) else scores
