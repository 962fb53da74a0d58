"""Options of the stages that learn a first stage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankwell.training.options import STAGE_OPTIONS, START, Meaning, Options, ValidatedOptions


class TuningOptions(Options):
    """Options of stages that learn a first stage. The default grid suits an index of counted terms."""

    tune_queries: int = Field(
        default=500, ge=5, description="Training queries set aside to tune BM25; at most a fifth of all."
    )
    measure: str = Field(default="RR@10", description="Measure that tuning maximises.")
    k1: str = Field(
        default="0.3,0.6,0.9,1.2,1.6,2,3,4",
        description="Values of k1 to try: FIRST:LAST:STEP or a comma-separated list.",
    )
    b: str = Field(default="0.1:0.9:0.2", description="Values of b to try.")


class PairOptions(TuningOptions, ValidatedOptions):
    """Further options of stages that learn vectors from pairs (encoder, adapter)."""

    encoder: Annotated[str, Meaning.MODEL] = Field(
        default=START,
        description="Bi-encoder to start from: a folder, PACKAGE:FOLDER, a name on the hub, `start` (the recipe's "
        "start checkpoint) or `first_stage` (the bi-encoder that finds the candidates).",
    )
    epochs: float = Field(default=5, gt=0, description="Passes over the training pairs; may be a fraction.")
    batch: int = Field(default=256, ge=2, description="Pairs per optimiser step; each is a negative of all others.")
    scale: float = Field(default=20, gt=0, description="Factor of the cosine in the softmax over the batch.")
    negatives: int = Field(
        default=0,
        ge=0,
        description="Further negatives per pair, drawn anew each epoch from the candidates that an earlier stage "
        "selected, or else the first stage's. Reduce their noise first (`filter`, `denoise`).",
    )
    depth: int | None = Field(
        default=None, ge=1, description="Number of candidates that negatives are drawn from; none: all."
    )
    tune_queries: int = Field(
        default=500,
        ge=5,
        description="Training queries set aside to select the checkpoint and to tune BM25 and the bi-encoder's weight; "
        "at most a fifth of all.",
    )
    best: str = Field(
        default="RR@10",
        description="Measure that selects the checkpoint, on the queries set aside and a sample of documents; or "
        "`last`.",
    )
    step: float = Field(default=0.1, gt=0, le=1, description="Step of the grid of the bi-encoder's weight.")


@STAGE_OPTIONS.register("encoder")
class EncoderOptions(PairOptions):
    """`encoder`: fine-tunes a bi-encoder on pairs of queries and relevant documents; later stages search with it."""

    # Chosen on training queries set aside, among nine settings: docs/fitted.md.
    epochs: float = Field(default=10, gt=0, description="Passes over the training pairs; may be a fraction.")
    batch: int = Field(default=1024, ge=2, description="Pairs per optimiser step; each is a negative of all others.")
    learning_rate: float = Field(default=2e-4, gt=0, description="Peak learning rate.")
    max_length: int | None = Field(
        default=None, ge=8, description="Maximum length of a text in tokens; none: the bi-encoder's own."
    )
    teacher: Annotated[str | None, Meaning.MODEL] = Field(
        default=None,
        description="Bi-encoder to learn from, usually a larger one that is fitted: its softmax over the documents of "
        "a batch is learned beside the pairs, with half the weight.",
    )


@STAGE_OPTIONS.register("adapter")
class AdapterOptions(PairOptions):
    """`adapter`: learns linear maps of a bi-encoder's vectors; later stages search with them. Fast on a CPU."""

    side: Literal["query", "both"] = Field(
        default="both",
        description="What is mapped: vectors of queries only, or also those of documents, by a map of their own.",
    )
    learning_rate: float = Field(default=1e-3, gt=0, description="Peak learning rate.")
    weight_decay: float = Field(
        default=0.01, ge=0, description="AdamW's weight decay: how much maps stay as they began."
    )
