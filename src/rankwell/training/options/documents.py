"""Options of CCNU's stages: windows, interpolate, sdnet."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rankwell.inputs.windows import Unit
from rankwell.training.options.common import ListOptions, Options


class WindowsOptions(Options):
    """`windows`: reads long documents in windows and keeps the scores of the best; trains nothing."""

    # CCNU: windows of 100 words, the best 3.
    unit: Unit = Field(
        default="words", description="What windows are made of: so many words, or whole sentences of up to so many."
    )
    size: int = Field(default=100, ge=0, description="Words of a window; 0 cuts documents at `model.max_length`.")
    stride: int = Field(default=50, ge=1, description="Words from one window to the next.")
    aggregate: str = Field(
        default="top3", description="A document's score from its windows': first, max, mean, top3, top3:0.5,0.3,0.2."
    )
    depth: int = Field(default=100, ge=1, description="Candidates a query that are read.")
    keep: int = Field(default=10, ge=1, description="Best windows of a document whose scores are kept.")
    scores: Literal["probability", "raw"] = Field(
        default="probability", description="What is kept: p(relevant) or p(entailment), or the model's own scores."
    )


class InterpolateOptions(Options):
    """`interpolate`: β·BM25 + (1−β)·the model before it, all of it tuned by cross-validation on dev; trains nothing."""

    # CCNU: β .9 with the best 3 windows; α .8 for passages.
    beta: float | str = Field(
        default="0.0:1:0.1", description="The first stage's share, or shares to try: FIRST:LAST:STEP, or with commas."
    )
    aggregate: tuple[str, ...] = Field(
        default=("max", "mean", "top2", "top3", "top5"), description="Aggregates of windows to try."
    )
    weights: int = Field(default=3, ge=0, le=4, description="Try all weights of so many best windows, too; 0: none.")
    step: float = Field(default=0.1, gt=0, le=1, description="Between two weights, which sum to 1.")
    normalise: Literal["none", "min-max", "z-score"] = Field(
        default="min-max", description="Of both scores within each query, before they are added."
    )
    measure: str = Field(default="RR@10", description="What tuning maximises.")
    folds: int = Field(default=5, ge=2, description="Folds of the dev queries.")


class SdnetOptions(ListOptions):
    """`sdnet`: a small network over the features of the start checkpoint, which stays as it is (CCNU's SDNet)."""

    # As in the paper, which is silent on batch, epochs and negatives.
    epochs: float = Field(default=5, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=32, ge=1, description="Lists of one optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-3, gt=0, description="The highest learning rate.")
    warm_up: float = Field(default=0, ge=0, description="The learning rate rises over this share of the steps.")
    weight_decay: float = Field(default=0, ge=0, description="AdamW's decay; 0 is plain Adam.")
    clip: float = Field(default=10, ge=0, description="Longest gradient (its norm); 0 does not clip.")
    schedule: Literal["linear", "constant", "cosine"] = Field(
        default="constant", description="How the learning rate falls after `warm_up`."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="fp32", description="What is computed in: recurrent layers gain little from 16 bits."
    )
    loss: str = Field(default="hinge", description="The loss; docs/losses.md lists them.")
    layers: int | None = Field(
        default=None,
        ge=1,
        description="The encoder's last so many layers are kept and mixed; none: all, embeddings too.",
    )
    max_words: int = Field(default=256, ge=1, description="Words of a passage that are read.")
    vectors: str | None = Field(
        default=None,
        description="Word vectors: GloVe's or word2vec's text, a .npy with its words, a folder or PACKAGE:FOLDER of "
        "these; none: the encoder's own input embeddings.",
    )
    signals: Literal["softmax", "cosine", "dot"] = Field(
        default="softmax", description="How a passage's words are compared with the query."
    )
    top: int = Field(default=10, ge=1, description="The largest signals, which make the score.")
    dropout: float = Field(default=0.4, ge=0, lt=1, description="Of all layers, the same for all words of a text.")
    hidden: int = Field(default=125, ge=1, description="Width of a recurrent layer, each way.")
    folds: int = Field(default=5, ge=2, description="Of the cross-validation that chooses α, BM25's share.")
    shard: int = Field(default=256, ge=1, description="Passages whose features are computed, and written, at a time.")
