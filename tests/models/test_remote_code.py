"""Models whose code comes with them: refused unless that code is trusted, and then computed by transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rankwell import BiEncoder, Ranker  # noqa: E402
from rankwell.core.errors import InputError, RankwellError  # noqa: E402

CODE = """
from transformers import BertConfig, BertForSequenceClassification, BertModel

class OwnConfig(BertConfig):
    model_type = "own"

class OwnModel(BertModel):
    config_class = OwnConfig

class OwnClassifier(BertForSequenceClassification):
    config_class = OwnConfig
"""
NAMES = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
REFUSED = r"config\.json: a model that runs code from its repository; if you trust it, add --trust-remote-code"


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers copies the code to."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))


@pytest.fixture
def bring_code() -> Callable[[Path], Path]:
    """Changes a BERT into a model whose code, which is BERT's, comes with it."""

    def change(folder: Path) -> Path:
        settings = json.loads((folder / "config.json").read_text())
        settings |= {"model_type": "own", "architectures": ["OwnClassifier"]}
        settings["auto_map"] = {**NAMES, "AutoModelForSequenceClassification": "own.OwnClassifier"}
        (folder / "config.json").write_text(json.dumps(settings))
        (folder / "own.py").write_text(CODE)
        return folder

    return change


def test_a_ranker(tiny_models: Any, tmp_path: Path, bring_code: Callable[[Path], Path]) -> None:
    folder = tiny_models.make("bert", tmp_path / "model")
    expected = Ranker(folder).predict(tiny_models.PAIRS)
    bring_code(folder)
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


def test_a_bi_encoder(tiny_models: Any, tmp_path: Path, bring_code: Callable[[Path], Path]) -> None:
    pytest.importorskip("sentence_transformers")
    folder = tiny_models.make_bi_encoder("bert", tmp_path / "model")
    texts = [document for _, document in tiny_models.PAIRS]
    expected = BiEncoder.from_pretrained(folder, precision="fp32").encode_documents(texts)
    bring_code(folder)
    with pytest.raises(InputError, match=REFUSED):
        BiEncoder.from_pretrained(folder)
    trusted = BiEncoder.from_pretrained(folder, precision="fp32", trust_remote_code=True)
    assert np.abs(trusted.encode_documents(texts) - expected).max() < 1e-5


def test_a_pickle_stays_refused(tiny_models: Any, tmp_path: Path, bring_code: Callable[[Path], Path]) -> None:
    folder = bring_code(tiny_models.make("bert", tmp_path / "model"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="only safetensors are read, never pickle"):
        Ranker(folder, trust_remote_code=True)


def test_code_that_fails_is_one_line(tiny_models: Any, tmp_path: Path, bring_code: Callable[[Path], Path]) -> None:
    folder = bring_code(tiny_models.make("bert", tmp_path / "model"))
    (folder / "own.py").write_text("raise RuntimeError('no\\nsuch thing')")
    with pytest.raises(InputError, match="which transformers cannot build") as refusal:
        Ranker(folder, trust_remote_code=True)
    assert "\n" not in str(refusal.value)


def test_only_torch_runs_code(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make("bert", tmp_path / "model")
    with pytest.raises(RankwellError, match="--trust-remote-code needs --backend torch, not onnx"):
        Ranker(folder, backend="onnx", trust_remote_code=True)
