"""The state a training run continues from: weights, optimiser and a few numbers, written as a whole or not at all.

``last-STEP/`` in the run's folder is the newest one; a kill at any moment leaves it or the one before it. Weights are
safetensors, never pickle.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from rankwell.core.checksums import verify_folder
from rankwell.core.errors import InputError
from rankwell.core.files import atomic_folder
from rankwell.models.checkpoints.tensors import write_tensors
from rankwell.training.loop.optimiser import load_optimiser_tensors, optimiser_tensors
from rankwell.training.loop.running_mean import RunningMean


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
    """Spent so far, in all sittings."""
    scale: float | None = None
    """fp16's loss scale."""


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
    """Continue where the folder's newest state stands; from the beginning where there is none."""
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
