"""Checkpoints: a Hugging Face folder plus ``rankwell.json``.

A folder without ``rankwell.json`` loads as monoBERT: a transformers classifier or sentence-transformers CrossEncoder as
it is and, for training only, a bare encoder with a new head. Saved folders load in plain transformers. Weights are
safetensors, never pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_folder
from rankwell.core.jsonfile import read_json, read_object
from rankwell.inputs.templates import MARKER_PAIRS, Template
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.card import model_card
from rankwell.models.checkpoints.config import (
    RankerConfig,
    check_length,
    read_encoder_config,
    read_model_type,
    read_ranker_config,
)
from rankwell.models.checkpoints.names import find_model
from rankwell.models.checkpoints.tensors import read_tensors, restore_tensors, write_tensors
from rankwell.models.encoder import CrossEncoder, Encoder
from rankwell.models.foreign import (
    HEADS,
    ForeignEncoder,
    HeadNames,
    foreign_description,
    foreign_state,
    load_foreign,
)
from rankwell.models.heads import seeded
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
_HEAD_OUTPUTS = {"two_logits": 2, "score": 1}


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint in fp32, under transformers' names without ``bert.``"""
    tensors = restore_tensors(read_tensors(folder), folder)
    return {_present_name(name): tensor for name, tensor in tensors.items()}


def _present_name(name: str) -> str:
    """A tensor's name in current transformers; the first BERT checkpoints call a norm's parameters gamma and beta."""
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def encoder_state(tensors: Mapping[str, Tensor], config: EncoderConfig, where: Path) -> dict[str, Tensor]:
    """The encoder's parameters from transformers' tensors: renamed, with query, key and value joined.

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
    rows = {
        "tokens": config.vocab_size,
        "positions": config.max_position_embeddings,
        "segments": config.type_vocab_size,
        "layers.0.inner": config.intermediate_size,
    }
    _check_shapes(state, {f"{name}.weight": (count, config.hidden_size) for name, count in rows.items()}, where)
    return state


def _check_shapes(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    for name, expected in shapes.items():
        if (actual := tuple(state[name].shape)) != expected:
            raise InputError(where, None, f"{name} has the shape {actual}, but config.json asks for {expected}")


def encoder_tensors(encoder: Encoder | ForeignEncoder) -> dict[str, Tensor]:
    """The encoder's tensors under transformers' names, as a model with a head holds them."""
    if isinstance(encoder, ForeignEncoder):
        return foreign_state(encoder)
    state = encoder.state_dict()
    out: dict[str, Tensor] = {}
    for theirs, ours in _EMBEDDING_NAMES.items():
        for part in ("weight", "bias"):
            if f"{ours}.{part}" in state:
                out[f"bert.{theirs}.{part}"] = state[f"{ours}.{part}"]
    for layer in range(encoder.config.num_hidden_layers):
        new, old = f"bert.encoder.layer.{layer}.", f"layers.{layer}."
        for part in ("weight", "bias"):
            for name, tensor in zip(_PROJECTIONS, state[f"{old}qkv.{part}"].chunk(3), strict=True):
                out[f"{new}attention.self.{name}.{part}"] = tensor
            for theirs, ours in _LAYER_NAMES.items():
                out[f"{new}{theirs}.{part}"] = state[f"{old}{ours}.{part}"]
    return out


def transformers_state(model: CrossEncoder) -> dict[str, Tensor]:
    """The model's tensors, named as in transformers' classifier of its kind."""
    out = encoder_tensors(model.encoder)
    for name, part in _head_parts(model):
        prefix = "bert." if name == "pooler.dense" else ""
        out |= {f"{prefix}{name}.{kind}": tensor for kind, tensor in part.state_dict().items()}
    return out


def load_encoder(folder: Path) -> tuple[Encoder | ForeignEncoder, dict[str, Tensor], Tokenizer]:
    """The encoder of a folder, all the folder's tensors (for a head), and the tokenizer."""
    kind = read_model_type(folder)
    config = read_encoder_config(folder) if kind == "bert" else None
    tensors = read_weights(folder)
    tokenizer = Tokenizer.open(folder)
    encoder: Encoder | ForeignEncoder
    if config is None:
        encoder = load_foreign(folder, kind, tensors)
    else:
        state = encoder_state(tensors, config, folder)
        encoder = Encoder(config)
        fill(encoder, state, folder)
    if len(tokenizer) > (size := encoder.config.vocab_size):
        raise InputError(folder, None, f"a tokenizer of {len(tokenizer)} tokens, but {size} embeddings")
    return encoder, tensors, tokenizer


def load_checkpoint(
    folder: str | Path, *, new_head: bool = False, seed: int = 0, **changes: Any
) -> tuple[CrossEncoder, Tokenizer, RankerConfig]:
    """A model, its tokenizer and its configuration; ``changes`` replace parts of the configuration (attention, …).

    ``folder`` may be any name that ``names.find_model`` knows. A checkpoint without a ranking head raises, because its
    scores would be random; with ``new_head``, which is for training, it gets a head drawn with ``seed``. A ranker with
    a ``similarity`` needs no head to start from.
    """
    folder = find_model(folder)
    modules = [] if new_head or (folder / "rankwell.json").is_file() else _module_names(folder)
    if len(modules) > 1 and not changes.get("similarity"):
        raise _no_head(folder, modules)
    encoder, tensors, tokenizer = load_encoder(folder)
    config = encoder.config
    tensors = without_other_heads(tensors, folder, config)
    stated = read_ranker_config(folder)
    ranker = (stated or _as_monobert(tensors, config, tokenizer, folder)).changed(changes)
    check_length(folder, ranker.template.max_length, config)
    _restrict(encoder, ranker, folder)
    model = new_cross_encoder(
        encoder, _HEAD_OUTPUTS[ranker.head], pooler=ranker.pooler, seed=seed, similarity=ranker.similarity
    )
    missing = fill_head(model, tensors, folder)
    by_similarity = ranker.similarity > 0 and head_names(config).output in missing
    if by_similarity:
        start_as_bi_encoder(model)
    if missing and stated is not None and (stated.head, stated.pooler) == (ranker.head, ranker.pooler):
        raise InputError(folder, None, f"the weights lack {missing[0]}.weight")
    if missing and not (new_head or by_similarity):
        raise _no_head(folder, modules, missing)
    return model.eval(), tokenizer, ranker


def _module_names(folder: Path) -> list[str]:
    """The kinds of modules of a sentence-transformers folder, such as Transformer, Pooling; empty for other folders."""
    path = folder / "modules.json"
    try:
        return [str(entry["type"]).rpartition(".")[2] for entry in read_json(path)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (TypeError, KeyError):
        raise InputError(path, None, "not a list of modules, each with a type") from None


def _no_head(folder: Path, modules: Sequence[str], missing: Sequence[str] = ()) -> InputError:
    """The error for a folder that would be ranked with random weights; it says what the folder can be used for."""
    train = f"train a ranker from it: rankwell train RECIPE --set model.start={folder}"
    if not modules:
        return InputError(folder, None, f"has no ranking head (no {' and no '.join(missing)}), so cannot rank; {train}")
    kinds = f"a sentence-transformers model of the modules {', '.join(modules)}"
    if set(modules) <= {"Transformer", "Pooling", "Normalize"}:
        return InputError(folder, None, f"{kinds}: a bi-encoder, not a re-ranker; use it as --encoder, or {train}")
    problem = "only rankers saved as one classifier (…ForSequenceClassification) can be read"
    return InputError(folder, None, f"{kinds}; {problem}; use such a model, or {train}")


def _restrict(encoder: Encoder | ForeignEncoder, ranker: RankerConfig, folder: Path) -> None:
    """Set which tokens attend to which in the encoder's layers. Raises if it cannot follow the configuration."""
    config = encoder.config
    ranker.check_layers(config.num_hidden_layers)
    alone = any(field.alone for field in ranker.template.fields)
    apart = ranker.apart > 0 or ranker.similarity > 0 or alone
    if isinstance(encoder, ForeignEncoder):
        if apart or ranker.attention != "full" or ranker.attention_layers is not None:
            problem = "only BERT can follow an attention rule or read texts apart"
            raise InputError(folder, None, f"a model of the type {config.model_type}; {problem}")
        return
    if apart and config.type_vocab_size < 2:
        raise InputError(folder, None, "it knows one segment only: query and document cannot be told apart")
    encoder.restrict(ranker.apart, ranker.attention_layers)


def new_cross_encoder(
    encoder: Encoder | ForeignEncoder, outputs: int, *, pooler: bool, seed: int, similarity: float = 0.0
) -> CrossEncoder:
    """A cross-encoder with a new head, the same for the same seed."""
    names = HEADS.get(encoder.config.model_type)
    activation = names.activation if names else "tanh"
    with seeded(seed):
        return CrossEncoder(encoder, outputs, pooler=pooler, activation=activation, similarity=similarity)


def start_as_bi_encoder(model: CrossEncoder) -> None:
    """Start from the similarity alone: the head gives 0, and the document has the query's segment, the only one that a
    bi-encoder was trained with.
    """
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
        if isinstance(model.encoder, Encoder):
            model.encoder.segments.weight[1:] = model.encoder.segments.weight[:1]


def fill_head(model: CrossEncoder, tensors: Mapping[str, Tensor], folder: Path) -> list[str]:
    """Fill pooler and head from a checkpoint's tensors; returns the parts that it lacks, which stay new."""
    missing = []
    for name, part in _head_parts(model):
        if f"{name}.weight" not in tensors:
            missing.append(name)
            continue
        if f"{name}.bias" not in tensors:
            raise InputError(folder, None, f"the weights lack {name}.bias")
        outputs = len(tensors[f"{name}.weight"])
        if part is model.head and outputs != part.out_features:
            raise InputError(folder, None, f"a head of {outputs} outputs, but the model is to have {part.out_features}")
        fill(part, {kind: tensors[f"{name}.{kind}"] for kind in ("weight", "bias")}, folder)
    return missing


def head_names(config: EncoderConfig) -> HeadNames:
    """The names of the head's parts; other families have the head directly on [CLS]."""
    return HEADS.get(config.model_type, HeadNames("", "tanh", "classifier", ""))


def _head_parts(model: CrossEncoder) -> list[tuple[str, nn.Linear]]:
    """The pooler, if any, and the head, with their names in transformers."""
    names = head_names(model.encoder.config)
    pooler = [] if model.pooler is None else [(names.dense or "dense", model.pooler)]
    return [*pooler, (names.output, model.head)]


def fill(module: nn.Module, state: Mapping[str, Tensor], where: Path) -> None:
    """Load ``state``; raises if a shape differs."""
    _check_shapes(state, {name: tuple(parameter.shape) for name, parameter in module.state_dict().items()}, where)
    module.load_state_dict(state)


def without_other_heads(tensors: dict[str, Tensor], folder: Path, config: EncoderConfig) -> dict[str, Tensor]:
    """The tensors without a ``classifier`` that scores tokens or choices instead of sequences."""
    architectures = [str(name) for name in read_object(folder / "config.json").get("architectures") or []]
    if any(name.endswith(("ForTokenClassification", "ForMultipleChoice")) for name in architectures):
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("classifier.")}
    classifies = any(name.endswith("ForSequenceClassification") for name in architectures)
    if classifies and config.model_type not in HEADS:
        problem = f"a trained classifier of the type {config.model_type}; heads are read of {', '.join(HEADS)}"
        raise InputError(folder, None, problem)
    return tensors


def _as_monobert(
    tensors: Mapping[str, Tensor], config: EncoderConfig, tokenizer: Tokenizer, folder: Path
) -> RankerConfig:
    """The configuration of a checkpoint without one: with its own head, or with a new one of two logits."""
    names = head_names(config)
    outputs = len(tensors[f"{names.output}.weight"]) if f"{names.output}.weight" in tensors else 2
    if outputs not in (1, 2):
        raise InputError(folder, None, f"a classifier of {outputs} classes; a ranker has 1 or 2")
    length = min(Template().max_length, config.max_position_embeddings, tokenizer.max_length or 512)
    # transformers' classifiers of other families always have the dense layer, so a new head has it too.
    dense = config.model_type != "bert" if names.dense else False
    return RankerConfig(
        template=Template(max_length=length, max_query=min(Template().max_query, length - 4)),
        head="score" if outputs == 1 else "two_logits",
        pooler=dense or f"{names.dense}.weight" in tensors,
    )


def save_checkpoint(folder: str | Path, model: CrossEncoder, tokenizer: Tokenizer, ranker: RankerConfig) -> None:
    """Write a folder that rankwell, plain transformers and sentence-transformers load; it must not exist yet."""
    labels = ["LABEL_0", "LABEL_1"][: model.head.out_features]
    files = {
        "rankwell.json": ranker.model_dump_json(indent=2) + "\n",
        "README.md": model_card(ranker, model.encoder.config),
    }
    write_folder(
        folder,
        transformers_state(model),
        {**describe(model.encoder, head_names(model.encoder.config).architecture), **describe_labels(labels)},
        tokenizer,
        ranker.template.max_length,
        files,
    )


def describe(encoder: Encoder | ForeignEncoder, architecture: str) -> dict[str, Any]:
    """``config.json`` of an encoder with a head that transformers calls ``architecture``."""
    if isinstance(encoder, ForeignEncoder):
        return foreign_description(encoder)
    return {"architectures": [architecture], **asdict(encoder.config)}


def describe_labels(labels: Sequence[str]) -> dict[str, Any]:
    """The entries of ``config.json`` that name a classifier's outputs."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def write_folder(
    folder: str | Path,
    tensors: Mapping[str, Tensor],
    description: Mapping[str, Any],
    tokenizer: Tokenizer,
    max_length: int | None,
    files: Mapping[str, str | bytes] | None = None,
) -> None:
    """Write a Hugging Face folder, whole or not at all; it must not exist yet. ``files`` are further files by path."""
    folder = Path(folder)
    if folder.exists():
        raise RankwellError(f"{folder} exists already")
    settings = {**description, "pad_token_id": tokenizer.pad}
    state = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    with atomic_folder(folder) as temporary:
        write_tensors(state, temporary / "model.safetensors")
        for name, content in {"config.json": json.dumps(settings, indent=2) + "\n", **(files or {})}.items():
            (temporary / name).parent.mkdir(exist_ok=True, parents=True)
            (temporary / name).write_bytes(content.encode() if isinstance(content, str) else content)
        tokenizer.save(temporary, max_length)
        if description.get("type_vocab_size", 1) < 2:
            _leave_segments_out(temporary / "tokenizer_config.json")


def _leave_segments_out(path: Path) -> None:
    """Configure transformers' tokenizer for a model without segments, which would fail if it got any."""
    settings = read_object(path)
    settings["model_input_names"] = [name for name in settings["model_input_names"] if name != "token_type_ids"]
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def add_markers(model: CrossEncoder, tokenizer: Tokenizer) -> None:
    """Add MarkedBERT's 40 tokens to a model and its tokenizer; an embedding starts as the mean of its pieces.

    Does nothing if they have the tokens already.
    """
    pieces = tokenizer.add_markers()
    first, old = tokenizer.special.first_marker, model.encoder.tokens.weight
    if not pieces:
        if first + 2 * MARKER_PAIRS > len(old):
            raise RankwellError("the tokenizer has markers, but the model has no embeddings for them")
        return
    # A vocabulary may be padded: then the markers take existing rows that were never trained.
    grown = old.new_zeros(max(len(old), len(tokenizer)), old.shape[1])
    with torch.no_grad():
        grown[: len(old)] = old
        grown[first : first + len(pieces)] = torch.stack([old[ids].mean(dim=0) for ids in pieces])
    model.encoder.tokens.weight = nn.Parameter(grown)
    model.encoder.tokens.num_embeddings = len(grown)
    model.encoder.config = replace(model.encoder.config, vocab_size=len(grown))
