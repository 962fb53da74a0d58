"""Layers on vectors as sentence-transformers records them: pooling, and dense layers with an activation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankwell.core.errors import InputError
from rankwell.core.manifest import digest, read_object
from rankwell.models.checkpoints.tensors import read_tensors, tensor_bytes
from rankwell.models.spec import PoolingKind

Activation = Literal["identity", "tanh", "gelu", "relu", "silu", "sigmoid"]

VECTOR = "sentence_embedding"
ACTIVATIONS: dict[Activation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "gelu": "torch.nn.modules.activation.GELU",
    "relu": "torch.nn.modules.activation.ReLU",
    "silu": "torch.nn.modules.activation.SiLU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
}
_FUNCTIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "relu": functional.relu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}
POOLING: dict[str, PoolingKind] = {
    "mean": "mean",
    "cls": "first",
    "max": "max",
    "lasttoken": "last",
    "weightedmean": "weighted",
}
OLD_POOLING = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""How older versions record the same."""


@dataclass(frozen=True, eq=False)
class Dense:
    """A linear layer on vectors: ``weight`` (W, H), ``bias`` (W,) and an activation."""

    weight: Tensor
    bias: Tensor | None = None
    activation: Activation = "identity"

    def __call__(self, vectors: Tensor) -> Tensor:
        """(N, H) → (N, W)."""
        bias = None if self.bias is None else self.bias.to(vectors.device)
        mapped = functional.linear(vectors, self.weight.to(vectors.device), bias)
        return mapped if self.activation == "identity" else _FUNCTIONS[self.activation](mapped)

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        square = self.weight.shape[0] == self.weight.shape[1] and self.bias is None and self.activation == "identity"
        return square and torch.equal(self.weight, torch.eye(len(self.weight)))

    @property
    def name(self) -> str:
        """A hash of what it computes."""
        return digest([self.activation, hashlib.blake2b(tensor_bytes(self.tensors)).hexdigest()])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The parameters as sentence-transformers names them."""
        weight = {"linear.weight": self.weight.detach().float().cpu().contiguous()}
        return weight if self.bias is None else {**weight, "linear.bias": self.bias.detach().float().cpu().contiguous()}


def read_pooling(path: Path, *, prompted: bool = False) -> PoolingKind:
    """How a module ``Pooling`` makes one vector of the tokens' states."""
    if not path.is_file():
        raise InputError(path, None, "missing; it says how vectors are pooled")
    settings = read_object(path)
    if prompted and settings.get("include_prompt") is False:
        raise InputError(
            path, None, "include_prompt is false: vectors leave the prompt out; expected vectors of all tokens"
        )
    mode = settings.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else list(mode or ())
    if mode is None:
        ways = [name for name, value in settings.items() if name.startswith("pooling_mode") and value is True]
        modes = [OLD_POOLING.get(name, name) for name in ways]
    if len(modes) == 1 and modes[0] in POOLING:
        return POOLING[modes[0]]
    raise InputError(path, None, f"pooling by {', '.join(modes) or 'nothing'}; expected one of {', '.join(POOLING)}")


def read_dense(folder: Path, vectors: str = VECTOR) -> Dense:
    """A module ``Dense`` on ``vectors``, which are those of texts or of words."""
    settings = _dense_settings(folder)
    ends = {settings.get("module_input_name", vectors), settings.get("module_output_name") or vectors}
    if ends != {vectors} or settings.get("use_residual"):
        problem = "expected a dense layer on vectors, without a residual"
        raise InputError(folder / "config.json", None, problem)
    weight, bias = _dense_tensors(folder)
    return Dense(weight, bias, settings["activation"])


def read_layer(folder: Path) -> nn.Module:
    """A module ``Dense`` of a cross-encoder."""
    settings = _dense_settings(folder)
    if settings.get("use_residual"):
        raise InputError(folder / "config.json", None, "expected a dense layer without a residual")
    weight, bias = _dense_tensors(folder)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    name = ACTIVATIONS[settings["activation"]].rpartition(".")[2]
    return nn.Sequential(layer, getattr(nn, name)())


def _dense_settings(folder: Path) -> dict[str, Any]:
    """The settings of a module ``Dense``, with rankwell's name of its ``activation``."""
    path = folder / "config.json"
    try:
        settings = read_object(path)
    except FileNotFoundError:
        raise InputError(path, None, "missing; it describes a dense layer") from None
    names = {theirs.rpartition(".")[2]: ours for ours, theirs in ACTIVATIONS.items()}
    written = str(settings.get("activation_function", "Tanh")).rpartition(".")[2]
    if written not in names:
        raise InputError(path, None, f"a dense layer with the activation {written}; expected one of {', '.join(names)}")
    return {**settings, "activation": names[written]}


def _dense_tensors(folder: Path) -> tuple[Tensor, Tensor | None]:
    tensors = read_tensors(folder)
    if "linear.weight" not in tensors or tensors["linear.weight"].ndim != 2:
        raise InputError(folder, None, "the weights lack linear.weight")
    bias = tensors.get("linear.bias")
    return tensors["linear.weight"].float(), None if bias is None else bias.float()
