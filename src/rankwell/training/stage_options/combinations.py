"""Options of the stages that combine scores and train nothing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankwell.core.parameters import Normalisation
from rankwell.inputs.windows import Unit, Windows
from rankwell.training.options import STAGE_OPTIONS, Meaning, Options


@STAGE_OPTIONS.register("blend")
class BlendOptions(Options):
    """`blend`: combines the scores of ranker, bi-encoder and first stage with the best shares; trains nothing."""

    encoder: Annotated[str, Meaning.MODEL] = Field(
        default="start",
        description="Bi-encoder: a folder, PACKAGE:FOLDER, or a name on the hub; `start` is the recipe's start "
        "checkpoint before training, `first_stage` the bi-encoder that finds the candidates.",
    )
    first_stage: bool = Field(default=True, description="Whether the first stage's scores may have a share.")
    step: float = Field(default=0.1, gt=0, le=1, description="Step of the grid of shares, which sum to 1.")
    normalise: Normalisation = Field(
        default="z-score", description="Normalisation of the scores within each query before they are added."
    )
    measure: str = Field(default="RR@10", description="Measure that tuning maximises.")
    folds: int = Field(default=5, ge=2, description="Folds of the cross-validation on dev.")


@STAGE_OPTIONS.register("windows")
class WindowsOptions(Options):
    """`windows`: reads long documents in windows and stores the best scores; trains nothing."""

    # CCNU: windows of 100 words, the best 3.
    unit: Unit = Field(default="words", description="Unit of `size`: words, or whole sentences of up to `size` words.")
    size: int = Field(default=100, ge=0, description="Words per window; 0: truncate documents at `model.max_length`.")
    stride: int = Field(default=50, ge=1, description="Words from the start of one window to the next.")
    aggregate: str = Field(
        default="top3",
        description="How window scores become a document's score: first, max, mean, top3, top3:0.5,0.3,0.2.",
    )
    depth: int = Field(default=100, ge=1, description="Candidates per query to score.")
    keep: int = Field(default=10, ge=1, description="Number of best windows per document whose scores are stored.")
    scores: Literal["probability", "raw"] = Field(
        default="probability", description="What is stored: p(relevant) or p(entailment), or the raw scores."
    )

    def windows(self) -> Windows | None:
        """How documents are read; None truncates them."""
        return Windows(self.size, self.stride, self.aggregate, self.unit) if self.size else None


@STAGE_OPTIONS.register("interpolate")
class InterpolateOptions(Options):
    """`interpolate`: β·BM25 + (1−β)·model, tuned by cross-validation on dev; trains nothing."""

    # CCNU: β .9 with the best 3 windows; α .8 for passages.
    beta: float | str = Field(
        default="0.0:1:0.1",
        description="Share of the first stage, or shares to try: FIRST:LAST:STEP or a comma-separated list.",
    )
    aggregate: tuple[str, ...] = Field(
        default=("max", "mean", "top2", "top3", "top5"), description="Window aggregates to try."
    )
    weights: int = Field(
        default=3, ge=0, le=4, description="Also try all weightings of this many best windows; 0: none."
    )
    step: float = Field(default=0.1, gt=0, le=1, description="Step of the grid of weights, which sum to 1.")
    normalise: Normalisation = Field(
        default="min-max", description="Normalisation of the scores within each query before they are added."
    )
    measure: str = Field(default="RR@10", description="Measure that tuning maximises.")
    folds: int = Field(default=5, ge=2, description="Folds of the cross-validation on dev.")
