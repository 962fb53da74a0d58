"""Climbing the steps: each step is made, measured, and kept only if it is better than what was kept below it.

A finished step is stored in the work folder under a hash of the steps it stands on, so an interrupted fit resumes with
the step it was at. A step that fails is left out, and is tried again if the fit is resumed.
"""

from __future__ import annotations

import gc
import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from rankwell.core.errors import InputError, RankwellError, WriteError
from rankwell.core.files import atomic_folder
from rankwell.core.manifest import digest, read_object, write_json
from rankwell.core.native import working_time
from rankwell.core.progress import duration
from rankwell.core.stopping import TimeIsUp, interruptible, time_limit
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Query, Run
from rankwell.evaluation.compare import compare
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.significance import Interval, mean_interval
from rankwell.models.devices import Computing
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.retrieve.tune import built_with
from rankwell.training.fit.split import SET_ASIDE, Part, Parts
from rankwell.training.fit.steps import (
    ANALYSER,
    BASE,
    DEFAULT_SHARE,
    ENGINE,
    TEXTS,
    Result,
    Step,
    all_steps,
    bm25,
    can_be_trained,
    engine,
    is_larger,
)
from rankwell.training.fit.task import FitTask

LEVEL = 0.05
GIVEN_TRY, GIVEN_TIME = 1.2, 0.8
"""A step that is there without fitting is tried up to this multiple of the time left, and stopped after this part."""
TRAINED_MORE = 1.2
"""A step that trains is given so many times its estimate: if it is stopped, all of its work is lost."""
LEAST_SAMPLE = 1000
"""Where the time is short, a step trains on at least so many queries; with 700, a bi-encoder is no better than
an adapter that saw them all."""
SAVING = 0.03
"""The part of the time that is kept for writing the system and its report."""
RECORD = "step.json"
TIMED_QUERIES, TIMED_SECONDS = 20, 5.0
"""How many queries are timed one by one, and for how long at most."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Skipped:
    """A step that was not tried, or not finished, and why; ``late`` if for lack of time."""

    step: Step
    reason: str
    late: bool = False
    outcome: Literal["skipped", "failed"] = "skipped"


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
    """All steps in order, whether kept or not, and the best that does without the user's engine."""

    tried: tuple[Result | Skipped, ...]
    own: Result

    @property
    def results(self) -> list[Result]:
        """The steps that were measured."""
        return [result for result in self.tried if isinstance(result, Result)]

    @property
    def best(self) -> Result:
        """The last step that was kept."""
        return next(result for result in reversed(self.results) if result.kept)

    @property
    def system(self) -> System:
        """What is saved: the best system or, if nothing is better than the user's engine, the best beside it."""
        return (self.own if self.best.step is ENGINE else self.best).system

    @property
    def small(self) -> Result | None:
        """The small bi-encoder that a larger one taught, if that was done: it is saved as a system of its own."""
        return next((result for result in self.results if result.step.kind == "beside"), None)

    @property
    def base(self) -> Result:
        """What has to be beaten: the user's engine, or else the last step kept that is there without fitting."""
        if self.results[0].engine:
            return self.results[0]
        return next(result for result in reversed(self.results) if result.kept and result.step.given)

    def reported(self, parts: Parts) -> Part:
        """The queries of the report: all judged ones, cross-validated, if only settings were fitted to them."""
        all_held_out = parts.source == SET_ASIDE and self.best.count == len(parts.judged)
        return parts.judged if all_held_out else parts.report

    @property
    def late(self) -> bool:
        """Whether steps were skipped for lack of time."""
        return any(skipped.late for skipped in self.skipped)

    def doubling(self, measure: str) -> str | None:
        """What twice the judged queries would likely bring, in a sentence; None if that was not measured."""
        found = next((result.doubling for result in self.results if result.doubling is not None), None)
        if found is None:
            return None
        gain, low, high = found
        likely = f"Twice the judged queries would likely bring about {gain:+.3f} {measure} [{low:+.3f}, {high:+.3f}]"
        return f"{likely}, as the last doubling did (an adapter, trained on half of them and on all)."

    @property
    def skipped(self) -> list[Skipped]:
        """The steps that were not measured."""
        return [result for result in self.tried if isinstance(result, Skipped)]


def climb(task: FitTask, clock: Clock, say: Say) -> Climb:
    """Climb as far as the time allows. Errors in the lowest step end the fit; a higher one that fails is left out."""
    theirs = None
    if task.engine is not None and len(task.parts.judged):
        theirs = _make(task, clock, ENGINE, None, None)
        say(line_of(theirs, task))
    own = _make(task, clock, BASE, None, theirs)
    say(line_of(own, task))
    best = own if own.kept or theirs is None else theirs
    below = best  # what re-rankers stand on: the best list that nothing re-ranked
    tried: list[Result | Skipped] = [own] if theirs is None else [theirs, own]
    tuned: Result | None = None
    for step in all_steps(task):
        stands_on = below if step.kind == "rerank" else own
        if _is_needless(step, stands_on, tried):
            continue
        result = _try(task, clock, step, stands_on, best, say)
        if step.name == ANALYSER and isinstance(result, Result) and _judged(task, result, own).kept:
            result = _adopt(task, result)
        if isinstance(result, Result) and result.kept and step.learns == "weights" and tuned is not None:
            # Training tunes settings, too: it has to gain more than they do alone.
            against = _judged(task, result, tuned)
            result = result if against.kept else against
        tried.append(result)
        if isinstance(result, Skipped):
            say(f"  – {step.title}: {result.outcome}, {result.reason}")
            continue
        say(line_of(result, task))
        if step.model and result.count and can_be_trained(step.model):
            task.encoders[step.model], _ = interval_of(task.parts.judged.head(result.count), result.run, task.measure)
        if step.name == "tuned" and not result.kept:
            tuned = result
        beats_tuned = step.learns != "weights" or tuned is None or _judged(task, result, tuned).kept
        if step.kind == "search" and beats_tuned and _judged(task, result, own).kept:
            own = result
        if step.kind != "rerank" and beats_tuned and _judged(task, result, below).kept:
            below = result
        if below.step is ENGINE:  # so that what re-ranks the engine has a bi-encoder
            below = replace(below, system=own.system)
        best = result if result.kept else best
    return Climb(tuple(tried), own)


def _adopt(task: FitTask, result: Result) -> Result:
    """Build the index anew with a step's analyser, for all that follows; recipes find it in its place."""
    if task.index.analyzer != result.system.index.analyzer:
        task.index = built_with(task.index, result.system.index.analyzer, task.index.folder)
    return replace(result, system=result.system.with_index(task.index))


def _is_needless(step: Step, below: Result, tried: Sequence[Result | Skipped]) -> bool:
    """Whether nothing is to be gained: a step made this list or was tried on it, is poor, or its vectors are stored."""
    if step.name == TEXTS and any(
        isinstance(result, Result) and result.step.name.startswith("hybrid") for result in tried
    ):
        return True
    if step.kind == "beside" and not is_larger(below):
        return True
    before = next((result for result in reversed(tried) if result.step.name == step.name), None)
    if isinstance(before, Result):
        return before.key in (_key(step, below), below.key) or (step.kind == "rerank" and not before.kept)
    return before is not None


def _try(task: FitTask, clock: Clock, step: Step, below: Result, best: Result, say: Say) -> Result | Skipped:
    """Make a step from the one below and compare it with the best, or say why it was left out."""
    if task.finished(_key(step, below)).exists():
        return _make(task, clock, step, below, best)
    try:
        # Its own handler of Ctrl-C, so that an error that native code makes of it does not count as a failure.
        with interruptible():
            if (obstacle := _obstacle(task, clock, step, below)) is not None:
                return obstacle
            size = task.samples.get(step.name)
            say(f"  … {step.title}" + (f", trained on {size:,} of {len(task.parts.fit):,} queries" if size else ""))
            with time_limit(clock.left * (GIVEN_TIME if step.given else 1), working_time):
                return _make(task, clock, step, below, best)
    except TimeIsUp:
        return Skipped(step, "the time was up before it was finished", late=True)
    except Exception as error:
        if (reason := _failure(error)) is None:
            raise
    gc.collect()  # what the failed step held is free only now
    torch.cuda.empty_cache()
    return Skipped(step, reason, outcome="failed")


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


def _obstacle(task: FitTask, clock: Clock, step: Step, below: Result) -> Skipped | None:
    """Why a step cannot be tried; None if it can. If the time is short, it trains on fewer queries."""
    if (obstacle := _lacks_queries(task, step)) is not None:
        return obstacle
    try:
        seconds = _seconds(task, step, below, clock.left)
    except RankwellError as error:
        return Skipped(step, str(error))
    if seconds > (left := clock.left) * _tolerance(step):
        needed = f"it needs about {duration(seconds)}"
        return Skipped(step, f"{needed}, and {duration(left)} are left" if left > 0 else "the time is up", late=True)
    return None


def _seconds(task: FitTask, step: Step, below: Result, left: float) -> float:
    """How long a step takes.

    Where the time left is short, training starts from the next best bi-encoder, and then sees fewer and fewer of the
    queries.
    """
    task.samples.pop(step.name, None)
    task.left = left
    more = TRAINED_MORE if step.learns == "weights" else 1.0
    with interruptible():
        seconds, size = more * step.seconds(task, below), len(task.parts.fit) * 4 // 5
        while step.name == "encoder" and seconds > left and len(task.encoders) > 1:
            del task.encoders[task.start]
            seconds = more * step.seconds(task, below)
        while step.learns == "weights" and seconds > left and size >= LEAST_SAMPLE:
            task.samples[step.name], size = size, size * 4 // 5
            seconds = more * step.seconds(task, below)
    return seconds


def _tolerance(step: Step) -> float:
    """How many times the time left a step may need by its estimate."""
    return GIVEN_TRY if step.given else 1.0


def _lacks_queries(task: FitTask, step: Step) -> Skipped | None:
    parts = task.parts
    if step.learns == "weights" and not len(parts.fit):
        return Skipped(step, f"training needs {parts.needed} judged queries, and there are {len(parts.choose)}")
    if step.learns == "settings" and len(parts.judged) < 2:
        return Skipped(step, "there are no judged queries to tune with")
    return None


def plan(task: FitTask, seconds: float) -> list[str]:
    """What this machine can do in the time, and what the next step would need: two lines at most."""
    first = FirstStage(task.index, encoder=task.start, share=DEFAULT_SHARE)
    below = Result(System(first), Run(), {}, len(task.parts.judged))
    spent, possible, lacking = 0.0, ["BM25"], list[tuple[str, float]]()
    for step in dict.fromkeys(all_steps(task)):
        if _lacks_queries(task, step) is not None or (step.name == TEXTS and not lacking):
            continue
        try:
            needed = _seconds(task, step, below, seconds - spent)
        except RankwellError:  # said when it is tried
            continue
        if needed > (seconds - spent) * _tolerance(step):
            lacking.append((step.title, needed))
        else:
            spent += needed
            possible.append(step.title)
    if not lacking:
        return []
    title, needed = lacking[0]
    more = math.ceil((spent + needed) / 60 / (1 - SAVING))
    return [f"this machine has time for: {', '.join(possible)}", f"--minutes {more} would add: {title}"]


# Making and measuring


def _make(task: FitTask, clock: Clock, step: Step, below: Result | None, best: Result | None) -> Result:
    """Make a step from the one below, measure it and compare it with the best, or read what was measured before."""
    key = _key(step, below)
    folder = task.finished(key)
    if folder.exists():
        result = _read(task, step, key, folder)
        clock.before += result.seconds
        return _judged(task, result, best)
    begin = working_time()
    lowest = engine if step is ENGINE else bm25
    made, parts = lowest(task) if below is None else step.make(task, below), task.parts
    queries = [query for part in (parts.judged, parts.report) for query in part.queries]
    milliseconds = 0.0 if step is ENGINE else _milliseconds(task, made, queries[:TIMED_QUERIES])
    counts = (made.count or len(parts.judged), len(parts.choose if made.stages else parts.judged))
    count = min([*counts, *(result.count for result in (below, best) if result is not None)])
    result = _judged(task, replace(made, step=step, key=key, milliseconds=milliseconds, count=count), best)
    if (result.kept or step.kind == "beside") and len(parts.report):
        held_out = parts.judged.head(count).qrels
        report = result.run
        if not set(parts.report.qrels) <= set(held_out):
            report = result.answer(task, parts.report.queries)
        result = replace(result, report=report)
    result = replace(result, seconds=working_time() - begin)
    _write(result, folder)
    return result


def _judged(task: FitTask, result: Result, best: Result | None) -> Result:
    """Decide whether a step is kept: it must be better by a paired test. Without judgments, it is.

    One that is there without fitting, or fitted with caution, is kept unless it is worse, but it has to be better than
    the user's engine.
    """
    if best is None or not result.count:
        return result
    part = task.parts.judged.head(result.count)
    runs = {"before": best.run, "with it": result.run}
    [contrast] = compare(part.qrels, runs, task.measure, baseline="before").contrasts
    cautious = result.step.cautious and result.system.first_stage.share
    given = (result.step.given or cautious) and not best.engine
    shown, better = contrast.p < LEVEL, contrast.difference > 0
    return replace(result, contrast=contrast, kept=better or not shown if given else better and shown)


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
        if sum(times[1:]) > 1000 * TIMED_SECONDS:
            break
    return statistics.median(times[1:] or times or [0.0])


def interval_of(part: Part, run: Run, measure: str) -> tuple[float, Interval]:
    """The mean of a measure and its 95 % interval."""
    values = evaluate(part.qrels, run, [measure]).per_query[measure]
    return float(values.mean()), mean_interval(values)


def line_of(result: Result, task: FitTask) -> str:
    """One line for whoever watches."""
    mark = "✓" if result.kept else "·"
    line = f"  {mark} {result.step.title:<28}"
    if result.count:
        mean, (low, high) = interval_of(task.parts.judged.head(result.count), result.run, task.measure)
        line += f" {task.measure} {mean:.3f} [{low:.3f}, {high:.3f}]"
        line += f" on {result.count:,} queries" if result.count < len(task.parts.judged) else ""
    if (contrast := result.contrast) is not None:
        line += f"  {contrast.difference:+.3f}, p {p_value(contrast.p)}{'' if result.kept else ', not kept'}"
    timed = f"{result.milliseconds:.0f} ms a query, " if result.milliseconds else ""
    return f"{line}  {timed}made in {duration(result.seconds)}"


def p_value(value: float) -> str:
    """A p-value for readers: ``= .012`` or ``< .001``."""
    return "< .001" if value < 0.001 else f"= {value:.3f}".replace("0.", ".")


# Finished steps


def _key(step: Step, below: Result | None) -> str:
    """Names a step by itself and all steps it stands on."""
    name = re.sub(r"[^\w.]+", "-", step.name)
    return f"{name}-{digest([step.name, None if below is None else below.key])[:12]}"


def _write(result: Result, folder: Path) -> None:
    system = result.system
    with atomic_folder(folder) as temporary:
        system.first_stage.save(temporary)
        for name, run in (("judged", result.run), ("report", result.report)):
            if run:
                write_run(Run(run, name=name), temporary / f"{name}.run.gz")
        record = {
            **system.settings(temporary),
            "stages": dict(result.stages),
            "count": result.count,
            "by engine": result.engine,
            "doubling": result.doubling,
            "milliseconds": result.milliseconds,
            "seconds": result.seconds,
        }
        write_json(temporary / RECORD, record)


def _read(task: FitTask, step: Step, key: str, folder: Path) -> Result:
    try:
        record: dict[str, Any] = read_object(folder / RECORD)
        system = System.from_settings(record, folder, Computing(task.device))
        runs = {
            name: read_run(path) if (path := folder / f"{name}.run.gz").exists() else None
            for name in ("judged", "report")
        }
        made = {name: record[name] for name in ("stages", "count", "milliseconds", "seconds")}
        made |= {"engine": record["by engine"], "doubling": record["doubling"] and tuple(record["doubling"])}
        return Result(system, runs["judged"] or Run(), step=step, key=key, **made, report=runs["report"])
    except (FileNotFoundError, KeyError, TypeError):
        raise InputError(folder, None, "not a finished step; remove it to make it again") from None
