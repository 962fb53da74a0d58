"""Traces: a span for each request with its parts as children, and nothing at all unless asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("torch")
from fastapi.testclient import TestClient

from rankwell.core.errors import MissingExtraError
from rankwell.models.devices import Computing
from rankwell.serve import tracing
from rankwell.serve.api import create_app
from rankwell.serve.service import Service
from rankwell.serve.state import Sources
from rankwell.serve.tracing import ENDPOINTS, part, provider_from_environment

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENDPOINTS, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)


class TestSpans:
    @pytest.fixture
    def exporter(self) -> Any:
        pytest.importorskip("opentelemetry.instrumentation.fastapi", reason="needs rankwell[otel]")
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        return InMemorySpanExporter()

    @pytest.fixture
    def client(
        self,
        exporter: Any,
        served_index: Path,
        tiny_checkpoint: Path,
        tiny_bi_encoder: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[TestClient]:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor

        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        search = {"hybrid": 0.5, "encoder": tiny_bi_encoder}
        service = Service(Sources(served_index, (str(tiny_checkpoint),), Computing("cpu", None), search=search))
        monkeypatch.setattr(tracing, "_tracers", [])
        with TestClient(create_app(service, tracing=provider)) as client:
            yield client

    def test_a_search_has_its_parts(self, client: TestClient, exporter: Any) -> None:
        body = {"query": "bees in winter", "k": 3}
        answer = client.post("/search", json=body, headers={"traceparent": PARENT, "X-Request-Id": "mine"})
        assert answer.status_code == 200, answer.text
        *parts, whole = exporter.get_finished_spans()
        assert whole.name == "POST /search"
        assert f"{whole.context.trace_id:032x}" == PARENT.split("-")[1]
        assert f"{whole.parent.span_id:016x}" == PARENT.split("-")[2]
        assert whole.attributes["http.status_code"] == 200
        assert whole.attributes["rankwell.request_id"] == "mine"
        assert whole.attributes["rankwell.tokens"] > 0
        assert [span.name for span in parts] == ["search", "tokenise", "rerank"]
        assert {span.parent.span_id for span in parts} == {whole.context.span_id}
        for span in parts:
            assert whole.start_time <= span.start_time <= span.end_time <= whole.end_time

    @pytest.mark.parametrize(
        ("path", "body", "parts"),
        [
            ("/rerank", {"query": "bees", "texts": ["honey", "river"]}, ["tokenise", "rerank"]),
            ("/v1/embeddings", {"input": ["honey", "river"]}, ["encode"]),
            ("/rerank", {"query": "bees"}, []),
            ("/no/such/path", {}, []),
        ],
    )
    def test_other_requests(
        self, client: TestClient, exporter: Any, path: str, body: dict[str, Any], parts: list[str]
    ) -> None:
        status = client.post(path, json=body).status_code
        *found, whole = exporter.get_finished_spans()
        assert [span.name for span in found] == parts
        assert whole.parent is None
        assert whole.name == ("POST" if "such" in path else f"POST {path}")
        assert whole.attributes["http.status_code"] == status

    def test_an_endpoint_turns_it_on(self, exporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
        monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:9")
        provider = provider_from_environment()
        assert provider is not None
        provider.shutdown()


def test_it_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert provider_from_environment() is None
    monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert provider_from_environment() is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "false")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert provider_from_environment() is None
    with part("search"):  # outside a traced request
        pass


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(
        MissingExtraError, match=r"tracing needs the package opentelemetry-sdk: pip install 'rankwell\[otel\]'"
    ):
        provider_from_environment()
