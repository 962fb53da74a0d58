"""A suite: what an experiment's YAML file says."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rankwell.training.experiments.groups import GroupKind
from rankwell.training.options import Options


class EvaluateOnOptions(Options):
    """Another data set or split to measure on."""

    folder: str | None = Field(default=None, description="Data set; none: that of the recipe.")
    split: str = Field(default="test", description="Split to measure on.")
    run: str | None = Field(default=None, description="First-stage run; none: search as in the recipe.")
    queries: int | None = Field(
        default=None, ge=1, description="Maximum number of queries, from the first on; none: all."
    )


class Suite(Options):
    """An experiment: variants of a recipe, seeds, and what is compared."""

    base: str = Field(
        description="Recipe that the variants change: its name, or a file relative to the suite's folder."
    )
    set: dict[str, Any] = Field(default_factory=dict, description="Options that all variants change.")
    variants: dict[str, dict[str, Any] | None] = Field(
        min_length=1,
        description="Name → changes: paths and values as for --set, and `base` for another recipe than the "
        "suite's; none: the recipe unchanged.",
    )
    seeds: tuple[int, ...] = Field(
        default=(1,), min_length=1, description="Seeds; each variant is trained with each of them."
    )
    baseline: str | None = Field(
        default=None, description="Variant that the others are tested against; none: the first."
    )
    candidates: str | None = Field(
        default=None,
        description="Variant whose first stage, trained with the first seed, finds the "
        "candidates for all others; none: each recipe's own first stage.",
    )
    measures: tuple[str, ...] | None = Field(
        default=None, description="Columns of the table; none: those of the recipe."
    )
    test: Literal["t", "wilcoxon", "randomisation"] = Field(default="t", description="Significance test.")
    groups: tuple[GroupKind, ...] = Field(
        default=(), description="Also compare within groups of queries: `split words`, `length`, `type`."
    )
    evaluate_on: dict[str, EvaluateOnOptions] = Field(
        default_factory=dict, description="Name → another data set or split to measure on."
    )
    axis: str | None = Field(
        default=None, description="Path of an option; the first measure is plotted against its value."
    )
