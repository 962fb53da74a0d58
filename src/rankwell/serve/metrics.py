"""What Prometheus is told. Every service has a registry of its own, so that two in one process do not meet."""

from __future__ import annotations

from rankwell.core.errors import MissingExtraError

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
except ImportError:
    raise MissingExtraError("prometheus-client", "serve", "serving") from None

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKENS = tuple(2**n for n in range(6, 20))


class Metrics:
    """The service's figures."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        labels = ("path", "status")
        self.requests = Counter("rankwell_requests_total", "Requests answered.", labels, registry=own)
        self.seconds = Histogram(
            "rankwell_request_seconds", "From a request to its answer.", ("path",), buckets=_SECONDS, registry=own
        )
        self.refused = Counter("rankwell_refused_total", "Requests the full queue had no room for.", registry=own)
        self.late = Counter("rankwell_late_total", "Requests whose deadline passed.", registry=own)
        self.gone = Counter("rankwell_gone_total", "Requests whose client went before the answer.", registry=own)
        self.queued = Gauge("rankwell_queue_tokens", "Tokens of requests that are not done.", registry=own)
        self.bodies = Gauge("rankwell_body_bytes", "Bytes of bodies that are held.", registry=own)
        self.sequences = Counter("rankwell_sequences_total", "Sequences scored.", registry=own)
        self.batch_tokens = Histogram("rankwell_batch_tokens", "Tokens of a batch.", buckets=_TOKENS, registry=own)
        self.batch_seconds = Histogram("rankwell_batch_seconds", "Time of a batch.", buckets=_SECONDS, registry=own)
        self.batch_requests = Histogram(
            "rankwell_batch_requests", "Requests in a batch.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=own
        )
        self.reloads = Counter("rankwell_reloads_total", "Reloads, by outcome.", ("outcome",), registry=own)
        self.generation = Gauge("rankwell_generation", "How often index and models were opened.", registry=own)

    def text(self) -> bytes:
        """All figures in Prometheus' format."""
        return generate_latest(self.registry)
