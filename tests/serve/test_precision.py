"""What a service computes in: chosen by the processor or by its user, and said."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from rankwell.core.errors import RankwellError
from rankwell.core.processor import is_fast_in_bf16
from rankwell.rank.engines.precision import engine_options
from rankwell.serve import server
from rankwell.serve.api import create_app
from rankwell.serve.service import Service
from rankwell.serve.state import Sources

torch = pytest.importorskip("torch")
QUERY = "how do bees keep warm in winter"
TEXTS = ["The bees cluster.", "A bogus fish in the river.", "Running a bank in London", "winter honey", "numeric money"]
XEON = "processor\t: 0\nflags\t\t: fpu avx512_bf16 amx_bf16 avx512_fp16 amx_tile\n\nprocessor\t: 1\n"
ZEN = "processor\t: 0\nmodel name\t: an amx_bf16 by name alone\nflags\t\t: fpu avx2 avx512_bf16\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n"


@pytest.fixture
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes the machine's processor the one described."""

    def describe(text: str) -> Path:
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr("rankwell.core.processor.CPU_INFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        return tmp_path / "cpuinfo"

    return describe


@pytest.mark.parametrize(("text", "fast"), [(XEON, True), (ZEN, False), (ARM, False), ("", False)])
def test_only_a_processor_with_amx_is_known_to_be_fast(text: str, fast: bool, processor: Callable[[str], Path]) -> None:
    assert is_fast_in_bf16(processor(text)) is fast
    expected = "bf16" if fast else "fp32"
    assert engine_options("torch") == {"dtype": expected}
    assert engine_options("torch", "cpu") == {"device": "cpu", "dtype": expected}


def test_a_processor_that_cannot_be_looked_up_computes_exactly(tmp_path: Path) -> None:
    assert not is_fast_in_bf16(tmp_path / "nowhere")


def test_what_is_asked_for_is_used_whatever_the_processor(processor: Callable[[str], Path]) -> None:
    processor(XEON)
    assert engine_options("torch", None, "fp32") == {"dtype": "fp32"}
    processor(ZEN)
    assert engine_options("torch", None, "bf16") == {"dtype": "bf16"}


def test_a_gpu_is_left_to_its_engine(processor: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    processor(ZEN)
    assert engine_options("torch", "cuda:1") == {"device": "cuda:1"}
    assert engine_options("torch", "cuda:1", "fp32") == {"device": "cuda:1", "dtype": "fp32"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert engine_options("torch") == {}
    assert engine_options("torch", "cpu") == {"device": "cpu", "dtype": "fp32"}


def test_in_16_bits_it_answers_and_explains_nearly_the_same(sources: Sources) -> None:
    body = {"query": QUERY, "texts": TEXTS, "raw_scores": True}
    exactly = replace(sources, options=engine_options("torch", "cpu", "fp32"))
    with TestClient(create_app(Service(exactly), page=None)) as client:
        exact = {row["index"]: row["score"] for row in client.post("/rerank", json=body).json()}
    spread = float(np.std(list(exact.values())))
    options = engine_options("torch", "cpu", "bf16")
    with TestClient(create_app(Service(replace(sources, options=options)), page=None)) as short:
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
    service = Service(replace(sources, options=engine_options("torch", "cpu", chosen)))
    with TestClient(create_app(service, page=None)) as client:
        assert client.get("/health").json() == {"status": "ok", "precision": {"tiny": chosen}}
        assert [model["precision"] for model in client.get("/models").json()["models"]] == [chosen]
    monkeypatch.setattr(server.Server, "run", lambda self: None)
    log = logging.getLogger(server.LOG.name)
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", True)
    server.run(service, server.Address())
    begun = next(json.loads(line) for line in capsys.readouterr().err.splitlines() if '"serving"' in line)
    assert begun["precision"] == {"tiny": chosen}


def test_an_exported_model_has_its_own_precision(sources: Sources, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match="that of onnx is chosen by rankwell export"):
        engine_options("onnx", None, "bf16")
    assert engine_options("onnx") == {}
    pytest.importorskip("onnxruntime")
    from rankwell.models.checkpoints.export import export_model

    export_model(tiny_checkpoint, tmp_path / "small", "onnx", "int8")
    service = Service(Sources(None, (str(tmp_path / "small"),), "onnx"))
    assert service.precision() == {"small": "int8"}
