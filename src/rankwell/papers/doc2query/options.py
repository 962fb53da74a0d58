"""Options of the stage `doc2query`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rankwell.training.options import STAGE_OPTIONS, ValidatedOptions
from rankwell.training.stage_options.first_stages import TuningOptions


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
    top_k: int = Field(default=10, ge=1, description="Sampling is restricted to this many most likely tokens.")
    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature; higher is more varied.")
    tune_queries: int = Field(
        default=500,
        ge=5,
        description="Training queries set aside to select the checkpoint, k1 and b; at most a fifth of all.",
    )
    shard: int = Field(default=1024, ge=1, description="Passages expanded and written at a time.")
