"""``interpolate``: how much does the first stage still know? Trains nothing.

Leaves the same checkpoint with the aggregate that was best, and

    tuning.json     β and aggregate: the best on all dev queries, and those chosen without each fold
    table.md        first stage, windows and both together, with tests
    beta.png        the measure against β for some aggregates         top-k.png    and against the number of windows
    held-out.run.gz each dev query under the setting chosen without it
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.arrays import Values
from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.core.files import atomic_text
from rankwell.core.manifest import write_json
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Run
from rankwell.evaluation.compare import compare_evaluations
from rankwell.evaluation.notation import parse_measure
from rankwell.evaluation.significance import mean_intervals
from rankwell.evaluation.tables import as_markdown, comparison_table, contrast_table
from rankwell.evaluation.tuning import Tuned
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.card import link_model
from rankwell.models.checkpoints.config import RankerConfig, read_ranker_config
from rankwell.plots.curves import draw_sweep
from rankwell.rank.tuning import WindowSetting, fuse_windows, tune_windows, weight_grid, window_grid
from rankwell.rank.window_scores import WindowScores
from rankwell.retrieve.tune import parse_values
from rankwell.training.recipe import RecipeStage
from rankwell.training.results import FIRST_STAGE, evaluate_split, measure_of, measures_of
from rankwell.training.stage import PARTS, STAGES, StageKind, StageResult, Work, process_number
from rankwell.training.stage_options.rankers import InterpolateOptions, WindowsOptions
from rankwell.training.stages.shared import check_folds
from rankwell.training.stages.windows import window_scores

TUNING, HELD_OUT = "tuning.json", "held-out.run.gz"
ALONE, TOGETHER = "windows alone", "interpolated"


def check(work: Work, stage: RecipeStage[InterpolateOptions]) -> None:
    """Check grid and measure, and that a stage before it ranks documents."""
    options = stage.options
    parse_measure(options.measure)
    if not _aggregates(options):
        raise RankwellError(f"{stage.path}: neither an aggregate nor weights to try")
    _settings(options)
    if stage.number == 1:
        raise RankwellError(f"{stage.path} needs a stage before it that ranks documents, such as windows")
    check_folds(work, stage, options.folds)


def run(work: Work, stage: RecipeStage[InterpolateOptions], folder: Path) -> StageResult:
    """Try every setting on the dev queries, and choose by cross-validation."""
    options = stage.options
    if process_number() > 0:
        return StageResult(folder / "model")
    dev, scores = work.data.dev, _scores_before(work, stage)
    tuning, alone = _tune(work, options, scores, _settings(options)), _tune(work, options, scores, _alone(options))
    held_out = fuse_windows(dev.run, scores, tuning.setting_for, name="held-out")
    write_run(held_out, folder / HELD_OUT)
    write_json(folder / TUNING, {**tuning.as_dict(_described), "tuned_on": dev.digest})
    if not (folder / "model").is_dir():
        link_model(work.model, folder / "model", _tuned_record(work, tuning.best))
    runs = {TOGETHER: held_out, ALONE: fuse_windows(dev.run, scores, alone.setting_for)}
    figures = _write_table(work, tuning, scores, runs, folder / "table.md")
    with suppress(MissingExtraError):  # the figures are what counts
        _draw(work, options, tuning, scores, folder)
    return StageResult(folder / "model", figures={**_described(tuning.best), **figures})


def _tuned_record(work: Work, best: WindowSetting) -> RankerConfig | None:
    """The checkpoint's record with the best aggregate; β, which a model alone cannot have, is among its figures."""
    config = read_ranker_config(work.model)
    if config is None:
        return None
    windows = config.windows
    if isinstance(windows, Windows):
        windows = replace(windows, aggregate=best[1])
    figures = {"interpolation": _named(best)}
    return config.model_copy(update={"windows": windows, "history": work.history, "figures": figures})


def measure(work: Work, stage: RecipeStage[InterpolateOptions], folder: Path) -> Run:
    """Rank each dev query with the setting chosen without it, other queries with the best setting of dev."""
    try:
        record = json.loads((folder / TUNING).read_text(encoding="utf-8"))
        best, tuned_on = record["best"], record["tuned_on"]
        [setting] = window_grid([best["beta"]], [best["aggregate"]], best["normalise"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(folder / TUNING, None, "not the tuning of an interpolation") from None
    if tuned_on == work.data.dev.digest:
        return read_run(folder / HELD_OUT)
    return fuse_windows(work.data.dev.run, _scores_before(work, stage), setting)


def _scores_before(work: Work, stage: RecipeStage[InterpolateOptions]) -> WindowScores:
    """What the stage before left: scores of windows, or a run of whole documents."""
    before, folder = work.done[-1].stage, work.model.parent
    if isinstance(before.options, WindowsOptions):
        return window_scores(work, before.options, folder)
    if not (path := work.dev_run_path(folder)).exists():
        problem = f"the stage {before.name} before it has no run of the split {work.data.dev.name!r}"
        raise RankwellError(f"{stage.path}: {problem} to join with the first stage's")
    return WindowScores.of_run(read_run(path))


def _aggregates(options: InterpolateOptions) -> list[str]:
    weights = weight_grid(options.weights, options.step) if options.weights else ()
    return [*options.aggregate, *weights]


def _settings(options: InterpolateOptions) -> tuple[WindowSetting, ...]:
    return window_grid(parse_values(str(options.beta)), _aggregates(options), options.normalise)


def _alone(options: InterpolateOptions) -> tuple[WindowSetting, ...]:
    return window_grid([0.0], _aggregates(options), options.normalise)


def _tune(
    work: Work, options: InterpolateOptions, scores: WindowScores, settings: tuple[WindowSetting, ...]
) -> Tuned[WindowSetting]:
    dev = work.data.dev
    # A run of whole documents has one window a document: there is nothing to aggregate, so one aggregate is enough.
    if not bool((scores.counts > 1).any()):
        settings = tuple(setting for setting in settings if setting[1] == settings[0][1])
    measure = str(measure_of(work.recipe, options.measure))
    return tune_windows(dev.run, scores, dev.qrels, settings, measure=measure, folds=options.folds, seed=work.seed)


# Figures


def _described(setting: WindowSetting) -> dict[str, Any]:
    """A setting as ``tuning.json`` has it."""
    shares, aggregate = setting
    return {"beta": shares.first, "aggregate": aggregate, "normalise": shares.normalise}


def _named(setting: WindowSetting) -> str:
    shares, aggregate = setting
    return f"β={shares.first:g} {aggregate} {shares.normalise}"


def _rows(tuning: Tuned[WindowSetting], aggregate: str) -> tuple[Values, Values]:
    """The first stage's shares tried with one aggregate, ascending, and their figures (shares, queries)."""
    rows = sorted((shares.first, row) for row, (shares, how) in enumerate(tuning.settings) if how == aggregate)
    return np.array([share for share, _ in rows]), tuning.values[[row for _, row in rows]]


def _write_table(
    work: Work, tuning: Tuned[WindowSetting], scores: WindowScores, ranked: Mapping[str, Run], path: Path
) -> dict[str, Any]:
    """First stage and windows beside both together; returns the figures to record."""
    dev, measures = work.data.dev, measures_of(work.recipe)
    depth = work.recipe.evaluate.depth
    # Over the candidates that have scores, for all three alike.
    first = Run({qid: dev.run[qid].head(len(docids)) for qid, docids in scores.docids.items()})
    runs = {TOGETHER: ranked[TOGETHER], FIRST_STAGE: first, ALONE: ranked[ALONE]}
    evaluations = {name: evaluate_split(dev, run, measures, depth) for name, run in runs.items()}
    compared = compare_evaluations(evaluations, TOGETHER)
    title = f"# {work.recipe.name}: {tuning.measure} tuned over {len(tuning.settings)} settings\n"
    note = (
        f"Each query is ranked under the setting chosen without its fold. Best on all queries: {_named(tuning.best)}."
    )
    with atomic_text(path) as file:
        tables = (comparison_table(compared), contrast_table(compared))
        file.write("\n\n".join([f"{title}\n{note}", *map(as_markdown, tables)]) + "\n")
    figures: dict[str, Any] = {}
    for name, evaluation in evaluations.items():
        figures |= {f"{measure}, {name}": value for measure, value in evaluation.mean.items()}
    for contrast in compared.contrasts:
        figures[f"p, {TOGETHER} against {contrast.run}, {contrast.measure}"] = contrast.corrected
    return figures


def _draw(
    work: Work, options: InterpolateOptions, tuning: Tuned[WindowSetting], scores: WindowScores, folder: Path
) -> None:
    """The sweeps: over β, and over the number of windows that count."""
    tried = {aggregate for _, aggregate in tuning.settings}
    shown = dict.fromkeys(how for how in (*options.aggregate, tuning.best[1]) if how in tried)
    lines = {how: (x, mean_intervals(values)) for how in shown for x, values in [_rows(tuning, how)]}
    draw_sweep(lines, folder / "beta.png", option="β, the first stage's share", measure=tuning.measure)
    most = min(scores.best.shape[1], int(scores.counts.max()))
    if most == 1:
        return
    counts, betas = np.arange(1, most + 1), dict.fromkeys([0.0, tuning.best[0].first])
    lines = {}
    for beta in betas:
        settings = window_grid([beta], [f"top{n}" for n in counts], options.normalise)
        values = _tune(work, options, scores, settings).values
        lines[f"β={beta:g}"] = counts.astype(np.float64), mean_intervals(values)
    draw_sweep(lines, folder / "top-k.png", option="best windows that count", measure=tuning.measure)


STAGES.register("interpolate")(StageKind(InterpolateOptions, run, check, measure, reads=PARTS - {"train"}))
