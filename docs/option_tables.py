"""The documentation's tables of options, made from the schema: ``python docs/option_tables.py``."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from rankwell.training.experiments.claims import Claim
from rankwell.training.experiments.variants import Column, EvaluateOnOptions, Suite
from rankwell.training.options import TrainingOptions, ValidatedOptions
from rankwell.training.recipe import DataOptions, EvaluateOptions, FirstStageOptions, ModelOptions, Recipe
from rankwell.training.stage import stage_options
from rankwell.training.stage_options.first_stages import PairOptions, TuningOptions
from rankwell.training.stage_options.ranking import DevOptions, ListOptions

_SECTIONS: dict[str, type[BaseModel]] = {
    "A recipe": Recipe,
    "`data`": DataOptions,
    "`first_stage`": FirstStageOptions,
    "`model`": ModelOptions,
    "`evaluate`": EvaluateOptions,
    "Stages that train": TrainingOptions,
    "Stages that are measured during training (most of them)": ValidatedOptions,
    "Stages that are measured on dev during training (pointwise, listwise, distil, …)": DevOptions,
    "Stages that train on lists (pointwise, listwise, …)": ListOptions,
    "Stages that learn a first stage (encoder, adapter, …)": TuningOptions,
    "Stages that learn vectors from pairs (encoder, adapter)": PairOptions,
}
_SUITES: dict[str, type[BaseModel]] = {
    "A suite": Suite,
    "A column of a suite": Column,
    "A claim of a suite": Claim,
    "`evaluate_on` of a suite": EvaluateOnOptions,
}
_WORDS = {int: "whole number", float: "number", str: "text", bool: "true, false"}


def option_rows(model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    """Name, kind of value, default and meaning of each option."""
    rows = []
    for name, field in model.model_fields.items():
        default = "" if field.is_required() else _shown(field.get_default(call_default_factory=True))
        rows.append((name, _kind(field.annotation), default, field.description or ""))
    return rows


def option_tables() -> str:
    """A table for each part of a recipe; a stage's has what it does not share with the others, or does differently."""
    parts, stages = [], {f"Stage `{name}`": options for name, options in sorted(stage_options().items())}
    for title, model in {**_SECTIONS, **stages, **_SUITES}.items():
        rows = [row for row in option_rows(model) if row[0] in model.__annotations__]
        lines = [f"| `{name}` | {kind} | {default} | {meaning} |" for name, kind, default, meaning in rows]
        about = (model.__doc__ or "").strip()
        parts.append(
            "\n".join(
                [f"### {title}\n", f"{about}\n", "| option | value | default | meaning |", "|---|---|---|---|", *lines]
            )
        )
    return "\n\n".join(parts)


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        return ""  # its own table has them
    if isinstance(value, tuple | list):
        return ", ".join(map(_shown, value))
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value or ("" if isinstance(value, dict) else value))


def _kind(annotation: Any) -> str:
    """A type in a user's words."""
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_kind(part) for part in get_args(annotation) if part is not type(None))
    if choices := [choice for choice in get_args(annotation) if isinstance(choice, str)]:
        return ", ".join(choices)
    return _WORDS.get(annotation, "list" if get_origin(annotation) is tuple else "options")


if __name__ == "__main__":
    print(option_tables())
