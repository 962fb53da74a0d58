"""``listwise``: which of these documents is the relevant one? Leaves a ranker of one score (DR-BERT)."""

from __future__ import annotations

from pathlib import Path

from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, StageKind, StageResult, Work
from rankwell.training.stage_options.ranking import ListwiseOptions
from rankwell.training.stages.shared import check_lists, fit, load_one_score, measure_ranker, start_of


def run(work: Work, stage: RecipeStage[ListwiseOptions], folder: Path) -> StageResult:
    """Train one score with a loss over whole lists."""
    ranker = load_one_score(work, stage.options.head, start_of(work, stage))
    return fit(work, stage, folder, ranker, "listwise")


STAGES.register("listwise")(StageKind(ListwiseOptions, run, check_lists, measure_ranker))
