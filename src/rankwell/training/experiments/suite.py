"""A suite: what an experiment's YAML file says."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rankwell.training.experiments.groups import GroupKind
from rankwell.training.options import Options


class Elsewhere(Options):
    """Another data set or split to measure on."""

    folder: str | None = Field(default=None, description="The data set; none: the recipe's own.")
    split: str = Field(default="test", description="The split.")
    run: str | None = Field(default=None, description="Its first-stage run; none: BM25 as in the recipe.")
    queries: int | None = Field(default=None, ge=1, description="Use the first so many queries; none: all.")


class Suite(Options):
    """An experiment, as its YAML file has it."""

    base: str = Field(description="The recipe that is varied.")
    set: dict[str, Any] = Field(default_factory=dict, description="Options that differ from the base in all variants.")
    variants: dict[str, dict[str, Any] | None] = Field(
        min_length=1,
        description="Name → what differs: paths and values as for --set, and `base` for another recipe than the "
        "suite's; none: the recipe as it is.",
    )
    seeds: tuple[int, ...] = Field(default=(1,), min_length=1, description="Each variant is trained with each of them.")
    baseline: str | None = Field(default=None, description="The variant others are tested against; none: the first.")
    candidates: str | None = Field(
        default=None,
        description="The variant whose first stage (DeepCT, doc2query) finds the candidates of all others, trained "
        "with the first seed; none: each recipe's own.",
    )
    measures: tuple[str, ...] | None = Field(default=None, description="The table's columns; none: the recipe's.")
    test: Literal["t", "wilcoxon", "randomisation"] = Field(default="t", description="The significance test.")
    groups: tuple[GroupKind, ...] = Field(
        default=(), description="Compare within groups of queries, too: `split words`, `length`, `type`."
    )
    evaluate_on: dict[str, Elsewhere] = Field(
        default_factory=dict, description="Name → further data sets and splits to measure on."
    )
    axis: str | None = Field(
        default=None, description="An option's path; draws the first measure against its value, variant by variant."
    )
