"""Pipelines: stages are values that compose, in the order they run.

    First(index) >> Rerank(ranker) % 100 >> Fuse(0.8)

``>>`` puts one stage after another; ``stage % n`` says how deep a stage goes: how many documents the first finds, a
re-ranker looks at, a fusion keeps. A pipeline is checked as a whole before any of it runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.rank.duo import DuoOptions, rerank_duo
from rankwell.rank.fusion import Fusion, fuse, interpolation
from rankwell.rank.ranker import Ranker
from rankwell.rank.rankers import Reranker
from rankwell.rank.texts import Texts
from rankwell.retrieve.index import Index


@dataclass(frozen=True, eq=False)
class State:
    """What a stage is given: the queries, the first stage's run, and the run of the stage before it."""

    queries: tuple[Query, ...]
    first: Run = field(default_factory=Run)
    run: Run = field(default_factory=Run)
    texts: Texts | None = None


@dataclass(frozen=True)
class Stage(ABC):
    """One step of a pipeline."""

    finds: ClassVar[bool] = False
    """Whether it finds candidates itself, or needs those of a stage before it."""

    @abstractmethod
    def apply(self, state: State) -> Run:
        """The run this stage makes of what it is given."""

    def check(self, before: tuple[Stage, ...]) -> None:
        """Raise where this stage cannot follow those ``before``."""
        name = type(self).__name__
        if not before and not self.finds:
            raise RankwellError(f"{name} cannot come first, it needs candidates: begin with First(index) or Given(run)")
        if before and self.finds:
            raise RankwellError(f"{name} must come first: what {type(before[-1]).__name__} made would be thrown away")

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
        """The best ``depth`` of what comes out; ``first >> (rerank % depth)`` is what goes into its last stage."""
        return self >> Cut(depth)

    def __str__(self) -> str:
        return " >> ".join(map(str, self.stages))

    def check(self) -> None:
        """Raise where a stage does not get what it needs."""
        if not self.stages:
            raise RankwellError("a pipeline without stages; begin with First(index) or Given(run)")
        for place, stage in enumerate(self.stages):
            stage.check(self.stages[:place])

    def run(self, queries: Iterable[Query], *, name: str = "rankwell") -> Run:
        """The last stage's run."""
        self.check()
        source, *later = self.stages
        state = State(tuple(queries))
        found = source.apply(state)
        state = replace(state, first=found, run=found, texts=source.index if isinstance(source, First) else None)
        for stage in later:
            state = replace(state, run=stage.apply(state))
        return Run(state.run, name=name)

    def search(self, text: str, k: int = 10, *, type: str | None = None) -> Ranking:
        """The best ``k`` documents for one question; ``type`` is the kind of answer it asks for, where known."""
        if self.stages and isinstance(self.stages[0], Given):
            raise RankwellError("a given run answers its own queries only; begin with First(index) to search")
        return self.run([Query("q", text, type)]).get("q", Ranking.of([], [])).head(k)


def _at_least_one(depth: int | None) -> None:
    if depth is not None and depth < 1:
        raise RankwellError(f"a depth of {depth}; expected 1 or more")


@dataclass(frozen=True)
class First(Stage):
    """BM25 over an index; the options are those of :meth:`Index.search <rankwell.retrieve.index.Index.search>`."""

    index: Index
    depth: int = 1000
    k1: float = 0.9
    b: float = 0.4
    k2: float | None = None
    threads: int = 1
    finds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _at_least_one(self.depth)

    def apply(self, state: State) -> Run:
        """Search."""
        return self.index.search(state.queries, k=self.depth, k1=self.k1, b=self.b, k2=self.k2, threads=self.threads)


@dataclass(frozen=True)
class Given(Stage):
    """A run that is there already, from whatever system; of it, the queries that are asked."""

    candidates: Run = field(repr=False)
    finds: ClassVar[bool] = True

    def apply(self, state: State) -> Run:
        """The run itself."""
        asked = [query.qid for query in state.queries if query.qid in self.candidates]
        return Run({qid: self.candidates[qid] for qid in asked}, name=self.candidates.name)


R = TypeVar("R")


def check_texts(stage: Stage, texts: Texts | None, first: Stage) -> None:
    """A stage that reads documents must be given them, or the index of the first stage must keep them."""
    if texts is None and not (isinstance(first, First) and first.index.has_texts):
        name = type(stage).__name__
        raise RankwellError(f"{name} has no texts to read: say {name}(…, texts=texts), or index with the texts kept")


@dataclass(frozen=True)
class _Reader(Stage, Generic[R]):
    """A stage that reads documents: from ``texts``, or else from the index of the first stage."""

    ranker: R
    texts: Texts | None = field(default=None, repr=False)

    def check(self, before: tuple[Stage, ...]) -> None:
        """Also that there are texts to read."""
        super().check(before)
        check_texts(self, self.texts, before[0])

    def _texts(self, state: State) -> Texts:
        texts = self.texts or state.texts
        assert texts is not None  # checked
        return texts


@dataclass(frozen=True)
class Rerank(_Reader[Reranker]):
    """The first ``depth`` candidates in a model's order; those below are left out."""

    depth: int = 1000

    def __post_init__(self) -> None:
        _at_least_one(self.depth)

    def apply(self, state: State) -> Run:
        """Score and sort."""
        return self.ranker.rerank(state.run, state.queries, self._texts(state), depth=self.depth)


@dataclass(frozen=True)
class Duo(_Reader[Ranker]):
    """The first ``depth`` candidates compared two by two; those below keep their order beneath."""

    depth: int = 30
    aggregate: str = "sum"
    samples: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        self.options  # noqa: B018  (checks them)

    @property
    def options(self) -> DuoOptions:
        """The same, as :func:`~rankwell.rank.duo.rerank_duo` takes it."""
        return DuoOptions(self.depth, self.aggregate, self.samples, self.seed)

    def apply(self, state: State) -> Run:
        """Compare and sort."""
        return rerank_duo(self.ranker, state.run, state.queries, self._texts(state), self.options)


@dataclass(frozen=True)
class Fuse(Stage):
    """α · the first stage's run + (1−α) · the latest one, or any other fusion of the two."""

    how: float | Fusion = 0.5
    depth: int | None = None

    def __post_init__(self) -> None:
        _at_least_one(self.depth)
        if len(self.fusion.weights) != 2:
            raise RankwellError(
                f"{len(self.fusion.weights)} weights; a pipeline fuses two runs, the first and the last"
            )

    @property
    def fusion(self) -> Fusion:
        """The fusion itself, min-max where only α was given."""
        return self.how if isinstance(self.how, Fusion) else interpolation(self.how)

    def check(self, before: tuple[Stage, ...]) -> None:
        """Also that there are two runs."""
        super().check(before)
        if len(before) < 2:
            raise RankwellError("Fuse has one run only: it joins the first stage's with that of a later stage")

    def apply(self, state: State) -> Run:
        """Fuse."""
        return fuse([state.first, state.run], self.fusion, depth=self.depth)


@dataclass(frozen=True)
class Cut(Stage):
    """The best ``depth`` of each query."""

    depth: int

    def __post_init__(self) -> None:
        _at_least_one(self.depth)

    def apply(self, state: State) -> Run:
        """Cut."""
        return state.run.head(self.depth)
