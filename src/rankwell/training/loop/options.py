"""The options of every stage that trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankwell.training.options import Meaning, Options


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
