"""What stands beside BM25 and the model in ``/search``: a bi-encoder that finds, too, and shares of a joint score.

The shares were tuned beforehand: `rankwell tune --hybrid` for what finds, the stage `blend` for what ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.rank.fusion import Fusion, check_hybrid, fuse
from rankwell.retrieve.index import Index

if TYPE_CHECKING:
    from rankwell.rank.dense import DenseRanker

ONE = "query"
"""A request's only query has a name in the runs that are fused, and nowhere else."""
NOTHING = Ranking.of([], [])


@dataclass(frozen=True, slots=True)
class Beside:
    """``shares`` join scores in ranking, ``hybrid`` is the share of ``encoder``'s similarity in finding.

    ``options`` are those of :class:`~rankwell.models.bi_encoder.BiEncoder`.
    """

    shares: Fusion | None = None
    encoder: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    hybrid: float | None = None

    def __post_init__(self) -> None:
        check_hybrid(self.hybrid)


@dataclass(frozen=True, eq=False)
class Similarity:
    """A bi-encoder with the vectors of all documents."""

    index: Index
    dense: DenseRanker
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Of the bi-encoder, which two threads must not use at once."""

    def rerank(self, query: str, candidates: Run) -> Run:
        """The candidates by similarity."""
        with self.lock:
            return self.dense.rerank(candidates, [Query(ONE, query)], self.index)

    def search(self, queries: Sequence[str], share: float, k: int) -> list[Ranking]:
        """The best ``k`` of all documents for each query, by BM25 and by similarity."""
        from rankwell.rank.hybrid import search_hybrid

        asked = [Query(str(number), query) for number, query in enumerate(queries)]
        with self.lock:
            found = search_hybrid(self.index, self.dense, asked, share, k=k)
        return [found.get(query.qid, NOTHING) for query in asked]


@dataclass(frozen=True, eq=False)
class Blending:
    """What joins scores."""

    shares: Fusion
    similar: Similarity | None = None

    def join(self, query: str, candidates: Ranking, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """The joint score of each of the first stage's candidates, in their order."""
        if not len(candidates):
            return scores
        first, model = Run({ONE: candidates}), Run({ONE: Ranking.of(candidates.docids, scores)})
        runs = [first, model] if self.similar is None else [model, self.similar.rerank(query, first), first]
        joint = dict(fuse(runs, self.shares)[ONE])
        return np.array([joint[docid] for docid in candidates.docids], np.float32)

    def described(self, first: str) -> dict[str, Any]:
        """The shares as ``/ready`` shows them; ``first`` is what the first stage is called."""
        names = (first, "model") if self.similar is None else ("model", "similarity", first)
        return {"shares": dict(zip(names, self.shares.weights, strict=True)), "normalise": self.shares.normalise}


@dataclass(frozen=True, eq=False)
class Finding:
    """What finds candidates: BM25 over the index, and with a share of its own the bi-encoder."""

    index: Index
    similar: Similarity | None = None
    share: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Of the index's analyser, whose stemmer two threads must not use at once."""

    @property
    def names(self) -> tuple[str, ...]:
        """What can find here, as requests and answers call it; the first is what does unless something else is said."""
        return ("bm25",) if self.share is None else ("hybrid", "bm25")

    @cached_property
    def words(self) -> Finding:
        """The same without the bi-encoder: plain BM25."""
        return replace(self, similar=None, share=None)

    def find(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """The best ``k`` documents for each query; vectors are read once for all of them."""
        with self.lock:
            if self.similar is None or self.share is None:
                return [self.index.rank(query, k=k) for query in queries]
            return self.similar.search(queries, self.share, k)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The ``k`` best documents of a query."""

    finding: Finding
    query: str
    k: int


def find_all(wanted: Sequence[Wanted]) -> list[tuple[Ranking, float]]:
    """What was found for each, and the milliseconds that took; those who want as many are searched for together."""
    alike: dict[tuple[int, int], list[int]] = {}
    for number, one in enumerate(wanted):
        alike.setdefault((id(one.finding), one.k), []).append(number)
    found: dict[int, tuple[Ranking, float]] = {}
    for numbers in alike.values():
        begin = time.perf_counter()
        one = wanted[numbers[0]]
        rankings = one.finding.find([wanted[number].query for number in numbers], one.k)
        ms = 1000 * (time.perf_counter() - begin)
        found |= {number: (ranking, ms) for number, ranking in zip(numbers, rankings, strict=True)}
    return [found[number] for number in range(len(wanted))]


def open_beside(beside: Beside, index: Index | None, has_model: bool) -> tuple[Finding | None, Blending | None]:
    """Open the bi-encoder, and have the vectors of all documents made where they are not kept."""
    if beside.shares is not None and (index is None or not has_model):
        raise RankwellError("a blend joins the scores of BM25 and of a model: it needs an index and a model")
    if beside.hybrid is not None and index is None:
        raise RankwellError("hybrid search needs an index to search")
    if index is None:
        return None, None
    similar = None
    if beside.encoder is not None:
        from rankwell.models.bi_encoder import BiEncoder
        from rankwell.rank.dense import DenseRanker
        from rankwell.rank.texts import stores_of

        similar = Similarity(index, DenseRanker(BiEncoder.from_pretrained(beside.encoder, **beside.options)))
        for store in stores_of(index):
            similar.dense.vectors(store)
    blended = len(beside.shares.weights) == 3 if beside.shares is not None else False
    blending = None if beside.shares is None else Blending(beside.shares, similar if blended else None)
    return Finding(index, similar, beside.hybrid), blending
