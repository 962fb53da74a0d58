"""Checkpoints: a Hugging Face folder plus ``rankwell.json``.

A folder without ``rankwell.json`` loads as monoBERT: a transformers classifier or sentence-transformers CrossEncoder as
it is, a bare encoder with a new head. What is saved here loads in plain transformers under the same names. Weights are
safetensors, never pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_folder
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.config import EncoderConfig, RankerConfig
from rankwell.models.encoder import CrossEncoder, Encoder

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
_HEAD_OUTPUTS = {"two_logits": 2, "score": 1}


def read_encoder_config(folder: Path) -> EncoderConfig:
    """The encoder's numbers from ``config.json``."""
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(folder, None, "not a checkpoint (it has no config.json)") from None
    except ValueError:
        raise InputError(path, None, "not JSON") from None
    if found.get("model_type") not in ("bert", None):
        raise InputError(path, None, f"a {found['model_type']} model; this rankwell reads bert")
    if found.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(path, None, f"positions of the kind {found['position_embedding_type']}; expected absolute")
    known = {field.name for field in fields(EncoderConfig)}
    try:
        return EncoderConfig(**{name: value for name, value in found.items() if name in known})
    except TypeError as error:
        raise InputError(path, None, f"not the configuration of a BERT encoder ({error})") from None


def read_ranker_config(folder: Path) -> RankerConfig | None:
    """``rankwell.json``, or None where there is none."""
    path = folder / "rankwell.json"
    try:
        return RankerConfig.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        first = str(error).splitlines()
        raise InputError(path, None, f"not a ranker's configuration ({' '.join(first[1:3]).strip()})") from None


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of ``model.safetensors``, whole or in shards, under transformers' names without ``bert.``"""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        if Path(name).name != name:
            raise InputError(index, None, f"names a file outside the folder: {name!r}")
        if not (folder / name).is_file():
            hint = "; only safetensors are read, never pickle" if (folder / "pytorch_model.bin").exists() else ""
            raise InputError(folder, None, f"no {name}{hint}")
        try:
            tensors |= load_file(folder / name)
        except SafetensorError as error:
            raise InputError(folder / name, None, f"not a safetensors file ({error})") from None
    return {name.removeprefix("bert."): tensor.float() for name, tensor in tensors.items()}


def encoder_state(tensors: Mapping[str, Tensor], layers: int, where: Path) -> dict[str, Tensor]:
    """The encoder's parameters from transformers' tensors: renamed, with query, key and value joined."""
    state: dict[str, Tensor] = {}
    try:
        for theirs, ours in _EMBEDDING_NAMES.items():
            for part in ("weight", "bias"):
                if f"{theirs}.{part}" in tensors or (ours == "norm" or part == "weight"):
                    state[f"{ours}.{part}"] = tensors[f"{theirs}.{part}"]
        for layer in range(layers):
            old, new = f"encoder.layer.{layer}.", f"layers.{layer}."
            for part in ("weight", "bias"):
                joined = [tensors[f"{old}attention.self.{name}.{part}"] for name in _PROJECTIONS]
                state[f"{new}qkv.{part}"] = torch.cat(joined)
                for theirs, ours in _LAYER_NAMES.items():
                    state[f"{new}{ours}.{part}"] = tensors[f"{old}{theirs}.{part}"]
    except KeyError as error:
        raise InputError(where, None, f"the weights lack {error.args[0]}") from None
    return state


def transformers_state(model: CrossEncoder) -> dict[str, Tensor]:
    """The inverse of :func:`encoder_state`, with pooler and head, named as in BertForSequenceClassification."""
    state = model.encoder.state_dict()
    out: dict[str, Tensor] = {}
    for theirs, ours in _EMBEDDING_NAMES.items():
        for part in ("weight", "bias"):
            if f"{ours}.{part}" in state:
                out[f"bert.{theirs}.{part}"] = state[f"{ours}.{part}"]
    for layer in range(model.encoder.config.num_hidden_layers):
        new, old = f"bert.encoder.layer.{layer}.", f"layers.{layer}."
        for part in ("weight", "bias"):
            for name, tensor in zip(_PROJECTIONS, state[f"{old}qkv.{part}"].chunk(3), strict=True):
                out[f"{new}attention.self.{name}.{part}"] = tensor
            for theirs, ours in _LAYER_NAMES.items():
                out[f"{new}{theirs}.{part}"] = state[f"{old}{ours}.{part}"]
    if model.pooler is not None:
        out |= {f"bert.pooler.dense.{name}": value for name, value in model.pooler.state_dict().items()}
    out |= {f"classifier.{name}": value for name, value in model.head.state_dict().items()}
    return {name: tensor.contiguous().clone() for name, tensor in out.items()}


def load_checkpoint(folder: str | Path, **changes: Any) -> tuple[CrossEncoder, Tokenizer, RankerConfig]:
    """A model, its tokenizer and its configuration; ``changes`` replace parts of the configuration (attention, …)."""
    folder = Path(folder)
    config = read_encoder_config(folder)
    tensors = read_weights(folder)
    ranker = read_ranker_config(folder) or _as_monobert(tensors, folder)
    if changes:
        ranker = RankerConfig.model_validate({**ranker.model_dump(), **changes})
    tokenizer = Tokenizer.open(folder)
    if ranker.template.max_length > config.max_position_embeddings:
        limit = config.max_position_embeddings
        raise RankwellError(
            f"{folder}: a length of {ranker.template.max_length}, but the encoder has {limit} positions"
        )
    model = CrossEncoder(Encoder(config), _HEAD_OUTPUTS[ranker.head], pooler=ranker.pooler)
    model.encoder.load_state_dict(encoder_state(tensors, config.num_hidden_layers, folder))
    if model.pooler is not None and "pooler.dense.weight" in tensors:
        model.pooler.load_state_dict({part: tensors[f"pooler.dense.{part}"] for part in ("weight", "bias")})
    if "classifier.weight" in tensors:
        if tensors["classifier.weight"].shape != model.head.weight.shape:
            outputs = tensors["classifier.weight"].shape[0]
            raise InputError(
                folder, None, f"a head of {outputs} outputs, but {ranker.head} asks for {model.head.out_features}"
            )
        model.head.load_state_dict({part: tensors[f"classifier.{part}"] for part in ("weight", "bias")})
    return model.eval(), tokenizer, ranker


def _as_monobert(tensors: Mapping[str, Tensor], folder: Path) -> RankerConfig:
    """How to use a checkpoint that says nothing: its own head where it has one, else a new one of two logits."""
    outputs = tensors["classifier.weight"].shape[0] if "classifier.weight" in tensors else 2
    if outputs not in (1, 2):
        raise InputError(folder, None, f"a classifier of {outputs} classes; a ranker has 1 or 2")
    return RankerConfig(head="score" if outputs == 1 else "two_logits", pooler="pooler.dense.weight" in tensors)


def save_checkpoint(folder: str | Path, model: CrossEncoder, tokenizer: Tokenizer, ranker: RankerConfig) -> None:
    """Write a folder that rankwell, plain transformers and sentence-transformers load; it must not exist yet."""
    folder = Path(folder)
    if folder.exists():
        raise RankwellError(f"{folder} exists already")
    description = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "pad_token_id": tokenizer.pad,
        "num_labels": model.head.out_features,
        **asdict(model.encoder.config),
    }
    if model.head.out_features == 1:
        description |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    with atomic_folder(folder) as temporary:
        save_file(transformers_state(model), temporary / "model.safetensors", metadata={"format": "pt"})
        (temporary / "config.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        (temporary / "rankwell.json").write_text(ranker.model_dump_json(indent=2) + "\n", encoding="utf-8")
        tokenizer.save(temporary)
