"""The speed of models, by which a fit tells what fits into its time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from tests.training import toys
from tests.training.fit.fitting import fitted, results
from tests.training.fit.test_split import write_splits

from rankwell import sample
from rankwell.core import native
from rankwell.corpus.records import Run
from rankwell.models import devices
from rankwell.models.devices import Computing
from rankwell.training.fit import climb, plans, speed
from rankwell.training.fit.climb import Clock
from rankwell.training.fit.results import Bests, Plan, Result, Step
from rankwell.training.fit.speed import NotTimedError, Speed, training_factor
from rankwell.training.fit.split import Part
from rankwell.training.fit.steps import BASE
from rankwell.training.fit.task import FitTask, schedule


def nothing_yet() -> Bests:
    """The bests before anything was found."""
    nothing: Any = None
    return Bests.begin(Result(nothing, Run()))


def planned(monkeypatch: pytest.MonkeyPatch, cost: Callable[[str, Part], float], task: FitTask, bests: Bests) -> Any:
    """How the training of a bi-encoder is planned in some seconds, where it costs that many."""
    monkeypatch.setattr(plans, "_encoder_seconds", lambda task, start, fits: sum(cost(start, own) for own in fits))
    return lambda left: plans.training_encoder(task, bests, left)


def test_a_step_trains_on_fewer_queries_where_the_time_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = FitTask(str(write_splits(tmp_path / "data", train=6000, dev=10)), tmp_path / "system")
    assert len(task.parts.fit) == 4800
    plan = planned(monkeypatch, lambda start, fit: float(len(fit)), task, nothing_yet())
    assert [(plan(left).seconds, plan(left).sample) for left in (6000, 3000, 1)] == [
        (5760.0, None),
        (pytest.approx(1.2 * 2457), 2457),
        (pytest.approx(1.2 * 1005), 1005),  # it would need more than is left, but with fewer queries nothing is learned
    ]


def test_few_queries_train_on_as_many_folds_as_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once more on all of them; what stands on a trained step has its folds."""
    task = FitTask(str(write_splits(tmp_path / "data", train=200, dev=10)), tmp_path / "system")
    plan = planned(monkeypatch, lambda start, fit: 10.0, task, nothing_yet())
    assert [(plan(left).seconds, plan(left).folds) for left in (204, 203, 131, 95, 1)] == [
        (pytest.approx(102.0), 5),
        (pytest.approx(66.0), 3),
        (pytest.approx(48.0), 2),
        (pytest.approx(12.0), 1),
        (pytest.approx(12.0), 1),  # it would need more than is left
    ]
    nothing: Any = None
    for below, folds in (
        (Result(nothing, Run(), {"encoder": {}}, folds=["a", "b", "c"]), 3),
        (Result(nothing, Run(), {"encoder": {}}), 1),
        (Result(nothing, Run()), 5),
    ):
        for left in (1e3, 1.0):
            found: Any = plans._training(task, left, lambda start, fits: float(len(fits)), ["start"], below)
            assert found.folds == (folds if left > 1 or below.stages else 1)


def test_compiling_takes_nothing_of_the_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(native.time, "monotonic", lambda: now[0])
    clock = Clock(60.0)
    now[0] = 75.0
    monkeypatch.setattr(native._COMPILER, "seconds", native._COMPILER.seconds + 70.0)
    assert clock.left == pytest.approx(55.0)


def test_measurements_end_when_their_time_is_up() -> None:
    unread: Any = None
    speed = Speed(unread, unread, "cpu", 0.05)
    assert speed.once(("vectors", "fast"), lambda: 7) == 7

    def endless() -> int:
        while True:
            pass

    with pytest.raises(NotTimedError):
        speed.once(("vectors", "slow"), endless)
    with pytest.raises(NotTimedError):
        speed.once(("vectors", "other"), lambda: 7)
    assert speed.once(("vectors", "fast"), endless) == 7


def test_bm25_hybrid_search_and_tuning_come_before_anything_is_timed(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they are tried where there is no time for measurements."""
    events: list[str] = []
    make, once = climb._make, Speed.once

    def watched(task: FitTask, step: Step, *rest: Any) -> Result:
        events.append(step.name)
        return make(task, step, *rest)

    def timed(speed: Speed, what: tuple[str, ...], measure: Callable[[], Any]) -> Any:
        events.append("timed")
        return once(speed, what, measure)

    monkeypatch.setattr(climb, "_make", watched)
    monkeypatch.setattr(Speed, "once", timed)
    monkeypatch.setattr("rankwell.training.fit.task.TIMING", 0.0)
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, toys.write_data(tmp_path / "data", queries=110))
    assert events[:4] == ["bm25", "hybrid", "tuned", "timed"]
    assert {name for name in events if name != "timed"} == {"bm25", "hybrid", "tuned"}
    assert "an adapter on its vectors: skipped, there is no time to measure how long it takes" in said
    assert "try more --minutes" in said or results(system)["tuned"]["kept"]


def test_a_collection_that_may_be_too_large_is_timed_before_its_vectors_are_computed(tmp_path: Path) -> None:
    task: Any = SimpleNamespace(index=range(10_000), parts=SimpleNamespace(judged=[]), reported=0, device="cpu")
    bests: Any = None
    assert plans.searching_first("a model", task, bests, 1000.0) == Plan(500.0)  # nothing was measured
    task.speed = SimpleNamespace(vectors=lambda encoder: (_ for _ in ()).throw(NotTimedError("no time")))
    assert plans.searching_first("a model", task, bests, 999.0) == Plan(999.0)  # it is tried


def test_wider_bi_encoders_are_trained_at_a_lower_rate(tmp_path: Path) -> None:
    task = FitTask(str(write_splits(tmp_path / "data")), tmp_path / "system")
    rates = []
    for width in (384, 768):
        folder = tmp_path / str(width)
        folder.mkdir()
        config = {"model_type": "bert", "hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 12}
        config |= {"intermediate_size": 8, "vocab_size": 9, "max_position_embeddings": 16}
        (folder / "config.json").write_text(json.dumps(config))
        planned = schedule(task.parts.fit, str(folder), "cpu")
        assert planned["best"] == "last"  # on a CPU, checkpoints are not compared
        rates.append(planned["learning_rate"])
    assert rates == [2e-4, 5e-5]


def test_training_is_timed_with_the_model_that_is_trained(tmp_path: Path, tiny_bi_encoder: Path) -> None:
    task = FitTask(str(sample.FOLDER), tmp_path / "system", device="cpu")
    tiny, larger = (task.speed.pairs(start) for start in (str(tiny_bi_encoder), "rankwell-mini"))
    assert tiny > 2 * larger  # some fifty times


def test_the_training_of_a_reranker_is_timed_by_a_few_steps_if_a_guess_will_not_do(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FitTask, "shipped", str(tiny_bi_encoder))
    task = FitTask(str(toys.write_data(tmp_path / "data", queries=110)), tmp_path / "system", device="cpu")
    nothing: Any = None
    bests = Bests.begin(BASE.make(task, nothing, Plan()))

    def plan(left: float) -> Any:
        return plans.training_ranker(task, bests, left)

    timed = task.work / "recipes" / "timing"
    guess = plan(1e9).seconds
    assert not timed.exists()
    assert plan(guess / 1.2).seconds > 0
    assert "train_queries: 4\n" in (timed / "recipe.yaml").read_text()


def test_training_starts_from_the_best_encoder_that_fits_into_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = FitTask(str(write_splits(tmp_path / "data", train=2600, dev=10)), tmp_path / "system")
    bests = replace(nothing_yet(), means={"small": 0.5, "large": 0.7, "middle": 0.6})
    cost = {"small": 1.0, "middle": 10.0, "large": 100.0}
    plan = planned(monkeypatch, lambda start, fit: cost[start], task, bests)
    # In any order: a plan leaves nothing behind.
    assert [(plan(left).seconds, plan(left).start) for left in (5, 200, 0.5, 50)] == [
        (1.2, "small"),
        (120.0, "large"),
        (1.2, "small"),
        (12.0, "middle"),
    ]


@pytest.mark.parametrize(
    ("left", "expected"), [(1.0, (10, 200)), (60.0, (10, 320)), (240.0, (20, 740)), (10_000.0, (100, 1000))]
)
def test_a_reranker_as_it_is_reads_deeper_before_it_is_compared_on_more_queries(
    left: float, expected: tuple[int, int]
) -> None:
    judged = [None] * 1000
    speed = SimpleNamespace(scores=lambda model, words: 100.0)
    task: Any = SimpleNamespace(speed=speed, reported=100, parts=SimpleNamespace(judged=judged))

    def read(count: int) -> Any:
        bests: Any = SimpleNamespace(candidates=SimpleNamespace(count=count))
        return plans.reading("a model", task, bests, left)

    assert (read(1000).depth, read(1000).count) == expected
    assert read(60).count == 60


def test_training_is_timed_in_its_own_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16 where the CPU is fast in it; there, training is dearer than encoding by more than usual."""
    asked, factors = [], []

    def open_encoder(name: str, how: Computing) -> Any:
        asked.append(how.precision)
        return SimpleNamespace(encode_documents=len, encode_queries=len, device=torch.device("cpu"))

    monkeypatch.setattr(speed, "open_encoder", open_encoder)
    for fast in (True, False):
        monkeypatch.setattr(devices, "is_fast_in_bf16", lambda fast=fast: fast)
        task = FitTask(str(sample.FOLDER), tmp_path / "system", device="cpu")
        assert task.speed.pairs("a model") > 0
        factors.append(training_factor("cpu"))
    assert asked == ["bf16", "fp32"]
    assert factors == [5.0, 3.5]
    monkeypatch.setattr(task.speed, "_encode", lambda start, precision: (30.0, 60.0))
    assert task.speed.pairs("another model") == pytest.approx(20.0)
