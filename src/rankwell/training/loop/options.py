"""The options of every stage that trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankwell.training.options import Meaning, Options


class TrainingOptions(Options):
    """What every stage that trains has."""

    epochs: float = Field(default=1, gt=0, description="Passes over the training data; may be a fraction.")
    max_steps: int | None = Field(
        default=None, ge=1, description="Stop after so many optimiser steps, whatever `epochs` says."
    )
    batch: int = Field(
        default=16, ge=1, description="Items (lists, span pairs, texts) of one optimiser step, over all devices."
    )
    learning_rate: float = Field(
        default=5e-5, gt=0, description="The highest learning rate, reached at the end of `warm_up`."
    )
    warm_up: float = Field(
        default=0.1, ge=0, description="The learning rate rises over this share of the steps; 1 or more: so many steps."
    )
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's decay, of all but biases and LayerNorm.")
    clip: float = Field(default=1.0, ge=0, description="Longest gradient (its norm); 0 does not clip.")
    schedule: Literal["linear", "constant", "cosine"] = Field(
        default="linear", description="How the learning rate falls after `warm_up`."
    )
    head_scale: float = Field(default=1.0, gt=0, description="The head learns at this multiple of `learning_rate`.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto",
        description="What is computed in; auto is bf16 on a GPU and on a CPU that is made for it (AMX), else fp32.",
    )
    budget: Annotated[int | None, Meaning.NO_EFFECT] = Field(
        default=None, ge=1, description="Tokens whose activations are held at once; none: by the device's memory."
    )
    save_every: Annotated[int, Meaning.NO_EFFECT] = Field(
        default=500, ge=1, description="Steps between two states to resume from; five minutes save one as well."
    )
    running_mean: float = Field(
        default=0,
        ge=0,
        lt=1,
        description="Keep a running mean of the weights in place of the newest, with this share of it kept at each "
        "step: 0.999 is a mean over some 1,000 steps; 0: the newest.",
    )


class ValidatedOptions(TrainingOptions):
    """What stages that are measured while they train have besides."""

    evaluate_every: float = Field(
        default=1.0, gt=0, description="Evaluate after this share of an epoch; above 1: after so many steps."
    )
    patience: int | None = Field(default=None, ge=1, description="Stop after so many evaluations without a new best.")
    best: str = Field(
        default="RR@10", description="Keep the checkpoint that is best in this measure on dev, or `last`."
    )
