"""Linking a checkpoint into another folder, with another configuration, without copying its weights."""

from __future__ import annotations

from pathlib import Path

from rankwell.core.files import atomic_folder, link_tree
from rankwell.models.checkpoints.card import model_card
from rankwell.models.checkpoints.config import RankerConfig, read_dimensions


def link_model(model: Path, target: Path, ranker: RankerConfig | None) -> None:
    """Hard-link a checkpoint's files into ``target``, or copy them; ``ranker`` replaces the configuration."""
    with atomic_folder(target) as folder:
        link_tree(model, folder, skip=Path.is_dir)
        if ranker is not None:
            _replace(folder / "rankwell.json", ranker.model_dump_json(indent=2) + "\n")
            _replace(folder / "README.md", model_card(ranker, read_dimensions(model)))


def _replace(path: Path, text: str) -> None:
    # Unlinked first: writing into a linked file would change the original.
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
