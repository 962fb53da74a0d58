"""Options of the stages `pretrain`, `classify` and `denoise`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankwell.training.options import STAGE_OPTIONS, Meaning, Options, TrainingOptions, ValidatedOptions


@STAGE_OPTIONS.register("pretrain")
class PretrainOptions(TrainingOptions):
    """`pretrain`: masked language modelling and next sentence prediction on the collection."""

    # The paper: 5 epochs, 128 a step, 1e-6 for BERT-large.
    batch: int = Field(default=128, ge=1, description="Span pairs per optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-4, gt=0, description="Peak learning rate (paper: 1e-6).")
    masked: float = Field(default=0.15, gt=0, lt=1, description="Share of the tokens that are masked.")
    other: float = Field(
        default=0.5, ge=0, le=1, description="Share of pairs whose second span comes from another passage."
    )
    short: float = Field(default=0.1, ge=0, le=1, description="Share of pairs truncated to a random shorter length.")
    max_length: int = Field(default=180, ge=8, description="Maximum length of a span pair in tokens.")


@STAGE_OPTIONS.register("classify")
class ClassifyOptions(ValidatedOptions):
    """`classify`: trains a text classifier on labelled texts, such as questions by type of answer."""

    epochs: float = Field(default=3, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=32, ge=1, description="Texts per optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-4, gt=0, description="Peak learning rate, reached at the end of `warm_up`.")
    best: Literal["accuracy", "last"] = Field(
        default="last", description="`accuracy` on `test` selects the checkpoint, or `last`."
    )
    train: Annotated[str, Meaning.DATA_FILE] = Field(
        default="train.tsv", description="File of labelled texts to train on, in `data.folder`."
    )
    test: Annotated[str | None, Meaning.DATA_FILE] = Field(
        default="test.tsv", description="File of labelled texts to measure on, in `data.folder`; none: no measuring."
    )
    max_length: int = Field(default=64, ge=8, description="Maximum text length in tokens.")


@STAGE_OPTIONS.register("denoise")
class DenoiseOptions(Options):
    """`denoise`: drops unjudged candidates that are probably relevant."""

    threshold: float = Field(
        default=0.9, ge=0, le=1, description="Unjudged candidates with a higher p(relevant) are dropped."
    )
    most: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="If more than this share of the unjudged candidates exceeds `threshold`, those are hard negatives "
        "and none is dropped; 1: no limit.",
    )
