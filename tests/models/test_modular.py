"""Cross-encoders of several modules score as sentence-transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")

from rankwell import Ranker  # noqa: E402
from rankwell.core.errors import InputError  # noqa: E402


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
