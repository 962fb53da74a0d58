"""Pipelines: stages that compose in the order they run.

    First(index) >> Rerank(ranker) % 100 >> Fuse(0.3)

``>>`` puts one stage after another; ``stage % n`` sets a stage's depth: the number of documents that a first stage
finds, a re-ranker scores or a fusion returns. A pipeline is checked as a whole before any of it runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.rank.fusion import Fusion, Shares, fuse_reranked
from rankwell.rank.rankers import Reranker
from rankwell.rank.texts import Texts
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.retrieve.index import Index


@dataclass(frozen=True, eq=False)
class StageInput:
    """The input of a stage: the queries, the first stage's run, and the run of the stage before it."""

    queries: tuple[Query, ...]
    first: Run = field(default_factory=Run)
    run: Run = field(default_factory=Run)
    texts: Texts | None = None


@dataclass(frozen=True)
class Stage(ABC):
    """One step of a pipeline."""

    finds: ClassVar[bool] = False
    """Whether it finds candidates itself, or needs those of a stage before it."""

    def __post_init__(self) -> None:
        depth = getattr(self, "depth", None)
        if depth is not None and depth < 1:
            raise RankwellError(f"{type(self).__name__} has a depth of {depth}; expected 1 or more")

    @abstractmethod
    def apply(self, state: StageInput) -> Run:
        """The run of this stage."""

    def check(self, before: tuple[Stage, ...]) -> None:
        """Raise unless this stage can follow those ``before``."""
        name = type(self).__name__
        if not before and not self.finds:
            raise RankwellError(f"{name} cannot come first, it needs candidates: begin with First(index) or Given(run)")
        if before and self.finds:
            raise RankwellError(f"{name} must come first: it would replace the run of {type(before[-1]).__name__}")

    def __rshift__(self, after: Stage | Pipeline) -> Pipeline:
        return Pipeline((self,)) >> after

    def __mod__(self, depth: int) -> Self:
        if "depth" not in self.__dataclass_fields__:
            raise RankwellError(f"{type(self).__name__} has no depth")
        # mypy does not know that this class has the field.
        changes: dict[str, Any] = {"depth": depth}
        return replace(self, **changes)


@dataclass(frozen=True)
class Pipeline:
    """Stages in their order.

    >>> pipeline = First(index) >> Rerank(ranker) % 100               # doctest: +SKIP
    >>> pipeline.search("how do bees keep warm", k=10)                # doctest: +SKIP
    >>> pipeline.run(read_queries("queries.tsv"))                     # doctest: +SKIP
    """

    stages: tuple[Stage, ...]

    def __rshift__(self, after: Stage | Pipeline) -> Pipeline:
        if isinstance(after, Pipeline):
            return Pipeline((*self.stages, *after.stages))
        return Pipeline((*self.stages, after)) if isinstance(after, Stage) else NotImplemented

    def __mod__(self, depth: int) -> Pipeline:
        """The best ``depth`` of the pipeline's results; ``first >> (rerank % depth)`` limits the last stage's input."""
        return self >> Cut(depth)

    def __str__(self) -> str:
        return " >> ".join(map(str, self.stages))

    def check(self) -> None:
        """Raise unless every stage gets the input it needs."""
        if not self.stages:
            raise RankwellError("a pipeline without stages; begin with First(index) or Given(run)")
        for place, stage in enumerate(self.stages):
            stage.check(self.stages[:place])

    def run(self, queries: Iterable[Query], *, name: str = "rankwell") -> Run:
        """The last stage's run."""
        self.check()
        source, *later = self.stages
        state = StageInput(tuple(queries))
        first = source.apply(state)
        state = replace(state, first=first, run=first, texts=source.index if isinstance(source, First) else None)
        for stage in later:
            state = replace(state, run=stage.apply(state))
        return Run(state.run, name=name)

    def search(self, text: str, k: int = 10, *, type: str | None = None) -> Ranking:
        """The best ``k`` documents for one question; ``type`` is the kind of answer it asks for, if known."""
        if self.stages and isinstance(self.stages[0], Given):
            raise RankwellError("Given(run) has results only for its own queries; begin with First(index) to search")
        return self.run([Query("q", text, type)]).get("q", Ranking.of([], [])).head(k)


@dataclass(frozen=True)
class First(Stage):
    """BM25 over an index."""

    index: Index
    depth: int = 1000
    bm25: BM25 = DEFAULT_BM25
    threads: int = 1
    finds: ClassVar[bool] = True

    def apply(self, state: StageInput) -> Run:
        """Search."""
        return self.index.search(state.queries, self.bm25, k=self.depth, threads=self.threads)


@dataclass(frozen=True)
class Given(Stage):
    """An existing run, from any system, restricted to the queries of the pipeline."""

    candidates: Run = field(repr=False)
    finds: ClassVar[bool] = True

    def apply(self, state: StageInput) -> Run:
        """The run itself."""
        qids = [query.qid for query in state.queries if query.qid in self.candidates]
        return Run({qid: self.candidates[qid] for qid in qids}, name=self.candidates.name)


@dataclass(frozen=True)
class ReadingStage(Stage):
    """A stage that reads documents: from its own ``texts``, or else from the index of the first stage."""

    def check(self, before: tuple[Stage, ...]) -> None:
        """Also that there are texts to read."""
        super().check(before)
        if self._own_texts is None and not (isinstance(before[0], First) and before[0].index.has_texts):
            name = type(self).__name__
            raise RankwellError(f"{name} has no texts to read: pass texts=, or build the index with its texts")

    @property
    def _own_texts(self) -> Texts | None:
        # Each stage declares ``texts`` itself, at its place among the positional arguments.
        texts: Texts | None = getattr(self, "texts", None)
        return texts

    def texts_of(self, state: StageInput) -> Texts:
        """The texts to read."""
        texts = self._own_texts or state.texts
        assert texts is not None  # checked
        return texts


@dataclass(frozen=True)
class Rerank(ReadingStage):
    """The first ``depth`` candidates in a model's order; those below are left out."""

    ranker: Reranker
    texts: Texts | None = field(default=None, repr=False)
    depth: int = 1000

    def apply(self, state: StageInput) -> Run:
        """Score and sort."""
        return self.ranker.rerank(state.run, state.queries, self.texts_of(state), depth=self.depth)


@dataclass(frozen=True)
class Fuse(Stage):
    """Fuse the first stage's run with that of the stage before; ``share`` is the first stage's.

    Instead of a share it takes :class:`~rankwell.rank.fusion.Shares` of ``model`` and ``first``, or a
    :class:`~rankwell.rank.fusion.RankFusion`.
    """

    share: float | Fusion = 0.5
    depth: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fusion.check_runs(("first", "model"))

    @property
    def fusion(self) -> Fusion:
        """The shares themselves."""
        return Shares.beside_model(first=self.share) if isinstance(self.share, int | float) else self.share

    def check(self, before: tuple[Stage, ...]) -> None:
        """Also that there are two runs."""
        super().check(before)
        if len(before) < 2:
            raise RankwellError("Fuse has only one run: it fuses the first stage's with that of a later stage")

    def apply(self, state: StageInput) -> Run:
        """Fuse."""
        return fuse_reranked(state.first, state.run, self.fusion, depth=self.depth)


@dataclass(frozen=True)
class Cut(Stage):
    """The best ``depth`` of each query."""

    depth: int

    def apply(self, state: StageInput) -> Run:
        """Cut."""
        return state.run.head(self.depth)
