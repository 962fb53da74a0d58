"""``listwise``: which of these documents is the relevant one? Leaves a ranker of one score (DR-BERT)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, StageKind, StageResult, Work
from rankwell.training.stages.shared import ListOptions, check_lists, fit, load_one_score, measure_ranker, start_of


class ListwiseOptions(ListOptions):
    """`listwise`: one score and a softmax over each list (DR-BERT's fourth stage)."""

    epochs: float = Field(default=5, gt=0, description="Passes over the training data; may be a fraction.")
    negatives: int = Field(default=5, ge=1, description="Non-relevant documents per list, drawn anew each epoch.")
    loss: str = Field(default="listwise", description="Loss function; see docs/losses.md.")
    learning_rate: float = Field(default=3e-5, gt=0, description="Peak learning rate.")
    head: Literal["new", "pointwise"] = Field(
        default="new", description="Initial one-score head: new, or the difference of the two logits."
    )


def run(work: Work, stage: RecipeStage[ListwiseOptions], folder: Path) -> StageResult:
    """Train one score with a loss over whole lists."""
    ranker = load_one_score(work, stage.options.head, start_of(work, stage))
    return fit(work, stage, folder, ranker, "listwise")


STAGES.register("listwise")(StageKind(ListwiseOptions, run, check_lists, measure_ranker))
