"""Averaging weights: one model from several of the same shape, at the cost of none.

A model trained on from another lies near it, and what lies between the two is often better than either: it keeps what
the first knew of texts at large and has what the second learned of these (Wortsman et al., 2022). The first may be the
checkpoint the recipe starts from, as the recipe's model reads it before any training.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch

from rankwell.core.errors import RankwellError
from rankwell.models.checkpoints import load_checkpoint, save_checkpoint
from rankwell.models.names import find_model
from rankwell.training.options import AverageOptions
from rankwell.training.stage import Produced, Work
from rankwell.training.stage_store import process_number

START = "start"
"""Names the recipe's start checkpoint among the stages."""


def average(work: Work, options: AverageOptions, folder: Path) -> Produced:
    """The mean of the stages' weights; everything else is as the last of them has it."""
    models: dict[str, Path | None] = {START: find_model(work.recipe.model.start)}
    models |= {done.stage.name: done.produced.model for done in work.done}
    chosen = [models[name] for name in options.stages]
    missing = next((name for name, model in zip(options.stages, chosen, strict=True) if model is None), None)
    if missing is not None:
        raise RankwellError(f"stages.average: the stage {missing} leaves no model")
    target = folder / "model"
    if process_number() == 0:
        shutil.rmtree(target, ignore_errors=True)
        changes = [work.changes if name == START else {} for name in options.stages]
        folders = [Path(model) for model in chosen if model is not None]
        average_checkpoints(folders, _shares(options), target, work, changes)
    return Produced(target, figures={"weights": dict(zip(options.stages, _shares(options), strict=True))})


def average_checkpoints(
    folders: list[Path],
    shares: list[float],
    target: Path,
    work: Work | None = None,
    changes: list[dict[str, Any]] | None = None,
) -> None:
    """Write the mean of checkpoints of one shape, in fp32 and summed in fp64, to ``target``; ``changes`` say how each
    is loaded (:func:`~rankwell.models.checkpoints.load_checkpoint`).
    """
    whole: dict[str, torch.Tensor] = {}
    for folder, share, own in zip(folders, shares, changes or [{}] * len(folders), strict=True):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*a new one is used, untrained")
            model, tokenizer, config = load_checkpoint(folder, **own)
        for name, tensor in model.state_dict().items():
            part = tensor.double() * share
            if name in whole and whole[name].shape != part.shape:
                shapes = f"{tuple(part.shape)} and {tuple(whole[name].shape)}"
                raise RankwellError(f"{folder}: {name} has another shape than in {folders[0]} ({shapes})")
            whole[name] = whole[name] + part if name in whole else part
        if whole.keys() != model.state_dict().keys():
            raise RankwellError(f"{folder} has other parts than {folders[0]}; only models of one shape have a mean")
    model.load_state_dict({name: tensor.float() for name, tensor in whole.items()})
    history = config.history if work is None else work.history
    save_checkpoint(target, model, tokenizer, config.model_copy(update={"history": history, "figures": {}}))


def _shares(options: AverageOptions) -> list[float]:
    weights = options.weights or (1.0,) * len(options.stages)
    return [weight / sum(weights) for weight in weights]


def check_average(work: Work, options: AverageOptions) -> None:
    """The stages must be there, before this one, and each have a share."""
    names = [stage.name for stage in work.recipe.stages]
    own = next(name for name, stage in zip(names, work.recipe.stages, strict=True) if stage.options is options)
    before = [START, *names[: names.index(own)]]
    for name in options.stages:
        if name not in before:
            raise RankwellError(f"stages.{own}.stages: no stage before it is called {name!r} ({', '.join(before)})")
    if options.weights is not None and len(options.weights) != len(options.stages):
        raise RankwellError(f"stages.{own}.weights: {len(options.weights)} for {len(options.stages)} stages")
    if options.weights is not None and not (min(options.weights) >= 0 and sum(options.weights) > 0):
        raise RankwellError(f"stages.{own}.weights: none may be negative, nor all 0")
