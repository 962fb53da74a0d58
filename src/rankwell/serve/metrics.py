"""Metrics for Prometheus. Every service has its own registry, so that one process can run two."""

from __future__ import annotations

from rankwell.core.errors import MissingExtraError

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
except ImportError:
    raise MissingExtraError("prometheus-client", "serve", "serving") from None

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKENS = tuple(2**n for n in range(6, 20))


class Metrics:
    """The service's metrics."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        labels = ("path", "status")
        self.requests = Counter("rankwell_requests_total", "Requests answered.", labels, registry=registry)
        self.seconds = Histogram(
            "rankwell_request_seconds", "Time from request to response.", ("path",), buckets=_SECONDS, registry=registry
        )
        self.refused = Counter(
            "rankwell_refused_total", "Requests refused because the queue was full.", registry=registry
        )
        self.late = Counter("rankwell_late_total", "Requests whose deadline passed.", registry=registry)
        self.gone = Counter(
            "rankwell_gone_total", "Requests whose client disconnected before the response.", registry=registry
        )
        self.queued = Gauge("rankwell_queue_tokens", "Tokens of unfinished requests.", registry=registry)
        self.bodies = Gauge("rankwell_body_bytes", "Bytes of request bodies in memory.", registry=registry)
        self.sequences = Counter("rankwell_sequences_total", "Sequences scored.", registry=registry)
        self.batch_tokens = Histogram("rankwell_batch_tokens", "Tokens per batch.", buckets=_TOKENS, registry=registry)
        self.batch_seconds = Histogram("rankwell_batch_seconds", "Time per batch.", buckets=_SECONDS, registry=registry)
        self.batch_requests = Histogram(
            "rankwell_batch_requests", "Requests per batch.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=registry
        )
        self.reloads = Counter("rankwell_reloads_total", "Reloads, by outcome.", ("outcome",), registry=registry)
        self.generation = Gauge("rankwell_generation", "Times index and models were opened.", registry=registry)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
