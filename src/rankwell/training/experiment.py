"""Experiments: one recipe in many variants and seeds, and one table that says which differences are more than chance.

All variants share one pool of stages, so what they have in common is computed once. A variant's value on a query is the
mean over its seeds; those means are tested against the baseline's.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.core.files import atomic_binary, atomic_text
from rankwell.corpus.datasets import IRDS_PREFIXES
from rankwell.evaluation.compare import Comparison, compare_evaluations
from rankwell.evaluation.evaluate import Evaluation
from rankwell.evaluation.tables import (
    Cell,
    Table,
    as_csv,
    as_markdown,
    comparison_notes,
    contrast_table,
    figure_cell,
    name_cell,
)
from rankwell.evaluation.tables import mark as significance_mark
from rankwell.training.options import Options
from rankwell.training.prepare import Collection, Prepared, Split, open_collection, open_split
from rankwell.training.recipe import Kinds, Override, Recipe, build_recipe, problem_of, read_yaml, value_at
from rankwell.training.results import (
    FIRST_STAGE,
    evaluate_split,
    measured_run,
    measures_of,
    write_json,
)
from rankwell.training.run import Say, Trained, run_recipe
from rankwell.training.stage import StageKind
from rankwell.training.stage_store import process_count, process_number

DEV = "dev"
_VARIANT_NAME = re.compile(r"[^/\\\s][^/\\\n]*")


class Elsewhere(Options):
    """Another data set or split to measure on."""

    folder: str | None = Field(default=None, description="The data set; none: the recipe's own.")
    split: str = Field(default="test", description="The split.")
    run: str | None = Field(default=None, description="Its first-stage run; none: BM25 as in the recipe.")
    queries: int | None = Field(default=None, ge=1, description="Use the first so many queries; none: all.")


class Suite(Options):
    """An experiment, as its YAML file has it."""

    base: str = Field(description="The recipe that is varied.")
    set: dict[str, Any] = Field(default_factory=dict, description="Options that differ from the base in all variants.")
    variants: dict[str, dict[str, Any] | None] = Field(
        min_length=1, description="Name → what differs: paths and values as for --set; none: the recipe as it is."
    )
    seeds: tuple[int, ...] = Field(default=(1,), min_length=1, description="Each variant is trained with each of them.")
    baseline: str | None = Field(default=None, description="The variant others are tested against; none: the first.")
    measures: tuple[str, ...] | None = Field(default=None, description="The table's columns; none: the recipe's.")
    test: Literal["t", "wilcoxon", "randomisation"] = Field(default="t", description="The significance test.")
    evaluate_on: dict[str, Elsewhere] = Field(
        default_factory=dict, description="Name → further data sets and splits to measure on."
    )
    axis: str | None = Field(
        default=None, description="An option's path; draws the first measure against its value, variant by variant."
    )


@dataclass(frozen=True)
class Experiment:
    """A checked suite: the recipe of every variant and seed."""

    suite: Suite
    baseline: str
    recipes: Mapping[str, Mapping[int, Recipe]]


@dataclass(frozen=True, eq=False)
class Compared:
    """The variants' means over seeds beside the baseline's; ``deviations`` between seeds, None where there is one."""

    comparison: Comparison
    seeds: Mapping[str, int]
    deviations: Mapping[str, Mapping[str, float | None]]

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON holds them."""
        return {**self.comparison.as_dict(), "seeds": dict(self.seeds), "sd": dict(self.deviations)}


@dataclass(frozen=True, eq=False)
class Outcome:
    """Comparisons by the name of what was measured on (``dev`` and what the suite adds), and what failed."""

    compared: Mapping[str, Compared]
    failures: Mapping[str, str]

    def table(self, place: str) -> Table:
        """The table of one of them."""
        compared = self.compared[place]
        notes = (
            *comparison_notes(compared.comparison),
            "figures are means over seeds, tests compare each query's mean over seeds, sd is between seeds",
            *(f"failed: {name}: {reason}" for name, reason in self.failures.items()),
        )
        return replace(_table(compared), notes=notes)


def read_suite(path: str | Path, kinds: Kinds, settings: Sequence[Override] = ()) -> Experiment:
    """Read a suite and check all its recipes; ``settings`` go before what the variants say."""
    path = Path(path)
    try:
        suite = Suite.model_validate(read_yaml(path))
    except ValidationError as error:
        raise InputError(path, None, ": ".join(problem_of(error, Suite))) from None
    baseline = suite.baseline or next(iter(suite.variants))
    if baseline not in suite.variants:
        known = ", ".join(suite.variants)
        raise InputError(path, None, f"baseline: no variant is called {baseline!r} (variants: {known})")
    if len(set(suite.seeds)) != len(suite.seeds):
        raise InputError(path, None, "seeds: a seed comes twice")
    if DEV in suite.evaluate_on:
        raise InputError(path, None, f"evaluate_on.{DEV}: the recipe's own dev split goes by that name; choose another")
    base = path.parent / suite.base
    tree = read_yaml(base)
    shared = [Override(key, value, f"{path}: set:", path.parent) for key, value in suite.set.items()]
    recipes: dict[str, dict[int, Recipe]] = {}
    for name, differs in suite.variants.items():
        if not _VARIANT_NAME.fullmatch(name):
            raise InputError(path, None, f"variants: {name!r} cannot name a folder")
        own = [Override(key, value, f"{path}: variants.{name}:", path.parent) for key, value in (differs or {}).items()]
        recipe = build_recipe(tree, kinds, base, [*shared, *settings, *own])
        recipes[name] = {seed: recipe.model_copy(update={"seed": seed, "name": name}) for seed in suite.seeds}
        measures_of(recipe, suite.measures)
        if suite.axis is not None:
            _number_at(recipe, suite.axis, path)
    folders = [_file_name(name) for name in recipes]
    if twice := next((name for name, at in zip(recipes, folders, strict=True) if folders.count(at) > 1), None):
        raise InputError(path, None, f"variants: another name than {twice!r} gives the same folder {_file_name(twice)}")
    elsewhere = {name: _anchored(other, path.parent) for name, other in suite.evaluate_on.items()}
    return Experiment(suite.model_copy(update={"evaluate_on": elsewhere}), baseline, recipes)


def _anchored(other: Elsewhere, base: Path) -> Elsewhere:
    """Its files with their whole path."""
    given = {name: getattr(other, name) for name in ("folder", "run")}
    files = {name: at for name, at in given.items() if at is not None and not at.startswith(IRDS_PREFIXES)}
    return other.model_copy(update={name: os.path.abspath(base / at) for name, at in files.items()})


def run_experiment(
    experiment: Experiment,
    kinds: Mapping[str, StageKind],
    out: Path,
    *,
    device: str | None = None,
    say: Say = lambda line: None,
) -> Outcome:
    """Run every variant and seed that is not finished, and write the tables; what fails is told, the rest goes on."""
    suite, baseline = experiment.suite, experiment.baseline
    list(_elsewhere(experiment.recipes[baseline][suite.seeds[0]], suite, out))  # bad files are found now
    measured: dict[str, dict[str, list[Evaluation]]] = {}
    failures: dict[str, str] = {}
    for name, seed, recipe in _all(experiment):
        folder = out / "runs" / _file_name(name) / f"seed-{seed}"
        say(f"{name}, seed {seed}")
        try:
            trained = run_recipe(recipe, kinds, folder, pool=out, device=device, resume=True, say=say)
            found = dict(_evaluations(trained, suite, out))
            if not measured:
                measured = {place: {FIRST_STAGE: [one]} for place, one in _first_stages(trained, suite, out)}
            _refuse_other_queries(found, measured)
        except Exception as error:
            if process_count() > 1:  # the other processes are in the midst of it: nothing can go on
                raise
            failures[f"{name}, seed {seed}"] = _reason(error, folder)
            say(f"{name}, seed {seed} failed: {failures[f'{name}, seed {seed}']}")
            continue
        for place, evaluation in found.items():
            measured[place].setdefault(name, []).append(evaluation)
    if not any(baseline in by_name for by_name in measured.values()):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise RankwellError(f"the baseline {baseline!r} has no figures ({reasons})")
    outcome = Outcome({place: _compared(experiment, by_name) for place, by_name in measured.items()}, failures)
    if process_number() == 0:
        _write(experiment, out, outcome, measured)
    return outcome


def _all(experiment: Experiment) -> Iterator[tuple[str, int, Recipe]]:
    """Seed by seed, the baseline first: a table of one seed is there early."""
    order = sorted(experiment.recipes, key=lambda name: name != experiment.baseline)
    for seed in experiment.suite.seeds:
        for name in order:
            yield name, seed, experiment.recipes[name][seed]


def _reason(error: Exception, folder: Path) -> str:
    """One line; what is not the user's business leaves its traceback in a file."""
    if isinstance(error, RankwellError):
        return str(error)
    with atomic_text(folder / "error.txt") as file:
        file.write("".join(traceback.format_exception(error)))
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} (see {folder / 'error.txt'})"


# Measuring


def _evaluations(trained: Trained, suite: Suite, pool: Path) -> Iterator[tuple[str, Evaluation]]:
    recipe, last = trained.recipe, trained.last
    if last is None:
        raise RankwellError(f"no stage of {recipe.name} ranks documents, so there is nothing to compare")
    measures, depth = measures_of(recipe, suite.measures), recipe.evaluate.depth
    data = last.work.data
    yield DEV, evaluate_split(data.dev, last.run, measures, depth)
    for name, collection, split in _elsewhere(recipe, suite, pool):
        there = replace(last.work, prepared=Prepared(collection, data.train, split))
        run = measured_run(there, last.kind, last.produced, last.folder)
        assert run is not None
        yield name, evaluate_split(split, run, measures, depth)


def _first_stages(trained: Trained, suite: Suite, pool: Path) -> Iterator[tuple[str, Evaluation]]:
    measures, depth = measures_of(trained.recipe, suite.measures), trained.recipe.evaluate.depth
    splits = {name: split for name, _, split in _elsewhere(trained.recipe, suite, pool)}
    for name, split in {DEV: trained.work.data.dev, **splits}.items():
        yield name, evaluate_split(split, split.run, measures, depth)


def _elsewhere(recipe: Recipe, suite: Suite, pool: Path) -> Iterator[tuple[str, Collection, Split]]:
    """The further splits."""
    for name, other in suite.evaluate_on.items():
        collection = open_collection(other.folder or recipe.data.folder, pool)
        yield name, collection, open_split(recipe, collection, other.split, pool, run=other.run, limit=other.queries)


def _refuse_other_queries(
    found: Mapping[str, Evaluation], measured: Mapping[str, Mapping[str, Sequence[Evaluation]]]
) -> None:
    for place, evaluation in found.items():
        if evaluation.qids != measured[place][FIRST_STAGE][0].qids:
            raise RankwellError(f"measured on other queries of {place} than the baseline: they cannot be compared")


def mean_over_seeds(evaluations: Sequence[Evaluation]) -> Evaluation:
    """For each query the mean of its values."""
    return replace(evaluations[0], values=np.mean([one.values for one in evaluations], axis=0))


# Tables


def _compared(experiment: Experiment, measured: Mapping[str, Sequence[Evaluation]]) -> Compared:
    names = [name for name in (FIRST_STAGE, *experiment.recipes) if name in measured]
    means = {name: mean_over_seeds(measured[name]) for name in names}
    comparison = compare_evaluations(means, experiment.baseline, test=experiment.suite.test)
    seeds = {name: len(measured[name]) for name in names}
    return Compared(comparison, seeds, {name: _deviations(measured[name]) for name in names})


def _table(compared: Compared) -> Table:
    comparison = compared.comparison
    best = {str(m): max(figures[str(m)] for figures in comparison.mean.values()) for m in comparison.measures}
    rows = []
    for name, figures in comparison.mean.items():
        cells = [name_cell(name), Cell(compared.seeds[name], str(compared.seeds[name]))]
        for measure in comparison.measures:
            value, deviation = figures[str(measure)], compared.deviations[name][str(measure)]
            sign = significance_mark(comparison, name, measure)
            cells.append(figure_cell(measure, value, sign, value == best[str(measure)]))
            cells.append(Cell(deviation, "" if deviation is None else f"{deviation:.4f}"))
        rows.append(tuple(cells))
    columns = [title for measure in comparison.measures for title in (str(measure), f"{measure} sd")]
    return Table(("variant", "seeds", *columns), tuple(rows))


def _deviations(evaluations: Sequence[Evaluation]) -> dict[str, float | None]:
    """Between seeds; None where there is one."""
    measures = [str(measure) for measure in evaluations[0].measures]
    if len(evaluations) == 1:
        return dict.fromkeys(measures)
    return {m: float(np.std([one.mean[m] for one in evaluations], ddof=1)) for m in measures}


def _write(
    experiment: Experiment, out: Path, outcome: Outcome, measured: Mapping[str, Mapping[str, Sequence[Evaluation]]]
) -> None:
    with atomic_text(out / "table.md") as file:
        for place, compared in outcome.compared.items():
            details = as_markdown(contrast_table(compared.comparison))
            file.write(f"## {place}\n\n{as_markdown(outcome.table(place))}\n\n{details}\n\n")
    with atomic_text(out / "table.csv") as file:
        for number, place in enumerate(outcome.compared):
            head, *lines = as_csv(_placed(place, outcome.table(place))).split("\n")
            file.write("".join(f"{line}\n" for line in ([] if number else [head]) + lines))
    tables = {place: compared.as_dict() for place, compared in outcome.compared.items()}
    write_json(out / "results.json", {"tables": tables, "failures": dict(outcome.failures)})
    if experiment.suite.axis is not None:
        draw_axis(experiment, measured[DEV], out / "axis.png")


def _placed(place: str, table: Table) -> Table:
    """The table with a first column that says what was measured on."""
    rows = tuple((name_cell(place), *row) for row in table.rows)
    return replace(table, columns=("data", *table.columns), rows=rows)


# The plot


def _number_at(recipe: Recipe, path: str, source: Path) -> float:
    value = value_at(recipe, path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(source, None, f"axis: {path} is {value!r} in {recipe.name}, expected a number")
    return float(value)


def draw_axis(experiment: Experiment, measured: Mapping[str, Sequence[Evaluation]], path: Path) -> None:
    """The first measure against the suite's axis, with the deviation between seeds."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plots", "drawing an experiment's axis") from None
    axis = experiment.suite.axis
    assert axis is not None
    points = []
    for name, by_seed in experiment.recipes.items():
        if name in measured:
            recipe = next(iter(by_seed.values()))
            measure = str(measured[name][0].measures[0])
            values = [one.mean[measure] for one in measured[name]]
            points.append(
                (_number_at(recipe, axis, path), np.mean(values), _deviations(measured[name])[measure] or 0.0)
            )
    x, y, deviation = np.array(sorted(points)).T
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.errorbar(x, y, yerr=deviation, marker="o", capsize=3, linewidth=1.2)
    axes.set_xlabel(axis)
    axes.set_ylabel(measure)
    axes.set_xticks(x)
    axes.spines[["top", "right"]].set_visible(False)
    with atomic_binary(path) as file:
        figure.savefig(file, format="png", dpi=200)


def _file_name(name: str) -> str:
    """A variant's folder: its name with what a shell would trip over replaced."""
    return re.sub(r"[^A-Za-z0-9_.+=-]+", "-", name).strip("-.") or "variant"
