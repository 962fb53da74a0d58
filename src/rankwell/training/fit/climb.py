"""The steps of a fit, one after the other: each is made, measured, and kept only if it is better than what was kept.

A finished step is stored in the work folder under a hash of what it stands on, so an interrupted fit resumes with the
step it was at. A step that fails is left out, and is tried again if the fit is resumed.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from rankwell.core.errors import RankwellError, WriteError
from rankwell.core.native import working_time
from rankwell.core.progress import duration
from rankwell.core.stopping import TimeIsUp, interruptible, time_limit
from rankwell.corpus.records import Query
from rankwell.training.fit import finished, judge
from rankwell.training.fit.judge import figure_of, mean_of, p_value
from rankwell.training.fit.results import Bests, Plan, Result, Skipped, Step
from rankwell.training.fit.speed import NotTimedError
from rankwell.training.fit.split import Part
from rankwell.training.fit.steps import BASE, ENGINE, all_steps
from rankwell.training.fit.task import FitTask

GIVEN_TRY, GIVEN_TIME = 1.2, 0.8
"""A step that is there without fitting is tried up to this multiple of the time left, and stopped after this part."""
SAVING = 0.03
"""The part of the time that is kept for writing the system and its report."""
LEAST_FOUND = 0.1
"""The mean of the measure with which titles or headings must find their documents."""
TIMED_QUERIES, TIMED_SECONDS = 20, 5.0
"""How many queries are timed one by one, and for how long at most, or in a hundredth of the time if that is less."""

Say = Callable[[str], None]


@dataclass
class Clock:
    """The time that is left of the given seconds. Finished steps of an interrupted fit count, compiling does not."""

    seconds: float
    begin: float = field(default_factory=working_time)
    before: float = 0.0

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.seconds - self.before - (working_time() - self.begin)


@dataclass(frozen=True, eq=False)
class Climb:
    """All steps in order, whether kept or not, and the best of their results."""

    task: FitTask
    tried: tuple[Result | Skipped, ...]
    bests: Bests

    @property
    def results(self) -> list[Result]:
        """The steps that were measured."""
        return [tried for tried in self.tried if isinstance(tried, Result)]

    @property
    def skipped(self) -> list[Skipped]:
        """The steps that were not measured."""
        return [tried for tried in self.tried if isinstance(tried, Skipped)]

    @property
    def saved(self) -> Result:
        """What is saved: the best system or, if nothing is better than the user's engine, the best beside it."""
        return self.bests.search if self.bests.best.is_engine else self.bests.best

    @property
    def reported(self) -> Part:
        """The queries of the report."""
        return self.task.parts.reported(self.bests.best.count)

    @property
    def cross_validated(self) -> float | None:
        """The measure of the best system where each query is ranked by settings chosen without it.

        None where its settings were not chosen on the queries of the report.
        """
        best, judged = self.bests.best, self.task.parts.judged
        if best.step.given or self.reported is not judged:
            return None
        return mean_of(judged.head(best.count), best.run, self.task.measure)

    @property
    def doubling(self) -> str | None:
        """What twice the judged queries would likely bring, in a sentence; None if that was not measured."""
        found = next((result.doubling for result in self.results if result.doubling is not None), None)
        if found is None:
            return None
        gain, low, high = found
        likely = f"Twice the judged queries would likely bring about {gain:+.3f} {self.task.measure}"
        half = "as the last doubling did (an adapter, trained on half of them and on all)."
        return f"{likely} [{low:+.3f}, {high:+.3f}], {half}"


def climb(task: FitTask, clock: Clock, say: Say) -> Climb:
    """Try the steps that there is time for. Errors in the lowest end the fit; a higher one that fails is left out."""
    tried, bests = _begin(task, clock, say)
    seen = set[str]()
    steps, told, level = all_steps(task), False, judge.LEVEL
    for place, step in enumerate(steps):
        task.speed.left = min(task.speed.left, clock.left)
        if not step.quick and not told:
            told = True
            late = [skipped.step for skipped in tried if isinstance(skipped, Skipped) and skipped.late]
            for line in outlook(task, clock, [*late, *steps[place:]], bests):
                say(line)
        key = finished.key_of(step, bests)
        # The level that is left, in equal shares for the steps to come that are tested.
        share = level / max(1, sum(later.tested for later in steps[place:]))
        if seen & {key, step.name} or (outcome := _try(task, clock, step, bests, say, share)) is None:
            continue
        tried.append(outcome)
        if isinstance(outcome, Skipped):
            seen.add(step.name)
            say(f"  – {step.title}: {outcome.outcome}, {outcome.reason}")
        else:
            seen.add(key)
            bests = bests.after(outcome)
            level -= 0.0 if outcome.kept else outcome.level  # what is kept hands its share on
            say(line_of(outcome, task))
        if step.given and task.queries_from is not None:
            _check_headings(task, bests.base)
    return Climb(task, tuple(tried), bests)


def _begin(task: FitTask, clock: Clock, say: Say) -> tuple[list[Result | Skipped], Bests]:
    """The user's engine, where its results are known, and BM25."""
    results, bests = list[Result](), None
    for step in (ENGINE, BASE) if task.engine is not None and len(task.parts.judged) else (BASE,):
        results.append(_read(task, clock, step, bests) or _make(task, step, bests, Plan()))
        bests = Bests.begin(results[-1], *results[:-1])
        say(line_of(results[-1], task))
    assert bests is not None
    return [*results], bests


def _check_headings(task: FitTask, base: Result) -> None:
    """Raise if titles or headings hardly find their documents: what is fitted to them would do harm."""
    if base.mean < LEAST_FOUND:
        kind, found = task.queries_from, f"{task.measure} {base.mean:.3f} with {base.step.title}"
        problem = f"the {kind} do not find their documents ({found}), so they cannot be used as queries"
        raise RankwellError(f"--queries-from {kind}: {problem}; leave the option out")


def _try(task: FitTask, clock: Clock, step: Step, bests: Bests, say: Say, level: float) -> Result | Skipped | None:
    """The result of a step, or why it was left out; None if nothing is to be gained."""
    if (result := _read(task, clock, step, bests, level)) is not None:
        return result
    try:
        # Its own handler of Ctrl-C, so that an error that native code makes of it does not count as a failure.
        with interruptible():
            plan = planned(task, step, bests, clock.left)
            if not isinstance(plan, Plan):
                return plan
            sample = f", trained on {plan.sample:,} of {len(task.parts.fit):,} queries" if plan.sample else ""
            folds = f", trained on {plan.folds} folds and on all queries" if plan.folds > 1 else ""
            say(f"  … {step.title}{sample}{folds}")
            with time_limit(clock.left * (GIVEN_TIME if step.given else 1), working_time):
                return _make(task, step, bests, plan, level)
    except TimeIsUp:
        return Skipped("the time was up before it was finished", late=True, step=step)
    except Exception as error:
        if (reason := _failure(error)) is None:
            raise
    gc.collect()  # what the failed step held is free only now
    torch.cuda.empty_cache()
    return Skipped(reason, outcome="failed", step=step)


def _failure(error: Exception) -> str | None:
    """Why a step failed; None for an error that ends the fit.

    Where a step cannot be written, the system cannot be saved either.
    """
    if isinstance(error, RankwellError):
        return None if isinstance(error, WriteError) else str(error)
    on_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)  # torch has no class for it
    if on_cpu or isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "it ran out of memory"
    return None


def planned(task: FitTask, step: Step, bests: Bests, left: float) -> Plan | Skipped | None:
    """The plan of a step, or why it cannot be tried; None if nothing is to be gained."""
    try:
        with interruptible():
            plan = step.plan(task, bests, left)
    except RankwellError as error:
        plan = Skipped(str(error), late=isinstance(error, NotTimedError))
    if isinstance(plan, Plan) and plan.seconds > left * (GIVEN_TRY if step.given else 1):
        plan = Skipped(f"it needs about {duration(plan.seconds)}, and {duration(left)} are left", late=True)
    if isinstance(plan, Skipped) and plan.late and left <= 0:
        plan = Skipped("the time is up", late=True)
    return replace(plan, step=step) if isinstance(plan, Skipped) else plan


def outlook(task: FitTask, clock: Clock, steps: Sequence[Step], bests: Bests) -> list[str]:
    """Which of the next steps there is time for, and what one more would need: two lines at most."""
    left, possible, lacking = clock.left, list[str](), list[tuple[str, float]]()
    for step in dict.fromkeys(steps):
        try:
            plan = step.plan(task, bests, left)
        except RankwellError:  # said when it is tried
            continue
        if not isinstance(plan, Plan):
            continue
        if plan.seconds > left:
            lacking.append((step.title, plan.seconds))
            continue
        left -= plan.seconds
        possible.append(step.title)
    if not lacking:
        return []
    title, needed = lacking[0]
    more = math.ceil((clock.seconds - left + needed) / 60 / (1 - SAVING))
    lines = [f"this machine has time for: {', '.join(possible)}"] if possible else []
    return [*lines, f"--minutes {more} would add: {title}"]


# Making and measuring


def _read(task: FitTask, clock: Clock, step: Step, bests: Bests | None, level: float = 0.0) -> Result | None:
    """The result of a step that was finished before."""
    result = finished.read(task, step, finished.key_of(step, bests))
    if result is None:
        return None
    clock.before += result.seconds
    return judge.judge(task, result, bests, level)


def _make(task: FitTask, step: Step, bests: Bests | None, plan: Plan, level: float = 0.0) -> Result:
    """Make the result of a step, measure it and compare it with the best."""
    begin, key = working_time(), finished.key_of(step, bests)
    below: Any = None if bests is None else bests.below(step)
    made, parts = step.make(task, below, plan), task.parts
    queries = [query for part in (parts.judged, parts.report) for query in part.queries]
    milliseconds = 0.0 if made.is_engine else _milliseconds(task, made, queries[:TIMED_QUERIES])
    counts = [made.count or len(parts.judged)]
    counts += [] if bests is None else [below.count, bests.best.count]
    made = replace(made, step=step, key=key, start=plan.start, milliseconds=milliseconds, estimated=plan.seconds)
    result = replace(made, count=min(counts))
    result = judge.judge(task, result, bests, level)
    if len(parts.report) and {"best", "small"}.intersection(result.becomes):
        # Of what was fitted, the run has the settings of each fold; reported is what the saved system finds.
        result = replace(result, report=result.answer(task, parts.reported(result.count).queries))
    result = replace(result, seconds=working_time() - begin)
    finished.write(task, result)
    return result


def _milliseconds(task: FitTask, result: Result, queries: Sequence[Query]) -> float:
    """The median time of a search with one query, after a warm-up; 0 if there are no queries."""
    times: list[float] = []
    for query in [*queries[:1], *queries]:
        begin = time.perf_counter()
        if result.engine:
            result.answer(task, [query])
        else:
            result.system.search(query.text, 10)
        times.append(1000 * (time.perf_counter() - begin))
        if sum(times[1:]) > 1000 * min(TIMED_SECONDS, 0.6 * task.minutes):
            break
    return statistics.median(times[1:] or times or [0.0])


def line_of(result: Result, task: FitTask) -> str:
    """What is said of a step that was measured."""
    line = f"  {'✓' if result.kept else '·'} {result.step.title:<28}"
    if result.count:
        line += f" {task.measure} {figure_of(task.parts.judged.head(result.count), result.run, task.measure)}"
        line += f" on {result.count:,} queries" if result.count < len(task.parts.judged) else ""
    if (contrast := result.contrast) is not None:
        needed = f" (needs {p_value(result.level)})" if result.level and contrast.difference > 0 else ""
        stays = "not shown to be worse" if "best" in result.becomes else f"not kept{needed.replace('= ', '< ')}"
        line += f"  {contrast.difference:+.3f}, p {p_value(contrast.p)}{'' if result.kept else f', {stays}'}"
    elif not result.kept:
        line += "  the same settings as before"
    timed = f"{result.milliseconds:.0f} ms a query, " if result.milliseconds else ""
    return f"{line}  {timed}made in {duration(result.seconds)}"
