"""The one training loop: CPU, one GPU, or several by ``torchrun``, unchanged.

A step is a pure function of the weights, the optimiser's state, the run's seed and the step's number: items are drawn
by seed and epoch, dropout by seed and step. So a run that was killed continues from its newest state to the very
weights it would have had (bit for bit on a CPU), and several processes see the batches one alone would see.
"""

from __future__ import annotations

import json
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import InitVar, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from rankwell.core.checksums import verify_folder
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_folder, remove_leftovers
from rankwell.core.progress import track
from rankwell.models.checkpoints.tensors import write_tensors
from rankwell.models.spec import AttentionRule
from rankwell.training.loop.gradients import Gradients
from rankwell.training.loop.log import TrainingLog
from rankwell.training.loop.optimiser import learning_rate_at, load_optimiser_tensors, make_optimiser, optimiser_tensors
from rankwell.training.loop.task import Task, mix_seed
from rankwell.training.options import TrainingOptions, ValidatedOptions


class RunningMean:
    """The mean over the steps so far, each weighing ``decay`` times as much as the one after it."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._names, self._weights = list(trained), list(trained.values())
        self._means = [parameter.detach().clone() for parameter in self._weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after step ``step``, counted from 1. Early means are short: the start is soon forgotten."""
        decay = min(self.decay, step / (step + 9))
        get_ema_multi_avg_fn(decay)(self._means, self._weights, 0)  # type: ignore[no-untyped-call]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model's weights are their mean while this is open, and afterwards what they were, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # Contents, not tensors: recorded graphs and the optimiser know the weights by their place in memory.
        for weight, mean in zip(self._weights, self._means, strict=True):
            newest = weight.detach().clone()
            weight.copy_(mean)
            mean.copy_(newest)

    def tensors(self) -> dict[str, Tensor]:
        """The means by their weights' names, for safetensors."""
        return dict(zip(self._names, self._means, strict=True))

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`tensors` gave; a KeyError where it is another model's."""
        for name, mean in zip(self._names, self._means, strict=True):
            mean.copy_(tensors[name])


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    """Steps done."""
    best_step: int = 0
    best: float | None = None
    """The best validation so far, and the step it was measured at."""
    without_gain: int = 0
    """Validations since then."""
    seconds: float = 0.0
    """Spent so far, over all runs."""
    scale: float | None = None
    """fp16's loss scale."""

    def figures(self) -> dict[str, Any]:
        """What a stage records of its training."""
        figures: dict[str, Any] = {"steps": self.step, "training seconds": round(self.seconds, 1)}
        if self.best is not None:
            figures |= {"best validation": self.best, "best step": self.best_step}
        return figures


def save_state(
    folder: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    mean: RunningMean | None = None,
) -> None:
    """Write ``last-STEP/``, then remove the one before it."""
    target = folder / f"last-{progress.step:08d}"
    older = _saved(folder)
    if target in older:
        return
    with atomic_folder(target) as temporary:
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        write_tensors(weights, temporary / "weights.safetensors")
        write_tensors(optimiser_tensors(optimiser), temporary / "optimiser.safetensors")
        if mean is not None:
            write_tensors(mean.tensors(), temporary / "mean.safetensors")
        (temporary / "progress.json").write_text(json.dumps(asdict(progress), indent=2) + "\n", encoding="utf-8")
    for state in older:
        shutil.rmtree(state)


def load_state(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, mean: RunningMean | None = None
) -> Progress:
    """Resume from the newest state in the folder, or start from the beginning if there is none."""
    saved = _saved(folder)
    if not saved:
        return Progress()
    state = saved[-1]
    verify_folder(state)
    try:
        model.load_state_dict(load_file(state / "weights.safetensors"))
        load_optimiser_tensors(optimiser, load_file(state / "optimiser.safetensors"))
        if mean is not None:
            mean.load(load_file(state / "mean.safetensors"))
        record = json.loads((state / "progress.json").read_text(encoding="utf-8"))
        return Progress(**{field.name: record[field.name] for field in fields(Progress)})
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            state, None, f"not the state of this training run ({error}); remove it to begin anew"
        ) from None


def _saved(folder: Path) -> list[Path]:
    return sorted(folder.glob("last-*"))


NEAR_CHANCE = 0.01
LEAST_SPREAD = 1e-3
LEAST_SHARE_OF_SPREAD = 0.02
WARMING_UP, PATIENCE = 0.2, 3
"""Nothing is said in this part of the steps, nor before so many logs in a row look the same."""


class CollapseGuard:
    """Watches the means that are logged; warns once of each cause.

    ``chance`` is the loss of a model that scores all documents alike, ln N for a softmax over lists of N
    (``Loss.chance``); without it, only spread and broken numbers are seen. Lists of one document have no spread and
    are not taken for collapsed.
    """

    def __init__(self, chance: float | None = None):
        self.chance = chance
        self._widest = 0.0
        self._in_a_row = {"chance": 0, "spread": 0}
        self._warned: set[str] = set()

    def check(
        self, step: int, steps: int, means: Mapping[str, float], checkpoint: str | Path | None = None
    ) -> list[str]:
        """Look at the means of ``loss`` and, where they are there, ``spread`` (the scores' deviation within lists).

        Returns the warnings it gave, for the log. A loss that is no finite number is an error that names the step and
        ``checkpoint``, the last that was saved.
        """
        loss, spread = means["loss"], means.get("spread")
        if not math.isfinite(loss) or (spread is not None and not math.isfinite(spread)):
            rescue = f"the last checkpoint is {checkpoint}" if checkpoint else "no checkpoint of this run was named"
            name, value = ("loss", loss) if not math.isfinite(loss) else ("spread of the scores", spread)
            raise RankwellError(
                f"step {step}: the {name} is {value}; try a lower learning rate, or bf16 or fp32 for fp16 ({rescue})"
            )
        causes = {"chance": self.chance is not None and abs(loss - self.chance) <= NEAR_CHANCE * abs(self.chance)}
        if spread is not None:
            self._widest = max(self._widest, spread)
            causes["spread"] = self._widest > 0 and spread <= max(LEAST_SPREAD, LEAST_SHARE_OF_SPREAD * self._widest)
        messages = []
        for cause, seen in causes.items():
            late = step > WARMING_UP * steps
            self._in_a_row[cause] = self._in_a_row[cause] + 1 if seen and late else 0
            if self._in_a_row[cause] == PATIENCE and cause not in self._warned:
                self._warned.add(cause)
                messages.append(self._describe(cause, step, loss, spread))
        for text in messages:
            warnings.warn(text, stacklevel=2)
        return messages

    def _describe(self, cause: str, step: int, loss: float, spread: float | None) -> str:
        if cause == "chance":
            return (
                f"step {step}: the loss is {loss:.4f}, that of a model that scores all documents alike "
                f"({self.chance:.4f}); try a lower learning rate or a longer warm-up, and look at the labels"
            )
        return (
            f"step {step}: the scores of a list hardly differ (deviation {spread:.2g}, once {self._widest:.2g}); "
            "the model has collapsed: try a lower learning rate or a longer warm-up"
        )


SAVE_SECONDS = 300.0
"""A state to resume from is also written after so long."""
LOG_EVERY = 20

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
) -> Progress:
    """Train ``model`` in ``folder``, continuing what is there; leaves ``folder/model``, the best or the last.

    The folder also has ``metrics.jsonl``; ``last-STEP`` to continue from, and ``last`` as the weights, or their running
    mean, stood at the end.
    """
    run = _Run(model, task, options, folder, save, seed, device, rule, validate, guard or CollapseGuard(), description)
    return run.go()


@dataclass(eq=False)
class _Run:
    """One run of the loop: its steps, log, validation and saved states."""

    model: nn.Module
    task: Task
    options: TrainingOptions
    folder: Path
    save: Save
    seed: int
    device: InitVar[str | None]
    rule: InitVar[AttentionRule]
    validate: Validate | None
    guard: CollapseGuard
    description: str

    def __post_init__(self, device: str | None, rule: AttentionRule) -> None:
        task, options = self.task, self.options
        self.gradients = Gradients(self.model, task, options, rule, device)
        self.processes, self.model = self.gradients.processes, self.gradients.model
        self.optimiser = make_optimiser(self.model, options, self.gradients.device)
        self.mean = RunningMean(self.model, options.running_mean) if options.running_mean else None
        size = task.draw(0)
        if not size:
            raise RankwellError(f"{self.description}: there are no {task.items} to train on")
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
        return self.processes.rank == 0

    def go(self) -> Progress:
        if self.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
        self.processes.wait()
        self.progress = load_state(self.folder, self.model, self.optimiser, self.mean)
        self.gradients.scale = self.progress.scale
        self.log = TrainingLog(self.folder, self.progress.step) if self.is_main else None
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
        patience = math.inf if self.patience is None else self.patience
        while self.progress.step < self.steps and self.progress.without_gain < patience:
            yield self.progress.step

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
        figures = self.gradients.compute(items, mix_seed(self.seed, number, self.processes.rank))
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
        if self.processes.count > 1:
            value = float(self.processes.sum(torch.tensor(value, dtype=torch.float64, device=self.processes.device)))
        if self.progress.best is None or value > self.progress.best:
            self.progress.best, self.progress.best_step, self.progress.without_gain = value, step, 0
            if self.is_main and self.keeps_best:
                if self._best.exists():  # a run that was killed wrote it, and the state after it was lost
                    shutil.rmtree(self._best)
                self.save(self._best)
        else:
            self.progress.without_gain += 1
        if self.log is not None:
            self.log.write(step, figures)
        # Time spent on validation is not the training's speed.
        self.logged_at = time.monotonic()

    @property
    def _best(self) -> Path:
        return self.folder / f"best-{self.progress.best_step:08d}"

    def _finish(self) -> Progress:
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
        self.processes.wait()
        return self.progress


def _in_steps(value: float, per_epoch: int) -> int:
    """A number of steps, given as such or (up to 1) as a share of an epoch."""
    return max(1, round(value * per_epoch if value <= 1 else value))
