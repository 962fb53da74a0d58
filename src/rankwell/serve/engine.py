"""The request engine: one thread that scores the sequences of all requests, in batches that mix them.

A request holds a *ticket* from the moment it is admitted. Its sequences are queued as chunks, each with the time at
which its turn comes: that of the request's arrival, and for what lies beyond its first ``turn_tokens`` as much later
as the engine would have needed for the tokens before it. The chunk with the earliest time goes first. So small
requests are answered in the order they came, a large one does not keep them waiting, and they cannot starve it, since
time goes on. A ticket that is released early (its client has gone, its deadline has passed) takes its chunks with it.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.rank.engines.engine import Engine, Logits
from rankwell.serve.limits import BATCHES_QUEUED, LEAST_QUEUE, Batching
from rankwell.serve.metrics import Metrics

# A batch is filled with chunks of this share of it: small enough to fill it well, large enough to be few.
CHUNKS_A_BATCH = 8
SPEED_MEMORY = 0.9  # what a batch leaves of the seconds and tokens of those before it


class OverloadedError(Exception):
    """The queue is full, or too long for the deadline; ``retry_after`` is when it should have room, in seconds."""

    def __init__(self, retry_after: int):
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


@dataclass(eq=False)
class Ticket:
    """A request's place: the tokens it holds of the queue, and when it arrived (on the monotonic clock)."""

    held: int
    arrived: float
    released: bool = False
    started: float | None = None
    """When its first batch began."""


@dataclass(eq=False)
class _Job:
    ticket: Ticket
    sequences: Sequences
    result: Future[Logits]
    logits: Logits | None = None
    left: int = 0


@dataclass(order=True)
class _Chunk:
    turn: float
    number: int
    job: _Job = field(compare=False)
    rows: NDArray[np.int64] = field(compare=False)
    tokens: int = field(compare=False)


@dataclass(eq=False)
class _Lane:
    """The chunks of one model; a batch is of one lane."""

    budget: int
    chunks: list[_Chunk] = field(default_factory=list)
    tokens: int = 0


class RequestEngine:
    """Scores for many requests at once. Start it before use; :meth:`stop` lets it finish what it has."""

    def __init__(self, batching: Batching | None = None, metrics: Metrics | None = None):
        self.batching = batching or Batching()
        self.limit = self.batching.queue_tokens or LEAST_QUEUE
        """How many tokens may wait."""
        self.metrics = metrics or Metrics()
        self._measured_seconds = self._measured_tokens = 0.0
        self._held = 0
        self._lanes: dict[Engine, _Lane] = {}
        self._numbers = count()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rankwell-engine", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is queued, then end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def running(self) -> bool:
        """Whether its thread lives."""
        return self._thread.is_alive()

    def budget(self, engine: Engine) -> int:
        """How many tokens a batch of this model has."""
        return self.batching.tokens or engine.tokens_at_once

    def make_room(self, engine: Engine) -> None:
        """Let a model that computes many tokens at a time have a queue to match, unless its length was chosen."""
        if self.batching.queue_tokens is None:
            self.limit = max(self.limit, BATCHES_QUEUED * self.budget(engine))

    @property
    def queued(self) -> int:
        """The tokens of all requests that are not done."""
        return self._held

    @property
    def full(self) -> bool:
        """Whether not even the smallest request has room."""
        return self._held >= self.limit

    @property
    def seconds_per_token(self) -> float:
        """The speed of the last batches; 0 before the first."""
        return self._measured_seconds / self._measured_tokens if self._measured_tokens else 0.0

    def refusal(self) -> OverloadedError:
        """What a request is told that has no room, and counted as: when half of the queue will be done."""
        self.metrics.refused.inc()
        return OverloadedError(max(1, math.ceil(self._held * self.seconds_per_token / 2)))

    def admit(self, tokens: int, seconds: float = math.inf) -> Ticket:
        """A ticket for about so many tokens, if they have room and their turn can come within ``seconds``.

        A request that is larger than the whole queue is taken when there is no other.
        """
        with self._changed:
            too_many = self._held > 0 and self._held + tokens > self.limit
            if too_many or (self._held and self._held * self.seconds_per_token > seconds):
                raise self.refusal()
            ticket = Ticket(0, time.monotonic())
            self._hold(ticket, tokens)
            return ticket

    def release(self, ticket: Ticket) -> None:
        """Give the ticket's room back; what it has in the queue is dropped when its turn comes."""
        with self._changed:
            ticket.released = True
            self._hold(ticket, -ticket.held)

    def submit(self, ticket: Ticket, engine: Engine, sequences: Sequences) -> Future[Logits]:
        """Queue sequences; the logits come in their order."""
        job = _Job(ticket, sequences, Future(), left=len(sequences))
        if not len(sequences):
            job.result.set_result(np.zeros((0, 1), np.float32))
            return job.result
        with self._changed:
            if self._stopping:
                job.result.set_exception(RuntimeError("the engine has stopped"))
                return job.result
            self._hold(ticket, len(sequences.tokens) - ticket.held)
            lane = self._lanes.get(engine)
            if lane is None:
                lane = self._lanes[engine] = _Lane(self.budget(engine))
            for chunk in self._chunks(job, lane.budget):
                heapq.heappush(lane.chunks, chunk)
                lane.tokens += chunk.tokens
            self._changed.notify()
        return job.result

    def measure(self, tokens: int, seconds: float) -> None:
        """Take a batch's speed into account, as much as it has tokens: the queue's time is that of its tokens."""
        self._measured_seconds = SPEED_MEMORY * self._measured_seconds + seconds
        self._measured_tokens = SPEED_MEMORY * self._measured_tokens + tokens

    def _hold(self, ticket: Ticket, more: int) -> None:
        if not ticket.released or more < 0:
            ticket.held += more
            self._held += more
            self.metrics.queued.set(self._held)

    def _chunks(self, job: _Job, budget: int) -> list[_Chunk]:
        """Sequences of like length together, longest first, as little padding is needed then."""
        lengths = job.sequences.lengths()
        order = np.argsort(-lengths, kind="stable")
        before = np.concatenate([[0], np.cumsum(lengths[order])])
        size = max(1, budget // CHUNKS_A_BATCH)
        chunks, begin = [], 0
        while begin < len(order):
            end = max(begin + 1, int(np.searchsorted(before, before[begin] + size, side="right")) - 1)
            turns = before[begin] // self.batching.turn_tokens
            turn = job.ticket.arrived + float(turns) * self.batching.turn_tokens * self.seconds_per_token
            tokens = int(before[end] - before[begin])
            chunks.append(_Chunk(turn, next(self._numbers), job, order[begin:end], tokens))
            begin = end
        return chunks

    def _run(self) -> None:
        while (found := self._next_batch()) is not None:
            self._compute(*found)
            del found  # a thread that waits must not keep a model alive that is no longer served

    def _next_batch(self) -> tuple[Engine, list[_Chunk]] | None:
        """The next chunks to compute, waited for; ``None`` when there is nothing left and will be nothing."""
        with self._changed:
            while True:
                found = self._ready()
                if isinstance(found, tuple):
                    return found
                if found is None and self._stopping:
                    return None
                self._changed.wait(found)

    def _ready(self) -> tuple[Engine, list[_Chunk]] | float | None:
        """The next chunks, the seconds to wait for more of them, or ``None`` where there are none."""
        for engine, lane in list(self._lanes.items()):
            self._drop_released(lane)
            if not lane.chunks:
                del self._lanes[engine]
        if not self._lanes:
            return None
        engine, lane = min(self._lanes.items(), key=lambda item: item[1].chunks[0])
        patience = lane.chunks[0].job.ticket.arrived + self.batching.wait_ms / 1000 - time.monotonic()
        if lane.tokens >= lane.budget or patience <= 0 or self._stopping:
            return engine, self._take(lane)
        return patience

    def _drop_released(self, lane: _Lane) -> None:
        while lane.chunks and lane.chunks[0].job.ticket.released:
            lane.tokens -= heapq.heappop(lane.chunks).tokens

    def _take(self, lane: _Lane) -> list[_Chunk]:
        taken: list[_Chunk] = []
        room = lane.budget
        while lane.chunks and (not taken or lane.chunks[0].tokens <= room):
            chunk = heapq.heappop(lane.chunks)
            lane.tokens -= chunk.tokens
            if not chunk.job.ticket.released:
                taken.append(chunk)
                room -= chunk.tokens
        return taken

    def _compute(self, engine: Engine, chunks: Sequence[_Chunk]) -> None:
        begin = time.monotonic()
        for chunk in chunks:
            if chunk.job.ticket.started is None:
                chunk.job.ticket.started = begin
        try:
            logits = engine.logits(join_sequences([take_sequences(c.job.sequences, c.rows) for c in chunks]))
        except Exception as error:
            if len(chunks) > 1:  # one request's fault must not be the others'
                for chunk in chunks:
                    self._compute(engine, [chunk])
                return
            self._fail(chunks[0].job, error)
            return
        seconds, tokens = time.monotonic() - begin, sum(chunk.tokens for chunk in chunks)
        # A batch of a few tokens takes as long as one chunk does. Its own speed is not that of a queue, whose batches
        # are full, and would have normal requests refused.
        self.measure(max(tokens, self.budget(engine) // CHUNKS_A_BATCH), seconds)
        self.metrics.batch_tokens.observe(tokens)
        self.metrics.batch_seconds.observe(seconds)
        self.metrics.batch_requests.observe(len({id(chunk.job) for chunk in chunks}))
        first = 0
        for chunk in chunks:
            self._deliver(chunk, logits[first : first + len(chunk.rows)])
            first += len(chunk.rows)

    def _deliver(self, chunk: _Chunk, logits: Logits) -> None:
        job = chunk.job
        if job.logits is None:
            job.logits = np.empty((len(job.sequences), logits.shape[1]), np.float32)
        job.logits[chunk.rows] = logits
        job.left -= len(chunk.rows)
        self.metrics.sequences.inc(len(chunk.rows))
        with self._changed:
            self._hold(job.ticket, -min(chunk.tokens, job.ticket.held))
        if not job.left and job.result.set_running_or_notify_cancel():
            job.result.set_result(job.logits)

    def _fail(self, job: _Job, error: Exception) -> None:
        self.release(job.ticket)
        if not job.result.done() and job.result.set_running_or_notify_cancel():
            job.result.set_exception(error)


def join_sequences(parts: Sequence[Sequences]) -> Sequences:
    """Sequences one after the other."""
    if len(parts) == 1:
        return parts[0]
    bases = np.cumsum([0, *(len(part.tokens) for part in parts)])
    return Sequences(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.segments for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.words for part in parts]),
        np.concatenate([part.last for part in parts]),
        np.concatenate([part.ends + base for part, base in zip(parts, bases, strict=False)]),
    )
