"""Serving in 16 bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fastapi.testclient import TestClient

from rankwell.cli.serve import _engine_options
from rankwell.core.errors import RankwellError
from rankwell.serve.api import create_app
from rankwell.serve.service import Service
from rankwell.serve.state import Sources

pytest.importorskip("torch")
QUERY = "how do bees keep warm in winter"
TEXTS = ["The bees cluster.", "A bogus fish in the river.", "Running a bank in London", "winter honey", "numeric money"]


def test_in_16_bits_it_answers_and_explains_nearly_the_same(sources: Sources) -> None:
    body = {"query": QUERY, "texts": TEXTS, "raw_scores": True}
    with TestClient(create_app(Service(sources), page=None)) as client:
        exact = {row["index"]: row["score"] for row in client.post("/rerank", json=body).json()}
    spread = float(np.std(list(exact.values())))
    options = _engine_options("torch", None, "bf16")
    with TestClient(create_app(Service(replace(sources, options=options)), page=None)) as short:
        rows = short.post("/rerank", json=body).json()
        explained = short.post("/explain", json={"query": QUERY, "document": TEXTS[0]})
    found = {row["index"]: row["score"] for row in rows}
    assert found != exact
    assert found == pytest.approx(exact, abs=0.25 * spread)
    assert explained.status_code == 200
    assert explained.json()["score"] == pytest.approx(found[0], abs=0.25 * spread)


def test_an_exported_model_has_its_own_precision() -> None:
    with pytest.raises(RankwellError, match="that of onnx is chosen by rankwell export"):
        _engine_options("onnx", None, "bf16")
    assert _engine_options("onnx", None, None) == {}
