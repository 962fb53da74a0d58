"""``average``: the mean of several stages' weights, at the inference cost of one model.

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
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.models.checkpoints.names import find_model
from rankwell.papers.mini.options import AverageOptions
from rankwell.training.options import START
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, StageKind, StageResult, Work, process_number
from rankwell.training.stages.shared import RankerInTraining, load_one_score, measure_ranker


def run(work: Work, stage: RecipeStage[AverageOptions], folder: Path) -> StageResult:
    """Average the stages' weights; everything else is taken from the last of them."""
    options = stage.options
    models = {done.stage.name: done.result.model for done in work.done}
    parts: dict[str, RankerInTraining] = {}
    for name in options.stages:
        if name == START:
            parts[name] = load_one_score(replace(work, model=find_model(work.recipe.model.start)), "new")
        elif (model := models[name]) is None:
            raise RankwellError(f"{stage.path}: the stage {name} leaves no model")
        else:
            parts[name] = RankerInTraining(*load_checkpoint(model))
    target = folder / "model"
    if process_number() == 0:
        shutil.rmtree(target, ignore_errors=True)
        save_average(parts, _shares(options), target, work.history)
    return StageResult(target, figures={"weights": dict(zip(options.stages, _shares(options), strict=True))})


def save_average(
    parts: Mapping[str, RankerInTraining], shares: Sequence[float], target: Path, history: list[dict[str, Any]]
) -> None:
    """Write the mean of models of one shape, in fp32 and summed in fp64, to ``target``."""
    whole: dict[str, torch.Tensor] = {}
    first = next(iter(parts))
    last = list(parts.values())[-1]
    for (stage, part), share in zip(parts.items(), shares, strict=True):
        tensors = part.model.state_dict()
        for name, tensor in tensors.items():
            scaled = tensor.double() * share
            if name in whole and whole[name].shape != scaled.shape:
                shapes = f"{tuple(scaled.shape)} and {tuple(whole[name].shape)}"
                raise RankwellError(f"{stage}: {name} has another shape than in {first} ({shapes})")
            whole[name] = whole[name] + scaled if name in whole else scaled
        if whole.keys() != tensors.keys():
            raise RankwellError(f"{stage} has other parts than {first}; only models of one shape can be averaged")
    last.model.load_state_dict({name: tensor.float() for name, tensor in whole.items()})
    config = last.config.model_copy(update={"history": history, "figures": {}})
    save_checkpoint(target, last.model, last.tokenizer, config)


def _shares(options: AverageOptions) -> list[float]:
    weights = options.weights or (1.0,) * len(options.stages)
    return [weight / sum(weights) for weight in weights]


def check(work: Work, stage: RecipeStage[AverageOptions]) -> None:
    """Raise unless the stages come before this one and each has a weight."""
    options = stage.options
    before = [START, *(earlier.name for earlier in work.recipe.before(stage))]
    if any(other.name == START for other in work.recipe.stages):
        raise RankwellError(f"a stage may not be called {START!r}, which names the start checkpoint")
    for name in options.stages:
        if name not in before:
            raise RankwellError(f"{stage.path}.stages: no stage before it is called {name!r} ({', '.join(before)})")
    if len(set(options.stages)) < len(options.stages):
        raise RankwellError(f"{stage.path}.stages: a stage comes twice; give it a larger weight instead")
    if options.weights is not None and len(options.weights) != len(options.stages):
        raise RankwellError(f"{stage.path}.weights: {len(options.weights)} for {len(options.stages)} stages")
    if options.weights is not None and not (min(options.weights) >= 0 and sum(options.weights) > 0):
        raise RankwellError(f"{stage.path}.weights: none may be negative, nor all 0")


STAGES.register("average")(StageKind(AverageOptions, run, check, measure_ranker))
