"""Checkpoints: a Hugging Face folder plus ``rankwell.json``.

A folder without ``rankwell.json`` loads as monoBERT: a transformers classifier or sentence-transformers CrossEncoder as
it is, a bare encoder with a new head. What is saved here loads in plain transformers under the same names. Weights are
safetensors, never pickle.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_folder
from rankwell.inputs.templates import MARKER_PAIRS
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.card import model_card
from rankwell.models.config import (
    EncoderConfig,
    RankerConfig,
    TemplateConfig,
    read_encoder_config,
    read_object,
    read_ranker_config,
)
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


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of ``model.safetensors``, whole or in shards, under transformers' names without ``bert.``"""
    tensors: dict[str, Tensor] = {}
    for name in _weight_files(folder):
        if not (folder / name).is_file():
            hint = "; only safetensors are read, never pickle" if (folder / "pytorch_model.bin").exists() else ""
            raise InputError(folder, None, f"no {name}{hint}")
        try:
            tensors |= load_file(folder / name)
        except SafetensorError as error:
            raise InputError(folder / name, None, f"not a safetensors file ({error})") from None
    return {_present_name(name): tensor.float() for name, tensor in tensors.items()}


def _weight_files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise InputError(index, None, "not an index of shards (it has no weight_map of file names)")
    for name in shards.values():
        if Path(name).name != name:
            raise InputError(index, None, f"names a file outside the folder: {name!r}")
    return sorted(set(shards.values()))


def _present_name(name: str) -> str:
    """A tensor's name as transformers writes it today; the first BERT checkpoints say gamma and beta in norms."""
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


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
    """A model, its tokenizer and its configuration; ``changes`` replace parts of the configuration (attention, …).

    A checkpoint without a head for ranking gets a new one, and a warning: its scores mean nothing before training.
    """
    folder = Path(folder)
    config = read_encoder_config(folder)
    tensors = read_weights(folder)
    tokenizer = Tokenizer.open(folder)
    own = read_ranker_config(folder)
    ranker = (own or _as_monobert(tensors, config, tokenizer, folder)).changed(changes)
    if ranker.template.max_length > config.max_position_embeddings:
        limit = config.max_position_embeddings
        raise RankwellError(
            f"{folder}: a length of {ranker.template.max_length}, but the encoder has {limit} positions"
        )
    if len(tokenizer) > config.vocab_size:
        raise InputError(folder, None, f"a tokenizer of {len(tokenizer)} tokens, but {config.vocab_size} embeddings")
    model = CrossEncoder(Encoder(config), _HEAD_OUTPUTS[ranker.head], pooler=ranker.pooler)
    _fill(model.encoder, encoder_state(tensors, config.num_hidden_layers, folder), folder)
    missing = [name for name, part in _head_parts(model) if not _fill_part(part, name, tensors, folder)]
    if missing and own is not None and (own.head, own.pooler) == (ranker.head, ranker.pooler):
        raise InputError(folder, None, f"the weights lack {missing[0]}.weight")
    if missing:
        warnings.warn(f"{folder} has no {' and no '.join(missing)}: a new one is used, untrained", stacklevel=2)
    return model.eval(), tokenizer, ranker


def _head_parts(model: CrossEncoder) -> list[tuple[str, nn.Linear]]:
    """What stands on the encoder, under transformers' names."""
    pooler = [] if model.pooler is None else [("pooler.dense", model.pooler)]
    return [*pooler, ("classifier", model.head)]


def _fill_part(part: nn.Linear, name: str, tensors: Mapping[str, Tensor], folder: Path) -> bool:
    """Whether the checkpoint has this part; it is filled where it does."""
    if f"{name}.weight" not in tensors:
        return False
    if f"{name}.bias" not in tensors:
        raise InputError(folder, None, f"the weights lack {name}.bias")
    outputs = len(tensors[f"{name}.weight"])
    if name == "classifier" and outputs != part.out_features:
        raise InputError(folder, None, f"a head of {outputs} outputs, but the model is to have {part.out_features}")
    _fill(part, {kind: tensors[f"{name}.{kind}"] for kind in ("weight", "bias")}, folder)
    return True


def _fill(module: nn.Module, state: Mapping[str, Tensor], where: Path) -> None:
    for name, parameter in module.state_dict().items():
        if state[name].shape != parameter.shape:
            found, expected = tuple(state[name].shape), tuple(parameter.shape)
            raise InputError(where, None, f"{name} has the shape {found}, but config.json asks for {expected}")
    module.load_state_dict(state)


def _as_monobert(
    tensors: Mapping[str, Tensor], config: EncoderConfig, tokenizer: Tokenizer, folder: Path
) -> RankerConfig:
    """How to use a checkpoint that says nothing: its own head where it has one, else a new one of two logits."""
    outputs = len(tensors["classifier.weight"]) if "classifier.weight" in tensors else 2
    if outputs not in (1, 2):
        raise InputError(folder, None, f"a classifier of {outputs} classes; a ranker has 1 or 2")
    length = min(TemplateConfig().max_length, config.max_position_embeddings, tokenizer.max_length or 512)
    return RankerConfig(
        template=TemplateConfig(max_length=length, max_query=min(TemplateConfig().max_query, length - 4)),
        head="score" if outputs == 1 else "two_logits",
        pooler="pooler.dense.weight" in tensors,
    )


def save_checkpoint(folder: str | Path, model: CrossEncoder, tokenizer: Tokenizer, ranker: RankerConfig) -> None:
    """Write a folder that rankwell, plain transformers and sentence-transformers load; it must not exist yet."""
    folder = Path(folder)
    if folder.exists():
        raise RankwellError(f"{folder} exists already")
    labels = ["LABEL_0", "LABEL_1"][: model.head.out_features]
    description = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "pad_token_id": tokenizer.pad,
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        **asdict(model.encoder.config),
    }
    with atomic_folder(folder) as temporary:
        save_file(transformers_state(model), temporary / "model.safetensors", metadata={"format": "pt"})
        (temporary / "config.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        (temporary / "rankwell.json").write_text(ranker.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (temporary / "README.md").write_text(model_card(ranker, model.encoder.config), encoding="utf-8")
        tokenizer.save(temporary, ranker.template.max_length)


def add_markers(model: CrossEncoder, tokenizer: Tokenizer) -> None:
    """Give a model and its tokenizer MarkedBERT's 40 tokens; each embedding starts as the mean of its pieces'.

    Does nothing where they have them already.
    """
    pieces = tokenizer.add_markers()
    first, old = tokenizer.special.first_marker, model.encoder.tokens.weight
    if not pieces:
        if first + 2 * MARKER_PAIRS > len(old):
            raise RankwellError("the tokenizer has markers, but the model has no embeddings for them")
        return
    # A vocabulary may be padded: then the markers take rows that are there but were never trained.
    grown = nn.Embedding(max(len(old), len(tokenizer)), old.shape[1], device=old.device, dtype=old.dtype)
    with torch.no_grad():
        grown.weight[: len(old)] = old
        grown.weight[first : first + len(pieces)] = torch.stack([old[ids].mean(dim=0) for ids in pieces])
    model.encoder.tokens = grown
    model.encoder.config = replace(model.encoder.config, vocab_size=len(grown.weight))
