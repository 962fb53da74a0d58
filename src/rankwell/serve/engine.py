"""Queues: a thread that works on the items of all requests, in batches that mix them.

Searches and writes are queued by their arrival. In the queue of the request engine, which scores, a request becomes an
*entry* when it is admitted. Its sequences are queued in chunks, each with the time of its turn: the request's arrival,
plus, for every ``turn_tokens`` of the request before it, the time the engine takes for as many tokens. The chunk with
the earliest turn runs first. So small requests are answered in order of arrival and overtake the rest of a large one,
which in turn cannot starve, since its turns do not move. Releasing an entry early (the client disconnected, the
deadline passed) drops its items.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.rank.engines.engine import Engine, Logits

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
except ImportError:
    raise MissingExtraError("prometheus-client", "serve", "serving") from None

Group = TypeVar("Group")
Item = TypeVar("Item")
Result = TypeVar("Result")
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
        self.searches = counter(
            "rankwell_searches_total",
            "Logged searches: all, empty, clicked, below min-relevance, or with words that the index is lacking.",
            ("kind",),
        )
        self.events = counter("rankwell_events_total", "Events sent, by outcome.", ("outcome",))
        self.dropped = counter("rankwell_log_dropped_total", "Lines that could not be logged.")
        self.logging = gauge("rankwell_log_writing", "1 while searches and events are being logged.")
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
    """A request in a queue. Times are those of the monotonic clock, and None until they come."""

    arrived: float = field(default_factory=lambda: time.monotonic())
    started: float | None = None
    """When its first batch began."""
    ended: float | None = None
    """When its last batch ended."""
    held: int = 0
    """The tokens that it holds in the request engine's queue."""
    released: bool = False
    """Whether the request has ended; items that are left are dropped when their turn comes."""
    results: list[Any] = field(default_factory=list)
    """Those of its items, in their order."""
    missing: int = 0
    """Items without a result so far."""
    join: Callable[[list[Any]], Any] = list
    """Makes the entry's result of those of its items."""
    result: Future[Any] = field(default_factory=Future)

    @property
    def queue_ms(self) -> float:
        """How long it waited for its first batch."""
        return 0.0 if self.started is None else 1000 * (self.started - self.arrived)

    @property
    def work_ms(self) -> float:
        """How long it took from the beginning of its first batch to the end of its last."""
        return 0.0 if self.started is None or self.ended is None else 1000 * (self.ended - self.started)


class _Queued(NamedTuple):
    """An item of an entry: its turn (monotonic clock), its place among the entry's items, its size in a batch.

    Items are compared by their turns and then by their numbers, which all differ.
    """

    turn: float
    number: int
    entry: Entry
    place: int
    item: Any
    size: int


class WorkQueue(Generic[Group, Item, Result]):
    """A thread that works on the items of many requests in batches, between :meth:`start` and :meth:`stop`.

    The item with the earliest turn comes first. A batch has items of one group, as many as fit into its ``size``; a
    queue that is idle waits ``wait_ms`` for a fuller one. If ``work`` fails for a batch, each item is tried alone.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Group, Sequence[Item]], Sequence[Result]],
        size: Callable[[Group], int],
        wait_ms: float = 0.0,
    ):
        self.size = size
        self._work, self._wait_ms = work, wait_ms
        self._waiting: dict[Group, list[_Queued]] = {}
        self._numbers = count()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    async def ask(self, entry: Entry, group: Group, item: Item) -> Result:
        """The result for an entry's only item. If cancelled before its turn, it is not worked on."""
        try:
            [result] = await asyncio.wrap_future(self.put(entry, group, [(entry.arrived, 1, item)]))
            return cast("Result", result)
        finally:
            self.release(entry)

    def put(self, entry: Entry, group: Group, items: Sequence[tuple[float, int, Item]]) -> Future[Any]:
        """Queue the items of an entry, each with its turn and its size; the future has the entry's result."""
        with self._changed:
            if self._stopping:
                entry.result.set_exception(RuntimeError(f"{self._thread.name} has stopped"))
                return entry.result
            entry.results, entry.missing = [None] * len(items), len(items)
            waiting = self._waiting.setdefault(group, [])
            for place, (turn, size, item) in enumerate(items):
                heapq.heappush(waiting, _Queued(turn, next(self._numbers), entry, place, item, size))
            self._changed.notify()
        return entry.result

    def release(self, entry: Entry) -> None:
        """Drop the entry's items when their turn comes."""
        entry.released = True

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._compute(*batch)
            del batch  # a waiting thread must not keep a model alive that is no longer served

    def _next_batch(self) -> tuple[Group, list[_Queued]] | None:
        """Wait for the next items to work on; ``None`` once the queue is stopping and empty."""
        with self._changed:
            while True:
                ready = self._ready()
                if isinstance(ready, tuple):
                    return ready
                if ready is None and self._stopping:
                    return None
                self._changed.wait(ready)

    def _ready(self) -> tuple[Group, list[_Queued]] | float | None:
        """The next items, the seconds to wait for a fuller batch, or ``None`` if there are no items."""
        for group, waiting in list(self._waiting.items()):
            while waiting and waiting[0].entry.released:
                heapq.heappop(waiting)
            if not waiting:
                del self._waiting[group]
        if not self._waiting:
            return None
        group, waiting = min(self._waiting.items(), key=lambda item: item[1][0])
        patience = waiting[0].entry.arrived + self._wait_ms / 1000 - time.monotonic()
        room = self.size(group)
        if patience > 0 and not self._stopping and sum(queued.size for queued in waiting) < room:
            return patience
        batch: list[_Queued] = []
        while waiting and (not batch or waiting[0].size <= room):
            queued = heapq.heappop(waiting)
            if not queued.entry.released:
                batch.append(queued)
                room -= queued.size
        return group, batch

    def _compute(self, group: Group, batch: Sequence[_Queued]) -> None:
        begin = time.monotonic()
        for queued in batch:
            if queued.entry.started is None:
                queued.entry.started = begin
        try:
            results = self._work(group, [queued.item for queued in batch])
        except Exception as error:
            if len(batch) > 1:  # one bad request must not fail the others
                for queued in batch:
                    self._compute(group, [queued])
            else:
                self._fail(batch[0].entry, error)
            return
        end = time.monotonic()
        self._observe(group, batch, end - begin)
        for queued, result in zip(batch, results, strict=True):
            entry = queued.entry
            entry.results[queued.place], entry.missing, entry.ended = result, entry.missing - 1, end
            if not entry.missing and entry.result.set_running_or_notify_cancel():
                entry.result.set_result(entry.join(entry.results))

    def _fail(self, entry: Entry, error: Exception) -> None:
        self.release(entry)
        if not entry.result.done() and entry.result.set_running_or_notify_cancel():
            entry.result.set_exception(error)

    def _observe(self, group: Group, batch: Sequence[_Queued], seconds: float) -> None:
        """Note how long a batch took."""


Chunk = tuple[Sequences, NDArray[np.int64]]
"""Some rows of a request's sequences."""


class RequestEngine(WorkQueue[Engine, Chunk, Logits]):
    """Scores the sequences of many requests, a batch by one model; admits as many requests as it can finish in time."""

    def __init__(self, batching: Batching | None = None, metrics: Metrics | None = None):
        self.batching = batching or Batching()
        super().__init__("rankwell-engine", self._score, self.budget, self.batching.wait_ms)
        self.limit = self.batching.queue_tokens or LEAST_QUEUE
        """Tokens that may wait."""
        self.metrics = metrics or Metrics()
        self._measured_seconds = self._measured_tokens = 0.0
        self._held = 0

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
            entry = Entry()
            self._hold(entry, tokens)
            return entry

    def release(self, entry: Entry) -> None:
        """Give back the entry's room in the queue; its chunks are dropped when their turn comes."""
        with self._changed:
            super().release(entry)
            self._hold(entry, -entry.held)

    def submit(self, entry: Entry, engine: Engine, sequences: Sequences) -> Future[Logits]:
        """Queue the entry's sequences; the logits come in the same order."""
        if not len(sequences):
            entry.result.set_result(np.zeros((0, 1), np.float32))
            return entry.result
        with self._changed:
            self._hold(entry, len(sequences.tokens) - entry.held)
        chunks = self._chunks(entry, sequences, self.budget(engine))
        places = np.argsort(np.concatenate([rows for _, _, (_, rows) in chunks]))
        entry.join = lambda logits: np.concatenate(logits)[places]
        return self.put(entry, engine, chunks)

    def measure(self, tokens: int, seconds: float) -> None:
        """Add a batch to the measured speed, weighted by its tokens."""
        self._measured_seconds = SPEED_DECAY * self._measured_seconds + seconds
        self._measured_tokens = SPEED_DECAY * self._measured_tokens + tokens

    def _hold(self, entry: Entry, more: int) -> None:
        if not entry.released or more < 0:
            entry.held += more
            self._held += more
            self.metrics.queued.set(self._held)

    def _chunks(self, entry: Entry, sequences: Sequences, budget: int) -> list[tuple[float, int, Chunk]]:
        """Split into chunks of similar lengths, longest first, so that little padding is needed."""
        lengths = sequences.lengths()
        order = np.argsort(-lengths, kind="stable")
        before = np.concatenate([[0], np.cumsum(lengths[order])])
        size = max(1, budget // CHUNKS_PER_BATCH)
        chunks: list[tuple[float, int, Chunk]] = []
        begin = 0
        while begin < len(order):
            end = max(begin + 1, int(np.searchsorted(before, before[begin] + size, side="right")) - 1)
            turns = before[begin] // self.batching.turn_tokens
            turn = entry.arrived + float(turns) * self.batching.turn_tokens * self.seconds_per_token
            chunks.append((turn, int(before[end] - before[begin]), (sequences, order[begin:end])))
            begin = end
        return chunks

    @staticmethod
    def _score(engine: Engine, chunks: Sequence[Chunk]) -> list[Logits]:
        logits = engine.logits(Sequences.concat([take_sequences(*chunk) for chunk in chunks]))
        return np.split(logits, np.cumsum([len(rows) for _, rows in chunks])[:-1])

    def _observe(self, engine: Engine, batch: Sequence[_Queued], seconds: float) -> None:
        """Measure the speed, and give back the room of the batch's chunks."""
        tokens = sum(queued.size for queued in batch)
        # A batch of a few tokens takes as long as a whole chunk. Measured by its tokens alone, the queue would look
        # too slow and refuse normal requests.
        self.measure(max(tokens, self.budget(engine) // CHUNKS_PER_BATCH), seconds)
        self.metrics.batch_tokens.observe(tokens)
        self.metrics.batch_seconds.observe(seconds)
        self.metrics.batch_requests.observe(len({id(queued.entry) for queued in batch}))
        self.metrics.sequences.inc(sum(len(queued.item[1]) for queued in batch))
        with self._changed:
            for queued in batch:
                self._hold(queued.entry, -min(queued.size, queued.entry.held))
