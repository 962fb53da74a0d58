"""Traces for OpenTelemetry: a span for each request, and one for each of its parts.

    POST /search
    ├── search      BM25, or hybrid search
    ├── tokenise    query and candidates
    ├── rerank      queue and model
    └── encode      the vectors of texts, in /v1/embeddings

The standard environment variables turn it on and say where traces go. Parts are timed only while a request is traced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rankwell.core.errors import MissingExtraError

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
Part = tuple[str, int, int]
"""A name, and when the part began and ended, in nanoseconds."""
_PARTS: ContextVar[list[Part] | None] = ContextVar("parts", default=None)


@contextmanager
def part(name: str) -> Iterator[None]:
    """Time a part of the current request, if it is traced."""
    parts = _PARTS.get()
    if parts is None:
        yield
        return
    begin = time.time_ns()
    try:
        yield
    finally:
        parts.append((name, begin, time.time_ns()))


class Tracing:
    """Sends spans to a tracer provider of OpenTelemetry's SDK."""

    def __init__(self, provider: Any):
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("rankwell")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def from_environment(cls) -> Tracing | None:
        """What the environment asks for; None if it names no endpoint or disables the SDK."""
        asked = next((name for name in ENDPOINTS if os.environ.get(name)), None)
        disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        if asked is None or disabled or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise MissingExtraError("opentelemetry-sdk", "otel", f"{asked} is set: tracing") from None
        name = os.environ.get("OTEL_SERVICE_NAME", "rankwell")
        provider = TracerProvider(resource=Resource.create({"service.name": name}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    @contextmanager
    def request(self, headers: Mapping[bytes, bytes], attributes: dict[str, Any]) -> Iterator[None]:
        """Trace a request. ``attributes`` are read when it ends; it continues the trace that its headers name."""
        parts: list[Part] = []
        token, begin = _PARTS.set(parts), time.time_ns()
        try:
            yield
        finally:
            _PARTS.reset(token)
            self._record(headers, attributes, parts, begin)

    def _record(
        self, headers: Mapping[bytes, bytes], attributes: Mapping[str, Any], parts: list[Part], begin: int
    ) -> None:
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
        name = f"{attributes['http.request.method']} {attributes['http.route']}"
        context = self._propagator.extract(carrier)
        span = self._tracer.start_span(name, context, SpanKind.SERVER, dict(attributes), start_time=begin)
        if attributes["http.response.status_code"] >= 500:
            span.set_status(StatusCode.ERROR)
        within = set_span_in_context(span)
        for label, start, end in parts:
            self._tracer.start_span(label, within, start_time=start).end(end)
        span.end()

    def stop(self) -> None:
        """Send the spans that are left."""
        self._provider.shutdown()
