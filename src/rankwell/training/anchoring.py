"""Files that recipes name: relative to the recipe's folder, or to where a setting was given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwell.corpus.datasets import IRDS_PREFIXES
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.training.options import MODELS, START

TYPE_SOURCES = ("auto", "none", "rules")


def anchored(tree: dict[str, Any], base: Path, only: str | None = None) -> dict[str, Any]:
    """Files that are named relative to ``base`` with their whole path."""
    for section, key in (
        ("data", "folder"),
        ("data", "types"),
        ("first_stage", "train_run"),
        ("first_stage", "dev_run"),
        ("first_stage", "encoder"),
        ("model", "start"),
    ):
        if section == "data" and isinstance(tree.get("data"), str):
            tree = {**tree, "data": {"folder": tree["data"]}}
        if only is not None and only not in (section, f"{section}.{key}"):
            continue
        options = tree.get(section)
        value = options.get(key) if isinstance(options, Mapping) else None
        if isinstance(options, Mapping) and isinstance(value, str) and _is_file(key, value, base):
            tree = {**tree, section: {**options, key: os.path.abspath(base / value)}}
    if isinstance(stages := tree.get("stages"), Mapping):
        tree = {**tree, "stages": {name: _anchored_stage(name, own, base, only) for name, own in stages.items()}}
    return tree


def _anchored_stage(name: str, options: Any, base: Path, only: str | None) -> Any:
    if not isinstance(options, Mapping):
        return options

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(one) for one in value]
        is_name = not isinstance(value, str) or value in (START, DEFAULT) or not (base / value).exists()
        return value if is_name else os.path.abspath(base / value)

    said = {key for key in MODELS if only in (None, "stages", f"stages.{name}", f"stages.{name}.{key}")}
    return {key: whole(value) if key in said else value for key, value in options.items()}


def _is_file(key: str, value: str, base: Path) -> bool:
    if key in ("start", "encoder"):  # may as well be a name
        return (base / value).is_dir()
    if key == "types":
        return value not in TYPE_SOURCES
    return not value.startswith(IRDS_PREFIXES)
