"""The request engine: one thread that scores the sequences of all requests, in batches that mix them.

A request becomes an *entry* of the queue when it is admitted. Its sequences are queued in chunks, each with the time
of its turn: the request's arrival, plus, for every ``turn_tokens`` of the request before it, the time the engine takes
for as many tokens. The chunk with the earliest turn runs first. So small requests are answered in order of arrival and
overtake the rest of a large one, which in turn cannot starve, since its turns do not move. Releasing an entry early
(the client disconnected, the deadline passed) drops its chunks.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.rank.engines.engine import Engine, Logits

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
        self.damaged = counter("rankwell_damaged_total", "Damaged files met by requests or found by the scrub.")
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


LEAST_QUEUE = 1 << 17
BATCHES_QUEUED = 16
# Chunks are this fraction of a batch: small enough to fill it well, large enough to be few.
CHUNKS_PER_BATCH = 8
SPEED_DECAY = 0.9  # weight of the previous batches in the measured speed, per batch


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests share the engine.

    ================  ================================================================================================
    ``tokens``        tokens per batch; by default, as many as the model's engine computes at a time
    ``wait_ms``       how long an idle engine waits for a fuller batch
    ``queue_tokens``  tokens that may wait; requests beyond are refused. By default 131,072, or 16 batches if more
    ``turn_tokens``   tokens that a request gets before the rest of it goes back into the queue
    ================  ================================================================================================
    """

    tokens: int | None = None
    wait_ms: float = 1.0
    queue_tokens: int | None = None
    turn_tokens: int = 1 << 13

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("wait_ms", 0), ("queue_tokens", 1), ("turn_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise RankwellError(f"batching: {name} is {value:g}; expected {least} or more")


class OverloadedError(Exception):
    """The queue is full, or too long for the deadline; ``retry_after`` is when to try again, in seconds."""

    def __init__(self, retry_after: int):
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


@dataclass(eq=False)
class Entry:
    """An admitted request: the queue tokens it holds, when it arrived (monotonic clock), and its logits so far."""

    held: int
    arrived: float
    released: bool = False
    started: float | None = None
    """When its first batch began."""
    logits: Logits | None = None
    missing: int = 0
    """Sequences without logits so far."""
    result: Future[Logits] = field(default_factory=Future)


@dataclass(order=True)
class _Chunk:
    turn: float
    number: int
    entry: Entry = field(compare=False)
    sequences: Sequences = field(compare=False)
    """All of the entry's; the chunk is their ``rows``."""
    rows: NDArray[np.int64] = field(compare=False)
    tokens: int = field(compare=False)


@dataclass(eq=False)
class _Queue:
    """The waiting chunks of one model; a batch takes from one queue."""

    budget: int
    chunks: list[_Chunk] = field(default_factory=list)
    tokens: int = 0


class RequestEngine:
    """Scores many requests at once, between :meth:`start` and :meth:`stop`."""

    def __init__(self, batching: Batching | None = None, metrics: Metrics | None = None):
        self.batching = batching or Batching()
        self.limit = self.batching.queue_tokens or LEAST_QUEUE
        """Tokens that may wait."""
        self.metrics = metrics or Metrics()
        self._measured_seconds = self._measured_tokens = 0.0
        self._held = 0
        self._queues: dict[Engine, _Queue] = {}
        self._numbers = count()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rankwell-engine", daemon=True)

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the queued requests and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    def budget(self, engine: Engine) -> int:
        """Tokens per batch of this model."""
        return self.batching.tokens or engine.tokens_at_once

    def make_room(self, engines: Iterable[Engine]) -> None:
        """Make the queue as long as models need that compute many tokens at a time, unless its length was set."""
        if self.batching.queue_tokens is None:
            self.limit = max([LEAST_QUEUE, *(BATCHES_QUEUED * self.budget(engine) for engine in engines)])

    @property
    def queued(self) -> int:
        """Tokens of all unfinished requests."""
        return self._held

    def is_busy(self, seconds: float) -> bool:
        """Whether even the smallest request has no room, or would not be done within ``seconds``."""
        return self._held >= self.limit or self._held * self.seconds_per_token > seconds

    @property
    def seconds_per_token(self) -> float:
        """The speed of recent batches; 0 before the first."""
        return self._measured_seconds / self._measured_tokens if self._measured_tokens else 0.0

    def refusal(self) -> OverloadedError:
        """Count a refused request, and return its error: to try again when half of the queue should be done."""
        self.metrics.refused.inc()
        return OverloadedError(max(1, math.ceil(self._held * self.seconds_per_token / 2)))

    def admit(self, tokens: int, seconds: float = math.inf) -> Entry:
        """Admit a request of about ``tokens`` tokens, if there is room and it can be done within ``seconds``.

        A request larger than the whole queue is admitted when the queue is empty.
        """
        with self._changed:
            too_many = self._held > 0 and self._held + tokens > self.limit
            # It is done after those before it and its own tokens.
            if too_many or (self._held and (self._held + tokens) * self.seconds_per_token > seconds):
                raise self.refusal()
            entry = Entry(0, time.monotonic())
            self._hold(entry, tokens)
            return entry

    def release(self, entry: Entry) -> None:
        """Give back the entry's room in the queue; its chunks are dropped when their turn comes."""
        with self._changed:
            entry.released = True
            self._hold(entry, -entry.held)

    def submit(self, entry: Entry, engine: Engine, sequences: Sequences) -> Future[Logits]:
        """Queue the entry's sequences; the logits come in the same order."""
        entry.missing = len(sequences)
        if not len(sequences):
            entry.result.set_result(np.zeros((0, 1), np.float32))
            return entry.result
        with self._changed:
            if self._stopping:
                entry.result.set_exception(RuntimeError("the engine has stopped"))
                return entry.result
            self._hold(entry, len(sequences.tokens) - entry.held)
            queue = self._queues.get(engine)
            if queue is None:
                queue = self._queues[engine] = _Queue(self.budget(engine))
            for chunk in self._chunks(entry, sequences, queue.budget):
                heapq.heappush(queue.chunks, chunk)
                queue.tokens += chunk.tokens
            self._changed.notify()
        return entry.result

    def measure(self, tokens: int, seconds: float) -> None:
        """Add a batch to the measured speed, weighted by its tokens."""
        self._measured_seconds = SPEED_DECAY * self._measured_seconds + seconds
        self._measured_tokens = SPEED_DECAY * self._measured_tokens + tokens

    def _hold(self, entry: Entry, more: int) -> None:
        if not entry.released or more < 0:
            entry.held += more
            self._held += more
            self.metrics.queued.set(self._held)

    def _chunks(self, entry: Entry, sequences: Sequences, budget: int) -> list[_Chunk]:
        """Split into chunks of similar lengths, longest first, so that little padding is needed."""
        lengths = sequences.lengths()
        order = np.argsort(-lengths, kind="stable")
        before = np.concatenate([[0], np.cumsum(lengths[order])])
        size = max(1, budget // CHUNKS_PER_BATCH)
        chunks, begin = [], 0
        while begin < len(order):
            end = max(begin + 1, int(np.searchsorted(before, before[begin] + size, side="right")) - 1)
            turns = before[begin] // self.batching.turn_tokens
            turn = entry.arrived + float(turns) * self.batching.turn_tokens * self.seconds_per_token
            tokens = int(before[end] - before[begin])
            chunks.append(_Chunk(turn, next(self._numbers), entry, sequences, order[begin:end], tokens))
            begin = end
        return chunks

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._compute(*batch)
            del batch  # a waiting thread must not keep a model alive that is no longer served

    def _next_batch(self) -> tuple[Engine, list[_Chunk]] | None:
        """Wait for the next chunks to compute; ``None`` once the engine is stopping and the queue is empty."""
        with self._changed:
            while True:
                ready = self._ready()
                if isinstance(ready, tuple):
                    return ready
                if ready is None and self._stopping:
                    return None
                self._changed.wait(ready)

    def _ready(self) -> tuple[Engine, list[_Chunk]] | float | None:
        """The next chunks, the seconds to wait for a fuller batch, or ``None`` if there are no chunks."""
        for engine, queue in list(self._queues.items()):
            while queue.chunks and queue.chunks[0].entry.released:
                queue.tokens -= heapq.heappop(queue.chunks).tokens
            if not queue.chunks:
                del self._queues[engine]
        if not self._queues:
            return None
        engine, queue = min(self._queues.items(), key=lambda item: item[1].chunks[0])
        patience = queue.chunks[0].entry.arrived + self.batching.wait_ms / 1000 - time.monotonic()
        if queue.tokens >= queue.budget or patience <= 0 or self._stopping:
            return engine, self._take(queue)
        return patience

    def _take(self, queue: _Queue) -> list[_Chunk]:
        batch: list[_Chunk] = []
        room = queue.budget
        while queue.chunks and (not batch or queue.chunks[0].tokens <= room):
            chunk = heapq.heappop(queue.chunks)
            queue.tokens -= chunk.tokens
            if not chunk.entry.released:
                batch.append(chunk)
                room -= chunk.tokens
        return batch

    def _compute(self, engine: Engine, chunks: Sequence[_Chunk]) -> None:
        begin = time.monotonic()
        for chunk in chunks:
            if chunk.entry.started is None:
                chunk.entry.started = begin
        try:
            logits = engine.logits(Sequences.concat([take_sequences(chunk.sequences, chunk.rows) for chunk in chunks]))
        except Exception as error:
            if len(chunks) > 1:  # one bad request must not fail the others
                for chunk in chunks:
                    self._compute(engine, [chunk])
                return
            self._fail(chunks[0].entry, error)
            return
        seconds, tokens = time.monotonic() - begin, sum(chunk.tokens for chunk in chunks)
        # A batch of a few tokens takes as long as a whole chunk. Measured by its tokens alone, the queue would look
        # too slow and refuse normal requests.
        self.measure(max(tokens, self.budget(engine) // CHUNKS_PER_BATCH), seconds)
        self.metrics.batch_tokens.observe(tokens)
        self.metrics.batch_seconds.observe(seconds)
        self.metrics.batch_requests.observe(len({id(chunk.entry) for chunk in chunks}))
        first = 0
        for chunk in chunks:
            self._deliver(chunk, logits[first : first + len(chunk.rows)])
            first += len(chunk.rows)

    def _deliver(self, chunk: _Chunk, logits: Logits) -> None:
        entry = chunk.entry
        if entry.logits is None:
            entry.logits = np.empty((len(chunk.sequences), logits.shape[1]), np.float32)
        entry.logits[chunk.rows] = logits
        entry.missing -= len(chunk.rows)
        self.metrics.sequences.inc(len(chunk.rows))
        with self._changed:
            self._hold(entry, -min(chunk.tokens, entry.held))
        if not entry.missing and entry.result.set_running_or_notify_cancel():
            entry.result.set_result(entry.logits)

    def _fail(self, entry: Entry, error: Exception) -> None:
        self.release(entry)
        if not entry.result.done() and entry.result.set_running_or_notify_cancel():
            entry.result.set_exception(error)


# A queue that batches searches


Query = TypeVar("Query")
Result = TypeVar("Result")


class SearchQueue(Generic[Query, Result]):
    """Runs ``search`` in ``pool`` on one batch of at most ``size`` queries at a time; none waits for a fuller batch.

    Use it within one event loop.
    """

    def __init__(self, search: Callable[[Sequence[Query]], Sequence[Result]], pool: Executor, size: int):
        self._search, self._pool, self.size = search, pool, size
        self._waiting: list[tuple[Query, asyncio.Future[Result]]] = []
        self._running: asyncio.Task[None] | None = None

    async def submit(self, query: Query) -> Result:
        """The result for ``query``. If cancelled before its batch begins, it is not searched."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((query, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = [(query, answer) for query, answer in self._waiting[: self.size] if not answer.done()]
                del self._waiting[: self.size]
                await self._answer([query for query, _ in batch], [answer for _, answer in batch])
        finally:
            self._running = None

    async def _answer(self, queries: Sequence[Query], answers: Sequence[asyncio.Future[Result]]) -> None:
        if not queries:
            return
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._pool, self._search, queries)
        except Exception as error:  # every query of the batch gets the error
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for answer, result in zip(answers, results, strict=True):
                if not answer.done():
                    answer.set_result(result)
