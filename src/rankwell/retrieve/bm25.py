"""BM25 as Lucene computes it, with every parameter chosen when a query is asked.

    score(q, d) = Σ_t  qtf' · ln(1 + (N − df + ½) / (df + ½)) · tf / (tf + k1 · (1 − b + b · |d| / mean length))

where qtf' is the number of times the query has the term or, with k2, (k2 + 1) · qtf / (k2 + qtf). Statistics are of
all segments together, so cutting a collection into segments changes no score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.retrieve.segment import Segment

MAX_K = 1_000_000


@dataclass(frozen=True, slots=True)
class BM25:
    """The parameters. ``prune`` skips what cannot reach the top k; it changes the time, never the result."""

    k1: float = 0.9
    b: float = 0.4
    k2: float | None = None
    prune: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.k1) and self.k1 >= 0):
            raise RankwellError(f"k1 must be a number of at least 0, not {self.k1}")
        if not 0 <= self.b <= 1:
            raise RankwellError(f"b must lie between 0 and 1, not {self.b}")
        if self.k2 is not None and not (math.isfinite(self.k2) and self.k2 >= 0):
            raise RankwellError(f"k2 must be a number of at least 0, not {self.k2}")

    def idf(self, documents: int, frequencies: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weight of terms that occur in so many of the documents."""
        return np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5))

    def query_weight(self, qtf: NDArray[np.int64]) -> NDArray[np.float64]:
        """The factor for terms that the query holds so many times."""
        return qtf.astype(np.float64) if self.k2 is None else (self.k2 + 1) * qtf / (self.k2 + qtf)


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """What a batch of queries found: rows in THE order, padded with document -1 and score 0."""

    numbers: NDArray[np.int64]
    scores: NDArray[np.float32]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many documents each query found."""
        counts: NDArray[np.int64] = np.count_nonzero(self.numbers >= 0, axis=1)
        return counts


@dataclass(frozen=True, slots=True)
class _Plan:
    """A batch of queries ready to score: each query's terms by descending weight, and its terms' numbers by segment."""

    query_ends: NDArray[np.int64]
    weights: NDArray[np.float32]
    numbers: list[NDArray[np.int32]]


def search_segments(
    segments: Sequence[Segment], queries: Sequence[Sequence[str]], bm25: BM25, *, k: int, threads: int = 1
) -> list[Hits]:
    """The best ``k`` documents of each segment for each query, given as its terms."""
    if not 1 <= k <= MAX_K:
        raise RankwellError(f"k must lie between 1 and {MAX_K:,}, not {k}")
    if threads < 1:
        raise RankwellError(f"threads must be at least 1, not {threads}")
    documents = sum(map(len, segments))
    mean_length = sum(segment.total_length for segment in segments) / documents
    plan = _plan(segments, queries, bm25, documents)

    def score(segment: int, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        begin = int(plan.query_ends[first - 1]) if first else 0
        end = int(plan.query_ends[last - 1]) if last else 0
        numbers = plan.numbers[segment][begin:end]
        known = numbers >= 0
        ends = np.concatenate([[0], np.cumsum(known)])[plan.query_ends[first:last] - begin]
        return segments[segment].search(
            ends,
            numbers[known],
            plan.weights[begin:end][known],
            k=min(k, len(segments[segment])),
            k1=bm25.k1,
            b=bm25.b,
            mean_length=mean_length,
            prune=bm25.prune,
        )

    # Several pieces a thread, so that one slow query does not hold up the rest.
    pieces = 1 if threads == 1 else min(len(queries), 4 * threads)
    bounds = [round(i * len(queries) / pieces) for i in range(pieces + 1)] if queries else [0]
    jobs = [(s, first, last) for s in range(len(segments)) for first, last in pairwise(bounds)]
    if threads == 1:
        parts = [score(*job) for job in jobs]
    else:
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(lambda job: score(*job), jobs))
    hits = []
    for s in range(len(segments)):
        own = parts[s * (len(bounds) - 1) : (s + 1) * (len(bounds) - 1)]
        width = min(k, len(segments[s]))
        numbers = np.concatenate([np.empty((0, width), np.int64), *(part[0] for part in own)])
        scores = np.concatenate([np.empty((0, width), np.float32), *(part[1] for part in own)])
        hits.append(Hits(numbers, scores))
    return hits


def _plan(segments: Sequence[Segment], queries: Sequence[Sequence[str]], bm25: BM25, documents: int) -> _Plan:
    distinct: dict[str, int] = {}
    pairs = [(q, distinct.setdefault(term, len(distinct))) for q, terms in enumerate(queries) for term in terms]
    terms = list(distinct)
    numbers = [segment.terms.find(terms) for segment in segments]
    frequencies = sum(
        (segment.document_frequencies(own) for segment, own in zip(segments, numbers, strict=True)),
        np.zeros(len(terms), np.int64),
    )
    keys = np.array([q * len(terms) + t for q, t in pairs], np.int64)
    unique, qtf = np.unique(keys, return_counts=True)
    query_of, term_of = (unique // len(terms), unique % len(terms)) if terms else (unique, unique)
    weights = bm25.query_weight(qtf) * bm25.idf(documents, frequencies)[term_of]
    # Equal weights are ordered by the term itself, so that a sum has one order however the index is cut.
    alphabetical = np.empty(len(terms), np.int64)
    alphabetical[sorted(range(len(terms)), key=terms.__getitem__)] = np.arange(len(terms))
    order = np.lexsort([alphabetical[term_of], -weights, query_of])
    query_ends = np.searchsorted(query_of[order], np.arange(len(queries)), side="right")
    term_of = term_of[order]
    return _Plan(query_ends.astype(np.int64), weights[order].astype(np.float32), [own[term_of] for own in numbers])
