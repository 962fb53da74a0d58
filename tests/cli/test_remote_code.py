"""``--trust-remote-code`` of rerank and search: a model's own code runs only if the user asks for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("sentence_transformers")

from rankwell.corpus.formats import read_queries, read_run, write_run  # noqa: E402
from rankwell.retrieve.index import Index  # noqa: E402

Call = Callable[..., Any]
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


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers copies the code to."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))


def bring_code(folder: Path) -> None:
    """Change a BERT into a model whose code, which is BERT's, comes with it."""
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "own", "architectures": ["OwnClassifier"]}
    settings["auto_map"] = {**NAMES, "AutoModelForSequenceClassification": "own.OwnClassifier"}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "own.py").write_text(CODE)


def rankings(path: str) -> dict[str, list[str]]:
    return {qid: list(ranking.docids) for qid, ranking in read_run(path).items()}


def test_rerank(rankwell: Call, index: Path, queries: Path, tiny_models: Any, tmp_path: Path) -> None:
    model = tiny_models.make("bert", tmp_path / "model")
    write_run(Index.open(index).search(read_queries(queries)[:2], k=4), tmp_path / "first.run")
    options = ["--queries", queries, "--collection", index, "--model", model]
    assert rankwell("rerank", tmp_path / "first.run", *options, "--out", "plain.run").code == 0
    bring_code(model)
    assert REFUSED in rankwell("rerank", tmp_path / "first.run", *options, "--out", "out.run").complaint
    assert not Path("out.run").exists()
    done = rankwell("rerank", tmp_path / "first.run", *options, "--out", "out.run", "--trust-remote-code")
    assert done.code == 0, done.err
    assert rankings("out.run") == rankings("plain.run")


def test_search(rankwell: Call, queries: Path, tiny_models: Any, tmp_path: Path) -> None:
    encoder = tiny_models.make_bi_encoder("bert", tmp_path / "encoder")
    few = tmp_path / "collection.tsv"
    few.write_text("".join(f"{number}\t{text}\n" for number, (_, text) in enumerate(tiny_models.PAIRS)))
    assert rankwell("index", few, "--out", "few").code == 0
    options = ["few", queries, "--hybrid", "0.5", "--encoder", encoder, "--k", "5"]
    assert rankwell("search", *options, "--out", "plain.run").code == 0
    bring_code(encoder)
    assert REFUSED in rankwell("search", *options, "--out", "out.run").complaint
    assert not Path("out.run").exists()
    done = rankwell("search", *options, "--out", "out.run", "--trust-remote-code")
    assert done.code == 0, done.err
    assert rankings("out.run") == rankings("plain.run")
