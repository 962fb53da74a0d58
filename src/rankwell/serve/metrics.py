"""Metrics for Prometheus. Every service has its own registry, so that one process can run two."""

from __future__ import annotations

from functools import partial

from rankwell.core.errors import MissingExtraError

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
except ImportError:
    raise MissingExtraError("prometheus-client", "serve", "serving") from None

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKENS = tuple(2**n for n in range(6, 20))
_REQUESTS = tuple(2**n for n in range(7))


class Metrics:
    """The service's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter("rankwell_requests_total", "Requests answered.", ("path", "status"))
        self.seconds = histogram(
            "rankwell_request_seconds", "Time from request to response.", ("path",), buckets=_SECONDS
        )
        self.refused = counter("rankwell_refused_total", "Requests refused because the queue was full.")
        self.late = counter("rankwell_late_total", "Requests whose deadline passed.")
        self.gone = counter("rankwell_gone_total", "Requests whose client disconnected before the response.")
        self.queued = gauge("rankwell_queue_tokens", "Tokens of unfinished requests.")
        self.bodies = gauge("rankwell_body_bytes", "Bytes of request bodies in memory.")
        self.sequences = counter("rankwell_sequences_total", "Sequences scored.")
        self.batch_tokens = histogram("rankwell_batch_tokens", "Tokens per batch.", buckets=_TOKENS)
        self.batch_seconds = histogram("rankwell_batch_seconds", "Time per batch.", buckets=_SECONDS)
        self.batch_requests = histogram("rankwell_batch_requests", "Requests per batch.", buckets=_REQUESTS)
        self.reloads = counter("rankwell_reloads_total", "Reloads, by outcome.", ("outcome",))
        self.generation = gauge("rankwell_generation", "Times index and models were opened.")

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
