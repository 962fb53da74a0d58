"""``pointwise``: is this document relevant? Leaves a ranker of two logits (monoBERT, MarkedBERT, DR-BERT)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from rankwell.core.errors import RankwellError
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, StageKind, StageResult, Work
from rankwell.training.stages.shared import ListOptions, check_lists, fit, load_ranker, measure_ranker, start_of


class PointwiseOptions(ListOptions):
    """`pointwise`: two logits and cross entropy (monoBERT, MarkedBERT, DR-BERT's second stage)."""

    # monoBERT and MarkedBERT: 3e-6 (BERT-large, BERT-base) with 32 to 128 pairs a step.
    learning_rate: float = Field(default=5e-5, gt=0, description="Peak learning rate (papers: 3e-6).")


def check(work: Work, stage: RecipeStage[PointwiseOptions]) -> None:
    """Check the lists, and that the model has two logits."""
    if work.recipe.model.similarity:
        raise RankwellError(f"{stage.path}: a model with a similarity has one score, not two logits; leave it out")
    check_lists(work, stage)


def run(work: Work, stage: RecipeStage[PointwiseOptions], folder: Path) -> StageResult:
    """Train on each document by itself: two logits and cross entropy."""
    return fit(work, stage, folder, load_ranker(work, start_of(work, stage)), "pointwise")


STAGES.register("pointwise")(StageKind(PointwiseOptions, run, check, measure_ranker))
