"""Fits that are interrupted after each of their steps, and go on."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from tests.training import toys

pytest.importorskip("torch")
from tests.training.fit.fitting import fitted, results, write_titles

from rankwell.corpus.datasets import open_dataset
from rankwell.rank.system import System
from rankwell.training import fit
from rankwell.training.fit import climb, plans
from rankwell.training.fit.results import Result
from rankwell.training.fit.speed import Speed
from rankwell.training.fit.task import FitTask


class Killed(BaseException):
    pass


class Watched:
    """The steps that are made, of which the second of each fit is interrupted, and the starts of what is trained."""

    def __init__(self, patch: pytest.MonkeyPatch, *, interrupts: bool = False):
        self.made: list[str] = []
        self.starts: dict[str, str] = {}
        self.most = 1 if interrupts else 1000
        make, train = climb._make, FitTask.train

        def watched_make(task: FitTask, step: Any, *rest: Any) -> Result:
            if len(self.made) == self.most:
                raise Killed
            result = make(task, step, *rest)
            self.made.append(step.name)
            return result

        def watched_train(task: FitTask, name: str, first: Any, stages: Any, start: str, *rest: Any, **how: Any) -> Any:
            self.starts[name] = start
            return train(task, name, first, stages, start, *rest, **how)

        patch.setattr(climb, "_make", watched_make)
        patch.setattr(FitTask, "train", watched_train)

    def run(self, *arguments: Any, **options: Any) -> System:
        """Fit, again and again until nothing interrupts."""
        while True:
            try:
                return fitted(*arguments, **options)[0]
            except Killed:
                self.most += 1


def test_a_fit_that_is_interrupted_after_each_step_makes_each_once_and_the_same_system(
    tmp_path: Path, tiny_bi_encoder: Path, tiny_twin: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training starts from the second of two bi-encoders, because the first takes too long."""
    for rate, fast in (("vectors", (1e4, 1e4)), ("pairs", 1e4), ("scores", 1e4)):  # however busy this machine is
        monkeypatch.setattr(Speed, rate, lambda *_, fast=fast, **__: fast)
    data = toys.write_data(tmp_path / "data", queries=110)
    tries = [str(tiny_twin)]
    with pytest.MonkeyPatch.context() as patch:
        every = climb.all_steps
        patch.setattr(climb, "all_steps", lambda task: [step for step in every(task) if step.model])
        tried = results(fitted(tmp_path / "models", tiny_bi_encoder, data, tries=tries)[0])
    means = {name: tried[name]["judged"]["RR@10"]["mean"] for name in ("hybrid", f"hybrid {tiny_twin}")}
    best, other = str(tiny_bi_encoder), str(tiny_twin)
    if means["hybrid"] < means[f"hybrid {tiny_twin}"]:
        best, other = other, best
    seconds = plans._encoder_seconds

    def fit_with(out: Path, *, interrupts: bool) -> tuple[System, Watched]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                plans,
                "_encoder_seconds",
                lambda task, start, part: 1e9 if start == best else seconds(task, start, part),
            )
            watched = Watched(patch, interrupts=interrupts)
            return watched.run(out, tiny_bi_encoder, data, ranker=tiny_checkpoint, tries=tries), watched

    whole, expected = fit_with(tmp_path / "whole", interrupts=False)
    system, watched = fit_with(tmp_path / "system", interrupts=True)
    assert watched.made == expected.made == [step["step"] for step in system.card["steps"]]
    assert len(watched.made) > 8
    assert watched.starts == expected.starts
    assert (watched.starts["encoder"], watched.starts["rerank"]) == (other, other)
    assert system.describe() == whole.describe()
    queries = open_dataset(data).queries("dev")
    assert system.search(queries, 20) == whole.search(queries, 20)
    assert [{**step, "seconds": 0, "milliseconds": 0} for step in system.card["steps"]] == [
        {**step, "seconds": 0, "milliseconds": 0} for step in whole.card["steps"]
    ]


def test_an_index_with_another_analyser_is_found_again(tmp_path: Path, tiny_bi_encoder: Path) -> None:
    data = write_titles(tmp_path / "data")
    with pytest.MonkeyPatch.context() as patch:
        every = climb.all_steps
        names = ("analyser", "hybrid", "tuned")
        patch.setattr(climb, "all_steps", lambda task: [step for step in every(task) if step.name in names])
        watched = Watched(patch, interrupts=True)
        system = watched.run(tmp_path / "system", tiny_bi_encoder, data)
    assert watched.made == ["bm25", "analyser", "hybrid", "tuned"]
    assert system.index.analyzer.title_weight > 1
    systems = {step["step"]: step["system"] for step in system.card["steps"]}
    assert ["title weight" in systems[name] for name in watched.made] == [False, True, True, True]


def test_nothing_is_decided_by_the_name_or_the_kind_of_a_step() -> None:
    """A step declares what it stands on, what it must beat and what it replaces."""
    sources = sorted(Path(fit.__file__).parent.glob("*.py"))
    assert len(sources) > 5
    compared = [
        f"{path.name}:{node.lineno}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Attribute)
        if (side.attr in ("name", "kind", "title") and ast.unparse(side.value).rpartition(".")[2] == "step")
        or side.attr == "step"
    ]
    assert compared == []
