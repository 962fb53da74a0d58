"""What all stages' options share."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class Options(BaseModel):
    """A group of options; a key that is not among them is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_word_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML's yes and no are no numbers, though Python takes them for 1 and 0."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)} and bool not in {kind, *get_args(kind)}:
            raise ValueError("expected a number")
        return value


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
    budget: int | None = Field(
        default=None, ge=1, description="Tokens whose activations are held at once; none: by the device's memory."
    )
    save_every: int = Field(
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


class DevOptions(ValidatedOptions):
    """What stages that are measured on the dev queries while they train have besides."""

    dev_queries: int | None = Field(
        default=None, ge=1, description="Dev queries of an evaluation during training; none: all."
    )


class ListOptions(DevOptions):
    """What stages that train on lists of candidates have besides."""

    positives: int = Field(default=1, ge=1, description="Relevant documents of a list.")
    negatives: int = Field(default=1, ge=1, description="Non-relevant documents of a list, drawn afresh each epoch.")
    weighting: Literal["uniform", "rank", "top"] = Field(
        default="uniform", description="How negatives are drawn: alike, higher ranks more often, or the highest ranks."
    )
    per: Literal["positive", "query"] = Field(
        default="positive", description="An epoch has a list for each relevant document, or one for each query."
    )
    labels: Literal["relevance", "grade"] = Field(
        default="relevance", description="What the loss sees: 1 and 0, or the grades of the judgments."
    )
    skip: int = Field(default=0, ge=0, description="Candidates at the top of the first stage that are no negatives.")
    depth: int | None = Field(
        default=None, ge=1, description="Candidates that negatives are drawn from; none: all of the first stage's."
    )
    loss: str = Field(default="pointwise", description="The loss; docs/losses.md lists them.")
    loss_options: dict[str, Any] = Field(default_factory=dict, description="The loss's own options, such as `margin`.")
    max_pairs_in_memory: int | None = Field(
        default=None,
        ge=1,
        description="Pairs whose activations are held at once; more come in turns, at a third more time.",
    )
