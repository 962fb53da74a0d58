"""Options of the stages `distil`, `filter` and `average`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rankwell.models.checkpoints.names import DEFAULT
from rankwell.training.options import STAGE_OPTIONS, Meaning, Options
from rankwell.training.stage_options.ranking import DevOptions


@STAGE_OPTIONS.register("distil")
class DistilOptions(DevOptions):
    """`distil`: learns to score as its teachers do; needs few judgments or none."""

    teachers: Annotated[tuple[str, ...], Meaning.MODEL] = Field(
        default=(DEFAULT,),
        min_length=1,
        description="Bi-encoders or rankers: folders, PACKAGE:FOLDER, or names on the Hugging Face hub.",
    )
    temperature: float = Field(
        default=0.3, gt=0, description="Temperature: the teachers' scores are also divided by this; lower is sharper."
    )
    bonus: float = Field(
        default=0, ge=0, description="Added to the relevant document's score, in the same unit; 0: none."
    )
    loss: str = Field(default="kl", description="Loss function: kl, margin_mse or another of docs/recipes.md#losses.")
    loss_options: dict[str, Any] = Field(default_factory=dict, description="Options of the loss.")
    list_size: int = Field(default=12, ge=2, description="Documents per list, of which one is known to be relevant.")
    random: int = Field(
        default=2,
        ge=0,
        description="Documents per list drawn at random from the whole collection; of the others, higher ranks are "
        "drawn more often.",
    )
    depth: int = Field(default=100, ge=0, description="First-stage candidates per query; 0: none.")
    dense: int = Field(
        default=50,
        ge=0,
        description="Candidates per query that are nearest according to the first bi-encoder; 0: none.",
    )
    queries: tuple[str, ...] = Field(
        default=(), description="Further splits of the data set whose queries are used, such as headings.train."
    )
    synthetic: int = Field(default=0, ge=0, description="Synthetic queries per epoch, generated from passages.")
    batch: int = Field(default=64, ge=1, description="Lists per optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-4, gt=0, description="Peak learning rate.")
    best: str = Field(default="last", description="Measure on dev that selects the checkpoint, or `last`.")
    head: Literal["new", "pointwise"] = Field(
        default="new", description="Initial one-score head: new, or the difference of the two logits."
    )
    teacher_length: int | None = Field(
        default=None, ge=8, description="Maximum text length in tokens for bi-encoders; none: the model's own limit."
    )


@STAGE_OPTIONS.register("filter")
class FilterOptions(Options):
    """`filter`: drops unjudged candidates that the teachers consider relevant."""

    teachers: Annotated[tuple[str, ...], Meaning.MODEL] = Field(
        default=(DEFAULT,),
        min_length=1,
        description="As in `distil`; also `first_stage`, the bi-encoder that finds the candidates, and `ranker`, the "
        "ranker of the stages before.",
    )
    margin: float = Field(
        default=0.0,
        description="Unjudged candidates that score above the best relevant document minus this margin are dropped; "
        "in standard deviations of the query's scores.",
    )
    teacher_length: int | None = Field(default=None, ge=8, description="As in `distil`.")


@STAGE_OPTIONS.register("average")
class AverageOptions(Options):
    """`average`: averages the weights of several stages, which often combines their strengths."""

    stages: tuple[str, ...] = Field(
        min_length=2, description="Names of earlier stages; `start` is the start checkpoint."
    )
    weights: tuple[float, ...] | None = Field(default=None, description="Weight of each stage; none: equal weights.")
