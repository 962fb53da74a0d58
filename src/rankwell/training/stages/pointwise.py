"""``pointwise``: is this document relevant? Leaves a ranker of two logits (monoBERT, MarkedBERT, DR-BERT)."""

from __future__ import annotations

from pathlib import Path

from rankwell.core.errors import RankwellError
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, StageKind, StageResult, Work
from rankwell.training.stage_options.ranking import PointwiseOptions
from rankwell.training.stages.shared import check_lists, fit, load_ranker, measure_ranker, start_of


def check(work: Work, stage: RecipeStage[PointwiseOptions]) -> None:
    """Check the lists, and that the model has two logits."""
    if work.recipe.model.similarity:
        raise RankwellError(f"{stage.path}: a model with a similarity has one score, not two logits; leave it out")
    check_lists(work, stage)


def run(work: Work, stage: RecipeStage[PointwiseOptions], folder: Path) -> StageResult:
    """Train on each document by itself: two logits and cross entropy."""
    return fit(work, stage, folder, load_ranker(work, start_of(work, stage)), "pointwise")


STAGES.register("pointwise")(StageKind(PointwiseOptions, run, check, measure_ranker))
