"""An encoder's tensors under transformers' names and under rankwell's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from rankwell.core.errors import InputError
from rankwell.models.checkpoints.tensors import read_tensors, restore_tensors
from rankwell.models.encoder import Encoder
from rankwell.models.families import FAMILIES
from rankwell.models.spec import EncoderConfig

_LAYER_NAMES = {
    "attention.output.dense": "mix",
    "attention.output.LayerNorm": "mix_norm",
    "intermediate.dense": "inner",
    "output.dense": "outer",
    "output.LayerNorm": "outer_norm",
}
_EMBEDDING_NAMES = {
    "embeddings.word_embeddings": "tokens",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "segments",
    "embeddings.LayerNorm": "norm",
}
_PROJECTIONS = ("query", "key", "value")
_PREFIXES = tuple({f"{family.prefix}." for family in FAMILIES.values()})


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint in fp32, under transformers' names without ``bert.`` or its like."""
    tensors = restore_tensors(read_tensors(folder), folder)
    return {_present_name(name): tensor for name, tensor in tensors.items()}


def _present_name(name: str) -> str:
    """A tensor's name in current transformers; the first BERT checkpoints call a norm's parameters gamma and beta."""
    name = next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def encoder_state(tensors: Mapping[str, Tensor], config: EncoderConfig, where: Path) -> dict[str, Tensor]:
    """The encoder's parameters from transformers' tensors: renamed, with query, key and value joined, and without the
    positions that are not used.

    Raises if the weights have other sizes than ``config``. Call it before building the encoder, whose size is that of
    the configuration, however absurd.
    """
    state: dict[str, Tensor] = {}
    try:
        for theirs, ours in _EMBEDDING_NAMES.items():
            for part in ("weight", "bias"):
                if f"{theirs}.{part}" in tensors or (ours == "norm" or part == "weight"):
                    state[f"{ours}.{part}"] = tensors[f"{theirs}.{part}"]
        for layer in range(config.num_hidden_layers):
            old, new = f"encoder.layer.{layer}.", f"layers.{layer}."
            for part in ("weight", "bias"):
                joined = [tensors[f"{old}attention.self.{name}.{part}"] for name in _PROJECTIONS]
                state[f"{new}qkv.{part}"] = torch.cat(joined)
                for theirs, ours in _LAYER_NAMES.items():
                    state[f"{new}{ours}.{part}"] = tensors[f"{old}{theirs}.{part}"]
    except KeyError as error:
        raise InputError(where, None, f"the weights lack {error.args[0]}") from None
    state["positions.weight"] = state["positions.weight"][config.positions_from :]
    rows = {
        "tokens": config.vocab_size,
        "positions": config.max_position_embeddings,
        "segments": config.type_vocab_size,
        "layers.0.inner": config.intermediate_size,
    }
    check_shapes(state, {f"{name}.weight": (count, config.hidden_size) for name, count in rows.items()}, where)
    return state


def check_shapes(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Raise unless the tensors have these shapes."""
    for name, expected in shapes.items():
        if (actual := tuple(state[name].shape)) != expected:
            raise InputError(where, None, f"{name} has the shape {actual}, but config.json asks for {expected}")


def encoder_tensors(encoder: Encoder) -> dict[str, Tensor]:
    """The encoder's tensors under transformers' names, as a model with a head holds them."""
    state = encoder.state_dict()
    config = encoder.config
    prefix = FAMILIES[config.model_type].prefix
    unused = torch.zeros(config.positions_from, config.hidden_size).to(state["positions.weight"])
    state["positions.weight"] = torch.cat([unused, state["positions.weight"]])
    out: dict[str, Tensor] = {}
    for theirs, ours in _EMBEDDING_NAMES.items():
        for part in ("weight", "bias"):
            if f"{ours}.{part}" in state:
                out[f"{prefix}.{theirs}.{part}"] = state[f"{ours}.{part}"]
    for layer in range(config.num_hidden_layers):
        new, old = f"{prefix}.encoder.layer.{layer}.", f"layers.{layer}."
        for part in ("weight", "bias"):
            for name, tensor in zip(_PROJECTIONS, state[f"{old}qkv.{part}"].chunk(3), strict=True):
                out[f"{new}attention.self.{name}.{part}"] = tensor
            for theirs, ours in _LAYER_NAMES.items():
                out[f"{new}{theirs}.{part}"] = state[f"{old}{ours}.{part}"]
    return out


def fill(module: nn.Module, state: Mapping[str, Tensor], where: Path) -> None:
    """Load ``state``; raises if a shape differs."""
    check_shapes(state, {name: tuple(parameter.shape) for name, parameter in module.state_dict().items()}, where)
    module.load_state_dict(state)
