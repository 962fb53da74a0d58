"""AdamW with the papers' settings: which parameters decay, how fast each learns, and a state that is plain tensors.

The learning rate is a pure function of the step, so there is no scheduler whose state could be lost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from rankwell.core.errors import RankwellError

Schedule = Literal["linear", "constant", "cosine"]
_LAYER = re.compile(r"(?:^|\.)encoder\.layers\.(\d+)\.")
# What a pre-trained checkpoint brings; all else (head, MLM and NSP heads, …) is new and is the head here.
_PRETRAINED = ("encoder", "pooler")


@dataclass(frozen=True)
class OptimiserOptions:
    """AdamW's settings. Papers on BERT-large use rates of 1e-6 to 3e-6; small models need some ten times as much."""

    learning_rate: float = 2e-5
    """The highest rate, reached at the end of the warm-up."""
    weight_decay: float = 0.01
    """Of all but biases and LayerNorm."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    warm_up: float = 0.1
    """Below 1 a share of all steps, from 1 on a number of steps."""
    schedule: Schedule = "linear"
    """After the warm-up: falls to 0 in a line or a cosine, or stays."""
    clip: float = 1.0
    """Longest gradient (its norm over all parameters); 0 does not clip."""
    layer_decay: float = 1.0
    """Each layer learns at this multiple of the rate of the one above it; the embeddings are the lowest layer."""
    head_scale: float = 1.0
    """What stands on the pre-trained part learns at this multiple of the rate."""

    def __post_init__(self) -> None:
        beyond = {
            "learning_rate": (self.learning_rate > 0, "a number above 0"),
            "weight_decay": (self.weight_decay >= 0, "a number of 0 or more"),
            "betas": (len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas), "two numbers from 0 up to 1"),
            "eps": (self.eps > 0, "a number above 0"),
            "warm_up": (self.warm_up >= 0, "a share below 1 or a number of steps"),
            "schedule": (self.schedule in get_args(Schedule), ", ".join(get_args(Schedule))),
            "clip": (self.clip >= 0, "a number of 0 or more"),
            "layer_decay": (0 < self.layer_decay <= 1, "a number above 0, at most 1"),
            "head_scale": (self.head_scale > 0, "a number above 0"),
        }
        for name, (right, expected) in beyond.items():
            # Also refuses what is not a number: every comparison with it is false, infinity apart.
            if not right or getattr(self, name) == math.inf:
                raise RankwellError(f"{name} is {getattr(self, name)!r}, expected {expected}")


def warm_up_steps(steps: int, options: OptimiserOptions) -> int:
    """The warm-up of a run of ``steps`` steps, in steps."""
    return round(options.warm_up * steps if options.warm_up < 1 else options.warm_up)


def learning_rate_at(step: int, steps: int, options: OptimiserOptions) -> float:
    """The rate of step ``step``, counted from 0, of ``steps``.

    It rises in a line, ``(step + 1) / warm-up``, and then falls so that it would be 0 at step ``steps``: neither the
    first step nor the last is wasted on a rate of 0.

    >>> [learning_rate_at(step, 6, OptimiserOptions(1.0, warm_up=2)) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    warm_up = warm_up_steps(steps, options)
    if step < warm_up:
        return options.learning_rate * (step + 1) / warm_up
    if options.schedule == "constant":
        return options.learning_rate
    left = max(0.0, (steps - step) / max(1, steps - warm_up))
    return options.learning_rate * (left if options.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2)


def make_optimiser(model: nn.Module, options: OptimiserOptions, device: torch.device) -> torch.optim.AdamW:
    """AdamW over the parameters that are trained.

    Each group has its parameters' ``names`` and a ``scale``: its rate is ``scale`` times :func:`learning_rate_at`.
    """
    layers = [int(found[1]) for name, _ in model.named_parameters() if (found := _LAYER.search(name))]
    depth = max(layers, default=-1) + 1
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for name, parameter, decays in _trained_parameters(model):
        scale = _scale(name, depth, options)
        decay = options.weight_decay if decays else 0.0
        rate = options.learning_rate * scale
        empty = {"params": [], "names": [], "weight_decay": decay, "scale": scale, "lr": rate}
        group = groups.setdefault((decays, scale), empty)
        group["params"].append(parameter)
        group["names"].append(name)
    if not groups:
        raise RankwellError("the model has no parameter to train")
    # `fused=False` would rule out the fast paths of other devices.
    fused = True if device.type in ("cuda", "cpu") else None
    return torch.optim.AdamW(
        list(groups.values()), lr=options.learning_rate, betas=options.betas, eps=options.eps, fused=fused
    )


def _trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """Name, parameter, and whether it decays; one that is shared comes once."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                decays = not (isinstance(module, nn.LayerNorm) or name.startswith("bias"))
                yield f"{prefix}.{name}" if prefix else name, parameter, decays


def _scale(name: str, depth: int, options: OptimiserOptions) -> float:
    """The multiple of the learning rate of one parameter, in a model of ``depth`` layers."""
    if name.split(".")[0] not in _PRETRAINED:
        return options.head_scale
    layer = _LAYER.search(name)
    if layer:
        return options.layer_decay ** (depth - 1 - int(layer[1]))
    return options.layer_decay**depth if name.startswith("encoder.") else 1.0


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as ``PARAMETER/KIND`` → tensor, for safetensors; nothing before the first step."""
    return {
        f"{name}/{kind}": value.detach().contiguous()
        for group in optimiser.param_groups
        for name, parameter in zip(group["names"], group["params"], strict=True)
        for kind, value in optimiser.state.get(parameter, {}).items()
    }


def load_optimiser_tensors(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore what :func:`optimiser_tensors` gave, bit for bit; a ValueError where it is another model's.

    A parameter that never had a gradient has no state, here as there.
    """
    numbered = optimiser.state_dict()["param_groups"]
    places = {
        name: (number, parameter)
        for group, plain in zip(optimiser.param_groups, numbered, strict=True)
        for name, number, parameter in zip(group["names"], plain["params"], group["params"], strict=True)
    }
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, kind = key.rpartition("/")
        if name not in places:
            raise ValueError(f"the optimiser has no parameter {name or key!r}")
        number, parameter = places[name]
        if tensor.ndim and tensor.shape != parameter.shape:
            found, expected = tuple(tensor.shape), tuple(parameter.shape)
            raise ValueError(f"the optimiser's {key} has the shape {found}, expected {expected}")
        state.setdefault(number, {})[kind] = tensor.clone()
    optimiser.load_state_dict({"state": state, "param_groups": numbered})
