"""Folders whose config.json names no architecture: the weights show whether they are classifiers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell import Ranker
from rankwell.core.errors import InputError
from rankwell.models.checkpoints.folders import load_classifier


def forget(folder: Path, *names: str) -> Path:
    """Take entries out of config.json."""
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({name: value for name, value in settings.items() if name not in ("architectures", *names)})
    )
    return folder


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "deberta-v2", "modernbert", "qwen3"])
@pytest.mark.parametrize("labels", [1, 2])
def test_a_ranker(tiny_models: Any, tmp_path: Path, kind: str, labels: int) -> None:
    if (kind, labels) == ("qwen3", 2):
        pytest.skip("language models rank with one score")
    folder = tiny_models.make(kind, tmp_path / "model", labels=labels)
    expected = Ranker(folder).predict(tiny_models.PAIRS)
    assert np.array_equal(Ranker(forget(folder)).predict(tiny_models.PAIRS), expected)
    assert np.array_equal(Ranker(forget(folder, "id2label", "label2id")).predict(tiny_models.PAIRS), expected)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_a_classifier(tiny_models: Any, tmp_path: Path, kind: str) -> None:
    folder = tiny_models.make(kind, tmp_path / "model", labels=3)
    expected = Ranker(folder, engine={"label": "LABEL_1"}).predict(tiny_models.PAIRS)
    forget(folder)
    assert load_classifier(folder).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert np.array_equal(Ranker(folder, engine={"label": "LABEL_1"}).predict(tiny_models.PAIRS), expected)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_a_bare_encoder_is_still_refused(tiny_models: Any, tmp_path: Path, kind: str) -> None:
    folder = forget(tiny_models.make(kind, tmp_path / "model", labels=None))
    with pytest.raises(InputError, match=r"has no ranking head .*, so cannot rank; train a ranker from it"):
        Ranker(folder)
    with pytest.raises(InputError, match="not a classifier"):
        load_classifier(folder)
