"""Experiments: one recipe in many variants and seeds, and one table that says which differences are more than chance.

All variants share one pool of stages, so what they have in common is computed once. A variant's value on a query is the
mean over its seeds; those means are tested against the baseline's.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, takewhile
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from rankwell.core.arrays import Values
from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.corpus.datasets import IRDS_PREFIXES
from rankwell.evaluation.breakdowns import Groups
from rankwell.evaluation.evaluate import Evaluation
from rankwell.training.data.prepare import Prepared, prepare
from rankwell.training.experiments.claims import claims_table, write_values
from rankwell.training.experiments.suite_tables import (
    DEV,
    ExperimentTables,
    Measured,
    compare_variants,
    draw_axis,
    file_name,
    query_groups,
    write_tables,
)
from rankwell.training.experiments.variants import (
    Column,
    EvaluateOnOptions,
    Suite,
    VariantResult,
    VariantRun,
    further_splits,
    label_of,
    train_variant,
    train_variant_in_process,
    with_candidates,
)
from rankwell.training.recipe import Recipe, RecipeStage
from rankwell.training.recipe_files import SAMPLE_FOLDER, find_recipe
from rankwell.training.recipe_reader import Override, build_recipe, problem_of, read_yaml, value_at
from rankwell.training.recipe_results import FIRST_STAGE, evaluate_split, measures_of
from rankwell.training.run import Say, plan_recipe, run_recipe
from rankwell.training.stage import process_count, process_number, stage_kinds
from rankwell.training.stage_store import PlannedStage

Job = TypeVar("Job")
Done = TypeVar("Done")

POLL_SECONDS = 0.5


def must_wait(stages: Sequence[str], others: Sequence[str], begun: Callable[[str], bool]) -> bool:
    """Whether a job that is running, with the stages ``others``, has yet to finish one that a job of ``stages`` shares.

    A stage's key holds those before it, so what two jobs share is a beginning. It is finished, and measured, when the
    stage after it has begun.
    """
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(stages, others, strict=False))))
    return shared > 0 and (shared == len(others) or not begun(others[shared]))


def run_jobs(
    jobs: Sequence[tuple[Job, Sequence[str]]], work: Callable[[Job], Done], at_once: int, begun: Callable[[str], bool]
) -> Iterator[tuple[Job, Done | str]]:
    """Yields each finished job with the result of ``work``, or with an error message if its process died.

    A job comes with the keys of its stages, in order. Jobs start in order, except those that must wait. ``begun`` says
    whether a stage has started.
    """
    waiting, idle = list(jobs), [_process(at_once) for _ in range(min(at_once, len(jobs)))]
    running: dict[Future[Done], tuple[Job, Sequence[str], ProcessPoolExecutor]] = {}
    try:
        while waiting or running:
            for job, stages in list(waiting):
                if not idle:
                    break
                if not any(must_wait(stages, others, begun) for _, others, _ in running.values()):
                    waiting.remove((job, stages))
                    process = idle.pop()
                    running[process.submit(work, job)] = (job, stages, process)
            finished, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in finished:
                job, _, process = running.pop(future)
                try:
                    result: Done | str = future.result()
                except BrokenProcessPool:
                    process.shutdown(wait=False)
                    process, result = _process(at_once), "its process died; is there memory for so many at once?"
                idle.append(process)
                yield job, result
    finally:
        for process in [*idle, *(process for *_, process in running.values())]:
            process.shutdown(wait=False, cancel_futures=True)


def _process(at_once: int) -> ProcessPoolExecutor:
    """One process; a pool of several would lose them all with the first that dies."""
    threads = max(1, (os.cpu_count() or 1) // at_once)
    # Not forked: CUDA cannot be used in a fork of a process that used it.
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_settle, initargs=(threads,))


def _settle(threads: int) -> None:
    """Share the processor, and end when the process that started this one does."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


BASE = "base"
SETTABLE = ("seeds", "scale", "baseline", "measures", "test", "candidates", "groups", "evaluate_on")
"""The keys of a suite that ``--set`` may change, and ``start.PATH``."""
START = "start"
SAMPLE = "sample"
"""Names the bundled sample where a data set to measure on is expected."""
WRITE_SECONDS = 60
_VARIANT_NAME = re.compile(r"[^/\\\s][^/\\\n]*")


@dataclass(frozen=True)
class Experiment:
    """A checked suite: the recipe of every column and variant with the first seed, and that of the start, if any."""

    suite: Suite
    baseline: str
    columns: Mapping[str, Mapping[str, Recipe]]
    start: Recipe | None = None

    def units(self) -> Iterator[VariantRun]:
        """Every variant seed by seed, the baseline first, so that a table of one seed is there early."""
        for seed in self.suite.seeds:
            for column, recipes in self.columns.items():
                for name in sorted(recipes, key=lambda name: name != self.baseline):
                    yield VariantRun(name, column, seed, recipes[name].model_copy(update={"seed": seed}))

    def started_from(self, model: Path) -> Experiment:
        """The same with all variants starting from ``model``."""
        start = {"start": str(model.resolve())}
        columns = {
            column: {
                name: recipe.model_copy(update={"model": recipe.model.model_copy(update=start)})
                for name, recipe in recipes.items()
            }
            for column, recipes in self.columns.items()
        }
        return replace(self, columns=columns)


def read_suite(path: str | Path, settings: Sequence[Override] = ()) -> Experiment:
    """Read a suite and check all its recipes.

    ``settings`` go before what the variants say; those whose path is a key of :data:`SETTABLE` change the suite.
    """
    path = find_recipe(path, "suite")
    of_suite = {setting.path: setting.value for setting in settings if setting.path in SETTABLE}
    of_start = [setting for setting in settings if setting.path.startswith(f"{START}.")]
    settings = [setting for setting in settings if setting.path not in of_suite and setting not in of_start]
    tree = read_yaml(path)
    if "stages" in tree:
        raise InputError(path, None, "this is a recipe, which `rankwell train` carries out")
    try:
        suite = Suite.model_validate({**tree, **of_suite})
    except ValidationError as error:
        raise InputError(path, None, ": ".join(problem_of(error, Suite))) from None
    baseline = suite.baseline or next(iter(suite.variants))
    if len(set(suite.seeds)) != len(suite.seeds):
        raise InputError(path, None, "seeds: a seed comes twice")
    if DEV in suite.evaluate_on:
        raise InputError(path, None, f"evaluate_on.{DEV}: the recipe's own dev split goes by that name; choose another")
    columns = {}
    for column in suite.columns or ("",):
        way = suite.way(column)
        for key, name in (("baseline", baseline), ("candidates", way.candidates)):
            if name is not None and name not in way.variants:
                known = ", ".join(way.variants)
                raise InputError(path, None, f"{key}: no variant is called {name!r} (variants: {known})")
        columns[column] = {name: _variant(path, suite, way, name, column, settings) for name in way.variants}
        if suite.axis is not None:
            _axis_values(columns[column], suite.axis, path)
    rows = {FIRST_STAGE, *(name for recipes in columns.values() for name in recipes)}
    for claim in suite.claims:
        if unknown := {claim.row, claim.against} - rows or {claim.data} - {DEV, *suite.evaluate_on}:
            raise InputError(path, None, f"claims: nothing is called {unknown.pop()!r}")
    labels = [label_of(name, column) for column, recipes in columns.items() for name in recipes]
    folders = [file_name(label) for label in labels]
    if twice := next((label for label, at in zip(labels, folders, strict=True) if folders.count(at) > 1), None):
        raise InputError(path, None, f"variants: another name than {twice!r} gives the same folder {file_name(twice)}")
    base = Path() if "evaluate_on" in of_suite else path.parent
    evaluate_on = {name: _anchored(other, base) for name, other in suite.evaluate_on.items()}
    suite = suite.model_copy(update={"evaluate_on": evaluate_on})
    given = any(setting.path == "model.start" for setting in settings)
    start = None if given else _start(path, suite, of_start)
    return Experiment(suite, baseline, columns, start)


def _start(path: Path, suite: Suite, settings: Sequence[Override]) -> Recipe | None:
    """The recipe that makes the start of all variants; None if there is no text to make it from."""
    changes = dict(suite.start)
    base = find_recipe(changes.pop(BASE, START), folder=path.parent)
    own = [Override(key, value, f"{path}: {START}:", path.parent) for key, value in changes.items()]
    given = [replace(setting, path=setting.path.removeprefix(f"{START}.")) for setting in settings]
    if not any(override.path.partition(".")[0] == "data" for override in (*own, *given)):
        return None
    return build_recipe(read_yaml(base), base, [*own, *given])


def _variant(path: Path, suite: Suite, way: Column, name: str, column: str, settings: Sequence[Override]) -> Recipe:
    """The recipe of a variant. Settings of a stage that only other recipes of the suite have are left out."""
    if not _VARIANT_NAME.fullmatch(name):
        raise InputError(path, None, f"variants: {name!r} cannot name a folder")
    differs = dict(way.variants[name] or {})
    base = find_recipe(differs.pop(BASE, way.base), folder=path.parent)
    tree = read_yaml(base)
    shared = [Override(key, value, f"{path}: set:", path.parent) for key, value in way.set.items()]
    missing = [["stages", stage] for stage in _stages_of_bases(path, suite) - set(tree.get("stages") or ())]
    applicable = [override for override in [*shared, *settings] if override.path.split(".")[:2] not in missing]
    changes = [Override(key, value, f"{path}: variants.{name}:", path.parent) for key, value in differs.items()]
    recipe = build_recipe(tree, base, [*applicable, *changes])
    measures_of(recipe, suite.measures)  # raises if one is unknown
    stages = tuple(_scaled(stage, suite.scale) for stage in recipe.stages)
    return recipe.model_copy(update={"seed": suite.seeds[0], "name": label_of(name, column), "stages": stages})


def _scaled(stage: RecipeStage[Any], scale: float) -> RecipeStage[Any]:
    steps = getattr(stage.options, "max_steps", None)
    if steps is None or scale == 1:
        return stage
    return replace(stage, options=stage.options.model_copy(update={"max_steps": max(1, round(steps * scale))}))


def _stages_of_bases(path: Path, suite: Suite) -> set[str]:
    ways = [suite.way(column) for column in suite.columns or ("",)]
    bases = {str(way.base) for way in ways}
    bases |= {str(differs[BASE]) for way in ways for differs in way.variants.values() if differs and BASE in differs}
    return {stage for base in bases for stage in read_yaml(find_recipe(base, folder=path.parent)).get("stages") or ()}


def _anchored(other: EvaluateOnOptions, base: Path) -> EvaluateOnOptions:
    """The options with absolute paths in place of those relative to ``base``."""
    if other.folder == SAMPLE:
        other = other.model_copy(update={"folder": str(SAMPLE_FOLDER)})
    files = {"folder": other.folder, "run": other.run}
    paths = {name: file for name, file in files.items() if file is not None and not file.startswith(IRDS_PREFIXES)}
    return other.model_copy(update={name: os.path.abspath(base / path) for name, path in paths.items()})


def _axis_values(recipes: Mapping[str, Recipe], axis: str, source: Path) -> dict[str, float]:
    """The option of each variant that has it; a stage may be left out in some."""
    values: dict[str, float] = {}
    for name, recipe in recipes.items():
        try:
            value = value_at(recipe, axis)
        except RankwellError:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(source, None, f"axis: {axis} is {value!r} in {name}, expected a number")
        values[name] = float(value)
    if not values:
        value_at(next(iter(recipes.values())), axis)  # raises
    return values


# Running


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    device: str | None = None,
    jobs: int = 1,
    say: Say = lambda line: None,
) -> ExperimentTables:
    """Run every variant and seed that is not finished, and write the tables. If one fails, the others continue.

    With ``jobs`` above 1, that many run at once, each in its own process.
    """
    if jobs > 1 and process_count() > 1:
        raise RankwellError("several jobs at once are for one device each, not for torchrun's processes")
    _check_candidates(experiment)
    if experiment.start is not None:
        say("the start of all variants")
        made = run_recipe(experiment.start, out / "runs" / START, pool=out, device=device, resume=True, say=say)
        assert made.model is not None
        experiment = experiment.started_from(made.work.model)
    scoreboard = _Scoreboard(experiment, out, device, say)
    results = partial(_results, suite=experiment.suite, out=out, device=device, jobs=jobs, say=say)
    units = list(experiment.units())
    if sources := _sources(experiment):
        firsts = [unit for unit in units if unit.seed == experiment.suite.seeds[0]]
        firsts = [unit for unit in firsts if sources.get(unit.column) == unit.name]
        found = {}
        for unit, result in results(firsts):
            if result.candidates is None:
                raise RankwellError(f"the candidates of {unit}: {result.failure or 'it left none'}")
            found[unit.column] = result.candidates
        units = [
            unit
            if unit.column not in found or unit.name == sources[unit.column]
            else with_candidates(unit, *found[unit.column])
            for unit in units
        ]
    for unit, result in results(units):
        scoreboard.add(unit, result)
    return scoreboard.outcome(last=True)


def _sources(experiment: Experiment) -> dict[str, str]:
    """By column, the variant whose candidates all others rank."""
    ways = {column: experiment.suite.way(column).candidates for column in experiment.columns}
    return {column: name for column, name in ways.items() if name is not None}


def planned_stages(experiment: Experiment, out: Path) -> dict[str, list[PlannedStage]]:
    """The stages of each variant and seed, checked; equal keys are the same work, done once."""
    _check_candidates(experiment)
    prepared: dict[str, Prepared | None] = {}
    planned = {}
    for unit in experiment.units():
        try:
            planned[str(unit)] = _plan(unit.recipe, out, prepared)
        except RankwellError as error:
            raise RankwellError(f"{unit}: {error}") from None
    return planned


def _check_candidates(experiment: Experiment) -> None:
    """Raise unless the variant whose candidates all others rank learns a first stage."""
    kinds = stage_kinds()
    for column, name in _sources(experiment).items():
        if not any(kinds[stage.kind].finds for stage in experiment.columns[column][name].stages):
            raise RankwellError(f"the candidates of {name}: it learns no first stage")


def _plan(
    recipe: Recipe, pool: Path, prepared: dict[str, Prepared | None], device: str | None = None, checked: bool = True
) -> list[PlannedStage]:
    """The stages of a recipe. Its data is read once for all recipes that have the same: ``prepared`` keeps it."""
    key = f"{recipe.data.model_dump_json()} {recipe.first_stage.model_dump_json()} {recipe.model.template}"
    work, plan = plan_recipe(recipe, pool, device=device, prepared=prepared.get(key), checked=checked)
    prepared[key] = work.prepared
    return plan


def _results(
    units: Sequence[VariantRun], suite: Suite, out: Path, device: str | None, jobs: int, say: Say
) -> Iterator[tuple[VariantRun, VariantResult]]:
    """Train the variants; yields each with its result as soon as it is finished."""
    if jobs == 1:
        for unit in units:
            say(str(unit))
            yield unit, train_variant(unit, suite, out, device, say)
        return
    prepared: dict[str, Prepared | None] = {}
    waiting = []
    for unit in units:
        try:
            # Each job checks its own stages: to check all of them here would leave the device idle for minutes.
            stages = tuple(planned.key for planned in _plan(unit.recipe, out, prepared, device, checked=False))
        except RankwellError as error:
            yield unit, VariantResult({}, str(error))
            continue
        waiting.append((unit, stages))
    work = partial(train_variant_in_process, suite=suite, out=out, device=device)
    for unit, result in run_jobs(waiting, work, jobs, lambda key: any((out / "stages").glob(f"*-{key}"))):
        yield unit, VariantResult({}, result) if isinstance(result, str) else result


# Measuring


class _Scoreboard:
    """The figures so far. Creating it reads all data, so that errors in it are found before anything is trained."""

    def __init__(self, experiment: Experiment, out: Path, device: str | None, say: Say):
        self.experiment, self.out, self.say = experiment, out, say
        suite = experiment.suite
        self.groups: dict[str, dict[str, Groups]] = {}
        self.measured: dict[str, dict[str, dict[int, Evaluation]]] = {}
        for column, recipes in experiment.columns.items():
            recipe = recipes[experiment.baseline]
            data = prepare(recipe, out, device=device)
            self.measures, depth = measures_of(recipe, suite.measures), recipe.evaluate.depth
            for place, collection, split in (
                (DEV, data.collection, data.dev),
                *further_splits(recipe, suite, out, device),
            ):
                label = label_of(place, column)
                self.groups[label] = {
                    kind: query_groups(kind, recipe, collection, split, out, device) for kind in suite.groups
                }
                self.measured[label] = {FIRST_STAGE: {0: evaluate_split(split, split.run, self.measures, depth)}}
        self.failures: dict[str, str] = {}
        self.written = time.monotonic()

    def add(self, unit: VariantRun, result: VariantResult) -> None:
        """Add the figures of a variant and seed."""
        failure = result.failure
        for place, (qids, _) in result.values.items():
            if qids != self.measured[label_of(place, unit.column)][FIRST_STAGE][0].qids:
                failure = f"measured on other queries of {place} than the baseline: they cannot be compared"
        if failure is not None:
            self.failures[str(unit)] = failure
            self.say(f"{unit} failed: {failure}")
            return
        for place, (qids, values) in result.values.items():
            evaluation = Evaluation(unit.name, qids, self.measures, np.asarray(values))
            self.measured[label_of(place, unit.column)].setdefault(unit.name, {})[unit.seed] = evaluation
            figures = ", ".join(f"{name} {value:.4f}" for name, value in evaluation.mean.items())
            self.say(f"{unit}, {place}: {figures} ({result.seconds:.0f} s)")
        if process_number() == 0:  # what is finished is kept even if the experiment is cut off
            self._write_values()
        # Tests and intervals take seconds, during which the device would be idle.
        if time.monotonic() - self.written > WRITE_SECONDS and self._comparable():
            self.outcome()

    def _comparable(self) -> dict[str, dict[str, list[Evaluation]]]:
        """What was measured, each variant's seeds in order, where the baseline is among it."""
        return {
            label: {name: [by_seed[seed] for seed in sorted(by_seed)] for name, by_seed in rows.items()}
            for label, rows in self.measured.items()
            if self.experiment.baseline in rows
        }

    def outcome(self, *, last: bool = False) -> ExperimentTables:
        """Compare what is there, and write it."""
        experiment, suite, measured = self.experiment, self.experiment.suite, self._comparable()
        if not measured:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.failures.items())
            raise RankwellError(f"the baseline {experiment.baseline!r} has no figures ({reasons})")
        order = (FIRST_STAGE, *dict.fromkeys(name for recipes in experiment.columns.values() for name in recipes))
        compared = {
            label: compare_variants(rows, order, experiment.baseline, suite.test, self.groups[label])
            for label, rows in measured.items()
        }
        notes = [
            f"{label_of(DEV, column)}: all variants rank the candidates of {name}"
            for column, name in _sources(experiment).items()
        ]
        first = str(self.measures[0])
        values = {
            (column, place): self._rows(label_of(place, column), first)
            for place in {claim.data for claim in suite.claims}
            for column in experiment.columns
        }
        claims = claims_table(suite.claims, list(experiment.columns), values) if suite.claims else None
        outcome = ExperimentTables(compared, self.failures, notes, claims)
        if process_number() == 0:
            write_tables(self.out, outcome)
            if last and suite.axis is not None:
                self._draw(suite.axis, measured)
        self.written = time.monotonic()
        return outcome

    def _rows(self, label: str, measure: str) -> dict[str, dict[int, Values]]:
        """By row and seed, the values of a measure on the queries of a place in a column."""
        return {
            name: {seed: evaluation.per_query[measure] for seed, evaluation in by_seed.items()}
            for name, by_seed in self.measured[label].items()
        }

    def _write_values(self) -> None:
        """``values.PLACE.MEASURE.csv.gz``: each query's value of each training."""
        for label, measure in product(self.measured, map(str, self.measures)):
            qids = self.measured[label][FIRST_STAGE][0].qids
            path = self.out / f"values.{file_name(label)}.{file_name(measure)}.csv.gz"
            write_values(path, qids, self._rows(label, measure))

    def _draw(self, axis: str, measured: Mapping[str, Measured]) -> None:
        with suppress(MissingExtraError):  # plots are optional
            for column, recipes in self.experiment.columns.items():
                if (label := label_of(DEV, column)) in measured:
                    values = _axis_values(recipes, axis, self.out)
                    suffix = f".{file_name(column)}" if column else ""
                    draw_axis(values, measured[label], axis, self.out / f"axis{suffix}.png")
