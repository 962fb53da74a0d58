"""Recipes: everything that makes a ranker, from data to model, as checked options.

``recipe_reader`` reads them from YAML files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import yaml
from pydantic import Field

from rankwell.inputs.pieces import UnmarkedWords
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.models.spec import AttentionRule
from rankwell.training.options import Options

if TYPE_CHECKING:
    from rankwell.inputs.templates import Template

O_co = TypeVar("O_co", bound=Options, covariant=True)

DEV_NAMES = ("dev", "valid", "validation", "val")
"""Names tried in this order for the dev split if the recipe sets none."""


class DataOptions(Options):
    """Documents, queries and judgments."""

    folder: str = Field(description="A folder with a collection, queries and qrels, or an id like irds:beir/scifact.")
    train: str = Field(default="train", description="Split to train on.")
    dev: str | None = Field(
        default=None, description=f"Split to validate on; none: the first of {', '.join(DEV_NAMES)} that exists."
    )
    relevance: int = Field(default=1, ge=1, description="Lowest grade that counts as relevant.")
    types: str = Field(
        default="auto",
        description="Query types, if the template uses them: auto (the data set's labels, "
        "else rules), none, rules, a file of labels ({split} stands for the split), or the folder of a classifier.",
    )
    train_queries: int | None = Field(
        default=None, ge=1, description="Maximum number of training queries, from the first on; none: all."
    )
    dev_queries: int | None = Field(
        default=None, ge=1, description="Maximum number of dev queries, from the first on; none: all."
    )
    train_share: float = Field(
        default=1,
        gt=0,
        le=1,
        description="Random share of the training queries to use; a smaller share is a subset of a larger one.",
    )


class FirstStageOptions(Options):
    """How candidates are found: BM25, hybrid search with a bi-encoder, or existing runs."""

    k1: float = Field(default=0.9, ge=0, description="BM25's k1: how slowly a repeated term saturates.")
    b: float = Field(default=0.4, ge=0, le=1, description="BM25's b: how much long documents are discounted.")
    k2: float | None = Field(
        default=None,
        ge=0,
        description="BM25's k2: how slowly a term repeated in the query saturates; none: no saturation.",
    )
    hybrid: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="The bi-encoder's weight in hybrid search; BM25 gets the rest. 1: only the bi-encoder, none: BM25.",
    )
    encoder: str = Field(default=DEFAULT, description="Bi-encoder for `hybrid`: a folder or name, as in `model.start`.")
    depth: int = Field(default=100, ge=1, description="Candidates per query.")
    train_run: str | None = Field(default=None, description="Run of the training queries to use instead of searching.")
    dev_run: str | None = Field(default=None, description="Run of the dev queries to use instead of searching.")


class ModelOptions(Options):
    """The model to train and how it reads its input."""

    start: str = Field(
        default=DEFAULT,
        description="Checkpoint to start from: a folder, PACKAGE:FOLDER, or a name on the Hugging Face hub.",
    )
    template: str = Field(default="mono", description="Template that joins the texts: mono, typed, twin or nli.")
    attention: AttentionRule = Field(default="full", description="Which tokens may attend to which.")
    attention_layers: tuple[int, ...] | None = Field(
        default=None,
        description="Layers that follow this rule, counted from 0, or from the end as -1; the others use full "
        "attention. none: all layers.",
    )
    apart: int = Field(
        default=0,
        ge=0,
        description="Number of first layers that read query and document separately, as a bi-encoder does.",
    )
    similarity: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the cosine similarity of the query's and the document's mean states, which is added to "
        "the score. A model started from a bi-encoder then begins as that bi-encoder. Listwise and distil only.",
    )
    max_length: int = Field(
        default=180, ge=8, description="Maximum sequence length in tokens. Only the document is truncated."
    )
    max_query: int = Field(default=64, ge=1, description="Maximum query length in tokens.")
    markers: bool = Field(
        default=False, description="Mark the words that query and document share, as MarkedBERT does."
    )
    mark_unmatched_query: bool = Field(default=False, description="Also mark query words that the document lacks.")
    unmarked: UnmarkedWords = Field(
        default="stop words",
        description="Words that are never marked: Lucene's 33 stop words, or all function words, such as how and can.",
    )
    long_documents: Literal["cut", "windows"] = Field(
        default="windows",
        description="How the trained model reads documents longer than `max_length`: in windows, using the best "
        "window's score, or truncated (cut), as in training.",
    )
    pooler: bool = Field(default=True, description="Put BERT's pooler (dense + tanh) between [CLS] and the head.")
    adapt: bool = Field(
        default=False,
        description="Allow a start checkpoint with another template, attention rule or markers, as rankwell-mini may "
        "have.",
    )

    def input_template(self) -> Template:
        """How the model's input is laid out."""
        from rankwell.inputs.templates import Template

        marks = self.markers, self.mark_unmatched_query, self.unmarked
        return Template(self.template, self.max_length, self.max_query, *marks)


class EvaluateOptions(Options):
    """What is measured on dev after each stage. Changing `depth` reruns only stages that tune shares."""

    measures: tuple[str, ...] = Field(
        default=("RR@10", "nDCG@10", "R@100"), description="Measures in ir-measures notation."
    )
    depth: int = Field(default=100, ge=1, description="Candidates per query that are re-ranked.")


@dataclass(frozen=True)
class RecipeStage(Generic[O_co]):
    """One step of a recipe: its name, kind, options and position, counted from 1."""

    name: str
    kind: str
    options: O_co
    number: int

    @property
    def path(self) -> str:
        """The stage's path in the recipe, for messages: ``stages.NAME``."""
        return f"stages.{self.name}"


class Recipe(Options):
    """A recipe: data, first stage, model, measures and stages."""

    name: str = Field(description="Name of the recipe.")
    seed: int = Field(default=1, ge=0, description="Random seed.")
    data: DataOptions = Field(description="Documents, queries and judgments; a plain string is its folder.")
    first_stage: FirstStageOptions = Field(default=FirstStageOptions(), description="Where candidates come from.")
    model: ModelOptions = Field(default=ModelOptions(), description="What is trained.")
    evaluate: EvaluateOptions = Field(default=EvaluateOptions(), description="What is measured.")
    stages: tuple[RecipeStage[Any], ...] = Field(min_length=1, description="The stages by name, in order.")

    def before(self, stage: RecipeStage[Any]) -> tuple[RecipeStage[Any], ...]:
        """The stages before ``stage``."""
        return self.stages[: stage.number - 1]

    def as_dict(self) -> dict[str, Any]:
        """The recipe as plain data for YAML, with every option spelled out."""
        whole = self.model_dump(mode="json", exclude={"stages"})
        whole["stages"] = {s.name: {"kind": s.kind, **s.options.model_dump(mode="json")} for s in self.stages}
        return whole

    def as_yaml(self) -> str:
        """The text of a recipe file that reads back as this recipe."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False, allow_unicode=True)
