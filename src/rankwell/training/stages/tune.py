"""``tune``: a ranker's scores, a bi-encoder's similarities and the first stage's scores, in the best shares.

A ranker that was trained on one collection's judgments and a bi-encoder that was trained on a billion pairs err on
different queries, and the first stage knows what neither does. After ``windows``, the aggregate of a document's windows
is tuned as well. The stage leaves the same checkpoint, with the best aggregate, and

    tuning.json     shares and aggregate: the best on all dev queries, those chosen without each fold, and the grid
    table.md        first stage, ranker and all together, with tests
    held-out.run.gz each dev query under the setting chosen without it
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_text
from rankwell.core.manifest import write_json
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Run
from rankwell.evaluation.compare import compare_evaluations
from rankwell.evaluation.cross_validation import Tuned
from rankwell.evaluation.notation import parse_measure
from rankwell.evaluation.tables import as_markdown, comparison_table, contrast_table
from rankwell.inputs.windows import Windows, parse_aggregate
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.card import link_model
from rankwell.models.checkpoints.config import RankerConfig, read_ranker_config
from rankwell.rank.dense import DenseRanker
from rankwell.rank.fusion import PARTS as FUSED
from rankwell.rank.fusion import Shares
from rankwell.rank.tuning import WindowSetting, fuse_windows, share_grid, tune_windows, weight_grid, window_grid
from rankwell.rank.window_scores import WindowScores
from rankwell.retrieve.bm25_tuning import parse_values
from rankwell.training.first_stage import find_encoder
from rankwell.training.options import FIRST_STAGE_ENCODER, START
from rankwell.training.recipe import RecipeStage
from rankwell.training.recipe_results import FIRST_STAGE, RERANK, evaluate_split, measure_of, measures_of
from rankwell.training.stage import PARTS, STAGES, StageKind, StageResult, Work, process_number, stage_kinds
from rankwell.training.stage_options.ranking import TuneOptions, WindowsOptions
from rankwell.training.stages.windows import window_scores

TUNING, HELD_OUT = "tuning.json", "held-out.run.gz"
ALONE, TOGETHER = "ranker alone", "together"


def check(work: Work, stage: RecipeStage[TuneOptions]) -> None:
    """Check grid, measure and bi-encoder, and that a stage before it ranks documents."""
    options = stage.options
    parse_measure(options.measure)
    if not (options.aggregate or options.weights):
        raise RankwellError(f"{stage.path}: neither an aggregate nor weights to try")
    if options.encoder is not None:
        if options.beta is not None:
            raise RankwellError(
                f"{stage.path}: beta is the first stage's weight beside the ranker; set encoder to null"
            )
        find_encoder(work, stage, options.encoder)
    _settings(options)
    if not any(stage_kinds()[earlier.kind].leaves_ranker for earlier in work.recipe.before(stage)):
        raise RankwellError(f"{stage.path} needs a stage before it that ranks documents, such as listwise")
    if (queries := len(work.data.dev.qrels)) < options.folds:
        raise RankwellError(f"{stage.path}.folds is {options.folds}, but dev has {queries} queries")


def run(work: Work, stage: RecipeStage[TuneOptions], folder: Path) -> StageResult:
    """Try every setting on the dev queries, and choose by cross-validation."""
    options = stage.options
    if process_number() > 0:
        return StageResult(folder / "model")
    scored = _scored(work, stage)
    tuning = scored.tune(work, options, _settings(options))
    alone = scored.tune(work, options, window_grid([0.0], _aggregates(options), options.normalise))
    held_out = scored.fuse(tuning.setting_for, "held-out")
    write_run(held_out, folder / HELD_OUT)
    described = {**tuning.as_dict(_described), "encoder": options.encoder, "tuned_on": work.data.dev.digest}
    write_json(folder / TUNING, described)
    if not tuning.best[0].model:
        warnings.warn(
            "the ranker has no weight: dev is ranked best without it. It has learned too little to help: use more "
            "judged queries or more epochs",
            stacklevel=2,
        )
    if not (folder / "model").is_dir():
        link_model(work.model, folder / "model", _tuned_record(work, options, tuning.best))
    runs = {TOGETHER: held_out, FIRST_STAGE: scored.first, ALONE: scored.fuse(alone.setting_for, ALONE)}
    figures = {**_described(tuning.best), **_write_table(work, tuning, runs, folder / "table.md")}
    if options.encoder is not None:
        encoder = _encoder_name(work, stage, options.encoder, folder)
        figures[RERANK] = rerank_options(work.recipe.evaluate.depth, tuning.best[0], encoder)
    return StageResult(folder / "model", figures=figures)


def measure(work: Work, stage: RecipeStage[TuneOptions], folder: Path) -> Run:
    """Rank each dev query with the setting chosen without it, other queries with the best setting of dev."""
    try:
        record = json.loads((folder / TUNING).read_text(encoding="utf-8"))
        best, tuned_on = record["best"], record["tuned_on"]
        shares = Shares(**{part: best[part] for part in FUSED}, normalise=best["normalise"])
        setting = (shares, best["aggregate"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(folder / TUNING, None, "not the record of a tuning") from None
    if tuned_on == work.data.dev.digest:
        return read_run(folder / HELD_OUT)
    return _scored(work, stage).fuse(setting, "tuned")


@dataclass(frozen=True, eq=False)
class Scored:
    """The dev candidates that the ranker scored: by it, by the first stage and, if one is asked for, a bi-encoder."""

    windows: WindowScores
    first: Run
    similarity: Run | None

    def tune(self, work: Work, options: TuneOptions, settings: Sequence[WindowSetting]) -> Tuned[WindowSetting]:
        """The figures of all settings, and the choice."""
        # Where each document is one window, there is nothing to aggregate, so one aggregate is enough.
        if not bool((self.windows.counts > 1).any()):
            settings = [setting for setting in settings if setting[1] == settings[0][1]]
        return tune_windows(
            self.first,
            self.windows,
            work.data.dev.qrels,
            settings,
            similarity=self.similarity,
            measure=str(measure_of(work.recipe, options.measure)),
            folds=options.folds,
            seed=work.seed,
        )

    def fuse(self, setting: Any, name: str) -> Run:
        """The run under one setting or one for each query."""
        return fuse_windows(self.first, self.windows, setting, similarity=self.similarity, name=name)


def _scored(work: Work, stage: RecipeStage[TuneOptions]) -> Scored:
    """What the last stage that ranks left: scores of windows, or a run of whole documents."""
    dev, name = work.data.dev, stage.options.encoder
    before = next(done for done in reversed(work.done) if stage_kinds()[done.stage.kind].leaves_ranker)
    if isinstance(before.stage.options, WindowsOptions):
        windows = window_scores(work, before.stage.options, before.folder)
    else:
        path, rank = work.dev_run_path(before.folder), stage_kinds()[before.stage.kind].measure
        assert rank is not None  # it leaves a ranker
        there = replace(before.work, prepared=work.prepared)
        windows = WindowScores.of_run(read_run(path) if path.exists() else rank(there, before.stage, before.folder))
    first = Run({qid: dev.run[qid].head(len(docids)) for qid, docids in windows.docids.items()})
    if name is None:
        return Scored(windows, first, None)
    folder = find_encoder(work, stage, name)
    assert folder is not None
    encoder = DenseRanker(BiEncoder.from_pretrained(folder, device=work.device))
    depth = max(map(len, first.values()), default=1)
    return Scored(windows, first, encoder.rerank(first, dev.queries, work.data.index, depth=depth))


def _aggregates(options: TuneOptions) -> list[str]:
    weights = weight_grid(options.weights, options.step) if options.weights else ()
    return [*options.aggregate, *weights]


def _settings(options: TuneOptions) -> tuple[WindowSetting, ...]:
    if options.beta is not None:
        return window_grid(parse_values(str(options.beta)), _aggregates(options), options.normalise)
    parts = ("model", "first") if options.encoder is None else FUSED
    grid = share_grid(parts, options.step, options.normalise)
    for aggregate in options.aggregate:
        parse_aggregate(aggregate)
    return tuple((shares, aggregate) for aggregate in dict.fromkeys(_aggregates(options)) for shares in grid)


def _described(setting: WindowSetting) -> dict[str, Any]:
    """A setting as ``tuning.json`` has it."""
    shares, aggregate = setting
    return {**shares.as_dict(), "normalise": shares.normalise, "aggregate": aggregate}


def _tuned_record(work: Work, options: TuneOptions, best: WindowSetting) -> RankerConfig | None:
    """The checkpoint's record with the best aggregate; the shares, which a model alone cannot have, are figures."""
    config = read_ranker_config(work.model)
    if config is None:
        return None
    (shares, aggregate), windows, tuned = best, config.windows, str(best[0])
    if isinstance(windows, Windows):
        windows, tuned = replace(windows, aggregate=aggregate), f"{tuned}, {aggregate}"
    if shares.similarity:
        tuned += f", similarity of {options.encoder}"
    return config.model_copy(update={"windows": windows, "history": work.history, "figures": {"tuned": tuned}})


def _encoder_name(work: Work, stage: RecipeStage[TuneOptions], name: str, folder: Path) -> str:
    """The bi-encoder as a command line names it; one that a stage made, from the folder of all stages."""
    if name == FIRST_STAGE_ENCODER:
        found = find_encoder(work, stage, name)
        assert found is not None
        place = found.resolve()
        stages = folder.parent.resolve()
        return os.path.join(stages.name, place.relative_to(stages)) if place.is_relative_to(stages) else str(found)
    return work.recipe.model.start if name == START else name


def rerank_options(depth: int, best: Shares, encoder: str) -> str:
    """The options of ``rankwell rerank`` that give the same fusion; a bi-encoder without a share is left out.

    >>> rerank_options(100, Shares(model=0.7, first=0.3, normalise="z-score"), "my-encoder")
    '--depth 100 --fuse 0.3 --set normalise=z-score'
    """
    options = [f"--blend {best.similarity:g}"] if best.similarity else []
    options += [f"--fuse {best.first:g}"] if best.first else []
    options += [f"--encoder {encoder}"] if best.similarity else []
    return " ".join([f"--depth {depth}", *options, *([f"--set normalise={best.normalise}"] if options else [])])


def _write_table(work: Work, tuning: Tuned[WindowSetting], runs: Mapping[str, Run], path: Path) -> dict[str, Any]:
    """First stage and ranker beside all together, over the same candidates; returns the figures to record."""
    measures, depth = measures_of(work.recipe), work.recipe.evaluate.depth
    evaluations = {name: evaluate_split(work.data.dev, run, measures, depth) for name, run in runs.items()}
    compared = compare_evaluations(evaluations, TOGETHER)
    shares, aggregate = tuning.best
    text = (
        f"# {work.recipe.name}: {tuning.measure} tuned over {len(tuning.settings)} settings\n\n"
        "Each query is ranked under the setting chosen without its fold. Best on all queries: "
        f"{shares}, windows by {aggregate}."
    )
    with atomic_text(path) as file:
        tables = (comparison_table(compared), contrast_table(compared))
        file.write("\n\n".join([text, *map(as_markdown, tables)]) + "\n")
    figures = {
        f"{measure}, {name}": value
        for name, evaluation in evaluations.items()
        for measure, value in evaluation.mean.items()
    }
    tests = {f"p, {TOGETHER} against {each.run}, {each.measure}": each.corrected for each in compared.contrasts}
    return {f"{tuning.measure}, cross-validated": tuning.cross_validated, **figures, **tests}


STAGES.register("tune")(StageKind(TuneOptions, run, check, measure, reads=PARTS - {"train"}))
