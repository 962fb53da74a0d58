"""Every family of encoders can be exported: fp32 keeps the scores, int8 nearly the order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell import Ranker
from rankwell.models.checkpoints.export import export_model
from rankwell.rank.engines.agreement import rank_agreement
from rankwell.sample import FOLDER

KINDS = ["roberta", "xlm-roberta", "electra", "distilbert", "mpnet", "albert", "deberta-v2", "modernbert"]


@pytest.mark.parametrize("kind", KINDS)
def test_fp32_keeps_the_scores(tiny_models: Any, tmp_path: Path, kind: str) -> None:
    folder = tiny_models.make(kind, tmp_path / kind)
    export_model(folder, tmp_path / "out")
    found = Ranker(tmp_path / "out", backend="onnx").predict(tiny_models.PAIRS)
    assert np.abs(found - Ranker(folder).predict(tiny_models.PAIRS)).max() < 1e-4


@pytest.mark.parametrize("kind", ["xlm-roberta", "modernbert", "deberta-v2"])
def test_int8_nearly_keeps_the_order(tiny_models: Any, tmp_path: Path, kind: str) -> None:
    folder = tiny_models.make(kind, tmp_path / kind)
    export_model(folder, tmp_path / "out", "int8")
    agreement = rank_agreement(folder, tmp_path / "out", "onnx", FOLDER)
    assert len(agreement) == 10
    assert sum(agreement) / 10 > 0.9
