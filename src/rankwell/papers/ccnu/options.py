"""Options of the stage `sdnet`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankwell.training.options import STAGE_OPTIONS, Meaning
from rankwell.training.stage_options.ranking import ListOptions


@STAGE_OPTIONS.register("sdnet")
class SdnetOptions(ListOptions):
    """`sdnet`: trains a small network over features of the frozen start checkpoint (CCNU's SDNet)."""

    # As in the paper, which does not give batch, epochs and negatives.
    epochs: float = Field(default=5, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=32, ge=1, description="Lists per optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-3, gt=0, description="Peak learning rate.")
    warm_up: float = Field(default=0, ge=0, description="Share of the steps over which the learning rate rises.")
    weight_decay: float = Field(default=0, ge=0, description="AdamW's weight decay; 0 is plain Adam.")
    clip: float = Field(default=10, ge=0, description="Maximum gradient norm; 0: no clipping.")
    schedule: Literal["linear", "constant", "cosine"] = Field(
        default="constant", description="Learning rate schedule after `warm_up`."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="fp32", description="Precision of the computation; recurrent layers gain little from 16 bits."
    )
    loss: str = Field(default="hinge", description="Loss function; see docs/recipes.md#losses.")
    layers: int | None = Field(
        default=None,
        ge=1,
        description="Number of last encoder layers to mix; none: all, including the embeddings.",
    )
    max_words: int = Field(default=256, ge=1, description="Maximum passage length in words.")
    vectors: Annotated[str | None, Meaning.VECTORS] = Field(
        default=None,
        description="Word vectors: a text file of GloVe or word2vec, a .npy with a word list, or a folder or "
        "PACKAGE:FOLDER with one of these; none: the encoder's input embeddings.",
    )
    tagger: str | None = Field(
        default=None,
        description="Tags passage words with part of speech and entity: `textblob`, or `spacy:PIPELINE` if installed; "
        "none: no tags.",
    )
    signals: Literal["softmax", "cosine", "dot"] = Field(
        default="softmax", description="How passage words are compared with the query."
    )
    top: int = Field(default=10, ge=1, description="Number of strongest signals that make up the score.")
    dropout: float = Field(
        default=0.4, ge=0, lt=1, description="Dropout of all layers, with one mask for all words of a text."
    )
    hidden: int = Field(default=125, ge=1, description="Width of a recurrent layer in each direction.")
    shard: int = Field(default=256, ge=1, description="Passages whose features are computed and written at a time.")
