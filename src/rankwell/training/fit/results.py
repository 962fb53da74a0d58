"""What a fit tries and finds: steps as they are declared, their plans and results, and the best results so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rankwell.corpus.records import Query, Run
from rankwell.evaluation.compare import Contrast
from rankwell.models.checkpoints.names import find_model
from rankwell.rank.fusion import before_rest
from rankwell.rank.system import System
from rankwell.training.fit.split import only
from rankwell.training.fit.task import FitTask, K


@dataclass(frozen=True)
class Plan:
    """What a step would do in the time that is left, and the seconds it may take."""

    seconds: float = 0.0
    start: str = ""
    """The bi-encoder that training starts from."""
    sample: int | None = None
    """How many of the queries to fit it trains on; None for all."""
    folds: int = 1
    """How many folds it is trained on, and then once more on all queries; 1 for the plain split."""
    depth: int = 0
    count: int = 0
    """A re-ranker as it is reads so many documents of each of so many queries."""


def free(task: FitTask, bests: Bests, left: float) -> Plan:
    """The plan of a step that takes no time worth an estimate."""
    return Plan()


@dataclass(frozen=True)
class Step:
    """How a result is made from the one it stands on, what it has to beat, and what it then replaces.

    A plan is made of what is known and changes nothing; it is None where the step has nothing to gain. ``beats`` and
    ``replaces`` name results of :class:`Bests`.
    """

    name: str
    title: str
    make: Callable[[FitTask, Result, Plan], Result]
    plan: Callable[[FitTask, Bests, float], Plan | Skipped | None] = free
    stands_on: Literal["search", "candidates"] = "search"
    beats: tuple[str, ...] = ("best",)
    replaces: tuple[str, ...] = ("best", "search", "candidates")
    quick: bool = False
    """Whether it is tried before anything is timed."""
    given: bool = False
    """Whether it is there without fitting: others have to be better than it, and it stays unless it is shown to be
    worse."""
    cautious: bool = False
    """Whether what it fits beside a bi-encoder moves so little that it only has to be better, not shown to be."""
    model: str = ""
    """The bi-encoder that it tries as it is, if training can start from it."""

    @property
    def tested(self) -> bool:
        """Whether it has to be shown to be better, and so uses up some of the level."""
        return not self.given and not self.cautious


UNNAMED = Step("", "", lambda task, below, plan: below)


@dataclass(frozen=True)
class Skipped:
    """Why a step was not tried, or not finished; ``late`` if for lack of time."""

    reason: str
    late: bool = False
    outcome: Literal["skipped", "failed"] = "skipped"
    step: Step = UNNAMED


@dataclass(frozen=True, eq=False)
class Result:
    """A system that was tried, its run of judged queries it was not fitted to, and the stages that made it.

    ``engine``: it re-ranks what the user's engine returns. ``count`` says how many of the judged queries it is
    measured on: the first ones, 0 for all it can be, and ``mean`` is its mean there. ``key`` names it in the work
    folder. ``contrast`` compares it with what it has to beat, and ``level`` is what its p must be below; ``kept`` says
    whether it is better, and ``becomes`` names what it replaces. ``report`` is its run of the queries to report, if it
    was the best for a while. ``doubling`` is the gain from the last doubling of the queries that were trained on, and
    its interval. ``estimated`` are the seconds that it was expected to take. ``folds`` are the bi-encoders that ranked
    the judged queries, each those of the fold it had not seen.
    """

    system: System
    run: Run
    stages: Mapping[str, Any] = field(default_factory=dict)
    count: int = 0
    engine: bool = False
    step: Step = UNNAMED
    start: str = ""
    key: str = ""
    milliseconds: float = 0.0
    seconds: float = 0.0
    estimated: float = 0.0
    mean: float = 0.0
    contrast: Contrast | None = None
    level: float = 0.0
    kept: bool = True
    becomes: tuple[str, ...] = ()
    report: Run | None = None
    doubling: tuple[float, float, float] | None = None
    folds: Sequence[str] = ()

    @property
    def is_engine(self) -> bool:
        """Whether it is what the user's engine returns, and nothing else."""
        return self.engine and not self.system.engine and self.system.ranker is None

    @property
    def settings(self) -> tuple[Any, ...]:
        """What its answers depend on; two results with equal settings are the same system."""
        system, first = self.system, self.system.first_stage
        encoder = find_model(first.encoder or FitTask.shipped).resolve() if first.encodes else None
        searched = (first.index.analyzer, first.bm25, encoder, first.share, first.words)
        ranker = None if system.ranker is None else (Path(str(system.ranker)).resolve(), system.depth, system.shares)
        return (self.engine, system.engine, ranker, () if self.is_engine else searched)

    def answer(self, task: FitTask, queries: Sequence[Query]) -> Run:
        """The best documents of each query."""
        if not self.engine:
            return self.system.search(queries, K, threads=task.threads)
        found = self.system.join(only(task.engine or Run(), queries), queries)
        return found if self.system.ranker is None else before_rest(self.system.rerank(found, queries), found)

    def describe(self) -> str:
        """What searches and what re-ranks, in one line."""
        if self.is_engine:
            return "your engine"
        if not self.engine or self.system.engine:
            return self.system.describe()
        return f"your engine, its best {self.system.depth} re-ranked ({self.system.shares or 'alone'})"


@dataclass(frozen=True, eq=False)
class Bests:
    """The best results so far. ``base`` is what has to be beaten: the user's engine, or the best without fitting."""

    best: Result
    base: Result
    search: Result
    """The best that searches by itself."""
    candidates: Result
    """The best that nothing re-ranked; the user's engine has the system of ``search``, and so a bi-encoder."""
    tuned: Result | None = None
    """Tuned settings. Training tunes settings, too, so it has to gain more than they do alone."""
    trained: Result | None = None
    """The bi-encoder that was trained, from whose start a re-ranker is trained, too."""
    small: Result | None = None
    """The small bi-encoder that a larger one taught, which is saved as a system of its own."""
    means: Mapping[str, float] = field(default_factory=dict)
    """The mean of each bi-encoder that was measured as it is."""

    @classmethod
    def begin(cls, own: Result, theirs: Result | None = None) -> Bests:
        """BM25, and the results of the user's engine, if there are any."""
        best = own if "best" in own.becomes or theirs is None else theirs
        return cls(best, theirs or own, own, _with_search(best, own))

    def after(self, result: Result) -> Bests:
        """The best results after one more."""
        new: dict[str, Any] = dict.fromkeys(result.becomes, result)
        if result.step.given and "best" in result.becomes and not self.base.engine:
            new["base"] = result
        if result.step.model and result.count:
            new["means"] = {**self.means, result.step.model: result.mean}
        after = replace(self, **new)
        return replace(after, candidates=_with_search(after.candidates, after.search))

    def below(self, step: Step) -> Result:
        """What a step stands on."""
        return self.search if step.stands_on == "search" else self.candidates

    @property
    def starts(self) -> list[str]:
        """The bi-encoders that training can start from, the best first."""
        if self.trained is not None:
            return [self.trained.start]
        return sorted(self.means, key=self.means.__getitem__, reverse=True) or [FitTask.shipped]


def _with_search(best: Result, search: Result) -> Result:
    """The user's engine with a system that searches; other results as they are."""
    if not best.is_engine:
        return best
    count = search.count if search.folds else best.count
    key = f"{best.key.partition('+')[0]}+{search.key}"
    return replace(best, system=search.system, folds=search.folds, count=count, key=key)
