"""Averaging weights: one model from several of the same shape, at the cost of none.

A model trained on from another lies near it, and what lies between the two is often better than either: it keeps what
the first knew of texts at large and has what the second learned of these (Wortsman et al., 2022).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from rankwell.core.errors import RankwellError
from rankwell.models.checkpoints import load_checkpoint, save_checkpoint
from rankwell.training.options import AverageOptions
from rankwell.training.stage import Produced, Work
from rankwell.training.stage_store import process_number


def average(work: Work, options: AverageOptions, folder: Path) -> Produced:
    """The mean of the stages' weights; everything else is as the last of them has it."""
    models = {done.stage.name: done.produced.model for done in work.done}
    chosen = [models[name] for name in options.stages]
    missing = next((name for name, model in zip(options.stages, chosen, strict=True) if model is None), None)
    if missing is not None:
        raise RankwellError(f"stages.average: the stage {missing} leaves no model")
    target = folder / "model"
    if process_number() == 0:
        shutil.rmtree(target, ignore_errors=True)
        average_checkpoints([Path(model) for model in chosen if model is not None], _shares(options), target, work)
    return Produced(target, figures={"weights": dict(zip(options.stages, _shares(options), strict=True))})


def average_checkpoints(folders: list[Path], shares: list[float], target: Path, work: Work | None = None) -> None:
    """Write the mean of checkpoints of one shape, in fp32 and summed in fp64, to ``target``."""
    whole: dict[str, torch.Tensor] = {}
    for folder, share in zip(folders, shares, strict=True):
        model, tokenizer, config = load_checkpoint(folder)
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
    before = names[: names.index(own)]
    for name in options.stages:
        if name not in before:
            raise RankwellError(f"stages.{own}.stages: no stage before it is called {name!r} ({', '.join(before)})")
    if options.weights is not None and len(options.weights) != len(options.stages):
        raise RankwellError(f"stages.{own}.weights: {len(options.weights)} for {len(options.stages)} stages")
    if options.weights is not None and not (min(options.weights) >= 0 and sum(options.weights) > 0):
        raise RankwellError(f"stages.{own}.weights: none may be negative, nor all 0")
