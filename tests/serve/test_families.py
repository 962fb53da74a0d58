"""The service with models of other families: the scores are the ranker's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from rankwell import Ranker
from rankwell.serve.state import Sources


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
