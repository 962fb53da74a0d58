"""AdamW with the papers' settings: which parameters decay, how fast each learns, and a state that is plain tensors.

The learning rate is a pure function of the step, so there is no scheduler whose state could be lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rankwell.core.errors import RankwellError
from rankwell.training.options import TrainingOptions

BETAS, EPSILON = (0.9, 0.999), 1e-8
# What a pre-trained checkpoint brings; all else (head, MLM and NSP heads, …) is new and is the head here.
_PRETRAINED = ("encoder", "pooler")


def warm_up_steps(steps: int, options: TrainingOptions) -> int:
    """The warm-up of a run of ``steps`` steps, in steps."""
    return round(options.warm_up * steps if options.warm_up < 1 else options.warm_up)


def learning_rate_at(step: int, steps: int, options: TrainingOptions) -> float:
    """The rate of step ``step``, counted from 0, of ``steps``.

    It rises in a line, ``(step + 1) / warm-up``, and then falls so that it would be 0 at step ``steps``: neither the
    first step nor the last is wasted on a rate of 0.

    >>> [learning_rate_at(step, 6, TrainingOptions(learning_rate=1, warm_up=2)) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    warm_up = warm_up_steps(steps, options)
    if step < warm_up:
        return options.learning_rate * (step + 1) / warm_up
    if options.schedule == "constant":
        return options.learning_rate
    left = max(0.0, (steps - step) / max(1, steps - warm_up))
    return options.learning_rate * (left if options.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2)


def make_optimiser(model: nn.Module, options: TrainingOptions, device: torch.device) -> torch.optim.AdamW:
    """AdamW over the parameters that are trained.

    Each group has its parameters' ``names`` and a ``scale``: its rate is ``scale`` times :func:`learning_rate_at`.
    """
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for name, parameter, decays in _trained_parameters(model):
        head = getattr(model, "head_prefix", None)
        pretrained = name.split(".")[0] in _PRETRAINED if head is None else not name.startswith(head)
        scale = 1.0 if pretrained else options.head_scale
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
    return torch.optim.AdamW(list(groups.values()), lr=options.learning_rate, betas=BETAS, eps=EPSILON, fused=fused)


def _trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """Name, parameter, and whether it decays; one that is shared comes once."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                # A single number is a scale, not a weight.
                decays = parameter.ndim > 0 and not (isinstance(module, nn.LayerNorm) or name.startswith("bias"))
                yield f"{prefix}.{name}" if prefix else name, parameter, decays


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
            shape, expected = tuple(tensor.shape), tuple(parameter.shape)
            raise ValueError(f"the optimiser's {key} has the shape {shape}, expected {expected}")
        state.setdefault(number, {})[kind] = tensor.clone()
    optimiser.load_state_dict({"state": state, "param_groups": numbered})
