"""The tiny model and batches for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Pairs of different lengths, with split words, unknown words, empty texts and one that is cut.
PAIRS = [
    ("what is bogue", "a bogus claim"),
    ("insouciantly", "in the bank, insouciantly numeric"),
    ("bank", ""),
    ("", "honey"),
    ("how many bees are in a hive", "the bees keep warm in winter " * 12),
    ("日 ω", "zyx --"),
]


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str]]:
    return PAIRS


@pytest.fixture(scope="session")
def loaded(tiny_checkpoint: Path) -> Any:
    """The model, its tokenizer and its configuration, as rankwell loads them."""
    from rankwell.models.checkpoints.folders import load_checkpoint

    return load_checkpoint(tiny_checkpoint)


@pytest.fixture(scope="session")
def lay_out(loaded: Any) -> Callable[..., Any]:
    """Text pairs as sequences of at most 48 tokens."""
    from rankwell.inputs.templates import Template, lay_out_pairs

    tokenizer = loaded[1]

    def lay(pairs: list[tuple[str, str]]) -> Any:
        fields = {name: tokenizer.encode([pair[i] for pair in pairs]) for i, name in enumerate(("query", "document"))}
        return lay_out_pairs(Template(max_length=48, max_query=16), tokenizer.special, fields)

    return lay


@dataclass(frozen=True)
class Copy:
    """A checkpoint folder to change."""

    folder: Path

    def edit_tensors(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Replace all tensors by what ``change`` makes of them."""
        from safetensors.torch import load_file, save_file

        path = self.folder / "model.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path)

    def configure(self, **changes: Any) -> None:
        """Change settings of ``config.json``."""
        path = self.folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def keep_one_label(self) -> None:
        """Make a classifier of one output out of one of two."""
        self.edit_tensors(lambda t: {n: v[:1] if n.startswith("classifier") else v for n, v in t.items()})
        self.configure(id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})


@pytest.fixture
def copy(tiny_checkpoint: Path, tmp_path: Path) -> Copy:
    """A copy of the tiny checkpoint, to change."""
    return Copy(Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy")))
