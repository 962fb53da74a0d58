"""Groups of options as recipes and suites write them, and what an option's value stands for beyond itself."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from rankwell.core.registry import Registry

START = "start"
"""Names the recipe's start checkpoint where a stage or a model is expected."""
FIRST_STAGE_ENCODER = "first_stage"
"""Names the bi-encoder that finds the candidates where a bi-encoder is expected."""
RANKER = "ranker"
"""Names the ranker that the stages before have trained where a teacher is expected."""


class Meaning(Enum):
    """Marks an option in its annotation: ``encoder: Annotated[str, Meaning.MODEL]``."""

    MODEL = "a model: a folder, which may be relative to the recipe's, or a name"
    VECTORS = "word vectors: a file or folder, which may be relative to the recipe's, or PACKAGE:FOLDER"
    DATA_FILE = "a file of the data's folder"
    NO_EFFECT = "changes the memory or time a stage needs, not its result"


class Options(BaseModel):
    """A group of options. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_word_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML's yes and no are not numbers, though Python treats them as 1 and 0."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)} and bool not in {kind, *get_args(kind)}:
            raise ValueError("expected a number")
        return value

    @classmethod
    def marked(cls, *meanings: Meaning) -> Iterator[str]:
        """The names of the options that have one of these meanings."""
        for name, field in cls.model_fields.items():
            if any(mark in meanings for mark in field.metadata):
                yield name


STAGE_OPTIONS: Registry[type[Options]] = Registry("stage options")
"""The options of stage kinds, by the kind's name."""


# The options of every stage that trains


class TrainingOptions(Options):
    """Options of every stage that trains."""

    epochs: float = Field(default=1, gt=0, description="Passes over the training data; may be a fraction.")
    max_steps: int | None = Field(
        default=None, ge=1, description="Maximum number of optimiser steps, whatever `epochs` says."
    )
    batch: int = Field(
        default=16, ge=1, description="Items (lists, span pairs, texts) per optimiser step, over all devices."
    )
    learning_rate: float = Field(default=5e-5, gt=0, description="Peak learning rate, reached at the end of `warm_up`.")
    warm_up: float = Field(
        default=0.1,
        ge=0,
        description="Share of the steps over which the learning rate rises; 1 or more: a number of steps.",
    )
    weight_decay: float = Field(
        default=0.01, ge=0, description="AdamW's weight decay, except for biases and LayerNorm."
    )
    clip: float = Field(default=1.0, ge=0, description="Maximum gradient norm; 0: no clipping.")
    schedule: Literal["linear", "constant", "cosine"] = Field(
        default="linear", description="Learning rate schedule after `warm_up`."
    )
    head_scale: float = Field(
        default=1.0, gt=0, description="The head's learning rate as a multiple of `learning_rate`."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto",
        description="Precision of the computation; auto: bf16 on a GPU or a CPU with AMX, else fp32.",
    )
    budget: Annotated[int | None, Meaning.NO_EFFECT] = Field(
        default=None, ge=1, description="Tokens whose activations are in memory at once; none: as many as fit."
    )
    save_every: Annotated[int, Meaning.NO_EFFECT] = Field(
        default=500, ge=1, description="Steps between two states to resume from; one is also saved every five minutes."
    )
    running_mean: float = Field(
        default=0,
        ge=0,
        lt=1,
        description="Decay of a running mean of the weights, which is used instead of the newest weights: 0.999 "
        "averages about 1,000 steps; 0: no mean.",
    )


class ValidatedOptions(TrainingOptions):
    """Further options of stages that are measured during training."""

    evaluate_every: float = Field(
        default=1.0, gt=0, description="Share of an epoch between evaluations; above 1: a number of steps."
    )
    patience: int | None = Field(
        default=None, ge=1, description="Stop after this many evaluations without improvement."
    )
    best: str = Field(default="RR@10", description="Measure on dev that selects the checkpoint, or `last`.")
