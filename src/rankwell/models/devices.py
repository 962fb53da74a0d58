"""Where a model computes, and in what: as was asked for, or the best there is."""

from __future__ import annotations

import os
from typing import Literal

import torch

from rankwell.core.errors import RankwellError

Precision = Literal["fp32", "bf16"]
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
VARIABLE = "RANKWELL_DEVICE"
"""In the environment: the device of everything that was given none."""


def device_named(name: str | None) -> torch.device:
    """The device of that name, or without one that of the environment, or without either a GPU where there is one.

    It need not be on this machine: a worker's may be meant.
    """
    name = name or os.environ.get(VARIABLE)
    if not name:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise RankwellError(f"device {name}: torch knows none of that name; cpu, cuda and cuda:1 are some") from None


def chosen_device(name: str | None) -> torch.device:
    """The same, to compute on here and now."""
    device = device_named(name)
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise RankwellError(f"device {device}: torch sees {f'{gpus} GPUs' if gpus else 'no GPU'} on this machine")
    return device
