"""Models whose code comes with them, for the tests of ``trust_remote_code``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
REFUSED = "a model that runs code from its repository; if you trust it, add --trust-remote-code"


def bring_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change a BERT into a model whose code, which is BERT's, comes with it."""
    from transformers import dynamic_module_utils

    copies = str(folder.parent / "modules")  # where transformers copies the code to
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", copies)
    monkeypatch.syspath_prepend(copies)
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "own", "architectures": ["OwnClassifier"]}
    settings["auto_map"] = {**NAMES, "AutoModelForSequenceClassification": "own.OwnClassifier"}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "own.py").write_text(CODE)
    return folder
