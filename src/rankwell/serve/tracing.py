"""Traces for OpenTelemetry, whose own instrumentation makes a span of each request; its parts are spans inside.

    POST /search
    ├── search      BM25, or hybrid search
    ├── tokenise    query and candidates
    ├── rerank      queue and model
    └── encode      the vectors of texts, in /v1/embeddings

The standard environment variables turn it on and say where traces go.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rankwell.core.errors import MissingExtraError

if TYPE_CHECKING:
    from fastapi import FastAPI

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_tracers: list[Any] = []


def part(name: str) -> AbstractContextManager[Any]:
    """A span for a part of the current request, if requests are traced."""
    return _tracers[-1].start_as_current_span(name) if _tracers else nullcontext()


def note(attributes: Mapping[str, Any]) -> None:
    """Add attributes to the span of the current request, if requests are traced."""
    if _tracers:
        sys.modules["opentelemetry.trace"].get_current_span().set_attributes(attributes)


def provider_from_environment() -> Any | None:
    """The tracer provider that the environment asks for; None if it names no endpoint or disables the SDK."""
    asked = next((name for name in ENDPOINTS if os.environ.get(name)), None)
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if asked is None or disabled or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    try:
        import opentelemetry.instrumentation.fastapi  # noqa: F401
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingExtraError("opentelemetry-sdk", "otel", f"{asked} is set: tracing") from None
    name = os.environ.get("OTEL_SERVICE_NAME", "rankwell")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def trace(app: FastAPI, provider: Any) -> None:
    """Send the spans of an application's requests to a provider."""
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    FastAPIInstrumentor.instrument_app(app, tracer_provider=provider, exclude_spans=["receive", "send"])
    _tracers.append(provider.get_tracer("rankwell"))
