"""Climbing the ladder: each rung is made, measured, and kept only if it is better than what was kept below it.

A finished rung is stored in the work folder under a hash of the rungs it stands on, so an interrupted fit resumes with
the rung it was at. A rung that fails is left out, and is tried again if the fit is resumed.
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
from rankwell.training.fit.parts import SET_ASIDE, Part, Parts, can_be_trained
from rankwell.training.fit.rungs import (
    ANALYSER,
    BASE,
    DEFAULT_SHARE,
    ENGINE,
    TEXTS,
    Rung,
    Step,
    bm25,
    engine,
    is_larger,
    ladder,
)
from rankwell.training.fit.task import FitTask

LEVEL = 0.05
GIVEN_TRY, GIVEN_TIME = 1.2, 0.8
"""A rung that is there without fitting is tried up to this multiple of the time left, and stopped after this part."""
TRAINED_MORE = 1.2
"""A rung that trains is given so many times its estimate: if it is stopped, all of its work is lost."""
LEAST_SAMPLE = 1000
"""Where the time is short, a rung trains on at least so many queries; with 700, a bi-encoder is no better than
an adapter that saw them all."""
SAVING = 0.03
"""The part of the time that is kept for writing the system and its report."""
RECORD = "rung.json"
TIMED_QUERIES, TIMED_SECONDS = 20, 5.0
"""How many queries are timed one by one, and for how long at most."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Skipped:
    """A rung that was not tried, or not finished, and why; ``late`` if for lack of time."""

    step: Step
    reason: str
    late: bool = False
    outcome: Literal["skipped", "failed"] = "skipped"


@dataclass
class Clock:
    """The time that is left of the given seconds. Finished rungs of an interrupted fit count, compiling does not."""

    seconds: float
    begin: float = field(default_factory=working_time)
    before: float = 0.0

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.seconds - self.before - (working_time() - self.begin)


@dataclass(frozen=True, eq=False)
class Climb:
    """All rungs in order, whether kept or not, and the best that does without the user's engine."""

    tried: tuple[Rung | Skipped, ...]
    own: Rung

    @property
    def rungs(self) -> list[Rung]:
        """The rungs that were measured."""
        return [rung for rung in self.tried if isinstance(rung, Rung)]

    @property
    def best(self) -> Rung:
        """The last rung that was kept."""
        return next(rung for rung in reversed(self.rungs) if rung.kept)

    @property
    def system(self) -> System:
        """What is saved: the best system or, if nothing is better than the user's engine, the best beside it."""
        return (self.own if self.best.step is ENGINE else self.best).system

    @property
    def small(self) -> Rung | None:
        """The small bi-encoder that a larger one taught, if that was done: it is saved as a system of its own."""
        return next((rung for rung in self.rungs if rung.step.kind == "beside"), None)

    @property
    def base(self) -> Rung:
        """What has to be beaten: the user's engine, or else the last rung kept that is there without fitting."""
        if self.rungs[0].engine:
            return self.rungs[0]
        return next(rung for rung in reversed(self.rungs) if rung.kept and rung.step.given)

    def reported(self, parts: Parts) -> Part:
        """The queries of the report: all judged ones, cross-validated, if only settings were fitted to them."""
        all_held_out = parts.source == SET_ASIDE and self.best.count == len(parts.judged)
        return parts.judged if all_held_out else parts.report

    @property
    def late(self) -> bool:
        """Whether rungs were skipped for lack of time."""
        return any(skipped.late for skipped in self.skipped)

    def doubling(self, measure: str) -> str | None:
        """What twice the judged queries would likely bring, in a sentence; None if that was not measured."""
        found = next((rung.doubling for rung in self.rungs if rung.doubling is not None), None)
        if found is None:
            return None
        gain, low, high = found
        likely = f"Twice the judged queries would likely bring about {gain:+.3f} {measure} [{low:+.3f}, {high:+.3f}]"
        return f"{likely}, as the last doubling did (an adapter, trained on half of them and on all)."

    @property
    def skipped(self) -> list[Skipped]:
        """The rungs that were not measured."""
        return [rung for rung in self.tried if isinstance(rung, Skipped)]


def climb(task: FitTask, clock: Clock, say: Say) -> Climb:
    """Climb as far as the time allows. Errors in the lowest rung end the fit; a higher one that fails is left out."""
    theirs = None
    if task.engine is not None and len(task.parts.judged):
        theirs = _make_rung(task, clock, ENGINE, None, None)
        say(line_of(theirs, task))
    own = _make_rung(task, clock, BASE, None, theirs)
    say(line_of(own, task))
    best = own if own.kept or theirs is None else theirs
    below = best  # what re-rankers stand on: the best list that nothing re-ranked
    tried: list[Rung | Skipped] = [own] if theirs is None else [theirs, own]
    tuned: Rung | None = None
    for step in ladder(task):
        stands_on = below if step.kind == "rerank" else own
        if _is_needless(step, stands_on, tried):
            continue
        rung = _try_rung(task, clock, step, stands_on, best, say)
        if step.name == ANALYSER and isinstance(rung, Rung) and _judged(task, rung, own).kept:
            rung = _adopt(task, rung)
        if isinstance(rung, Rung) and rung.kept and step.learns == "weights" and tuned is not None:
            # Training tunes settings, too: it has to gain more than they do alone.
            against = _judged(task, rung, tuned)
            rung = rung if against.kept else against
        tried.append(rung)
        if isinstance(rung, Skipped):
            say(f"  – {step.title}: {rung.outcome}, {rung.reason}")
            continue
        say(line_of(rung, task))
        if step.model and rung.count and can_be_trained(step.model):
            task.encoders[step.model], _ = interval_of(task.parts.judged.head(rung.count), rung.run, task.measure)
        if step.name == "tuned" and not rung.kept:
            tuned = rung
        beats_tuned = step.learns != "weights" or tuned is None or _judged(task, rung, tuned).kept
        if step.kind == "search" and beats_tuned and _judged(task, rung, own).kept:
            own = rung
        if step.kind != "rerank" and beats_tuned and _judged(task, rung, below).kept:
            below = rung
        if below.step is ENGINE:  # so that what re-ranks the engine has a bi-encoder
            below = replace(below, system=own.system)
        best = rung if rung.kept else best
    return Climb(tuple(tried), own)


def _adopt(task: FitTask, rung: Rung) -> Rung:
    """Build the index anew with a rung's analyser, for all that follows; recipes find it in its place."""
    if task.index.analyzer != rung.system.index.analyzer:
        task.index = built_with(task.index, rung.system.index.analyzer, task.index.folder)
    return replace(rung, system=rung.system.with_index(task.index))


def _is_needless(step: Step, below: Rung, tried: Sequence[Rung | Skipped]) -> bool:
    """Whether nothing is to be gained: a step made this list or was tried on it, is poor, or its vectors are stored."""
    if step.name == TEXTS and any(isinstance(rung, Rung) and rung.step.name.startswith("hybrid") for rung in tried):
        return True
    if step.kind == "beside" and not is_larger(below):
        return True
    before = next((rung for rung in reversed(tried) if rung.step.name == step.name), None)
    if isinstance(before, Rung):
        return before.key in (_key(step, below), below.key) or (step.kind == "rerank" and not before.kept)
    return before is not None


def _try_rung(task: FitTask, clock: Clock, step: Step, below: Rung, best: Rung, say: Say) -> Rung | Skipped:
    """Make a rung from the one below and compare it with the best, or say why it was left out."""
    if task.rung(_key(step, below)).exists():
        return _make_rung(task, clock, step, below, best)
    try:
        # Its own handler of Ctrl-C, so that an error that native code makes of it does not count as a failure.
        with interruptible():
            if (obstacle := _obstacle(task, clock, step, below)) is not None:
                return obstacle
            size = task.samples.get(step.name)
            say(f"  … {step.title}" + (f", trained on {size:,} of {len(task.parts.fit):,} queries" if size else ""))
            with time_limit(clock.left * (GIVEN_TIME if step.given else 1), working_time):
                return _make_rung(task, clock, step, below, best)
    except TimeIsUp:
        return Skipped(step, "the time was up before it was finished", late=True)
    except Exception as error:
        if (reason := _failure(error)) is None:
            raise
    gc.collect()  # what the failed rung held is free only now
    torch.cuda.empty_cache()
    return Skipped(step, reason, outcome="failed")


def _failure(error: Exception) -> str | None:
    """Why a rung failed; None for an error that ends the fit.

    Where a rung cannot be written, the system cannot be saved either.
    """
    if isinstance(error, RankwellError):
        return None if isinstance(error, WriteError) else str(error)
    on_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)  # torch has no class for it
    if on_cpu or isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "it ran out of memory"
    return None


def _obstacle(task: FitTask, clock: Clock, step: Step, below: Rung) -> Skipped | None:
    """Why a rung cannot be tried; None if it can. If the time is short, it trains on fewer queries."""
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


def _seconds(task: FitTask, step: Step, below: Rung, left: float) -> float:
    """How long a rung takes.

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
    """How many times the time left a rung may need by its estimate."""
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
    below = Rung(System(first), Run(), {}, len(task.parts.judged))
    spent, possible, lacking = 0.0, ["BM25"], list[tuple[str, float]]()
    for step in dict.fromkeys(ladder(task)):
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


def _make_rung(task: FitTask, clock: Clock, step: Step, below: Rung | None, best: Rung | None) -> Rung:
    """Make a rung from the one below, measure it and compare it with the best, or read what was measured before."""
    key = _key(step, below)
    folder = task.rung(key)
    if folder.exists():
        rung = _read(task, step, key, folder)
        clock.before += rung.seconds
        return _judged(task, rung, best)
    begin = working_time()
    lowest = engine if step is ENGINE else bm25
    made, parts = lowest(task) if below is None else step.make(task, below), task.parts
    queries = [query for part in (parts.judged, parts.report) for query in part.queries]
    milliseconds = 0.0 if step is ENGINE else _milliseconds(task, made, queries[:TIMED_QUERIES])
    counts = (made.count or len(parts.judged), len(parts.choose if made.stages else parts.judged))
    count = min([*counts, *(rung.count for rung in (below, best) if rung is not None)])
    rung = _judged(task, replace(made, step=step, key=key, milliseconds=milliseconds, count=count), best)
    if (rung.kept or step.kind == "beside") and len(parts.report):
        held_out = parts.judged.head(count).qrels
        report = rung.run
        if not set(parts.report.qrels) <= set(held_out):
            report = rung.answer(task, parts.report.queries)
        rung = replace(rung, report=report)
    rung = replace(rung, seconds=working_time() - begin)
    _write(rung, folder)
    return rung


def _judged(task: FitTask, rung: Rung, best: Rung | None) -> Rung:
    """Decide whether a rung is kept: it must be better by a paired test. Without judgments, it is.

    One that is there without fitting, or fitted with caution, is kept unless it is worse, but it has to be better than
    the user's engine.
    """
    if best is None or not rung.count:
        return rung
    part = task.parts.judged.head(rung.count)
    runs = {"before": best.run, "with it": rung.run}
    [contrast] = compare(part.qrels, runs, task.measure, baseline="before").contrasts
    cautious = rung.step.cautious and rung.system.first_stage.share
    given = (rung.step.given or cautious) and not best.engine
    shown, better = contrast.p < LEVEL, contrast.difference > 0
    return replace(rung, contrast=contrast, kept=better or not shown if given else better and shown)


def _milliseconds(task: FitTask, rung: Rung, queries: Sequence[Query]) -> float:
    """The median time of a search with one query, after a warm-up; 0 if there are no queries."""
    times: list[float] = []
    for query in [*queries[:1], *queries]:
        begin = time.perf_counter()
        if rung.engine:
            rung.answer(task, [query])
        else:
            rung.system.search(query.text, 10)
        times.append(1000 * (time.perf_counter() - begin))
        if sum(times[1:]) > 1000 * TIMED_SECONDS:
            break
    return statistics.median(times[1:] or times or [0.0])


def interval_of(part: Part, run: Run, measure: str) -> tuple[float, Interval]:
    """The mean of a measure and its 95 % interval."""
    values = evaluate(part.qrels, run, [measure]).per_query[measure]
    return float(values.mean()), mean_interval(values)


def line_of(rung: Rung, task: FitTask) -> str:
    """One line for whoever watches."""
    mark = "✓" if rung.kept else "·"
    line = f"  {mark} {rung.step.title:<28}"
    if rung.count:
        mean, (low, high) = interval_of(task.parts.judged.head(rung.count), rung.run, task.measure)
        line += f" {task.measure} {mean:.3f} [{low:.3f}, {high:.3f}]"
        line += f" on {rung.count:,} queries" if rung.count < len(task.parts.judged) else ""
    if rung.contrast is not None:
        line += f"  {rung.contrast.difference:+.3f}, p {p_value(rung.contrast.p)}{'' if rung.kept else ', not kept'}"
    timed = f"{rung.milliseconds:.0f} ms a query, " if rung.milliseconds else ""
    return f"{line}  {timed}made in {duration(rung.seconds)}"


def p_value(value: float) -> str:
    """A p-value for readers: ``= .012`` or ``< .001``."""
    return "< .001" if value < 0.001 else f"= {value:.3f}".replace("0.", ".")


# Finished rungs


def _key(step: Step, below: Rung | None) -> str:
    """Names a rung by itself and all rungs it stands on."""
    name = re.sub(r"[^\w.]+", "-", step.name)
    return f"{name}-{digest([step.name, None if below is None else below.key])[:12]}"


def _write(rung: Rung, folder: Path) -> None:
    system = rung.system
    with atomic_folder(folder) as temporary:
        system.first_stage.save(temporary)
        for name, run in (("judged", rung.run), ("report", rung.report)):
            if run:
                write_run(Run(run, name=name), temporary / f"{name}.run.gz")
        record = {
            **system.settings(temporary),
            "stages": dict(rung.stages),
            "count": rung.count,
            "by engine": rung.engine,
            "doubling": rung.doubling,
            "milliseconds": rung.milliseconds,
            "seconds": rung.seconds,
        }
        write_json(temporary / RECORD, record)


def _read(task: FitTask, step: Step, key: str, folder: Path) -> Rung:
    try:
        record: dict[str, Any] = read_object(folder / RECORD)
        system = System.from_settings(record, folder, Computing(task.device))
        runs = {
            name: read_run(path) if (path := folder / f"{name}.run.gz").exists() else None
            for name in ("judged", "report")
        }
        made = {name: record[name] for name in ("stages", "count", "milliseconds", "seconds")}
        made |= {"engine": record["by engine"], "doubling": record["doubling"] and tuple(record["doubling"])}
        return Rung(system, runs["judged"] or Run(), step=step, key=key, **made, report=runs["report"])
    except (FileNotFoundError, KeyError, TypeError):
        raise InputError(folder, None, "not a finished step; remove it to make it again") from None
