"""Every family of encoders can be exported: fp32 keeps the scores, int8 nearly the order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
pytest.importorskip("sentence_transformers")

from rankwell import Ranker
from rankwell.core.errors import RankwellError
from rankwell.models.checkpoints.export import export_model
from rankwell.rank.engines.agreement import rank_agreement
from rankwell.sample import FOLDER

KINDS = ["roberta", "xlm-roberta", "electra", "distilbert", "mpnet", "albert", "deberta-v2", "modernbert"]
WRONG = [("mpnet", "openvino"), ("deberta-v2", "openvino")]  # on some processors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_fp32_keeps_the_scores(tiny_models: Any, tmp_path: Path, kind: str, backend: Any) -> None:
    folder = tiny_models.make(kind, tmp_path / kind)
    refusal = f"OpenVINO does not compute models of the type {kind} correctly"
    try:
        export_model(folder, tmp_path / "out", backend)
    except RankwellError as error:
        if (kind, backend) not in WRONG or refusal not in str(error):
            raise
        assert not (tmp_path / "out").exists()
        return
    found = Ranker(tmp_path / "out", backend=backend).predict(tiny_models.PAIRS)
    assert np.abs(found - Ranker(folder).predict(tiny_models.PAIRS)).max() < 1e-4


@pytest.mark.parametrize("kind", ["xlm-roberta", "modernbert", "deberta-v2"])
def test_int8_nearly_keeps_the_order(tiny_models: Any, tmp_path: Path, kind: str) -> None:
    folder = tiny_models.make(kind, tmp_path / kind)
    export_model(folder, tmp_path / "out", "onnx", "int8")
    agreement = rank_agreement(folder, tmp_path / "out", "onnx", FOLDER)
    assert len(agreement) == 10
    assert sum(agreement) / 10 > 0.9
