"""The figures of a trained recipe: what each stage added, whether that is more than chance, and the model to keep."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rankwell.core.files import temporary_name
from rankwell.corpus.records import Run
from rankwell.evaluation.compare import Contrast, compare_evaluations
from rankwell.evaluation.evaluate import Evaluation, evaluate
from rankwell.evaluation.notation import Measure, parse_measures
from rankwell.evaluation.significance import holm
from rankwell.evaluation.tables import TEST_NAMES, Cell, Table, figure_cell, name_cell
from rankwell.models.checkpoints.card import link_model
from rankwell.models.checkpoints.config import read_ranker_config
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.training.data.prepare import Split
from rankwell.training.recipe import Recipe

LEVEL = 0.05
FIRST_STAGE = "first stage"
RERANK = "options of rerank"
"""The figure that names the options with which `rankwell rerank` ranks as the stage does."""
ACCURACY = "accuracy"
"""The figure that a recipe's table shows if none of its stages ranks anything."""


@dataclass(frozen=True, eq=False)
class Row:
    """A line of the table: the first stage, or a stage. ``evaluation`` is None where it ranks nothing."""

    name: str
    evaluation: Evaluation | None
    seconds: float | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


def measures_of(recipe: Recipe, measures: Sequence[str] | None = None) -> tuple[Measure, ...]:
    """The measures to report, at the recipe's relevance level."""
    level = recipe.data.relevance
    return parse_measures(list(measures or recipe.evaluate.measures), rel=level if level != 1 else None)


def measure_of(recipe: Recipe, name: str) -> Measure:
    """One measure, at the recipe's relevance level."""
    return measures_of(recipe, [name])[0]


def evaluate_split(split: Split, run: Run, measures: Sequence[Measure], depth: int) -> Evaluation:
    """A run's figures on a split."""
    return evaluate(split.qrels, run.head(depth), list(measures))


def step_contrasts(rows: Sequence[Row]) -> dict[tuple[str, str], Contrast]:
    """Each measured row against the measured row before it, by row and measure; Holm-corrected over the whole table."""
    measured = [row for row in rows if row.evaluation is not None]
    contrasts: list[Contrast] = []
    for before, row in pairwise(measured):
        assert before.evaluation is not None
        assert row.evaluation is not None
        pair = {before.name: before.evaluation, row.name: row.evaluation}
        contrasts += compare_evaluations(pair, before.name).contrasts
    corrected = holm([contrast.p for contrast in contrasts])
    return {(c.run, c.measure): replace(c, corrected=p) for c, p in zip(contrasts, corrected, strict=True)}


def stage_table(recipe: Recipe, split: Split | None, rows: Sequence[Row]) -> Table:
    """The figures after each stage; marks where a stage differs from the one before it."""
    measures = measures_of(recipe) if split else ()
    contrasts = step_contrasts(rows)
    best = {str(m): max(row.evaluation.mean[str(m)] for row in rows if row.evaluation is not None) for m in measures}
    others = [ACCURACY] if split is None and any(ACCURACY in row.figures for row in rows) else []
    lines = []
    for row in rows:
        own = [_cell(row.figures.get(name), ".4f") for name in others]
        lines.append((name_cell(row.name), *_cells(row, measures, contrasts, best), *own, _cell(row.seconds, ",.0f")))
    data = {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "split": split.name if split else None,
        "queries": len(split.qrels) if split else 0,
        "rows": [_row_data(row, measures, contrasts) for row in rows],
    }
    notes: tuple[str, ...] = ()
    if split:
        notes = (
            f"* differs from the row before it at p < {LEVEL:g}: {TEST_NAMES['t']}, two-sided, Holm-corrected over "
            f"{len(contrasts)} comparisons; {len(split.qrels)} queries of {split.name}, seed {recipe.seed}",
            *_disappointment(rows, measures[0]),
        )
    return Table(("stage", *map(str, measures), *others, "seconds"), tuple(lines), notes=notes, data=data)


def _disappointment(rows: Sequence[Row], measure: Measure) -> Iterator[str]:
    """A hint if training made the ranking worse."""
    measured = [(row.evaluation.mean[str(measure)], row.name) for row in rows if row.evaluation is not None]
    (first, _), (last, name) = measured[0], measured[-1]
    if last < first:
        yield (
            f"{name} ranks worse than the first stage. Most recipes need more than a few hundred judged queries: "
            f"use more queries or epochs, add a stage `tune`, or use {DEFAULT} without training"
        )


def _cells(
    row: Row, measures: Sequence[Measure], contrasts: Mapping[tuple[str, str], Contrast], best: Mapping[str, float]
) -> list[Cell]:
    if row.evaluation is None:
        return [Cell(None, "")] * len(measures)
    cells = []
    for measure in measures:
        value, contrast = row.evaluation.mean[str(measure)], contrasts.get((row.name, str(measure)))
        mark = "*" if contrast is not None and contrast.corrected < LEVEL else ""
        cells.append(figure_cell(measure, value, mark, value == best[str(measure)]))
    return cells


def _cell(value: float | None, form: str) -> Cell:
    return Cell(value, "" if value is None else format(value, form))


def _row_data(row: Row, measures: Sequence[Measure], contrasts: Mapping[tuple[str, str], Contrast]) -> dict[str, Any]:
    data: dict[str, Any] = {"stage": row.name, "seconds": row.seconds, "figures": dict(row.figures)}
    if row.evaluation is not None:
        data["mean"] = dict(row.evaluation.mean)
        data["against_the_row_before"] = {
            str(m): {"difference": c.difference, "p": c.p, "corrected": c.corrected, "interval": c.interval}
            for m in measures
            if (c := contrasts.get((row.name, str(m)))) is not None
        }
    return data


def publish_model(model: Path, target: Path, history: Sequence[dict[str, Any]], figures: Mapping[str, Any]) -> None:
    """Put a checkpoint at ``target`` with the whole history in its record; files are linked, where the disk can."""
    fresh = temporary_name(target)
    config = read_ranker_config(model)
    if config is not None:
        config = config.model_copy(update={"history": list(history), "figures": {**config.figures, **figures}})
    link_model(model, fresh, config)
    if target.exists():
        # A folder cannot replace another in one step. If killed in between, the model is still in its stage.
        old = temporary_name(target)
        target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        fresh.rename(target)
