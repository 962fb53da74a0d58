"""Hybrid search: BM25 finds by words, a bi-encoder by meaning, and a fusion of their scores ranks what either found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Query, Run
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.dense import DEEP, DenseRanker
from rankwell.rank.fusion import Fusion, FusionTuning, check_hybrid, fuse, share_settings, tune_fusion
from rankwell.rank.pipeline import First, State
from rankwell.retrieve.index import Index

FOUND = DEEP
"""What each of the two finds, however few are wanted: a score is standardised among so many."""
NORMALISE = "z-score"


def search_hybrid(
    index: Index, dense: DenseRanker, queries: Sequence[Query], share: float, *, k: int = 1000, **bm25: Any
) -> Run:
    """The best ``k`` documents of each query by (1 − share) · BM25 + share · similarity, each standardised.

    A document that only one of them found has the other's lowest score. With a share of 1 the bi-encoder searches
    alone. ``bm25`` are options of :meth:`Index.search <rankwell.retrieve.index.Index.search>`.
    """
    check_hybrid(share)
    if k < 1:
        raise RankwellError(f"k must be at least 1, not {k}")
    if share == 1:
        return dense.search(queries, index, k)
    fusion = Fusion("linear", (round(1 - share, 12), share), NORMALISE)
    return fuse(found_by_both(index, dense, queries, k=k, **bm25), fusion, depth=k, name="hybrid")


def found_by_both(
    index: Index, dense: DenseRanker, queries: Sequence[Query], *, k: int = FOUND, **bm25: Any
) -> tuple[Run, Run]:
    """BM25's run and the bi-encoder's, deep enough to be fused; a ranking's ids are made when it is asked for."""
    deep = max(k, FOUND)
    return index.search_numbered(queries, k=deep, **bm25), dense.search_numbered(queries, index, deep)


@dataclass(frozen=True, eq=False)
class ShareTuning:
    """What each share of the bi-encoder gives, and the best."""

    tuning: FusionTuning

    @property
    def share(self) -> float:
        """The share to use from now on; 0: BM25 is better alone."""
        return self.tuning.best.weights[1]

    def figures(self) -> dict[float, float]:
        """The mean of the measure at each share."""
        means = self.tuning.values.mean(axis=1).tolist()
        return dict(sorted(zip((fusion.weights[1] for fusion in self.tuning.settings), means, strict=True)))

    def table(self) -> str:
        """The shares as text, and the figures to quote."""
        figures, found = self.figures(), self.tuning.found
        rows = [f"{share:>7g}  {mean:.4f}{'*' if share == self.share else ''}" for share, mean in figures.items()]
        advice = f"--hybrid {self.share:g}" if self.share else "BM25 alone"
        best = f"best on all {self.tuning.values.shape[1]:,} queries   {advice}   {figures[self.share]:.4f}"
        honest = f"cross-validated, {len(found.chosen)} folds   {found.mean:.4f}"
        return "\n".join([f"{self.tuning.measure} by the bi-encoder's share", "", *rows, "", best, honest])

    def described(self) -> dict[str, Any]:
        """The same, as JSON holds it."""
        grid = [{"share": share, "mean": mean} for share, mean in self.figures().items()]
        return {"share": self.share, "cross_validated": self.tuning.found.mean, "grid": grid}


def tune_hybrid(
    index: Index,
    dense: DenseRanker,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    measure: str = "RR@10",
    step: float = 0.1,
    folds: int = 5,
    seed: int = 0,
    **bm25: Any,
) -> ShareTuning:
    """The share that ranks best on judged queries; the figure to quote is the cross-validated one."""
    judged = [query for query in queries if query.qid in qrels]
    runs = found_by_both(index, dense, judged, **bm25)
    settings = share_settings(2, step, NORMALISE)
    known = Qrels({query.qid: qrels[query.qid] for query in judged})
    return ShareTuning(tune_fusion(runs, known, measure=measure, settings=settings, folds=folds, seed=seed))


@dataclass(frozen=True)
class Hybrid(First):
    """BM25 and a bi-encoder over an index; ``share`` is the bi-encoder's.

    Hybrid(index, encoder="rankwell-mini", share=0.7) % 100 >> Rerank(ranker)
    """

    encoder: BiEncoder | str = field(kw_only=True, repr=False)
    share: float = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hybrid(self.share)

    def apply(self, state: State) -> Run:
        """Search."""
        options = {"k1": self.k1, "b": self.b, "k2": self.k2, "threads": self.threads}
        return search_hybrid(self.index, DenseRanker(self.encoder), state.queries, self.share, k=self.depth, **options)
