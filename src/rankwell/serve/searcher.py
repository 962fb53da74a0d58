"""The first stage of ``/search``, BM25 or hybrid search, and its share in the scores of re-ranked documents.

The shares were tuned beforehand: `rankwell tune --hybrid` for hybrid search, the stage `blend` for re-ranking.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.core.types import Scores
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.models.checkpoints.names import BACKBONE, DEFAULT
from rankwell.models.devices import Precision
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.rankers import VectorSearch
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.retrieve.index import Index

if TYPE_CHECKING:
    from rankwell.rank.dense import DenseRanker

QID = "query"
"""The id of a request's query in the runs that are fused."""
NOTHING = Ranking.of([], [])


@dataclass(frozen=True, slots=True)
class FusionOptions:
    """How scores are fused: ``shares`` in re-ranking, ``hybrid`` the share of ``encoder``'s similarity in the search.

    ``engine`` are options of :class:`~rankwell.models.bi_encoder.BiEncoder`.
    """

    shares: Shares | None = None
    encoder: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    hybrid: float | None = None
    bm25: BM25 = DEFAULT_BM25
    vectors: VectorSearch = "auto"

    def __post_init__(self) -> None:
        if self.hybrid is not None:
            Shares.hybrid(self.hybrid)

    @classmethod
    def from_options(
        cls,
        fuse: float | None,
        blend: float | None,
        hybrid: float | None,
        normalise: str,
        encoder: str | None,
        device: str | None,
        precision: Precision,
        vectors: VectorSearch = "auto",
    ) -> FusionOptions:
        """Read the options of ``rankwell serve``; device, precision and vectors are the bi-encoder's."""
        if blend is not None and hybrid is not None and encoder is None:
            choice = f"choose it with --encoder ({DEFAULT}, {BACKBONE}, …)"
            raise RankwellError(f"--blend and --hybrid share one bi-encoder: {choice}")
        shares = Shares.from_options(fuse, blend, normalise)
        if blend is None and hybrid is None:
            return cls(shares)
        engine = {"device": device, "precision": precision}
        return cls(shares, encoder or (DEFAULT if blend is None else BACKBONE), engine, hybrid, vectors=vectors)


@dataclass(frozen=True, eq=False)
class Searcher:
    """A first stage that many requests share: BM25 or, if the bi-encoder has a ``share``, hybrid search.

    Everything is opened, and locks guard what two threads must not use at once.

    ``shares`` are those of re-ranking, in which the first stage and the bi-encoder may take part.
    """

    index: Index
    dense: DenseRanker | None = None
    share: float | None = None
    shares: Shares | None = None
    parameters: BM25 = DEFAULT_BM25
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Of the index's analyser, whose stemmer two threads must not use at once."""
    dense_lock: threading.Lock = field(default_factory=threading.Lock)
    """Of the bi-encoder, which two threads must not use at once."""

    @property
    def names(self) -> tuple[str, ...]:
        """The searches there are, as requests and answers call them; the default first."""
        return ("bm25",) if self.share is None else ("hybrid", "bm25")

    @cached_property
    def bm25(self) -> Searcher:
        """The same without hybrid search."""
        return replace(self, share=None)

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """The best ``k`` documents for each query; vectors are read once for all of them."""
        with self.lock:
            if self.dense is None or self.share is None:
                return [self.index.rank(query, self.parameters, k=k) for query in queries]
            from rankwell.rank.hybrid import search_hybrid

            named = [Query(str(number), query) for number, query in enumerate(queries)]
            with self.dense_lock:
                run = search_hybrid(self.index, self.dense, named, self.share, self.parameters, k=k)
            return [run.get(query.qid, NOTHING) for query in named]

    def fuse(self, query: str, candidates: Ranking, scores: Scores) -> Scores:
        """The model's scores of the candidates, in their order, fused with the other scores that have a share."""
        if self.shares is None or not len(candidates):
            return scores
        first, model = Run({QID: candidates}), Run({QID: Ranking.of(candidates.docids, scores)})
        runs = {"first": first, "model": model}
        if self.shares.similarity:
            assert self.dense is not None  # opened with the shares
            with self.dense_lock:
                similarity = self.dense.rerank(first, [Query(QID, query)], self.index)
            runs = {"model": model, "similarity": similarity, "first": first}
        fused = dict(fuse(runs, self.shares)[QID])
        return np.array([fused[docid] for docid in candidates.docids], np.float32)

    def describe_shares(self) -> dict[str, Any] | None:
        """The shares of re-ranking as ``/ready`` shows them."""
        if self.shares is None:
            return None
        shares, first = self.shares, self.names[0]
        if shares.similarity:
            parts = {"model": shares.model, "similarity": shares.similarity, first: shares.first}
        else:
            parts = {first: shares.first, "model": shares.model}
        return {"shares": parts, "normalise": shares.normalise}


@dataclass(frozen=True, slots=True)
class SearchJob:
    """A request for the ``k`` best documents of a query."""

    searcher: Searcher
    query: str
    k: int


def search_together(jobs: Sequence[SearchJob]) -> list[tuple[Ranking, float]]:
    """The documents of each job and the milliseconds they took; jobs with the same ``k`` are searched together."""
    alike: dict[tuple[int, int], list[int]] = {}
    for number, job in enumerate(jobs):
        alike.setdefault((id(job.searcher), job.k), []).append(number)
    results: dict[int, tuple[Ranking, float]] = {}
    for numbers in alike.values():
        begin = time.perf_counter()
        job = jobs[numbers[0]]
        rankings = job.searcher.search([jobs[number].query for number in numbers], job.k)
        ms = 1000 * (time.perf_counter() - begin)
        results |= {number: (ranking, ms) for number, ranking in zip(numbers, rankings, strict=True)}
    return [results[number] for number in range(len(jobs))]


def open_searcher(options: FusionOptions, index: Index | None, has_model: bool) -> Searcher | None:
    """Open the bi-encoder, and compute the vectors of documents that have none yet."""
    if options.shares is not None and (index is None or not has_model):
        raise RankwellError("fusing the scores of BM25 and a model needs an index and a model")
    if options.hybrid is not None and index is None:
        raise RankwellError("hybrid search needs an index to search")
    if index is None:
        return None
    dense = None
    if options.encoder is not None:
        from rankwell.models.bi_encoder import BiEncoder
        from rankwell.rank.dense import DenseRanker
        from rankwell.rank.texts import stores_of

        dense = DenseRanker(BiEncoder.from_pretrained(options.encoder, **options.engine), vectors=options.vectors)
        dense.prepare(stores_of(index))
    elif options.hybrid is not None or (options.shares is not None and options.shares.similarity):
        raise RankwellError("a bi-encoder has a share, but none is given")
    return Searcher(index, dense, options.hybrid, options.shares, options.bm25)
