"""The loop: learning, logging, keeping the best, and going on after a kill as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rankwell.core.errors import RankwellError
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import Template
from rankwell.training.data.sampling import Lists, TrainingSet
from rankwell.training.loop.gradients import Processes
from rankwell.training.loop.loop import train
from rankwell.training.loop.losses import make_loss
from rankwell.training.loop.task import RankingTask
from rankwell.training.options import ValidatedOptions

from ..conftest import SPECIAL, WORDS, Rows, make_model, pieces

LENGTH = 11
"""Tokens of each pair: two of the query, six of the document, three between them."""


def make_task(template: Template, *, lists: int = 48, size: int = 4) -> RankingTask:
    """Queries of two words; of the documents of a list only the first has the query's words in it."""
    random = np.random.default_rng(5)
    words = random.integers(10, 10 + WORDS, (lists, 2))
    documents = random.integers(10, 10 + WORDS, (lists * size, 6))
    documents[::size, 1:3] = words
    data = TrainingSet(pieces(words.tolist()), None, Rows(pieces(documents.tolist())))  # type: ignore[arg-type]
    labels = np.zeros((lists, size), np.float32)
    labels[:, 0] = 1
    whole = Lists(np.arange(lists), np.arange(lists * size).reshape(lists, size), labels)
    loss = make_loss("listwise")
    reader = Reader(SimpleNamespace(special=SPECIAL, frame=None), template)  # type: ignore[arg-type]
    return RankingTask(data, lambda epoch: whole, loss, reader)


def options(**changes: object) -> ValidatedOptions:
    usual = {"epochs": 4, "batch": 8, "learning_rate": 3e-3, "precision": "fp32"}
    return ValidatedOptions(**{**usual, **changes})


def saver(model: nn.Module) -> object:
    def save(folder: Path) -> None:
        folder.mkdir(parents=True)
        save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, folder / "weights.safetensors")

    return save


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_alike(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Equal but for rounding. A key's bias and the head's have no effect on the loss: Adam walks them by rounding."""
    for name, value in one.items():
        if not name.endswith(("qkv.bias", "head.bias")):
            torch.testing.assert_close(other[name], value, rtol=2e-3, atol=2e-5)


def test_the_loss_falls_and_the_folder_has_everything(tmp_path: Path, template: Template) -> None:
    model = make_model()
    outcome = train(model, make_task(template), options(epochs=30), tmp_path, save=saver(model), device="cpu")
    losses = [line["loss"] for line in metrics(tmp_path) if "loss" in line]
    assert losses[-1] < 0.5 * losses[0]
    assert outcome.step == 30 * 6
    assert {"model", "last", "metrics.jsonl"} <= {path.name for path in tmp_path.iterdir()}
    saved = load_file(tmp_path / "model" / "weights.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())


def test_the_gradient_cache_trains_to_the_same_weights(tmp_path: Path, template: Template) -> None:
    weights = []
    for name, budget in (("whole", None), ("few", 3 * LENGTH)):
        model = make_model()
        how = options(budget=budget)
        train(model, make_task(template), how, tmp_path / name, save=saver(model), device="cpu")
        weights.append(model.state_dict())
    assert_alike(*weights)


def test_the_best_validation_is_kept_and_patience_ends_the_run(tmp_path: Path, template: Template) -> None:
    model = make_model()
    figures = iter([0.2, 0.6, 0.5, 0.4, 0.3, 0.9])
    kept = {}

    def validate(own: nn.Module) -> dict[str, float]:
        kept[value := next(figures)] = {name: tensor.clone() for name, tensor in own.state_dict().items()}
        return {"RR@10": value}

    task = make_task(template)
    outcome = train(
        model, task, options(epochs=6, patience=2), tmp_path, save=saver(model), device="cpu", validate=validate
    )
    assert (outcome.best, outcome.best_step, outcome.step) == (0.6, 12, 24)
    saved = load_file(tmp_path / "model" / "weights.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in kept[0.6].items())
    last = load_file(tmp_path / "last" / "weights.safetensors")
    assert all(torch.equal(last[name], value) for name, value in kept[0.4].items())
    assert [line["RR@10"] for line in metrics(tmp_path) if "RR@10" in line] == [0.2, 0.6, 0.5, 0.4]


def test_the_running_mean_is_validated_and_kept_and_the_newest_weights_are_trained_on(
    tmp_path: Path, template: Template
) -> None:
    seen: dict[float, list[dict[str, torch.Tensor]]] = {0.0: [], 0.8: []}
    for decay, states in seen.items():
        model, folder = make_model(), tmp_path / str(decay)

        def validate(own: nn.Module, states: list[dict[str, torch.Tensor]] = states) -> dict[str, float]:
            states.append({name: tensor.clone() for name, tensor in own.state_dict().items()})
            return {"RR@10": 0.1 * len(states)}

        steps = options(epochs=6, batch=48, running_mean=decay)  # an epoch is one step
        train(model, make_task(template), steps, folder, save=saver(model), device="cpu", validate=validate)
        for kept in ("model", "last"):
            saved = load_file(folder / kept / "weights.safetensors")
            assert all(torch.equal(saved[name], value) for name, value in states[-1].items())
    mean = {name: tensor.clone() for name, tensor in make_model().state_dict().items()}
    for step, (newest, found) in enumerate(zip(seen[0.0], seen[0.8], strict=True), start=1):
        share = min(0.8, step / (step + 9))
        for name in mean:
            mean[name] = share * mean[name] + (1 - share) * newest[name]
            torch.testing.assert_close(found[name], mean[name], rtol=1e-4, atol=1e-6)
    assert not torch.equal(seen[0.0][-1]["head.weight"], seen[0.8][-1]["head.weight"])


@pytest.mark.parametrize(("flags", "expected"), [("amx_bf16", torch.bfloat16), ("avx512_bf16", torch.float32)])
def test_a_processor_made_for_bf16_computes_in_it(
    tmp_path: Path, template: Template, monkeypatch: pytest.MonkeyPatch, flags: str, expected: torch.dtype
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t: fpu {flags}\n")
    monkeypatch.setattr("rankwell.models.devices.CPU_INFO", tmp_path / "cpuinfo")
    model, types = make_model(), set()
    model.encoder.layers[0].inner.register_forward_hook(lambda module, given, made: types.add(made.dtype))
    how = options(epochs=1, precision="auto")
    train(model, make_task(template), how, tmp_path / "out", save=saver(model), device="cpu")
    assert types == {expected}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_nothing_to_train_on(tmp_path: Path, template: Template) -> None:
    model = make_model()
    with pytest.raises(RankwellError, match="no lists to train on"):
        train(model, make_task(template, lists=0), options(), tmp_path, save=saver(model), device="cpu")


def test_a_state_of_another_model_is_refused(tmp_path: Path, template: Template) -> None:
    model = make_model()
    train(model, make_task(template), options(), tmp_path, save=saver(model), device="cpu")
    other = make_model(layers=1)
    with pytest.raises(RankwellError, match="not the state of this training run"):
        train(other, make_task(template), options(epochs=9), tmp_path, save=saver(other), device="cpu")


RUN = """
import os, signal, sys, threading, time, torch._dynamo
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, {root!r})
from tests.training.loop.test_loop import LENGTH, make_model, make_task, options, saver
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import Template
from rankwell.training.loop.loop import train

def run(folder, dropout, epochs):
    model = make_model(dropout=dropout)
    task = make_task(Template("mono", max_length=48, max_query=16))
    how = options(epochs=epochs, save_every=3, running_mean=0.9, budget=20 * LENGTH)
    train(model, task, how, Path(folder), save=saver(model), device="cpu")
"""

# Forked where torch is imported, with all that its first step imports, but has not computed yet: a run begins at once.
KILLS = (
    RUN
    + """
def die_after_next_state(folder, seconds):
    before = sorted(folder.glob("last-*"))
    while sorted(folder.glob("last-*")) == before:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)

# The child kills itself: on a busy machine another process might come too late.
def start(folder, kill=None):
    child = os.fork()
    if child == 0:
        if kill is not None:
            threading.Thread(target=die_after_next_state, args=(folder, 0.007 * kill), daemon=True).start()
        run(folder, 0.2, 12)
        os._exit(0)
    return os.waitpid(child, 0)[1]

folder = Path({folder!r})
assert start(folder / "whole") == 0
for kill in range(4):
    assert start(folder / "killed", kill) == signal.SIGKILL
assert start(folder / "killed") == 0
"""
)


def write_script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text.format(root=str(Path(__file__).parents[3]), folder=str(folder)), encoding="utf-8")
    return str(path)


def test_killed_again_and_again_it_ends_with_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, write_script(tmp_path, KILLS)], check=True, env=environment)
    whole, killed = (load_file(tmp_path / name / "model" / "weights.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    steps = [[line["step"] for line in metrics(tmp_path / name)] for name in ("whole", "killed")]
    assert steps[0] == steps[1]
    assert steps[0][-1] == 72


def test_two_processes_have_the_loss_curve_of_one(tmp_path: Path, template: Template) -> None:
    script = write_script(tmp_path, RUN + 'run({folder!r} + "/two", 0.0, 3)\n')
    # By address: not every machine's own name leads to it.
    how = ["--nproc-per-node=2", "--standalone", "--local-addr=127.0.0.1"]
    launch = [sys.executable, "-m", "torch.distributed.run", *how, script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(launch, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    model = make_model()
    changes = {"epochs": 3, "save_every": 3, "running_mean": 0.9, "budget": 20 * LENGTH}
    train(model, make_task(template), options(**changes), tmp_path / "one", save=saver(model), device="cpu")
    curves = [[line["loss"] for line in metrics(tmp_path / name) if "loss" in line] for name in ("one", "two")]
    assert len(curves[0]) > 3
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-4)
    assert_alike(*(load_file(tmp_path / name / "model" / "weights.safetensors") for name in ("one", "two")))


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(RankwellError, match="2 processes were started on this machine, where torch sees 1 GPUs: start"):
        Processes.start("cuda")
