"""Training one variant of an experiment with one seed, and measuring it on every split that the suite names."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_text
from rankwell.corpus.formats import write_run
from rankwell.corpus.records import Run
from rankwell.evaluation.evaluate import Evaluation
from rankwell.training.data.prepare import Collection, Prepared, Split, open_collection, open_split
from rankwell.training.experiments.claims import Claim
from rankwell.training.experiments.suite_tables import DEV, GroupKind, file_name
from rankwell.training.first_stage import search_split
from rankwell.training.options import Options
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_results import evaluate_split, measures_of
from rankwell.training.run import Say, Trained, measured_run, run_recipe
from rankwell.training.stage import process_count, process_number

RANKS_KEPT = 100
"""Documents per query in the rankings that are kept."""


class EvaluateOnOptions(Options):
    """Another data set or split to measure on."""

    folder: str | None = Field(default=None, description="Data set; none: that of the recipe.")
    split: str = Field(default="test", description="Split to measure on.")
    run: str | None = Field(default=None, description="First-stage run; none: search as in the recipe.")
    queries: int | None = Field(
        default=None, ge=1, description="Maximum number of queries, from the first on; none: all."
    )


Changes = dict[str, Any]
"""Paths and values as for ``--set``; ``base`` names another recipe."""


class Column(Options):
    """A way of training the suite's variants, such as the paper's own schedule."""

    base: str | None = Field(default=None, description="Recipe that the variants change here; none: the suite's.")
    set: Changes = Field(default_factory=dict, description="Options that all variants change here.")
    variants: dict[str, Changes | Literal[False] | None] = Field(
        default_factory=dict,
        description="Name → further changes of a variant here; `off` leaves it out. A new name adds a variant.",
    )
    candidates: str | None = Field(default=None, description="As in the suite, for this column; none: the suite's.")


class Suite(Options):
    """An experiment: variants of a recipe, seeds, and what is compared."""

    base: str = Field(
        description="Recipe that the variants change: its name, or a file relative to the suite's folder."
    )
    set: Changes = Field(default_factory=dict, description="Options that all variants change.")
    start: Changes = Field(
        default_factory=dict,
        description="The model that all variants start from, made once: changes of the recipe `start`, or of another "
        "`base`. Needs `data`, text that leaves the target collection out; without it, or if `--set` gives "
        "`model.start`, none is made.",
    )
    columns: dict[str, Column] = Field(
        default_factory=dict, description="Name → another way of training the variants; none: one way."
    )
    claims: tuple[Claim, ...] = Field(
        default=(), description="What a paper claims: differences between variants, judged in each column."
    )
    variants: dict[str, Changes | None] = Field(
        min_length=1,
        description="Name → changes: paths and values as for --set, and `base` for another recipe than the "
        "suite's; none: the recipe unchanged.",
    )
    seeds: tuple[int, ...] = Field(
        default=(1,), min_length=1, description="Seeds; each variant is trained with each of them."
    )
    scale: float = Field(
        default=1.0, gt=0, le=1, description="Share of `max_steps` that each stage trains, for a try on little data."
    )
    baseline: str | None = Field(
        default=None, description="Variant that the others are tested against; none: the first."
    )
    candidates: str | None = Field(
        default=None,
        description="Variant whose first stage, trained with the first seed, finds the "
        "candidates for all others; none: each recipe's own first stage.",
    )
    measures: tuple[str, ...] | None = Field(
        default=None, description="Columns of the table; none: those of the recipe."
    )
    test: Literal["t", "wilcoxon", "randomisation"] = Field(default="t", description="Significance test.")
    groups: tuple[GroupKind, ...] = Field(
        default=(), description="Also compare within groups of queries: `split words`, `length`, `type`."
    )
    evaluate_on: dict[str, EvaluateOnOptions] = Field(
        default_factory=dict, description="Name → another data set or split to measure on."
    )
    axis: str | None = Field(
        default=None, description="Path of an option; the first measure is plotted against its value."
    )

    def way(self, column: str) -> Column:
        """How variants are trained in a column; ``""`` where the suite has none."""
        own = self.columns.get(column, Column())
        variants = {name: dict(changes or {}) for name, changes in self.variants.items()}
        for name, changes in own.variants.items():
            if changes is False:
                variants.pop(name, None)
            else:
                variants[name] = {**variants.get(name, {}), **(changes or {})}
        return Column(
            base=own.base or self.base,
            set={**self.set, **own.set},
            variants=dict(variants),
            candidates=own.candidates or self.candidates,
        )


def label_of(name: str, column: str) -> str:
    """What a variant, or a place that is measured on, is called in a column."""
    return f"{name}, {column}" if column else name


@dataclass(frozen=True)
class VariantRun:
    """A variant with a seed, in a column."""

    name: str
    column: str
    seed: int
    recipe: Recipe

    def __str__(self) -> str:
        return f"{label_of(self.name, self.column)}, seed {self.seed}"

    @property
    def place(self) -> str:
        """Its folder in the experiment's."""
        return f"runs/{file_name(label_of(self.name, self.column))}/seed-{self.seed}"

    def ranking(self, place: str) -> str:
        """The file of its ranking of the queries of a place."""
        return f"rankings/{file_name(label_of(self.name, self.column))}.seed-{self.seed}.{file_name(place)}.run.gz"


@dataclass(frozen=True, eq=False)
class VariantResult:
    """Query ids and values (measures, queries) by what was measured on, or the reason why there are none.

    ``candidates`` are the runs of the training and dev queries, if the variant learned a first stage.
    """

    values: Mapping[str, tuple[tuple[str, ...], Any]]
    failure: str | None = None
    candidates: tuple[str, str] | None = None
    seconds: float = 0.0


def train_variant(variant: VariantRun, suite: Suite, out: Path, device: str | None, say: Say) -> VariantResult:
    """Train and measure a variant with a seed."""
    begin, folder = time.monotonic(), out / variant.place
    try:
        trained = run_recipe(variant.recipe, folder, pool=out, device=device, resume=True, say=say)
        values = {}
        for place, run, result in _evaluations(trained, suite, out):
            values[place] = (result.qids, result.values)
            if process_number() == 0:
                write_run(run.head(RANKS_KEPT), out / variant.ranking(place))
        source = suite.way(variant.column).candidates
        candidates = _write_candidates(trained, out) if variant.name == source else None
    except Exception as error:
        if process_count() > 1:  # the other processes are still running it: nothing can continue
            raise
        return VariantResult({}, _reason(error, folder), seconds=time.monotonic() - begin)
    return VariantResult(values, None, candidates, time.monotonic() - begin)


def train_variant_in_process(variant: VariantRun, suite: Suite, out: Path, device: str | None) -> VariantResult:
    """Like :func:`train_variant`, in its own process; logs to a file beside the variant's folder."""
    path = (out / variant.place).with_suffix(".log")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", buffering=1) as log, redirect_stdout(log), redirect_stderr(log):
        return train_variant(variant, suite, out, device, print)


def _reason(error: Exception, folder: Path) -> str:
    """The error in one line; an unexpected one leaves its traceback in a file."""
    if isinstance(error, RankwellError):
        return str(error)
    with atomic_text(folder / "error.txt") as file:
        file.write("".join(traceback.format_exception(error)))
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} (see {folder / 'error.txt'})"


# The candidates of a learned first stage


def _write_candidates(trained: Trained, out: Path) -> tuple[str, str] | None:
    """The candidates that the last learned first stage of a recipe found, as files."""
    learned = trained.work.first_stage
    if learned is None:
        return None
    paths = []
    for split in (trained.work.data.train, trained.work.data.dev):
        path = out / "candidates" / f"{learned.name}.{split.digest}.run.npz"
        if process_number() == 0 and not path.exists():
            write_run(split.run, path)
        paths.append(os.path.abspath(path))
    return paths[0], paths[1]


def with_candidates(variant: VariantRun, train_run: str, dev_run: str) -> VariantRun:
    """The same variant and seed with candidates from these runs."""
    first_stage = variant.recipe.first_stage.model_copy(update={"train_run": train_run, "dev_run": dev_run})
    return replace(variant, recipe=variant.recipe.model_copy(update={"first_stage": first_stage}))


# Measuring


def _evaluations(trained: Trained, suite: Suite, pool: Path) -> Iterator[tuple[str, Run, Evaluation]]:
    """What was measured on, the ranking of its queries, and the figures."""
    recipe, last = trained.work.recipe, trained.last
    if last is None or last.run is None:
        raise RankwellError(f"no stage of {recipe.name} ranks documents, so there is nothing to compare")
    measures, depth = measures_of(recipe, suite.measures), recipe.evaluate.depth
    data = last.work.data
    yield DEV, last.run, evaluate_split(data.dev, last.run, measures, depth)
    learned = last.work.first_stage
    for name, collection, split in further_splits(recipe, suite, pool, last.work.device):
        if learned is not None and collection.digest == data.collection.digest:
            split = search_split(split, learned, recipe.first_stage.depth, last.work.device)
        there = replace(last.work, prepared=Prepared(collection, data.train, split))
        run = measured_run(there, last.stage, last.folder)
        assert run is not None
        yield name, run, evaluate_split(split, run, measures, depth)


def further_splits(
    recipe: Recipe, suite: Suite, pool: Path, device: str | None
) -> Iterator[tuple[str, Collection, Split]]:
    """The splits of ``evaluate_on``, each with its name and collection."""
    for name, other in suite.evaluate_on.items():
        collection = open_collection(other.folder or recipe.data.folder, pool)
        split = open_split(recipe, collection, other.split, pool, run=other.run, limit=other.queries, device=device)
        yield name, collection, split
