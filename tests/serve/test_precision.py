"""What a service computes in, and that it says so."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from rankwell.core.errors import RankwellError
from rankwell.models.checkpoints.export import export_model
from rankwell.models.checkpoints.folders import load_classifier, save_classifier
from rankwell.models.devices import Computing
from rankwell.serve import server
from rankwell.serve.api import create_app
from rankwell.serve.listening import bind
from rankwell.serve.service import Service
from rankwell.serve.state import Sources

from .conftest import opened

QUERY = "how do bees keep warm in winter"
TEXTS = ["The bees cluster.", "A bogus fish in the river.", "Running a bank in London", "winter honey", "numeric money"]


def test_in_16_bits_it_answers_and_explains_nearly_the_same(sources: Sources) -> None:
    body = {"query": QUERY, "texts": TEXTS, "raw_scores": True}
    with opened(replace(sources, computing=Computing("cpu", "fp32")), page=None) as client:
        exact = {row["index"]: row["score"] for row in client.post("/rerank", json=body).json()}
    spread = float(np.std(list(exact.values())))
    with opened(replace(sources, computing=Computing("cpu", "bf16")), page=None) as short:
        rows = short.post("/rerank", json=body).json()
        explained = short.post("/explain", json={"query": QUERY, "document": TEXTS[0]})
    found = {row["index"]: row["score"] for row in rows}
    assert found != exact
    assert found == pytest.approx(exact, abs=0.25 * spread)
    assert explained.status_code == 200
    assert explained.json()["score"] == pytest.approx(found[0], abs=0.25 * spread)


@pytest.mark.parametrize("chosen", ["fp32", "bf16"])
def test_health_models_and_log_say_which(
    chosen: Any, sources: Sources, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service(replace(sources, computing=Computing("cpu", chosen)))
    with TestClient(create_app(service, page=None)) as client:
        assert client.get("/health").json() == {"status": "ok", "precision": {"tiny": chosen}}
        assert [model["precision"] for model in client.get("/models").json()["models"]] == [chosen]
    monkeypatch.setattr(server.Server, "run", lambda self, sockets: self._announce())
    for log in (server.LOG, logging.getLogger("uvicorn.error")):
        monkeypatch.setattr(log, "handlers", [])
        monkeypatch.setattr(log, "propagate", True)
    with closing(bind("127.0.0.1", 0)) as place:
        server.run(service, place, server.ServerOptions(), lambda: None)
    begun = next(json.loads(line) for line in capsys.readouterr().err.splitlines() if '"serving"' in line)
    assert (begun["precision"], begun["port"]) == ({"tiny": chosen}, place.port)


def test_an_exported_model_has_its_own_precision(sources: Sources, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match="rankwell export sets that of onnx"):
        Computing(None, "bf16", backend="onnx").engine_options()
    assert Computing(backend="onnx").engine_options() == {}
    export_model(tiny_checkpoint, tmp_path / "small", "int8")
    service = Service(Sources(None, (str(tmp_path / "small"),), Computing(backend="onnx")))
    assert service.precision() == {"small": "int8"}


def test_an_nli_model_gets_batches_of_its_device_and_is_not_offered_for_explanation(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="its head is replaced"):
        classifier = load_classifier(tiny_checkpoint, ["contradiction", "entailment", "neutral"])
    save_classifier(tmp_path / "nli", classifier)
    engine = {"budget": 3000, "lanes": 2}
    service = Service(Sources(None, (str(tmp_path / "nli"),), Computing("cpu", None), engine))
    model = service.state.default
    assert model is not None
    assert service.engine.budget(model.ranker.engine) == 6000
    with TestClient(create_app(service, page=None)) as client:
        assert [found["explainable"] for found in client.get("/models").json()["models"]] == [False]
        answer = client.post("/explain", json={"query": QUERY, "document": TEXTS[0]})
    assert answer.status_code == 409
    assert "cannot be explained" in answer.text
