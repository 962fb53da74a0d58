"""Options of the stages that learn a first stage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankwell.training.loop.options import TrainingOptions, ValidatedOptions
from rankwell.training.options import STAGE_OPTIONS, START, Meaning, Options


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
    learning_rate: float = Field(default=1e-4, gt=0, description="Peak learning rate.")
    scale: float = Field(default=20, gt=0, description="Factor of the cosine in the softmax over the batch.")
    learn_scale: bool = Field(default=False, description="Whether `scale` is learned, too.")
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
        description="Training queries set aside to select the checkpoint and to tune BM25 and the bi-encoder's share; "
        "at most a fifth of all.",
    )
    best: str = Field(
        default="RR@10",
        description="Measure that selects the checkpoint, on the queries set aside and a sample of documents; or "
        "`last`.",
    )
    step: float = Field(default=0.1, gt=0, le=1, description="Step of the grid of the bi-encoder's share.")


@STAGE_OPTIONS.register("encoder")
class EncoderOptions(PairOptions):
    """`encoder`: fine-tunes a bi-encoder on pairs of queries and relevant documents; later stages search with it."""

    # Chosen on training queries set aside, among nine settings: docs/fitting.md.
    epochs: float = Field(default=10, gt=0, description="Passes over the training pairs; may be a fraction.")
    batch: int = Field(default=1024, ge=2, description="Pairs per optimiser step; each is a negative of all others.")
    learning_rate: float = Field(default=2e-4, gt=0, description="Peak learning rate.")
    widths: tuple[int, ...] = Field(
        default=(),
        description="Widths at which vectors shall also work when they are cut (Matryoshka); none: the full one only.",
    )
    width: int | None = Field(
        default=None,
        ge=1,
        description="Width of the vectors that are saved and searched with: their first numbers. One of `widths`; "
        "none: the full width.",
    )
    max_length: int | None = Field(
        default=None, ge=8, description="Maximum length of a text in tokens; none: the bi-encoder's own."
    )
    max_texts_in_memory: Annotated[int | None, Meaning.NO_EFFECT] = Field(
        default=None,
        ge=1,
        description="Texts whose activations are in memory at once; larger batches are split and take a third longer.",
    )


@STAGE_OPTIONS.register("adapter")
class AdapterOptions(PairOptions):
    """`adapter`: learns linear maps of a bi-encoder's vectors; later stages search with them. Fast on a CPU."""

    side: Literal["query", "both"] = Field(
        default="both",
        description="What is mapped: vectors of queries only, or also those of documents, by a map of their own.",
    )
    epochs: float = Field(default=5, gt=0, description="Passes over the training pairs; may be a fraction.")
    learning_rate: float = Field(default=1e-3, gt=0, description="Peak learning rate.")
    weight_decay: float = Field(
        default=0.01, ge=0, description="AdamW's weight decay: how much maps stay as they began."
    )


@STAGE_OPTIONS.register("deepct")
class DeepctOptions(TuningOptions, TrainingOptions):
    """`deepct`: learns the importance of each word of a passage and indexes the collection with it (DeepCT)."""

    # The paper: 3 epochs, 16 passages a step, 2e-5 for BERT-base.
    epochs: float = Field(default=3, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=16, ge=1, description="Passages per optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-4, gt=0, description="Peak learning rate (paper: 2e-5).")
    max_length: int = Field(
        default=128, ge=8, description="Maximum window length in tokens; longer passages are read in several windows."
    )
    scaling: Literal["linear", "root"] = Field(
        default="linear",
        description="A term's frequency is `scale` times its weight (linear) or the square root of it (root).",
    )
    scale: float = Field(default=100, gt=0, description="Term frequency of a term with weight 1.")
    k1: str = Field(
        default="0.9,2,4,6,8,10,14,20,30,50,80,150",
        description="Values of k1 to try: FIRST:LAST:STEP or a comma-separated list.",
    )
    b: str = Field(default="0.1,0.3,0.5,0.7,0.8,0.9,1", description="Values of b to try.")
    shard: int = Field(default=4096, ge=1, description="Passages weighted and written at a time.")


@STAGE_OPTIONS.register("doc2query")
class Doc2queryOptions(TuningOptions, ValidatedOptions):
    """`doc2query`: learns to generate queries from passages, and indexes every passage with its queries."""

    epochs: float = Field(default=10, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=64, ge=1, description="Query-passage pairs per optimiser step.")
    learning_rate: float = Field(default=2e-4, gt=0, description="Peak learning rate.")
    best: Literal["perplexity", "last"] = Field(
        default="perplexity", description="`perplexity` on the queries set aside selects the checkpoint, or `last`."
    )
    smoothing: float = Field(default=0.1, ge=0, lt=1, description="Label smoothing.")
    max_length: int = Field(
        default=192, ge=8, description="Maximum passage length in tokens; longer passages are read in windows."
    )
    max_query: int = Field(default=32, ge=2, description="Maximum query length in tokens.")
    n: int = Field(default=5, ge=1, description="Queries to generate per passage.")
    method: Literal["sample", "beam"] = Field(default="sample", description="Decoding method.")
    top_k: int = Field(default=10, ge=1, description="Sampling is restricted to this many most likely tokens.")
    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature; higher is more varied.")
    beams: int = Field(default=5, ge=1, description="Beam width; at least `n`.")
    judge: Annotated[str | None, Meaning.MODEL] = Field(
        default=None, description="Ranker that removes off-topic queries; none: keep all."
    )
    threshold: float = Field(
        default=0.5, ge=0, le=1, description="Queries with a lower p(relevant) according to `judge` are removed."
    )
    tune_queries: int = Field(
        default=500,
        ge=5,
        description="Training queries set aside to select the checkpoint, k1 and b; at most a fifth of all.",
    )
    shard: int = Field(default=1024, ge=1, description="Passages expanded and written at a time.")
