"""A checkpoint's tensors on disk: safetensors, whole, in shards, or with 8-bit weights.

8-bit weights take a quarter of the disk space, for the model that ships; they are computed in 32 or 16 bits.
A matrix ``NAME`` of (R, C) is two tensors of ``model.int8.safetensors``:

    ==============  =============  ==================================================================
    ``NAME.int8``   int8 (R, C)    round(weight / scale), from −127 to 127
    ``NAME.scale``  fp16 (R, G)    largest magnitude / 127 of each of a row's G groups of like size
    ==============  =============  ==================================================================

All other tensors (biases, norms, heads) stay as they are. The file has a different name because libraries that do not
know the format would load its integers, or new random weights, without an error; now they find no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from rankwell.core.checksums import verify_folder
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import read_object
from rankwell.models.encoder import Encoder
from rankwell.models.spec import FAMILIES, EncoderConfig

QUANTISED = "model.int8.safetensors"
GROUP = 64
"""Weights that share a scale. With one scale per row, the errors of MiniLM's scores were nearly twice as large."""
LEAST = 4096
"""Smaller matrices are not quantised: a head takes little disk space and matters much for the scores."""
_LARGEST = 127


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a file with the usual permissions; safetensors would let only the owner read it."""
    path.write_bytes(tensor_bytes(tensors))


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The contents of a safetensors file."""
    return save(dict(tensors), metadata={"format": "pt"})


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of ``model.safetensors``, whole or in shards, or of the file with 8-bit weights.

    Raises if a file of the folder was damaged since rankwell wrote it; other folders have no checksums.
    """
    verify_folder(folder)
    tensors: dict[str, Tensor] = {}
    for name in _weight_files(folder):
        if not (folder / name).is_file():
            hint = "; only safetensors are read, never pickle" if (folder / "pytorch_model.bin").exists() else ""
            raise InputError(folder, None, f"no {name}{hint}")
        try:
            tensors |= load_file(folder / name)
        except SafetensorError as error:
            raise InputError(folder / name, None, f"not a safetensors file ({error})") from None
    return tensors


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors as they are stored, without reading the tensors; empty if there is no file."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in (folder / name for name in _weight_files(folder)):
        if path.is_file():
            try:
                with safe_open(path, "pt") as file:
                    shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            except SafetensorError as error:
                raise InputError(path, None, f"not a safetensors file ({error})") from None
    return shapes


def _weight_files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        quantised = (folder / QUANTISED).is_file() and not (folder / "model.safetensors").is_file()
        return [QUANTISED if quantised else "model.safetensors"]
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise InputError(index, None, "not an index of shards (it has no weight_map of file names)")
    for name in shards.values():
        if Path(name).name != name:
            raise InputError(index, None, f"names a file outside the folder: {name!r}")
    return sorted(set(shards.values()))


def quantise_tensors(tensors: Mapping[str, Tensor], group: int = GROUP) -> dict[str, Tensor]:
    """The tensors as the file stores them: large matrices as integers and scales."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(".int8"):
            raise RankwellError("the weights are in 8 bits already")
        if tensor.dim() != 2 or tensor.numel() < LEAST or not tensor.is_floating_point():
            stored[name] = tensor.contiguous()
            continue
        stored[f"{name}.int8"], stored[f"{name}.scale"] = quantise(tensor, group)
    return stored


def quantise(weight: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """A matrix (R, C) as int8 (R, C) and scales (R, G); rows that do not divide into groups have one scale."""
    rows, columns = weight.shape
    parts = weight.detach().float().reshape(rows, columns // group if columns % group == 0 else 1, -1)
    if not parts.isfinite().all():
        raise RankwellError("weights that are not numbers cannot be quantised")
    scale = (parts.abs().amax(dim=2) / _LARGEST).half()
    # Divided by the scale as stored, in fp16; if it rounds to 0, so does every weight of the group.
    divisor = torch.where(scale == 0, 1.0, scale.float())[:, :, None]
    integers = (parts / divisor).round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
    return integers.reshape(rows, columns), scale


def restore_tensors(tensors: Mapping[str, Tensor], where: Path) -> dict[str, Tensor]:
    """The tensors of the model in fp32, from those of a file; 8-bit weights are restored."""
    restored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(".int8"):
            name = name.removesuffix(".int8")
            restored[name] = _restore(name, tensor, tensors.get(f"{name}.scale"), where)
        elif not (name.endswith(".scale") and f"{name.removesuffix('.scale')}.int8" in tensors):
            restored[name] = tensor.float()
    return restored


def _restore(name: str, integers: Tensor, scale: Tensor | None, where: Path) -> Tensor:
    if scale is None:
        raise InputError(where, None, f"the weights lack {name}.scale")
    shapes = integers.dim() == scale.dim() == 2 and len(scale) == len(integers)
    if not shapes or not scale.shape[1] or integers.shape[1] % scale.shape[1] or integers.dtype != torch.int8:
        actual = f"{tuple(integers.shape)} and {tuple(scale.shape)}"
        raise InputError(where, None, f"{name}: integers and scales of the shapes {actual} do not go together")
    return (integers.float().reshape(*scale.shape, -1) * scale.float()[:, :, None]).reshape(integers.shape)


# An encoder's tensors under transformers' names and under rankwell's


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
MLM_PARTS = {
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
}
"""The head that predicts masked tokens: our names, and those of transformers' BERT."""
MLM_BIAS = "cls.predictions.bias"
MLM_WEIGHT = "cls.predictions.decoder.weight"
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
