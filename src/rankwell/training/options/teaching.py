"""Options of the stages with a teacher, of averaging, and of blending: distil, filter, average, blend."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rankwell.models.checkpoints.names import BACKBONE
from rankwell.training.options.common import DevOptions, Options


class DistilOptions(DevOptions):
    """`distil`: learns to score as its teachers do, whatever is asked; judgments are not needed for that."""

    teachers: tuple[str, ...] = Field(
        default=(BACKBONE,),
        min_length=1,
        description="Bi-encoders and rankers: folders, PACKAGE:FOLDER, or names on the Hugging Face hub.",
    )
    unit: Literal["query", "teacher"] = Field(
        default="query",
        description="What a teacher's scores are divided by: their deviation within the list, or its mean over lists.",
    )
    temperature: float = Field(
        default=0.3, gt=0, description="The teachers' scores are divided by this, too: lower sharpens them."
    )
    bonus: float = Field(
        default=0, ge=0, description="Added to the score of the list's relevant document, in units as above; 0: none."
    )
    loss: str = Field(default="kl", description="kl or margin_mse, or another of docs/losses.md.")
    loss_options: dict[str, Any] = Field(default_factory=dict, description="The loss's own options.")
    list_size: int = Field(default=12, ge=2, description="Documents of a list; one of them is known to be relevant.")
    random: int = Field(default=2, ge=0, description="Documents of a list drawn from the whole collection.")
    weighting: Literal["uniform", "rank", "top"] = Field(
        default="rank", description="How the others are drawn: alike, higher ranks more often, or the highest ranks."
    )
    depth: int = Field(default=100, ge=0, description="First-stage candidates a query; 0: none.")
    dense: int = Field(
        default=50, ge=0, description="Candidates a query that are the first bi-encoder's nearest documents; 0: none."
    )
    search: Literal["given", "all"] = Field(
        default="given", description="Whose first-stage candidates are used: the given queries', or all queries'."
    )
    queries: tuple[str, ...] = Field(
        default=(), description="Further splits of the data whose queries are asked, such as headings.train."
    )
    synthetic: int = Field(default=0, ge=0, description="Queries made of passages, other ones in each epoch.")
    batch: int = Field(default=64, ge=1, description="Lists of one optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-4, gt=0, description="The highest learning rate.")
    best: str = Field(default="last", description="Keep the checkpoint that is best in this measure on dev, or `last`.")
    head: Literal["new", "pointwise"] = Field(
        default="new", description="Where the head of one score starts: new, or as the difference of two logits."
    )
    teacher_length: int | None = Field(
        default=None, ge=8, description="Most tokens of a text a bi-encoder reads; none: as many as it was made for."
    )
    max_pairs_in_memory: int | None = Field(
        default=None, ge=1, description="Pairs whose activations are held at once; more come in turns."
    )


class FilterOptions(Options):
    """`filter`: drops the candidates that teachers take for relevant though nobody judged them."""

    teachers: tuple[str, ...] = Field(default=(BACKBONE,), min_length=1, description="As in `distil`.")
    margin: float = Field(
        default=0.0,
        description="Unjudged candidates scored above the best relevant document less this are dropped; in deviations "
        "of the query's scores.",
    )
    teacher_length: int | None = Field(default=None, ge=8, description="As in `distil`.")


class AverageOptions(Options):
    """`average`: the mean of several stages' weights, which often keeps the best of each."""

    stages: tuple[str, ...] = Field(
        min_length=2, description="The stages, all before this one, by name; `start` is the start checkpoint."
    )
    weights: tuple[float, ...] | None = Field(default=None, description="Each stage's share; none: alike.")


class BlendOptions(Options):
    """`blend`: the ranker's scores, a bi-encoder's similarities and the first stage's scores, in the best shares."""

    encoder: str = Field(
        default="start",
        description="The bi-encoder: a folder, PACKAGE:FOLDER, or a name on the hub; `start` is the recipe's own start "
        "checkpoint, before any training.",
    )
    first_stage: bool = Field(default=True, description="Whether the first stage's scores may have a share, too.")
    step: float = Field(default=0.1, gt=0, le=1, description="Between two shares to try, which sum to 1.")
    normalise: Literal["none", "min-max", "z-score"] = Field(
        default="z-score", description="Of all scores within each query, before they are added."
    )
    measure: str = Field(default="RR@10", description="What tuning maximises.")
    folds: int = Field(default=5, ge=2, description="Folds of the dev queries.")
