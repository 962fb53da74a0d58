"""The request engine: everyone gets their own scores, in fair turns, and what nobody waits for is not computed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np
import pytest
from numpy.typing import NDArray

from rankwell.inputs.batching import Sequences, slice_sequences
from rankwell.rank.engines.engine import Engine, Logits
from rankwell.serve.engine import Batching, OverloadedError, RequestEngine

from .conftest import wait_until

Start = Callable[..., RequestEngine]


def sequences(lengths: list[int], first: int = 0) -> Sequences:
    """Sequences of these lengths; the tokens of number ``i`` are all ``first + i``."""
    ends = np.cumsum(lengths)
    tokens = np.repeat(np.arange(first, first + len(lengths)), lengths).astype(np.int32)
    places = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    return Sequences(tokens, np.zeros(len(tokens), np.int8), places, places, np.ones(len(tokens), np.bool_), ends)


class FirstToken(Engine):
    """An engine whose score of a sequence is its first token, so that every score tells whose it is."""

    tokens_at_once = 64

    def __init__(self, gate: threading.Event | None = None, fail_on: int | None = None):
        self.gate, self.fail_on = gate, fail_on
        self.batches: list[NDArray[np.int32]] = []

    def logits(self, given: Sequences) -> Logits:
        starts = given.ends - given.lengths()
        self.batches.append(given.tokens[starts])
        if self.gate is not None:
            self.gate.wait(60)
        if self.fail_on is not None and self.fail_on in given.tokens:
            raise ValueError("a bad sequence")
        return given.tokens[starts].astype(np.float32)[:, None]


class SlowStarter(FirstToken):
    """An engine that takes 20 ms for any batch, by a clock of its own."""

    tokens_at_once = 2048
    now = 0.0

    def logits(self, given: Sequences) -> Logits:
        self.now += 0.02
        return super().logits(given)

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[RequestEngine] = []

    def begin(**options: float) -> RequestEngine:
        made.append(RequestEngine(Batching(**{"wait_ms": 0.0, **options})))  # type: ignore[arg-type]
        made[-1].start()
        return made[-1]

    yield begin
    for engine in made:
        engine.stop()


def send(engine: RequestEngine, model: FirstToken, own: Sequences) -> Future[Logits]:
    return engine.submit(engine.admit(len(own.tokens)), model, own)


def held_up(
    engine: RequestEngine, tokens: int, fail_on: int | None = None
) -> tuple[FirstToken, threading.Event, Future[Logits]]:
    """A model that waits for its gate in its first batch, a sequence of zeros, while others queue up."""
    gate = threading.Event()
    model = FirstToken(gate, fail_on)
    first = send(engine, model, sequences([tokens], 0))
    while not model.batches:
        time.sleep(0.001)
    return model, gate, first


def test_joined_sequences_are_the_parts_in_their_order() -> None:
    whole = sequences([3, 1, 4, 1, 5])
    joined = Sequences.concat([slice_sequences(whole, begin, end) for begin, end in ((0, 2), (2, 3), (3, 5))])
    for name in ("tokens", "segments", "positions", "words", "last", "ends"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))


def test_everyone_gets_their_own_scores_in_their_own_order(start: Start) -> None:
    engine, model = start(), FirstToken()
    own = np.random.default_rng(3)
    results = []
    for request in range(40):
        lengths = own.integers(1, 40, own.integers(1, 12)).tolist()
        results.append((100 * request, len(lengths), send(engine, model, sequences(lengths, 100 * request))))
    for first, number, result in results:
        assert result.result(60)[:, 0].tolist() == list(range(first, first + number))
    assert engine.queued == 0


def test_requests_that_wait_share_batches_within_the_budget(start: Start) -> None:
    engine = start()
    model, gate, _ = held_up(engine, 8)
    results = [send(engine, model, sequences([8, 8], 10 * n)) for n in range(1, 9)]
    gate.set()
    for result in results:
        result.result(60)
    sizes = [8 * len(batch) for batch in model.batches]
    assert sizes == [8, 64, 64]


def test_an_idle_engine_waits_a_little_for_company(start: Start) -> None:
    engine, model = start(wait_ms=600_000), FirstToken()
    results = [send(engine, model, sequences([8], n)) for n in range(7)]
    assert not model.batches  # they would wait for ten minutes
    results.append(send(engine, model, sequences([8], 7)))
    for result in results:
        result.result(60)  # a full batch waits for nobody
    assert [len(batch) for batch in model.batches] == [8]
    impatient = start(wait_ms=1)
    assert send(impatient, model, sequences([8])).result(60)[0, 0] == 0


def test_small_requests_are_served_as_they_come_and_a_large_one_lets_them_pass(start: Start) -> None:
    engine = start(turn_tokens=64)
    engine.measure(1, 1.0)  # a second a token: turns lie far apart
    model, gate, _ = held_up(engine, 64)
    results = [send(engine, model, sequences([64] * 5, 1000))]
    results += [send(engine, model, sequences([64], n)) for n in (1, 2, 3)]
    gate.set()
    for result in results:
        result.result(60)
    order = [int(batch[0]) for batch in model.batches]
    assert order == [0, 1000, 1, 2, 3, 1001, 1002, 1003, 1004]


def test_time_brings_a_large_requests_turn_before_later_small_ones(start: Start) -> None:
    engine = start(turn_tokens=64)
    engine.measure(1, 0.05 / 64)  # a turn is 50 ms
    model, gate, _ = held_up(engine, 64)
    results = [send(engine, model, sequences([64] * 3, 1000))]
    time.sleep(0.2)
    results += [send(engine, model, sequences([64], n)) for n in (1, 2)]
    gate.set()
    for result in results:
        result.result(60)
    assert [int(batch[0]) for batch in model.batches] == [0, 1000, 1001, 1002, 1, 2]


def test_what_is_released_is_not_computed(start: Start) -> None:
    engine = start()
    model, gate, first = held_up(engine, 64)
    entry = engine.admit(640)
    engine.submit(entry, model, sequences([64] * 10, 100))
    kept = send(engine, model, sequences([64], 5))
    engine.release(entry)
    assert engine.queued == 128
    gate.set()
    assert first.result(60)[0, 0] == 0
    assert kept.result(60)[0, 0] == 5
    assert [batch.tolist() for batch in model.batches] == [[0], [5]]
    assert engine.queued == 0


def test_a_full_queue_refuses_and_says_when_to_come_back(start: Start) -> None:
    engine = start(queue_tokens=100)
    engine.measure(1, 0.5)
    entry = engine.admit(1000)  # larger than the queue, but alone
    assert engine.is_busy(math.inf)
    with pytest.raises(OverloadedError) as refused:
        engine.admit(1)
    assert refused.value.retry_after == 250
    engine.release(entry)
    engine.release(entry)
    assert engine.queued == 0
    assert not engine.is_busy(0)
    engine.admit(60)
    with pytest.raises(OverloadedError):
        engine.admit(41)
    engine.admit(40)


@pytest.mark.parametrize(
    ("queued", "refused", "admitted"),
    [(100, (1, 49), (1, 51)), (10, (90, 49), (80, 49))],
    ids=["its turn comes too late", "it takes too long itself"],
)
def test_a_request_that_cannot_be_done_in_time_is_refused_at_once(
    start: Start, queued: int, refused: tuple[int, float], admitted: tuple[int, float]
) -> None:
    engine = start(queue_tokens=10_000)
    engine.measure(1, 0.5)
    engine.admit(queued)
    with pytest.raises(OverloadedError):
        engine.admit(*refused)
    engine.admit(*admitted)


def test_tiny_batches_say_little_of_the_speed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SlowStarter()
    monkeypatch.setattr("rankwell.serve.engine.time", model)
    engine = start(queue_tokens=10_000)
    for n in range(40):
        send(engine, model, sequences([4], n)).result(60)
    held = [engine.admit(1000, seconds=10) for _ in range(6)]
    assert engine.seconds_per_token == pytest.approx(0.02 / 256)  # a chunk of 256 would have taken as long
    assert engine.refusal().retry_after == 1
    for entry in held:
        engine.release(entry)


def test_the_speed_is_that_of_tokens_not_of_batches() -> None:
    engine = RequestEngine()
    engine.measure(1000, 1.0)
    engine.measure(10, 1.0)
    assert engine.seconds_per_token == pytest.approx(1.9 / 910)


def test_a_queue_matches_what_its_model_computes_at_a_time() -> None:
    model = FirstToken()
    model.tokens_at_once = 1 << 18  # a GPU's
    for chosen, limit in ((None, 1 << 22), (500, 500)):
        engine = RequestEngine(Batching(queue_tokens=chosen))
        engine.make_room([model])
        assert engine.limit == limit
    small = RequestEngine()
    small.make_room([FirstToken()])
    assert small.limit == 1 << 17


def test_one_requests_fault_is_not_the_others(start: Start) -> None:
    engine = start()
    model, gate, first = held_up(engine, 8, fail_on=7)
    good, bad, also_good = (send(engine, model, sequences([8], n)) for n in (5, 7, 9))
    gate.set()
    with pytest.raises(ValueError, match="a bad sequence"):
        bad.result(60)
    assert [r.result(60)[0, 0] for r in (first, good, also_good)] == [0, 5, 9]
    assert engine.queued == 0


def test_two_models_never_share_a_batch(start: Start) -> None:
    engine, models = start(), (FirstToken(), FirstToken())
    results = [send(engine, models[n % 2], sequences([4, 4], 10 * n)) for n in range(20)]
    for n, result in enumerate(results):
        assert result.result(60)[:, 0].tolist() == [10 * n, 10 * n + 1]
    for parity, model in enumerate(models):
        assert {int(token) // 10 % 2 for batch in model.batches for token in batch} == {parity}


def test_a_model_that_is_no_longer_served_is_let_go(start: Start) -> None:
    import gc
    import weakref

    engine, model = start(), FirstToken()
    send(engine, model, sequences([4])).result(60)
    watched = weakref.ref(model)
    del model
    wait_until(lambda: gc.collect() >= 0 and watched() is None)
    assert watched() is None


def test_stopping_finishes_what_is_queued_and_takes_nothing_new() -> None:
    engine, model = RequestEngine(Batching(wait_ms=0)), FirstToken()
    results = [send(engine, model, sequences([64] * 4, 10 * n)) for n in range(5)]
    engine.start()
    engine.stop()
    assert all(result.done() and result.result()[0, 0] == 10 * n for n, result in enumerate(results))
    with pytest.raises(RuntimeError, match="stopped"):
        send(engine, model, sequences([1])).result(1)
