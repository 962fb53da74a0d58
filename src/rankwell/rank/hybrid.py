"""A bi-encoder beside BM25 and a model: hybrid search, its tuning, and the pipeline stages ``Hybrid`` and ``Blend``.

BM25 finds documents by their words, a bi-encoder by their meaning; a fusion of their scores ranks what either finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Query, Run
from rankwell.evaluation.tuning import Tuned
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.dense import DEEP, DenseRanker
from rankwell.rank.fusion import Fusion, Shares, fuse, fuse_reranked
from rankwell.rank.pipeline import First, ReadingStage, StageInput
from rankwell.rank.texts import Texts
from rankwell.rank.tuning import share_grid, tune_fusion
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.retrieve.index import Index


def search_hybrid(
    index: Index,
    dense: DenseRanker,
    queries: Sequence[Query],
    share: float,
    bm25: BM25 = DEFAULT_BM25,
    *,
    k: int = 1000,
    threads: int = 1,
) -> Run:
    """The best ``k`` documents of each query by (1 − share) · BM25 + share · similarity, each standardised.

    Both search at least 1,000 documents deep; a document that only one of them finds gets the other's lowest score.
    With a share of 1 the bi-encoder searches alone.
    """
    shares = Shares.hybrid(share)
    if k < 1:
        raise RankwellError(f"k must be at least 1, not {k}")
    if share == 1:
        return dense.search(queries, index, k)
    return fuse(search_both(index, dense, queries, bm25, k=k, threads=threads), shares, depth=k, name="hybrid")


def search_both(
    index: Index,
    dense: DenseRanker,
    queries: Sequence[Query],
    bm25: BM25 = DEFAULT_BM25,
    *,
    k: int = DEEP,
    threads: int = 1,
) -> dict[str, Run]:
    """BM25's run and the bi-encoder's, as :func:`~rankwell.rank.fusion.fuse` takes them.

    Each goes at least 1,000 documents deep, however few are requested, because scores are standardised over them.
    """
    deep = max(k, DEEP)
    return {
        "first": index.search(queries, bm25, k=deep, threads=threads),
        "similarity": dense.search(queries, index, deep),
    }


def tune_hybrid(
    index: Index,
    dense: DenseRanker,
    queries: Sequence[Query],
    qrels: Qrels,
    bm25: BM25 = DEFAULT_BM25,
    *,
    measure: str = "RR@10",
    step: float = 0.1,
    folds: int = 5,
    seed: int = 0,
    threads: int = 1,
) -> Tuned[Shares]:
    """The bi-encoder's share that ranks best on judged queries; 0 where BM25 is better alone."""
    judged = [query for query in queries if query.qid in qrels]
    known = Qrels({query.qid: qrels[query.qid] for query in judged})
    runs = search_both(index, dense, judged, bm25, threads=threads)
    return tune_fusion(runs, known, share_grid(list(runs), step), measure=measure, folds=folds, seed=seed)


def share_table(tuned: Tuned[Shares]) -> str:
    """The figures of :func:`tune_hybrid` as text."""

    def option(shares: Shares) -> str:
        return f"--hybrid {shares.similarity:g}" if shares.similarity else "BM25 alone"

    return tuned.table("the bi-encoder's share", lambda shares: shares.similarity, name=option)


def shares_tried(tuned: Tuned[Shares]) -> dict[str, Any]:
    """The figures of :func:`tune_hybrid` for a JSON file."""
    means = sorted((shares.similarity, mean) for shares, mean in zip(tuned.settings, tuned.means, strict=True))
    return {
        "share": tuned.best.similarity,
        "cross_validated": tuned.cross_validated,
        "grid": [{"share": share, "mean": mean} for share, mean in means],
    }


@dataclass(frozen=True)
class Hybrid(First):
    """BM25 and a bi-encoder over an index; ``share`` is the bi-encoder's.

    Hybrid(index, encoder="rankwell-mini", share=0.7) % 100 >> Rerank(ranker)
    """

    encoder: DenseRanker | BiEncoder | str = field(kw_only=True, repr=False)
    share: float = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        Shares.hybrid(self.share)
        _open_encoder(self)

    def apply(self, state: StageInput) -> Run:
        """Search."""
        dense = _opened(self.encoder)
        return search_hybrid(
            self.index, dense, state.queries, self.share, self.bm25, k=self.depth, threads=self.threads
        )


@dataclass(frozen=True)
class Blend(ReadingStage):
    """Add a bi-encoder's similarity to the scores of the stage before it.

        First(index) >> Rerank(ranker) % 100 >> Blend("rankwell-mini", 0.3)

    ``share`` is the bi-encoder's, or :class:`~rankwell.rank.fusion.Shares` in which the first stage may have one, too.
    """

    encoder: DenseRanker | BiEncoder | str = field(repr=False)
    share: float | Fusion = 0.5
    texts: Texts | None = field(default=None, repr=False)
    depth: int = 1000
    runs: ClassVar[tuple[str, ...]] = ("model", "similarity", "first")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fusion.check_runs(self.runs)
        _open_encoder(self)

    @property
    def fusion(self) -> Fusion:
        """The shares themselves."""
        return Shares.beside_model(similarity=self.share) if isinstance(self.share, int | float) else self.share

    def apply(self, state: StageInput) -> Run:
        """Compare and fuse."""
        run = state.run.head(self.depth)
        similarity = _opened(self.encoder).rerank(run, state.queries, self.texts_of(state), depth=self.depth)
        return fuse_reranked(state.first, run, self.fusion, similarity)


def _open_encoder(stage: Hybrid | Blend) -> None:
    """Load a bi-encoder that is given by name, once for this stage and for copies of it with another depth."""
    if not isinstance(stage.encoder, DenseRanker):
        object.__setattr__(stage, "encoder", DenseRanker(stage.encoder))


def _opened(encoder: DenseRanker | BiEncoder | str) -> DenseRanker:
    assert isinstance(encoder, DenseRanker)
    return encoder
