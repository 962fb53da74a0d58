"""Windows: long documents are read in overlapping parts, so that nothing is truncated, and get one score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rankwell.core.arrays import Rows, Scores, positions
from rankwell.core.errors import RankwellError
from rankwell.inputs.pieces import Pieces

MOST_WINDOWS = 1000
"""The largest N of ``topN``."""


@dataclass(frozen=True, slots=True)
class Windows:
    """How long documents are read: in overlapping windows, whose scores ``aggregate`` joins into one.

    ``Windows()`` are as large as the room the query leaves, each overlapping the next by half; a document that fits
    is one window. With a ``size`` they have that many words, and begin every ``stride`` words (half the size unless
    given).
    """

    size: int | None = None
    stride: int | None = None
    aggregate: str = "max"

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.size is None:
            if self.stride is not None:
                raise RankwellError(f"a stride of {self.stride} words needs a window size")
        elif self.stride is None:
            object.__setattr__(self, "stride", (self.size + 1) // 2)
        if self.size is not None and self.stride is not None and not 1 <= self.stride <= self.size:
            raise RankwellError(
                f"windows of {self.size} words every {self.stride}: the stride must be from 1 to the size"
            )
        parse_aggregate(self.aggregate)


def cut_windows(documents: Pieces, windows: Windows) -> tuple[Pieces, Rows]:
    """The windows of all documents as rows, and the document each belongs to; for windows that have a size.

    A window begins and ends between words. The last window reaches the document's end and is as full as the others if
    the document is long enough; a document that fits is one window.
    """
    starts = np.flatnonzero(~documents.continues)  # where words begin; a text's first piece continues nothing
    first = np.searchsorted(starts, documents.begins)
    words = np.searchsorted(starts, documents.ends) - first
    assert windows.size is not None
    assert windows.stride is not None
    begin, end, owners = _word_windows(first, words, windows.size, windows.stride)
    bounds = np.append(starts, len(documents.ids))
    begins = np.where(words[owners] > 0, bounds[begin], documents.begins[owners])
    ends = np.where(words[owners] > 0, bounds[end], documents.begins[owners])
    return documents.cut(begins, ends - begins), owners


def _word_windows(first: Rows, words: Rows, size: int, stride: int) -> tuple[Rows, Rows, Rows]:
    """First and end word of each window, and the document it belongs to; documents have ``words`` from ``first`` on."""
    counts = np.maximum(1, -(-(words - size) // stride) + 1)
    owners = np.repeat(np.arange(len(words)), counts)
    order = positions(counts)
    begin = np.maximum(np.minimum(order * stride, words[owners] - size), 0)
    end = np.minimum(begin + size, words[owners])
    return first[owners] + begin, first[owners] + end, owners


def fit_windows(document: Pieces, costs: Rows | None, room: Rows, spare: int = 0) -> tuple[Rows, Rows, Rows]:
    """Windows as large as the room there is: where each begins and ends, and the row of ``document`` it belongs to.

    ``costs`` (T,) are the tokens each piece takes (None: one), ``room`` (N,) the tokens there is room for in each row,
    of which windows leave ``spare`` unused. Windows begin and end between words unless a word is longer than a quarter
    of the room. The last one reaches the end and is full.
    """
    pieces = len(document.ids)
    # Tokens of all pieces before each.
    cost = np.arange(pieces + 1) if costs is None else np.concatenate([[0], np.cumsum(costs)])
    need = cost[document.ends] - cost[document.begins]
    if (need <= room).all():  # the usual case, and much the fastest
        return document.begins, document.ends, np.arange(len(document))
    # Where the word of a piece begins, and the next word after it; the end of the last row begins a word, too.
    at = np.arange(pieces + 1)
    fresh = np.append(~document.continues, True)
    word = np.maximum.accumulate(np.where(fresh, at, 0))
    next_word = np.minimum.accumulate(np.where(fresh, at, pieces)[::-1])[::-1]

    room = np.maximum(np.where(need <= room, room, room - spare), 1)
    half = np.maximum(room // 2, 1)
    counts = np.maximum(-(-(need - room) // half), 0) + 1
    owners = np.repeat(np.arange(len(document)), counts)
    order = positions(counts)
    first, end, room, half = document.begins[owners], document.ends[owners], room[owners], half[owners]

    begins = np.searchsorted(cost, cost[first] + order * half)
    begins = _snap(begins, word[begins], cost, room)
    last = order == counts[owners] - 1
    late = np.searchsorted(cost, cost[end] - room)
    late = np.maximum(np.minimum(_snap(late, next_word[late], cost, room), end - 1), first)
    begins = np.where(last, late, begins)

    ends = np.minimum(np.searchsorted(cost, cost[begins] + room, side="right") - 1, end)
    ends = np.where(ends < end, _snap(ends, word[ends], cost, room), ends)
    following = np.append(begins[1:], 0)
    # A piece that takes more room than there is stays: the template truncates and counts it.
    ends = np.maximum(ends, np.where(last, end, np.maximum(following, begins + 1)))
    return begins, ends, owners


def _snap(places: Rows, words: Rows, cost: Rows, room: Rows) -> Rows:
    """Places moved to the edge of their word if it is near enough for windows still to overlap."""
    return np.where(np.abs(cost[places] - cost[words]) <= room // 4, words, places)


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
    # With a first weight of 0, a document of one window would have no score.
    if len(weights) != n or not all(0 <= weight < np.inf for weight in weights) or weights[0] == 0:
        raise RankwellError(f"{name!r}: expected {n} weights separated by commas, none negative and the first above 0")
    return weights


def aggregate_windows(scores: Scores, owners: Rows, aggregate: str) -> Scores:
    """One score for each document from those of its windows, which are adjacent.

    ``topN`` is the mean of the N best windows, or of all if there are fewer, weighted if weights are given.
    """
    kind, weights = parse_aggregate(aggregate)
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    if kind == "first":
        return scores[first]
    if kind == "max":
        return np.maximum.reduceat(scores, first) if len(first) else scores
    counts = np.diff(np.append(first, len(owners)))
    if kind == "top":
        order = np.lexsort((-scores, owners))
        rank = positions(counts)
        weight_of = np.array([*weights, 0.0], np.float32)
        scores = np.where(rank < len(weights), scores[order] * weight_of[np.minimum(rank, len(weights))], np.float32(0))
        counts = np.cumsum(weight_of)[np.minimum(counts, len(weights)) - 1]
    return (np.add.reduceat(scores, first) / counts).astype(np.float32) if len(first) else scores
