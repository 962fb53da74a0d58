"""``windows``: which parts of a long document match? Trains nothing.

Leaves the checkpoint it was given, which then reads long documents in these windows, and the windows' scores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Run
from rankwell.inputs.windows import parse_aggregate
from rankwell.models.checkpoints.card import link_model
from rankwell.rank.engines.engine import LoadedModel, load
from rankwell.rank.ranker import Ranker
from rankwell.rank.window_scores import WindowScores, score_windows
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, TRAINING, StageKind, StageResult, Work, process_number
from rankwell.training.stage_options.ranking import WindowsOptions
from rankwell.training.stages.shared import check_ranker


def check(work: Work, stage: RecipeStage[WindowsOptions]) -> None:
    """Check windows and aggregate, and that there is a ranker to score them."""
    options = stage.options
    check_ranker(work, stage, "pointwise", "listwise", "distil", "average", "classify")
    options.windows()
    _, weights = parse_aggregate(options.aggregate)
    if len(weights) > options.keep:
        raise RankwellError(f"aggregate {options.aggregate} needs more windows than keep, which is {options.keep}")


def run(work: Work, stage: RecipeStage[WindowsOptions], folder: Path) -> StageResult:
    """Score the windows of the dev queries' candidates."""
    options = stage.options
    if process_number() > 0:
        return StageResult(folder / "model")
    loaded = _load(work)
    scores = window_scores(work, options, folder, loaded)
    if not (folder / "model").is_dir():
        record: dict[str, Any] = {"windows": options.windows() or "truncate", "history": work.history, "figures": {}}
        link_model(work.model, folder / "model", loaded.config.model_copy(update=record))
    figures = {
        "pairs": len(scores),
        "windows": int(scores.counts.sum()),
        "share of documents in several windows": float((scores.counts > 1).mean()),
    }
    return StageResult(folder / "model", figures=figures)


def measure(work: Work, stage: RecipeStage[WindowsOptions], folder: Path) -> Run:
    """The dev queries by their documents' windows alone."""
    return window_scores(work, stage.options, folder).run(stage.options.aggregate)


def _load(work: Work) -> LoadedModel:
    # Whether there is a pooler is up to the checkpoint: it is not trained here.
    changes = {name: value for name, value in work.changes.items() if name != "pooler"}
    return load(work.model, "torch", changes, work.engine)


def window_scores(work: Work, options: WindowsOptions, folder: Path, loaded: LoadedModel | None = None) -> WindowScores:
    """The scores of the dev queries' windows, computed once and stored in the stage's folder."""
    dev = work.data.dev
    path = folder / f"windows-{dev.digest}.npz"
    if not path.exists():
        loaded = loaded or _load(work)
        work.data.tokens(loaded.tokenizer, stems=loaded.config.template.markers)
        ranker = Ranker.from_loaded(loaded, options.windows())
        scores = score_windows(
            ranker,
            dev.run,
            dev.queries,
            work.data.index,
            depth=options.depth,
            keep=options.keep,
            activation="probability",
        )
        scores.write(path)
    return WindowScores.read(path)


STAGES.register("windows")(StageKind(WindowsOptions, run, check, measure, reads=TRAINING - {"train", "seed"}))
