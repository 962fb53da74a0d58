"""Blending in ``/search``: a model's scores with BM25's and a bi-encoder's, in shares that were tuned beforehand."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.rank.fusion import Fusion, fuse
from rankwell.retrieve.index import Index

if TYPE_CHECKING:
    from rankwell.rank.dense import DenseRanker

ONE = "query"
"""A request's only query has a name in the runs that are fused, and nowhere else."""


@dataclass(frozen=True, slots=True)
class BlendSources:
    """The shares, and the bi-encoder's name where it has one of them."""

    shares: Fusion
    encoder: str | None = None
    device: str | None = None


@dataclass(frozen=True, eq=False)
class Blending:
    """What joins scores; ``similar`` has the vectors of all documents."""

    shares: Fusion
    index: Index
    similar: DenseRanker | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Of the bi-encoder, which two threads must not use at once."""

    def join(self, query: str, candidates: Ranking, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """The joint score of each of BM25's candidates, in their order."""
        if not len(candidates):
            return scores
        first, model = Run({ONE: candidates}), Run({ONE: Ranking.of(candidates.docids, scores)})
        if self.similar is None:
            runs = [first, model]
        else:
            with self.lock:
                runs = [model, self.similar.rerank(first, [Query(ONE, query)], self.index), first]
        joint = dict(fuse(runs, self.shares)[ONE])
        return np.array([joint[docid] for docid in candidates.docids], np.float32)

    def described(self) -> dict[str, Any]:
        """The shares as ``/ready`` shows them."""
        names = ("bm25", "model") if self.similar is None else ("model", "similarity", "bm25")
        return {"shares": dict(zip(names, self.shares.weights, strict=True)), "normalise": self.shares.normalise}


def open_blending(sources: BlendSources, index: Index | None, has_model: bool) -> Blending:
    """Open the bi-encoder, and have the vectors of all documents made where they are not kept."""
    if index is None or not has_model:
        raise RankwellError("a blend joins the scores of BM25 and of a model: it needs an index and a model")
    if sources.encoder is None:
        return Blending(sources.shares, index)
    from rankwell.models.bi_encoder import BiEncoder
    from rankwell.rank.dense import DenseRanker, stores_of

    similar = DenseRanker(BiEncoder.from_pretrained(sources.encoder, device=sources.device))
    for store in stores_of(index):
        similar.vectors(store)
    return Blending(sources.shares, index, similar)
