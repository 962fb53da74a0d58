"""Stages for long documents: their windows scored once, and joined with the first stage in the best way there is.

``windows`` leaves the checkpoint it was given, which now reads in these windows, and beside it their scores.
``interpolate`` leaves the same checkpoint with the aggregate that was best, and

    tuning.json     β and aggregate: the best on all dev queries, and those chosen without each fold
    table.md        first stage, windows and both together, with tests
    beta.png        the measure against β for some aggregates         top-k.png    and against the number of windows
    held-out.run.gz each dev query under the setting chosen without it
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.core.files import atomic_text
from rankwell.core.jsonfile import write_json
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Run
from rankwell.evaluation.compare import compare_evaluations
from rankwell.evaluation.evaluate import Evaluation
from rankwell.evaluation.notation import Measure, parse_measure
from rankwell.evaluation.significance import mean_intervals
from rankwell.evaluation.tables import as_markdown, comparison_table, contrast_table
from rankwell.inputs.windows import Windows, parse_aggregate
from rankwell.models.checkpoints.config import RankerConfig, WindowsConfig, read_ranker_config
from rankwell.plots.curves import draw_sweep
from rankwell.rank.documents.fusion import (
    DocumentFusion,
    DocumentTable,
    DocumentTuning,
    settings_of,
    tune_documents,
    weight_grid,
)
from rankwell.rank.documents.window_scores import WindowScores, score_windows
from rankwell.rank.engines.engine import Loaded, load
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.tune import parse_values
from rankwell.training.options import InterpolateOptions, WindowsOptions
from rankwell.training.results import (
    FIRST_STAGE,
    evaluate_split,
    kept_run,
    link_model,
    measure_of,
    measures_of,
)
from rankwell.training.stage import Produced, Work
from rankwell.training.stage_store import process_number
from rankwell.training.stages.ranking import check_ranker

TUNING, HELD_OUT = "tuning.json", "held-out.run.gz"
ALONE, TOGETHER = "windows alone", "interpolated"


# Windows


def check_windows(work: Work, options: WindowsOptions) -> None:
    """Windows and aggregate must be some, and something must score them."""
    check_ranker(work, "windows", "pointwise", "listwise", "distil", "average", "classify")
    _windows(options)
    _, weights = parse_aggregate(options.aggregate)
    if len(weights) > options.keep:
        raise RankwellError(f"aggregate {options.aggregate} needs more windows than keep, which is {options.keep}")


def windows_stage(work: Work, options: WindowsOptions, folder: Path) -> Produced:
    """Score the windows of the dev queries' candidates."""
    if process_number() > 0:
        return Produced(folder / "model")
    loaded = _load(work)
    scores = _scores_of(work, options, loaded, folder)
    if not (folder / "model").is_dir():
        own = WindowsConfig(size=options.size, stride=options.stride, aggregate=options.aggregate, unit=options.unit)
        link_model(work.model, folder / "model", _record(work, loaded.config, own if options.size else "cut"))
    several = scores.counts > 1
    figures = {
        "pairs": len(scores),
        "windows": int(scores.counts.sum()),
        "share of documents in several windows": float(several.mean()),
    }
    return Produced(folder / "model", figures=figures)


def measure_windows(work: Work, produced: Produced) -> Run:
    """The dev queries by their documents' windows alone."""
    assert produced.model is not None
    options = _options(work, WindowsOptions)
    return _scores_of(work, options, None, produced.model.parent).run(options.aggregate)


def _windows(options: WindowsOptions) -> Windows | None:
    return Windows(options.size, options.stride, options.aggregate, options.unit) if options.size else None


def _load(work: Work) -> Loaded:
    # Whether there is a pooler is the checkpoint's own business: it is not trained here.
    changes = {name: value for name, value in work.changes.items() if name != "pooler"}
    return load(work.model, "torch", changes, {} if work.device is None else {"device": work.device})


def _record(work: Work, config: RankerConfig, windows: WindowsConfig | Literal["cut"] | None) -> RankerConfig:
    return config.model_copy(update={"windows": windows, "history": work.history, "figures": {}})


def _scores_of(work: Work, options: WindowsOptions, loaded: Loaded | None, folder: Path) -> WindowScores:
    """The scores of the dev queries' windows, computed once and kept in the stage's folder."""
    dev = work.data.dev
    path = _scores_path(work, folder)
    if not path.exists():
        loaded = loaded or _load(work)
        work.data.tokens(loaded.tokenizer, stems=loaded.config.template.markers)
        ranker = Ranker(
            loaded.engine,
            loaded.tokenizer,
            loaded.config.template.build(),
            windows=_windows(options),
            segments=loaded.segments,
        )
        found = score_windows(
            ranker,
            dev.run,
            dev.queries,
            work.data.index,
            depth=options.depth,
            keep=options.keep,
            activation="probability" if options.scores == "probability" else None,
        )
        found.write(path)
    return WindowScores.read(path)


def _scores_path(work: Work, folder: Path) -> Path:
    return folder / f"windows-{work.data.dev.digest}.tsv.gz"


def _options(work: Work, kind: type[Any]) -> Any:
    """The options of the stage that follows what is done already."""
    options = work.recipe.stages[len(work.done)].options
    assert isinstance(options, kind)
    return options


# Interpolation


def check_interpolate(work: Work, options: InterpolateOptions) -> None:
    """The grid and the measure must be ones, and something must rank before it."""
    parse_measure(options.measure)
    _settings(options)
    stages = [stage.kind for stage in work.recipe.stages]
    if stages[0] == "interpolate":
        raise RankwellError("stages.interpolate needs a stage before it that ranks documents, such as windows")
    check_folds(work, "interpolate", options.folds)


def check_folds(work: Work, stage: str, folds: int) -> None:
    """There must be a dev query for each fold."""
    if (queries := len(work.data.dev.qrels)) < folds:
        raise RankwellError(f"stages.{stage}.folds is {folds}, but dev has {queries} queries")


def interpolate(work: Work, options: InterpolateOptions, folder: Path) -> Produced:
    """Try every setting on the dev queries, and choose by cross-validation."""
    if process_number() > 0:
        return Produced(folder / "model")
    dev, scores = work.data.dev, _scores_before(work)
    tuning, alone = _tune(work, options, scores, _settings(options)), _tune(work, options, scores, _alone(options))
    write_run(tuning.held_out, folder / HELD_OUT)
    best = {"beta": tuning.best.beta, "aggregate": tuning.best.aggregate, "normalise": tuning.best.normalise}
    _write_tuning(tuning, best, dev.digest, folder / TUNING)
    if not (folder / "model").is_dir():
        link_model(work.model, folder / "model", _tuned_record(work, tuning.best))
    figures = _write_table(work, tuning, alone, folder / "table.md")
    with suppress(MissingExtraError):  # the figures are what counts
        _draw(work, options, tuning, scores, folder)
    return Produced(folder / "model", figures={**best, **figures})


def _tuned_record(work: Work, best: DocumentFusion) -> RankerConfig | None:
    """The checkpoint's record with the best aggregate; β, which a model alone cannot have, is among its figures."""
    own = read_ranker_config(work.model)
    if own is None:
        return None
    windows = own.windows
    if isinstance(windows, WindowsConfig):
        windows = windows.model_copy(update={"aggregate": best.aggregate})
    return _record(work, own, windows).model_copy(update={"figures": {"interpolation": str(best)}})


def measure_interpolate(work: Work, produced: Produced) -> Run:
    """The dev queries each under the setting chosen without it; other queries under the best setting of dev."""
    assert produced.model is not None
    folder = produced.model.parent
    try:
        record = json.loads((folder / TUNING).read_text(encoding="utf-8"))
        best, tuned_on = DocumentFusion(**record["best"]), record["tuned_on"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(folder / TUNING, None, "not the tuning of an interpolation") from None
    if tuned_on == work.data.dev.digest:
        return read_run(folder / HELD_OUT)
    return DocumentTable(work.data.dev.run, _scores_before(work)).run([best])


def _scores_before(work: Work) -> WindowScores:
    """What the stage before left: scores of windows, or a run of whole documents."""
    before, folder = work.done[-1].stage, work.model.parent
    if before.kind == "windows":
        assert isinstance(before.options, WindowsOptions)
        return _scores_of(work, before.options, None, folder)
    if not (path := kept_run(work, folder)).exists():
        problem = f"the stage {before.name} before it has no run of the split {work.data.dev.name!r}"
        raise RankwellError(f"stages.interpolate: {problem} to join with the first stage's")
    return WindowScores.of_run(read_run(path))


def _betas(options: InterpolateOptions) -> list[float]:
    return parse_values(str(options.beta))


def _aggregates(options: InterpolateOptions) -> list[str]:
    weights = weight_grid(options.weights, options.step) if options.weights else ()
    found = [*options.aggregate, *weights]
    if not found:
        raise RankwellError("stages.interpolate: neither an aggregate nor weights to try")
    return found


def _settings(options: InterpolateOptions) -> tuple[DocumentFusion, ...]:
    return settings_of(_betas(options), _aggregates(options), options.normalise)


def _alone(options: InterpolateOptions) -> tuple[DocumentFusion, ...]:
    return settings_of([0.0], _aggregates(options), options.normalise)


def _tune(
    work: Work, options: InterpolateOptions, scores: WindowScores, settings: tuple[DocumentFusion, ...]
) -> DocumentTuning:
    dev = work.data.dev
    # A run of whole documents has one window a document: there is nothing to aggregate, so one aggregate is enough.
    if not bool((scores.counts > 1).any()):
        settings = tuple(one for one in settings if one.aggregate == settings[0].aggregate)
    return tune_documents(
        dev.run, scores, dev.qrels, _measure(work, options), settings, folds=options.folds, seed=work.seed
    )


def _measure(work: Work, options: InterpolateOptions) -> Measure:
    return measure_of(work.recipe, options.measure)


# Figures


def _write_tuning(tuning: DocumentTuning, best: dict[str, Any], tuned_on: str, path: Path) -> None:
    means = tuning.values.mean(axis=1).tolist()
    grid = [{**asdict(one), "mean": mean} for one, mean in zip(tuning.settings, means, strict=True)]
    record = {
        "measure": tuning.measure,
        "best": best,
        "cross_validated": tuning.found.mean,
        "folds": [asdict(tuning.settings[i]) for i in tuning.found.chosen],
        "tuned_on": tuned_on,
        "grid": grid,
    }
    write_json(path, record)


def _write_table(work: Work, tuning: DocumentTuning, alone: DocumentTuning, path: Path) -> dict[str, Any]:
    """First stage and windows beside both together; returns what is worth a record."""
    dev, measures = work.data.dev, measures_of(work.recipe)
    depth = work.recipe.evaluate.depth
    # Over the candidates that have scores, for all three alike.
    first = Run({qid: dev.run[qid].head(len(own)) for qid, own in tuning.table.windows.docids.items()})
    runs = {TOGETHER: tuning.held_out, FIRST_STAGE: first, ALONE: alone.held_out}
    found: dict[str, Evaluation] = {name: evaluate_split(dev, run, measures, depth) for name, run in runs.items()}
    compared = compare_evaluations(found, TOGETHER)
    title = f"# {work.recipe.name}: {tuning.measure} tuned over {len(tuning.settings)} settings\n"
    said = f"Each query is ranked under the setting chosen without its fold. Best on all queries: {tuning.best}."
    with atomic_text(path) as file:
        tables = (comparison_table(compared), contrast_table(compared))
        file.write("\n\n".join([f"{title}\n{said}", *map(as_markdown, tables)]) + "\n")
    figures: dict[str, Any] = {}
    for name, evaluation in found.items():
        figures |= {f"{measure}, {name}": value for measure, value in evaluation.mean.items()}
    for one in compared.contrasts:
        figures[f"p, {TOGETHER} against {one.run}, {one.measure}"] = one.corrected
    return figures


def _draw(work: Work, options: InterpolateOptions, tuning: DocumentTuning, scores: WindowScores, folder: Path) -> None:
    """The sweeps: over β, and over the number of windows that count."""
    tried = {one.aggregate for one in tuning.settings}
    shown = dict.fromkeys(how for how in (*options.aggregate, tuning.best.aggregate) if how in tried)
    lines = {how: (x, mean_intervals(values)) for how in shown for x, values in [tuning.rows(how)]}
    draw_sweep(lines, folder / "beta.png", option="β, the first stage's share", measure=tuning.measure)
    most = min(scores.best.shape[1], int(scores.counts.max()))
    if most == 1:
        return
    counts, betas = np.arange(1, most + 1), dict.fromkeys([0.0, tuning.best.beta])
    lines = {}
    for beta in betas:
        settings = settings_of([beta], [f"top{n}" for n in counts], options.normalise)
        values = _tune(work, options, scores, settings).values
        lines[f"β={beta:g}"] = counts.astype(np.float64), mean_intervals(values)
    draw_sweep(lines, folder / "top-k.png", option="best windows that count", measure=tuning.measure)
