"""Options of the stages that train rankers or combine their scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from rankwell.core.registry import Normalisation
from rankwell.inputs.windows import Windows
from rankwell.training.options import STAGE_OPTIONS, Meaning, Options, ValidatedOptions

if TYPE_CHECKING:
    from rankwell.training.data.sampling import Plan


class DevOptions(ValidatedOptions):
    """Further options of stages that are measured on dev during training."""

    dev_queries: int | None = Field(
        default=None, ge=1, description="Number of dev queries to evaluate on during training; none: all."
    )


class ListOptions(DevOptions):
    """Further options of stages that train on lists of candidates."""

    positives: int = Field(default=1, ge=1, description="Relevant documents per list.")
    negatives: int = Field(default=1, ge=1, description="Non-relevant documents per list, drawn anew each epoch.")
    labels: Literal["relevance", "grade"] = Field(
        default="relevance", description="Labels for the loss: 1 and 0, or the judged grades."
    )
    depth: int | None = Field(
        default=None,
        ge=1,
        description="Number of candidates that negatives are drawn from; none: all of the first stage's.",
    )
    found_only: bool | Literal["auto"] = Field(
        default="auto",
        description="Train only on relevant documents that the first stage found (true), on all judged relevant "
        "(false), or only on those found if more than 5 % were missed (auto).",
    )
    start: Literal["previous", "first_stage", "pretrained"] = Field(
        default="previous",
        description="Weights to start from: those of the stage before, those of the bi-encoder that finds the "
        "candidates, or those of `pretrain` (without it, of the start checkpoint); the last two with a new head.",
    )
    loss: str = Field(default="pointwise", description="Loss function; see docs/recipes.md#losses.")
    loss_options: dict[str, Any] = Field(default_factory=dict, description="Options of the loss, such as `margin`.")

    def plan(self) -> Plan:
        """How the stage draws its lists."""
        from rankwell.training.data.sampling import Plan

        return Plan(self.positives, self.negatives, labels=self.labels)


@STAGE_OPTIONS.register("pointwise")
class PointwiseOptions(ListOptions):
    """`pointwise`: two logits and cross entropy (monoBERT, MarkedBERT, DR-BERT's second stage)."""

    # monoBERT and MarkedBERT: 3e-6 (BERT-large, BERT-base) with 32 to 128 pairs a step.
    learning_rate: float = Field(default=5e-5, gt=0, description="Peak learning rate (papers: 3e-6).")


@STAGE_OPTIONS.register("listwise")
class ListwiseOptions(ListOptions):
    """`listwise`: one score and a softmax over each list (DR-BERT's fourth stage)."""

    epochs: float = Field(default=5, gt=0, description="Passes over the training data; may be a fraction.")
    negatives: int = Field(default=5, ge=1, description="Non-relevant documents per list, drawn anew each epoch.")
    loss: str = Field(default="listwise", description="Loss function; see docs/recipes.md#losses.")
    learning_rate: float = Field(default=3e-5, gt=0, description="Peak learning rate.")
    head: Literal["new", "pointwise"] = Field(
        default="new", description="Initial one-score head: new, or the difference of the two logits."
    )


# Options of the stages that combine scores and train nothing


@STAGE_OPTIONS.register("windows")
class WindowsOptions(Options):
    """`windows`: reads long documents in windows and stores the best scores; trains nothing."""

    # CCNU: windows of 100 words, the best 3.
    size: int = Field(default=100, ge=0, description="Words per window; 0: truncate documents at `model.max_length`.")
    stride: int = Field(default=50, ge=1, description="Words from the start of one window to the next.")
    aggregate: str = Field(
        default="top3",
        description="How window scores become a document's score: first, max, mean, top3, top3:0.5,0.3,0.2.",
    )
    depth: int = Field(default=100, ge=1, description="Candidates per query to score.")
    keep: int = Field(default=10, ge=1, description="Number of best windows per document whose scores are stored.")

    def windows(self) -> Windows | None:
        """How documents are read; None truncates them."""
        return Windows(self.size, self.stride, self.aggregate) if self.size else None


@STAGE_OPTIONS.register("tune")
class TuneOptions(Options):
    """`tune`: combines ranker, bi-encoder and first stage with the best shares; trains nothing."""

    # CCNU: β .9 with the best 3 windows; α .8 for passages.
    encoder: Annotated[str | None, Meaning.MODEL] = Field(
        default="start",
        description="Bi-encoder: a folder, PACKAGE:FOLDER, or a name on the hub; `start` is the recipe's start "
        "checkpoint before training, `first_stage` the bi-encoder that finds the candidates; none: no bi-encoder.",
    )
    beta: float | str | None = Field(
        default=None,
        description="Without a bi-encoder: weight of the first stage, or weights to try: FIRST:LAST:STEP or a "
        "comma-separated list; none: all multiples of `step`.",
    )
    aggregate: tuple[str, ...] = Field(
        default=("max", "mean", "top2", "top3", "top5"), description="After `windows`: window aggregates to try."
    )
    weights: int = Field(
        default=3,
        ge=0,
        le=4,
        description="After `windows`: also try all weightings of this many best windows; 0: none.",
    )
    step: float = Field(default=0.1, gt=0, le=1, description="Step of the grids of weights; they sum to 1.")
    normalise: Normalisation = Field(
        default="z-score", description="Normalisation of the scores within each query before they are added."
    )
    measure: str = Field(default="RR@10", description="Measure that tuning maximises.")
    folds: int = Field(default=5, ge=2, description="Folds of the cross-validation on dev.")
