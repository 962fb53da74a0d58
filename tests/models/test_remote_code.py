"""Models whose code comes with them: refused unless that code is trusted, and then computed by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.remote_code import REFUSED, bring_code

from rankwell import BiEncoder, Ranker
from rankwell.core.errors import InputError, RankwellError


def test_a_ranker(tiny_models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_models.make("bert", tmp_path / "model")
    expected = Ranker(folder).predict(tiny_models.PAIRS)
    bring_code(folder, monkeypatch)
    with pytest.raises(InputError, match=REFUSED):
        Ranker(folder)
    found = Ranker(folder, trust_remote_code=True).predict(tiny_models.PAIRS)
    assert np.abs(found - expected).max() < 1e-5
    assert expected.std() > 1e-2


def test_a_type_that_rankwell_computes_is_left_to_the_code(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make("bert", tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "auto_map": {"AutoModel": "own.OwnModel"}}))
    with pytest.raises(InputError, match=REFUSED):
        Ranker(folder)


def test_a_bi_encoder(tiny_models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_models.make_bi_encoder("bert", tmp_path / "model")
    texts = [document for _, document in tiny_models.PAIRS]
    expected = BiEncoder.from_pretrained(folder, precision="fp32").encode_documents(texts)
    bring_code(folder, monkeypatch)
    with pytest.raises(InputError, match=REFUSED):
        BiEncoder.from_pretrained(folder)
    trusted = BiEncoder.from_pretrained(folder, precision="fp32", trust_remote_code=True)
    assert np.abs(trusted.encode_documents(texts) - expected).max() < 1e-5


def test_a_pickle_stays_refused(tiny_models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bring_code(tiny_models.make("bert", tmp_path / "model"), monkeypatch)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="only safetensors are read, never pickle"):
        Ranker(folder, trust_remote_code=True)


def test_code_that_fails_is_one_line(tiny_models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bring_code(tiny_models.make("bert", tmp_path / "model"), monkeypatch)
    (folder / "own.py").write_text("raise RuntimeError('no\\nsuch thing')")
    with pytest.raises(InputError, match="which transformers cannot build") as refusal:
        Ranker(folder, trust_remote_code=True)
    assert "\n" not in str(refusal.value)


def test_only_torch_runs_code(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make("bert", tmp_path / "model")
    with pytest.raises(RankwellError, match="--trust-remote-code needs --backend torch, not onnx"):
        Ranker(folder, backend="onnx", trust_remote_code=True)
