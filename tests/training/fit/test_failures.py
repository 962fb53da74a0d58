"""Steps that fail, which cost the step, and errors that end the fit."""

from __future__ import annotations

import errno
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from tests.training.fit.fitting import fitted, perfect, results

from rankwell.core.errors import RankwellError, WriteError
from rankwell.core.files import disk_errors
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.training.fit import climb
from rankwell.training.fit.results import Result, Step
from rankwell.training.fit.task import FitTask


def no_memory(task: object, below: object, plan: object) -> Any:
    raise MemoryError


def no_memory_on_cpu(task: object, below: object, plan: object) -> Any:
    return torch.empty(2**52)


def no_memory_on_gpu(task: object, below: object, plan: object) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20.00 GiB.")


def no_model(task: FitTask, below: Result, plan: object) -> Result:
    return Result(System(FirstStage(task.index), ranker=task.work / "nothing"), below.run)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (no_memory, "it ran out of memory"),
        (no_memory_on_cpu, "it ran out of memory"),
        (no_memory_on_gpu, "it ran out of memory"),
        (no_model, "system.work/nothing"),
    ],
)
def test_a_step_that_fails_is_left_out_and_said(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch, make: Any, reason: str
) -> None:
    both = [Step("broken", "a broken step", make), Step("better", "a better step", perfect)]
    monkeypatch.setattr(climb, "all_steps", lambda task: both)
    system, said = fitted(tmp_path / "system", tiny_bi_encoder)
    tried = results(system)
    assert reason in tried["broken"]["failed"]
    assert tried["better"]["kept"]
    assert f"  – a broken step: failed, {tried['broken']['failed']}" in said.splitlines()
    assert "Failed: a broken step. The report says why." in said
    assert f"failed: {tried['broken']['failed']}<" in (system.folder / "report.html").read_text()
    assert f"- a broken step: failed, {tried['broken']['failed']}\n" in (system.folder / "README.md").read_text()


def interrupted(task: FitTask, below: object, plan: object) -> Any:
    """What native code does: the exception of Ctrl-C becomes another one."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise RankwellError("the file is damaged") from None


def disk_is_full(task: FitTask, below: object, plan: object) -> Any:
    with disk_errors(task.work):
        raise OSError(errno.ENOSPC, "full")


def has_a_bug(task: FitTask, below: object, plan: object) -> Any:
    raise RuntimeError("a bug")


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (Step("ends", "a step", interrupted), KeyboardInterrupt),
        (Step("ends", "a step", perfect, plan=interrupted), KeyboardInterrupt),
        (Step("ends", "a step", disk_is_full), WriteError),
        (Step("ends", "a step", has_a_bug), RuntimeError),
    ],
)
def test_what_is_not_the_fault_of_a_step_ends_the_fit_and_the_step_is_tried_again(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch, step: Step, error: type[BaseException]
) -> None:
    monkeypatch.setattr(climb, "all_steps", lambda task: [Step("broken", "a broken step", no_memory), step])
    with pytest.raises(error):
        fitted(tmp_path / "system", tiny_bi_encoder)
    assert not (tmp_path / "system").exists()
    monkeypatch.setattr(climb, "all_steps", lambda task: [Step("broken", "a broken step", perfect)])
    system, _ = fitted(tmp_path / "system", tiny_bi_encoder)
    assert results(system)["broken"]["kept"]


def test_an_error_in_the_lowest_step_ends_the_fit(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(task: object, below: object, plan: object) -> Any:
        raise RankwellError("the index is damaged")

    monkeypatch.setattr(climb, "BASE", Step("bm25", "BM25", broken))
    with pytest.raises(RankwellError, match="the index is damaged"):
        fitted(tmp_path / "system", tiny_bi_encoder)
