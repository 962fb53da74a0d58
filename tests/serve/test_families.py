"""The service with models of other families: the scores are the ranker's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rankwell import Index, Ranker
from rankwell.cli.main import app
from rankwell.serve import server
from rankwell.serve.state import Sources, open_state


@pytest.mark.parametrize("kind", ["xlm-roberta", "modernbert", "language model"])
def test_rerank(tiny_models: Any, live: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    if kind == "language model":
        folder = tiny_models.make_language_model("qwen3", tmp_path / "model")
    else:
        folder = tiny_models.make(kind, tmp_path / "model")
    query, texts = "how do bees keep warm?", [document for _, document in tiny_models.PAIRS]
    service = live(Sources(None, (str(folder),)))
    status, answer, _ = service.post("/rerank", {"query": query, "texts": texts, "raw_scores": True})
    assert status == 200, answer
    scores = {entry["index"]: entry["score"] for entry in answer}
    expected = Ranker(folder).predict([(query, text) for text in texts])
    assert np.abs(np.array([scores[i] for i in range(len(texts))]) - expected).max() < 1e-5


def test_an_instruction_is_the_models_that_has_one(tiny_models: Any, live: Callable[..., Any], tmp_path: Path) -> None:
    folder = tiny_models.make_language_model("qwen3", tmp_path / "Qwen3-Reranker", chat=False)
    query, texts = "how do bees keep warm?", [document for _, document in tiny_models.PAIRS]
    Index.build({str(number): text for number, text in enumerate(texts)}, tmp_path / "index")
    service = live(Sources(tmp_path / "index", (str(folder),)))
    told = "Find what keeps bees warm"
    body = {"query": query, "texts": texts, "raw_scores": True, "instruction": told}
    status, answer, _ = service.post("/rerank", body)
    assert status == 200, answer
    scores = {entry["index"]: entry["score"] for entry in answer}
    expected = Ranker(folder, instruction=told).predict([(query, text) for text in texts])
    assert np.abs(np.array([scores[i] for i in range(len(texts))]) - expected).max() < 1e-5
    status, answer, _ = service.post("/search", {"query": query, "instruction": told})
    assert status == 200, answer
    assert len(answer["results"]) > 1
    for row in answer["results"]:
        assert abs(row["score"] - expected[int(row["id"])]) < 1e-5
    status, answer, _ = service.post("/search", {"query": query, "instruction": told, "stages": "bm25"})
    assert (status, answer["message"]) == (422, "instruction: not taken by BM25")


def test_the_class_that_means_relevant(tiny_models: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tiny_models.make("xlm-roberta", tmp_path / "model", labels=3)
    served: list[Sources] = []
    monkeypatch.setattr(server, "serve", lambda sources, *_: served.append(sources))
    options = ("--model", str(folder), "--port", "0", "--precision", "fp32")
    CliRunner().invoke(app, ["serve", *options, "--set", "label=LABEL_1"])
    CliRunner().invoke(app, ["serve", *options, "--set", "label=LABEL_2", "--trust-remote-code"])
    rankers = [next(iter(open_state(sources).models.values())).ranker for sources in served]
    found = [ranker.predict(tiny_models.PAIRS) for ranker in rankers]
    expected = [Ranker(folder, engine={"label": f"LABEL_{n}"}).predict(tiny_models.PAIRS) for n in (1, 2)]
    assert np.abs(np.array(found) - np.array(expected)).max() < 1e-5
    assert np.abs(found[0] - found[1]).max() > 1e-2
    assert [sources.computing.trust_remote_code for sources in served] == [False, True]
