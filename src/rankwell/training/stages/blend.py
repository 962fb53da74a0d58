"""``blend``: a ranker's scores, a bi-encoder's similarities and the first stage's scores, in the best shares.

A ranker that was trained on one collection's judgments and a bi-encoder that was trained on a billion pairs err on
different queries. The stage leaves the checkpoint as it is, and beside it

    blend.json       the shares: the best on all dev queries, those chosen without each fold, and the whole grid
    held-out.run.gz  each dev query under the shares chosen without it
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import write_json
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Run
from rankwell.evaluation.notation import parse_measure
from rankwell.evaluation.tuning import Tuned
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.config import read_ranker_config
from rankwell.models.checkpoints.names import link_model
from rankwell.rank.dense import DenseRanker
from rankwell.rank.fusion import PARTS as FUSED
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.tuning import share_grid, tune_fusion
from rankwell.training.first_stage import find_encoder
from rankwell.training.options import FIRST_STAGE_ENCODER, START
from rankwell.training.recipe import RecipeStage
from rankwell.training.results import RERANK, measure_of
from rankwell.training.stage import PARTS, STAGES, StageKind, StageResult, Work, process_number, stage_kinds
from rankwell.training.stage_options.rankers import BlendOptions
from rankwell.training.stages.shared import check_folds, rerank_dev

BLEND, HELD_OUT = "blend.json", "held-out.run.gz"


def check(work: Work, stage: RecipeStage[BlendOptions]) -> None:
    """Check grid, measure and bi-encoder, and that a stage before it ranks documents."""
    options = stage.options
    parse_measure(options.measure)
    share_grid(FUSED if options.first_stage else FUSED[:2], options.step, options.normalise)
    find_encoder(work, stage, options.encoder)
    if not any(stage_kinds()[earlier.kind].leaves_ranker for earlier in work.recipe.before(stage)):
        raise RankwellError(f"{stage.path} needs a stage before it that ranks documents, such as listwise")
    check_folds(work, stage, options.folds)


def run(work: Work, stage: RecipeStage[BlendOptions], folder: Path) -> StageResult:
    """Try all shares on the dev queries, and choose by cross-validation."""
    options = stage.options
    if process_number() > 0:
        return StageResult(folder / "model")
    measure = measure_of(work.recipe, options.measure)
    runs = _runs(work, stage)
    tuning = tune_fusion(
        runs,
        work.data.dev.qrels,
        share_grid(list(runs), options.step, options.normalise),
        measure=str(measure),
        folds=options.folds,
        seed=work.seed,
    )
    write_run(fuse(runs, tuning.setting_for, name="held-out"), folder / HELD_OUT)
    names = {"model": work.done[-1].stage.name, "similarity": "similarity", "first": "first stage"}
    shares = {names[part]: share for part, share in tuning.best.as_dict().items() if part in runs}
    if not tuning.best.model:
        ranker, *others = shares
        warnings.warn(
            f"the blend: {' and '.join(others)} rank dev best without {ranker}, which has no share; "
            "it has learned too little to help: use more judged queries or more epochs",
            stacklevel=2,
        )
    write_json(folder / BLEND, _record(tuning, shares, options, work.data.dev.digest))
    if not (folder / "model").is_dir():
        config = read_ranker_config(work.model)
        if config is not None:
            blended = {"blend": f"{tuning.best}, similarity of {options.encoder}"}
            config = config.model_copy(update={"history": work.history, "figures": blended})
        link_model(work.model, folder / "model", config)
    encoder = _encoder_name(work, stage, folder)
    command = rerank_options(work.recipe.evaluate.depth, tuning.best, encoder)
    figures: dict[str, Any] = {**shares, f"{measure}, cross-validated": tuning.cross_validated, RERANK: command}
    return StageResult(folder / "model", figures=figures)


def measure(work: Work, stage: RecipeStage[BlendOptions], folder: Path) -> Run:
    """Rank each dev query with the shares chosen without it, other queries with the best shares of dev."""
    try:
        record = json.loads((folder / BLEND).read_text(encoding="utf-8"))
        by_part = dict(zip(FUSED, record["shares"].values(), strict=False))
        shares, tuned_on = Shares(**by_part, normalise=record["normalise"]), record["tuned_on"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(folder / BLEND, None, "not the record of a blend") from None
    if tuned_on == work.data.dev.digest:
        return read_run(folder / HELD_OUT)
    return fuse(_runs(work, stage), shares, name="blend")


def _runs(work: Work, stage: RecipeStage[BlendOptions]) -> dict[str, Run]:
    """The dev candidates by the ranker, by the bi-encoder and, if the options say so, by the first stage."""
    dev, depth = work.data.dev, work.recipe.evaluate.depth
    path = work.dev_run_path(work.model.parent)
    folder = find_encoder(work, stage, stage.options.encoder)
    assert folder is not None
    encoder = BiEncoder.from_pretrained(folder, device=work.device)
    first = dev.run.head(depth)
    runs = {
        "model": read_run(path) if path.exists() else rerank_dev(work, work.model),
        "similarity": DenseRanker(encoder).rerank(first, dev.queries, work.data.index, depth=depth),
    }
    return {**runs, "first": first} if stage.options.first_stage else runs


def _encoder_name(work: Work, stage: RecipeStage[BlendOptions], folder: Path) -> str:
    """The bi-encoder as a command line names it; one that a stage made, from the folder of all stages."""
    name = stage.options.encoder
    if name == FIRST_STAGE_ENCODER:
        found = find_encoder(work, stage, name)
        assert found is not None
        place = found.resolve()
        stages = folder.parent.resolve()
        return os.path.join(stages.name, place.relative_to(stages)) if place.is_relative_to(stages) else str(found)
    return work.recipe.model.start if name == START else name


def rerank_options(depth: int, best: Shares, encoder: str) -> str:
    """The options of ``rankwell rerank`` that give the same blend; a bi-encoder without a share is left out.

    >>> rerank_options(100, Shares(model=0.7, first=0.3, normalise="z-score"), "my-encoder")
    '--depth 100 --fuse 0.3 --set normalise=z-score'
    """
    options = [f"--blend {best.similarity:g}"] if best.similarity else []
    options += [f"--fuse {best.first:g}"] if best.first else []
    options += [f"--encoder {encoder}"] if best.similarity else []
    return " ".join([f"--depth {depth}", *options, *([f"--set normalise={best.normalise}"] if options else [])])


def _record(tuning: Tuned[Shares], shares: dict[str, float], options: BlendOptions, tuned_on: str) -> dict[str, object]:
    def listed(setting: Shares) -> dict[str, Any]:
        return {"shares": list(setting.as_dict().values())[: len(shares)]}

    record = tuning.as_dict(listed)
    return {
        "measure": tuning.measure,
        "shares": shares,
        "normalise": options.normalise,
        "encoder": options.encoder,
        "cross_validated": tuning.cross_validated,
        "folds": [setting["shares"] for setting in record["folds"]],
        "tuned_on": tuned_on,
        "grid": record["grid"],
    }


STAGES.register("blend")(StageKind(BlendOptions, run, check, measure, reads=PARTS - {"train"}))
