"""Cross-encoders of several modules score as sentence-transformers does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch

from rankwell import Ranker
from rankwell.core.errors import InputError
from rankwell.models.checkpoints.names import model_digest, model_files

_opened: set[Path] = set()


@pytest.fixture(scope="module", autouse=True)
def opened_files() -> set[Path]:
    """The paths of the files that Python opens, in a set that tests clear."""
    sys.addaudithook(lambda event, given: _opened.add(Path(str(given[0]))) if event == "open" else None)
    return _opened


@pytest.mark.parametrize(("kind", "pooling"), [("bert", "mean"), ("modernbert", "cls"), ("xlm-roberta", "max")])
def test_scores_are_those_of_sentence_transformers(tiny_models: Any, tmp_path: Path, kind: str, pooling: str) -> None:
    folder = tiny_models.make_modular(kind, tmp_path / "model", pooling=pooling, norm=True)
    model = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    expected = model.predict(tiny_models.PAIRS, activation_fn=torch.nn.Identity())
    assert np.abs(Ranker(folder).predict(tiny_models.PAIRS) - expected).max() < 1e-5
    assert expected.std() > 1e-3


def test_a_module_that_is_not_known_is_named(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_modular("bert", tmp_path / "model")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "somewhere.Wobble"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="scores pass a module Wobble; expected Transformer, Pooling, Dense"):
        Ranker(folder)


def test_a_model_is_another_when_any_file_that_is_opened_changes(
    tiny_models: Any, tmp_path: Path, opened_files: set[Path]
) -> None:
    folder = tiny_models.make_modular("bert", tmp_path / "model", norm=True)
    (folder / "chat_template.jinja").write_text("{{ query }}")
    opened_files.clear()
    Ranker(folder)
    read = {path for path in opened_files if path.is_relative_to(folder)}
    files = {*model_files(folder)}
    assert {path for path in read if path.name != "checksums"} <= files
    assert set(folder.rglob("*.safetensors")) <= files
    assert len({path.parent for path in files}) > 2
    digests = {model_digest(folder)}
    for path in files:
        before = path.read_bytes()
        path.write_bytes(before + b" ")
        digests.add(model_digest(folder))
        path.write_bytes(before)
    assert len(digests) == len(files) + 1
