"""Options of the stages that learn a first stage: deepct, doc2query."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rankwell.training.options.common import TrainingOptions, ValidatedOptions


class DeepctOptions(TrainingOptions):
    """`deepct`: learns how much each word of a passage matters, and indexes the collection by it (DeepCT)."""

    # The paper: 3 epochs, 16 passages a step, 2e-5 for BERT-base.
    epochs: float = Field(default=3, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=16, ge=1, description="Passages of one optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-4, gt=0, description="The highest learning rate. In the paper: 2e-5.")
    max_length: int = Field(default=128, ge=8, description="Most tokens of a window; longer passages have several.")
    scaling: Literal["linear", "root"] = Field(
        default="linear", description="A term's frequency is `scale` times its weight, or times the weight's root."
    )
    scale: float = Field(default=100, gt=0, description="The term frequency of the weight 1.")
    tune_queries: int = Field(
        default=500, ge=5, description="Training queries set aside to tune BM25 with, a fifth of all at most."
    )
    measure: str = Field(default="RR@10", description="What tuning maximises.")
    k1: str = Field(
        default="0.9,2,4,6,8,10,14,20,30,50,80,150", description="Values of k1 to try: FIRST:LAST:STEP, or with commas."
    )
    b: str = Field(default="0.1,0.3,0.5,0.7,0.8,0.9,1", description="Values of b to try.")
    shard: int = Field(default=4096, ge=1, description="Passages that are weighed, and written, at a time.")


class Doc2queryOptions(ValidatedOptions):
    """`doc2query`: learns to write queries from passages, writes some for every passage and indexes them with it."""

    epochs: float = Field(default=10, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=64, ge=1, description="Pairs of query and passage of one optimiser step.")
    learning_rate: float = Field(default=2e-4, gt=0, description="The highest learning rate.")
    best: Literal["perplexity", "last"] = Field(
        default="perplexity", description="Keep the checkpoint that is best on the queries set aside, or `last`."
    )
    smoothing: float = Field(default=0.1, ge=0, lt=1, description="Label smoothing of the pieces' cross entropy.")
    max_length: int = Field(default=192, ge=8, description="Most tokens of a passage; longer ones are read in windows.")
    max_query: int = Field(default=32, ge=2, description="Most pieces of a query.")
    n: int = Field(default=5, ge=1, description="Queries written for a passage.")
    method: Literal["sample", "beam"] = Field(default="sample", description="How queries are written.")
    top_k: int = Field(default=10, ge=1, description="Sampling draws from so many of the likeliest pieces.")
    temperature: float = Field(default=1.0, gt=0, description="Sampling is the bolder the higher it is.")
    beams: int = Field(default=5, ge=1, description="Width of the beam; at least `n`.")
    judge: str | None = Field(default=None, description="A ranker's folder: drops queries that are off the topic.")
    threshold: float = Field(default=0.5, ge=0, le=1, description="Off the topic is what the judge finds below it.")
    tune_queries: int = Field(
        default=500,
        ge=1,
        description="Training queries set aside, a fifth of all at most: they choose the checkpoint, k1 and b.",
    )
    measure: str = Field(default="RR@10", description="What tuning maximises.")
    k1: str = Field(default="0.3,0.6,0.9,1.2,1.6,2,3,4", description="Values of k1 to try.")
    b: str = Field(default="0.1:0.9:0.2", description="Values of b to try.")
    shard: int = Field(default=1024, ge=1, description="Passages that are expanded, and written, at a time.")
