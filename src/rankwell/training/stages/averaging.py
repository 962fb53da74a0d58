"""Averaging weights: one model from several of the same shape, at the cost of none.

A model trained on from another lies near it, and what lies between the two is often better than either: it keeps what
the first knew of texts at large and has what the second learned of these (Wortsman et al., 2022). The first may be the
checkpoint the recipe starts from, as the recipe's model reads it before any training.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rankwell.core.errors import RankwellError
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.models.checkpoints.names import find_model
from rankwell.models.encoder import CrossEncoder
from rankwell.training.options import START, AverageOptions
from rankwell.training.stage import Produced, Work
from rankwell.training.stage_store import process_number
from rankwell.training.stages.ranking import load_one_score

Loaded = tuple[CrossEncoder, Tokenizer, RankerConfig]


def average(work: Work, options: AverageOptions, folder: Path) -> Produced:
    """The mean of the stages' weights; everything else is as the last of them has it."""
    models = {done.stage.name: done.produced.model for done in work.done}
    parts: dict[str, Loaded] = {}
    for name in options.stages:
        if name == START:
            started = load_one_score(replace(work, model=find_model(work.recipe.model.start)), "new")
            parts[name] = (started.model, started.tokenizer, started.config)
        elif (model := models[name]) is None:
            raise RankwellError(f"stages.average: the stage {name} leaves no model")
        else:
            parts[name] = load_checkpoint(model)
    target = folder / "model"
    if process_number() == 0:
        shutil.rmtree(target, ignore_errors=True)
        save_average(parts, _shares(options), target, work.history)
    return Produced(target, figures={"weights": dict(zip(options.stages, _shares(options), strict=True))})


def save_average(
    parts: Mapping[str, Loaded], shares: Sequence[float], target: Path, history: list[dict[str, Any]]
) -> None:
    """Write the mean of models of one shape, in fp32 and summed in fp64, to ``target``."""
    whole: dict[str, torch.Tensor] = {}
    first = next(iter(parts))
    model, tokenizer, config = list(parts.values())[-1]
    for (own, (part, *_)), share in zip(parts.items(), shares, strict=True):
        for name, tensor in part.state_dict().items():
            scaled = tensor.double() * share
            if name in whole and whole[name].shape != scaled.shape:
                shapes = f"{tuple(scaled.shape)} and {tuple(whole[name].shape)}"
                raise RankwellError(f"{own}: {name} has another shape than in {first} ({shapes})")
            whole[name] = whole[name] + scaled if name in whole else scaled
        if whole.keys() != part.state_dict().keys():
            raise RankwellError(f"{own} has other parts than {first}; only models of one shape have a mean")
    model.load_state_dict({name: tensor.float() for name, tensor in whole.items()})
    save_checkpoint(target, model, tokenizer, config.model_copy(update={"history": history, "figures": {}}))


def _shares(options: AverageOptions) -> list[float]:
    weights = options.weights or (1.0,) * len(options.stages)
    return [weight / sum(weights) for weight in weights]


def check_average(work: Work, options: AverageOptions) -> None:
    """The stages must be there, before this one, and each have a share."""
    names = [stage.name for stage in work.recipe.stages]
    own = next(name for name, stage in zip(names, work.recipe.stages, strict=True) if stage.options is options)
    before = [START, *names[: names.index(own)]]
    if START in names:
        raise RankwellError(f"a stage may not be called {START!r}, which names the start checkpoint")
    for name in options.stages:
        if name not in before:
            raise RankwellError(f"stages.{own}.stages: no stage before it is called {name!r} ({', '.join(before)})")
    if len(set(options.stages)) < len(options.stages):
        raise RankwellError(f"stages.{own}.stages: a stage comes twice; give it a larger weight instead")
    if options.weights is not None and len(options.weights) != len(options.stages):
        raise RankwellError(f"stages.{own}.weights: {len(options.weights)} for {len(options.stages)} stages")
    if options.weights is not None and not (min(options.weights) >= 0 and sum(options.weights) > 0):
        raise RankwellError(f"stages.{own}.weights: none may be negative, nor all 0")
