"""BM25 as Lucene computes it, with every parameter chosen at search time.

    score(q, d) = Σ_t  qtf' · ln(1 + (N − df + ½) / (df + ½)) · tf / (tf + k1 · (1 − b + b · |d| / mean length))

where qtf' is the number of times the query has the term or, with k2, (k2 + 1) · qtf / (k2 + qtf). Statistics cover all
segments, so scores do not depend on how a collection is split into segments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import pack_strings
from rankwell.core.errors import RankwellError
from rankwell.retrieve.scoring_kernels import Workspace, make_workspace
from rankwell.retrieve.segment import Segment

MAX_K = 1_000_000


@dataclass(frozen=True, slots=True)
class BM25:
    """The parameters: ``k1`` is how slowly a repeated term saturates, ``b`` how much long documents are discounted.

    ``k2`` is how slowly a term repeated in the query saturates; without it every repetition counts in full.
    """

    k1: float = 0.9
    b: float = 0.4
    k2: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.k1) and self.k1 >= 0):
            raise RankwellError(f"k1 must be a number of at least 0, not {self.k1}")
        if not 0 <= self.b <= 1:
            raise RankwellError(f"b must lie between 0 and 1, not {self.b}")
        if self.k2 is not None and not (math.isfinite(self.k2) and self.k2 >= 0):
            raise RankwellError(f"k2 must be a number of at least 0, not {self.k2}")

    def idf(self, documents: int, frequencies: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weights of terms from their document frequencies."""
        return np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5))

    def query_weight(self, qtf: NDArray[np.int64]) -> NDArray[np.float64]:
        """The factors of terms from the number of times each occurs in the query."""
        return qtf.astype(np.float64) if self.k2 is None else (self.k2 + 1) * qtf / (self.k2 + qtf)


DEFAULT_BM25 = BM25()


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """The documents found for a batch of queries: rows in THE order, padded with document -1 and score 0.

    They are as wide as the longest of them.
    """

    numbers: NDArray[np.int64]
    scores: NDArray[np.float32]

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of documents found for each query."""
        counts: NDArray[np.int64] = np.count_nonzero(self.numbers >= 0, axis=1)
        return counts


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a whole collection: its documents, their total length, and each term's document frequency."""

    documents: int
    total_length: float
    frequencies: Mapping[str, int]


def search_segments(
    segments: Sequence[Segment],
    queries: Sequence[Sequence[str]],
    bm25: BM25,
    *,
    k: int,
    threads: int = 1,
    statistics: Statistics | None = None,
    prune: bool = True,
) -> list[Hits]:
    """Those documents of each segment that may be among the best ``k`` of all, for each query, given as its terms.

    ``statistics`` are those of the collection that the segments are part of; without them, of the segments. They cover
    documents that a filter excludes, but not deleted ones. ``prune`` skips documents that cannot reach the top k, which
    changes the time but not the result.
    """
    if not 1 <= k <= MAX_K:
        raise RankwellError(f"k must lie between 1 and {MAX_K:,}, not {k}")
    if threads < 1:
        raise RankwellError(f"threads must be at least 1, not {threads}")
    documents = statistics.documents if statistics else sum(segment.live for segment in segments)
    total_length = statistics.total_length if statistics else sum(segment.total_length for segment in segments)
    mean_length = total_length / max(documents, 1)
    query_ends, weights, term_numbers = _plan(segments, queries, bm25, documents, statistics)

    searched = [number for number, rows in enumerate(term_numbers) if rows.max(initial=-1) >= 0]
    searched.sort(key=lambda number: -len(segments[number]))  # the largest first, as it has most of the best documents
    keys = {number: np.zeros((len(queries), min(k, len(segments[number]))), np.uint64) for number in searched}

    def score(first: int, last: int) -> None:
        begin, end = int(query_ends[first - 1]) if first else 0, int(query_ends[last - 1])
        workspaces: dict[int, Workspace] = {}
        lowest = np.zeros(last - first, np.uint64)
        for number in searched:
            segment, found = segments[number], keys[number][first:last]
            if segment.window_bits not in workspaces:
                workspaces[segment.window_bits] = make_workspace(segment.window_bits, k, end - begin)
            asked = query_ends[first:last] - begin, term_numbers[number][begin:end], weights[begin:end], lowest
            norms = segment.norms(bm25.k1, bm25.b, mean_length)
            segment.score(asked, norms, workspaces[segment.window_bits], found, prune=prune)
            if found.shape[1] == k:  # other segments need not find what scores lower; equal scores are ordered by id
                worst = found.min(axis=1) >> np.uint64(32) << np.uint64(32)
                lowest = np.maximum(lowest, worst - (worst > 0))

    # Several pieces per thread, so that one slow query does not hold up the rest.
    pieces = 1 if threads == 1 else min(len(queries), 4 * threads)
    bounds = [round(i * len(queries) / pieces) for i in range(pieces + 1)] if queries else []
    if pieces <= 1:  # a thread takes longer to start than a query
        for first, last in pairwise(bounds):
            score(first, last)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(score, bounds[:-1], bounds[1:]))
    none = Hits(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32))
    return [
        Hits(*segment.read_keys(keys[s])) if s in keys and keys[s].any() else none for s, segment in enumerate(segments)
    ]


def _plan(
    segments: Sequence[Segment],
    queries: Sequence[Sequence[str]],
    bm25: BM25,
    documents: int,
    statistics: Statistics | None,
) -> tuple[NDArray[np.int64], NDArray[np.float32], list[NDArray[np.int32]]]:
    """The queries' terms, each query's by descending weight: where each query ends, weights, numbers by segment."""
    distinct: dict[str, int] = {}
    pairs = [(q, distinct.setdefault(term, len(distinct))) for q, terms in enumerate(queries) for term in terms]
    terms = list(distinct)
    packed = pack_strings(terms)
    numbers = [segment.find_terms(*packed) for segment in segments]
    if statistics is None:
        frequencies = sum(
            (segment.document_frequencies(rows) for segment, rows in zip(segments, numbers, strict=True)),
            np.zeros(len(terms), np.int64),
        )
    else:
        frequencies = np.array([statistics.frequencies[term] for term in terms], np.int64)
    keys = np.array([q * len(terms) + t for q, t in pairs], np.int64)
    unique, qtf = np.unique(keys, return_counts=True)
    query_of, term_of = (unique // len(terms), unique % len(terms)) if terms else (unique, unique)
    weights = bm25.query_weight(qtf) * bm25.idf(documents, frequencies)[term_of]
    # Equal weights are ordered by the term itself, so that a sum has one order however the index is split.
    alphabetical = np.empty(len(terms), np.int64)
    alphabetical[sorted(range(len(terms)), key=terms.__getitem__)] = np.arange(len(terms))
    order = np.lexsort([alphabetical[term_of], -weights, query_of])
    query_ends = np.searchsorted(query_of[order], np.arange(len(queries)), side="right")
    term_of = term_of[order]
    return query_ends.astype(np.int64), weights[order].astype(np.float32), [rows[term_of] for rows in numbers]
