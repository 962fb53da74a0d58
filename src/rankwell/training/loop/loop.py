"""The one training loop: CPU, one GPU, or several by ``torchrun`` and ``accelerate launch``, unchanged.

A step is a pure function of the weights, the optimiser's state, the run's seed and the step's number: items are drawn
by seed and epoch, dropout by seed and step. So a run that was killed continues from its newest state to the very
weights it would have had (bit for bit on a CPU), and several processes see the batches one alone would see.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.core.errors import RankwellError
from rankwell.core.files import remove_leftovers
from rankwell.core.progress import track
from rankwell.models.spec import AttentionRule
from rankwell.training.loop.gradients import Gradients, wait_for_all
from rankwell.training.loop.guard import CollapseGuard
from rankwell.training.loop.log import TrainingLog
from rankwell.training.loop.optimiser import learning_rate_at, make_optimiser
from rankwell.training.loop.options import TrainingOptions, ValidatedOptions
from rankwell.training.loop.resume import load_state, save_state
from rankwell.training.loop.running_mean import RunningMean
from rankwell.training.loop.task import Task, mix_seed

SAVE_SECONDS = 300.0
"""A state to resume from is also written after so long."""
LOG_EVERY = 20


@dataclass(frozen=True)
class TrainingOutcome:
    """How a run ended; ``best`` is the best validation, reached at ``best_step``, or None without validation."""

    steps: int
    best: float | None
    best_step: int
    seconds: float

    def figures(self) -> dict[str, Any]:
        """What a stage records of its training."""
        figures: dict[str, Any] = {"steps": self.steps, "training seconds": round(self.seconds, 1)}
        if self.best is not None:
            figures |= {"best validation": self.best, "best step": self.best_step}
        return figures


Validate = Callable[[nn.Module], Mapping[str, float]]
"""Figures of a model, the first of which says which checkpoint is the best."""
Save = Callable[[Path], None]
"""Write the model, as others will load it, to a folder that does not exist yet."""


def train(
    model: nn.Module,
    task: Task,
    options: TrainingOptions,
    folder: Path,
    *,
    save: Save,
    seed: int = 1,
    device: str | None = None,
    rule: AttentionRule = "full",
    validate: Validate | None = None,
    guard: CollapseGuard | None = None,
    description: str = "training",
) -> TrainingOutcome:
    """Train ``model`` in ``folder``, continuing what is there; leaves ``folder/model``, the best or the last.

    The folder also has ``metrics.jsonl`` and TensorBoard's events; ``last-STEP`` to continue from, and ``last`` as the
    weights, or their running mean, stood at the end.
    """
    run = _Run(model, task, options, folder, save, seed, device, rule, validate, guard or CollapseGuard(), description)
    return run.go()


class _Run:
    """One run of the loop: its steps, log, validation and saved states."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        options: TrainingOptions,
        folder: Path,
        save: Save,
        seed: int,
        device: str | None,
        rule: AttentionRule,
        validate: Validate | None,
        guard: CollapseGuard,
        description: str,
    ):
        self.gradients = Gradients(model, task, options, rule, device)
        self.processes, self.model = self.gradients.processes, self.gradients.model
        self.task, self.options, self.folder, self.seed = task, options, folder, seed
        self.save, self.validate, self.guard, self.description = save, validate, guard, description
        self.optimiser = make_optimiser(model, options, self.gradients.device)
        self.mean = RunningMean(model, options.running_mean) if options.running_mean else None
        size = task.draw(0)
        if not size:
            raise RankwellError(f"{description}: there are no {task.items} to train on")
        self.per_epoch = math.ceil(size / options.batch)
        self.steps = max(1, math.ceil(self.per_epoch * options.epochs))
        if options.max_steps is not None:
            self.steps = min(self.steps, options.max_steps)
        validated = options if isinstance(options, ValidatedOptions) else None
        self.evaluate_every = _in_steps(validated.evaluate_every, self.per_epoch) if validated else None
        self.patience = validated.patience if validated else None
        self.keeps_best = validated is not None and validated.best != "last"
        self._order: tuple[int, NDArray[np.int64]] | None = None

    @property
    def is_main(self) -> bool:
        return bool(self.processes.is_main_process)

    def go(self) -> TrainingOutcome:
        if self.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
        wait_for_all(self.processes)
        self.progress = load_state(self.folder, self.model, self.optimiser, self.mean)
        self.gradients.scale = self.progress.scale
        self.log = TrainingLog(self.folder) if self.is_main else None
        if self.log is not None:
            self.log.resume_at(self.progress.step)
        self.began = self.saved_at = self.logged_at = time.monotonic()
        self.before = self.progress.seconds
        self.sums: dict[str, Tensor] = {}
        self.summed = 0
        self.model.train()
        for number in track(self._steps(), self.description, total=self.steps - self.progress.step, unit="steps"):
            self._step(number)
            self._after(number + 1)
        return self._finish()

    def _steps(self) -> Iterator[int]:
        """The steps that are left; early stopping ends them."""
        while self.progress.step < self.steps and not self._is_stale():
            yield self.progress.step

    def _is_stale(self) -> bool:
        return self.patience is not None and self.progress.without_gain >= self.patience

    def _items(self, number: int) -> NDArray[np.int64]:
        """The batch of a step: all processes' together."""
        epoch, place = divmod(number, self.per_epoch)
        if self._order is None or self._order[0] != epoch:
            size = self.task.draw(epoch)
            shuffled = np.random.default_rng([self.seed, epoch]).permutation(size)
            self._order = epoch, shuffled
        return self._order[1][place * self.options.batch : (place + 1) * self.options.batch]

    def _step(self, number: int) -> None:
        items = self._items(number)
        rate = learning_rate_at(number, self.steps, self.options)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        figures = self.gradients.compute(items, mix_seed(self.seed, number, self.processes.process_index))
        norm = self.gradients.apply(self.optimiser, self.options.clip)
        self.progress.step = number + 1
        if self.mean is not None:
            self.mean.update(number + 1)
        self.summed += 1
        for name, value in {**figures, "gradient_norm": norm}.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def _after(self, step: int) -> None:
        """What follows a step: log, validate, save."""
        ends = step == self.steps
        due = self.evaluate_every is not None and step % self.evaluate_every == 0
        validates = self.validate is not None and (due or ends)
        now = time.monotonic()
        saves = validates or ends or step % self.options.save_every == 0 or now - self.saved_at > SAVE_SECONDS
        if saves or step % LOG_EVERY == 0:
            self._write_log(step, now)
        if validates:
            with self._kept():
                self._validate(step)
        if saves and self.is_main:
            self.progress.seconds = self.before + time.monotonic() - self.began
            self.progress.scale = self.gradients.scale
            save_state(self.folder, self.model, self.optimiser, self.progress, self.mean)
            # Only now: the state before this one may know of an older best.
            for best in self.folder.glob("best-*"):
                if best != self._best:
                    shutil.rmtree(best)
            self.saved_at = time.monotonic()

    def _write_log(self, step: int, now: float) -> None:
        means = {name: float(value) / self.summed for name, value in self.sums.items()}
        speed = self.summed * self.options.batch / max(1e-9, now - self.logged_at)
        self.sums, self.summed, self.logged_at = {}, 0, now
        saved = next(iter(sorted(self.folder.glob("last-*"))[-1:]), None)
        warned = self.guard.check(step, self.steps, means, saved)
        if self.log is not None:
            warning = {"warning": " ".join(warned)} if warned else {}
            rate = learning_rate_at(step - 1, self.steps, self.options)
            epoch = step / self.per_epoch
            self.log.write(
                step, {"epoch": epoch, "learning_rate": rate, **means, f"{self.task.items}_per_s": speed, **warning}
            )

    def _kept(self) -> AbstractContextManager[None]:
        """The weights that are measured and kept, in the model: their mean, or as they stand."""
        return nullcontext() if self.mean is None else self.mean.in_place()

    def _validate(self, step: int) -> None:
        assert self.validate is not None
        figures: Mapping[str, float] = {}
        if self.is_main:
            figures = self.validate(self.model)
            self.model.train()
        value = next(iter(figures.values()), 0.0)
        if self.processes.num_processes > 1:
            from accelerate.utils import reduce

            value = float(reduce(torch.tensor(value, dtype=torch.float64, device=self.gradients.device), "sum"))
        if self.progress.best is None or value > self.progress.best:
            self.progress.best, self.progress.best_step, self.progress.without_gain = value, step, 0
            if self.is_main and self.keeps_best:
                self._save_best()
        else:
            self.progress.without_gain += 1
        if self.log is not None:
            self.log.write(step, figures)
        # Time spent on validation is not the training's speed.
        self.logged_at = time.monotonic()

    @property
    def _best(self) -> Path:
        return self.folder / f"best-{self.progress.best_step:08d}"

    def _save_best(self) -> None:
        if self._best.exists():  # a sitting that was killed wrote it, and the state after it was lost
            shutil.rmtree(self._best)
        self.save(self._best)

    def _finish(self) -> TrainingOutcome:
        progress = self.progress
        if self.is_main:
            with self._kept():
                if not (self.folder / "last").exists():
                    self.save(self.folder / "last")
                if not (self.folder / "model").exists():
                    if self._best.is_dir():
                        self._best.rename(self.folder / "model")
                    else:
                        self.save(self.folder / "model")
            if self.log is not None:
                self.log.close()
        wait_for_all(self.processes)
        return TrainingOutcome(progress.step, progress.best, progress.best_step, progress.seconds)


def _in_steps(value: float, per_epoch: int) -> int:
    """A number of steps, given as such or (up to 1) as a share of an epoch."""
    return max(1, round(value * per_epoch if value <= 1 else value))
