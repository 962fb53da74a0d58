"""Sentence-transformers folders: how a text's states become its vector, and the files that record it.

``modules.json`` lists what follows the encoder: pooling, normalisation and dense layers. A ``Router`` holds dense
layers of queries and others of documents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from rankwell.core.errors import InputError
from rankwell.core.jsonfile import read_json, read_object
from rankwell.core.manifest import digest
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.card import bi_encoder_card
from rankwell.models.checkpoints.folders import describe, write_folder
from rankwell.models.checkpoints.renaming import encoder_tensors
from rankwell.models.checkpoints.tensors import read_tensors, tensor_bytes
from rankwell.models.encoder import Encoder
from rankwell.models.families import FAMILIES
from rankwell.models.foreign import ForeignEncoder, foreign_description
from rankwell.models.spec import PoolingKind

Activation = Literal["identity", "tanh"]

MODULES = ("Transformer", "Pooling", "Normalize", "Dense", "Router")
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of the documents' prompt; the first that a folder records is used."""
_VECTOR = "sentence_embedding"
_CONFIG = "config_sentence_transformers.json"
_ACTIVATIONS: dict[Activation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
}
_WHERE = {
    "Transformer": "base.modules.transformer",
    "Pooling": "sentence_transformer.modules.pooling",
    "Normalize": "base.modules.normalize",
    "Dense": "base.modules.dense",
    "Router": "base.modules.router",
}


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
        return torch.tanh(mapped) if self.activation == "tanh" else mapped

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


@dataclass(frozen=True, eq=False)
class Modules:
    """What follows the encoder: pooling, then dense layers of queries and of documents, then normalisation.

    ``normalised`` says whether the pooled vectors are normalised before dense layers, too.
    """

    pooling: PoolingKind = "mean"
    normalised: bool = True
    query: tuple[Dense, ...] = ()
    document: tuple[Dense, ...] = ()


@dataclass(frozen=True)
class Prompts:
    """Texts put before each query and each document."""

    query: str = ""
    document: str = ""


def read_modules(folder: Path, width: int, *, prompted: bool = False) -> Modules:
    """What follows an encoder of this width in a folder; without ``modules.json``, pooling and normalisation."""
    listed = _read_list(folder)
    pooling = _read_pooling(folder, dict(listed).get("Pooling"), prompted=prompted)
    normalised, query, document = False, list[Dense](), list[Dense]()
    for number, (kind, place) in enumerate(listed):
        if kind == "Normalize" and not (query or document):
            normalised = True
        elif kind == "Normalize" and any(later in ("Dense", "Router") for later, _ in listed[number:]):
            problem = "dense layers before and after a Normalize; expected them side by side"
            raise InputError(folder / "modules.json", None, problem)
        elif kind == "Dense":
            layer = _read_dense(folder / place)
            query.append(layer)
            document.append(layer)
        elif kind == "Router":
            query += _read_route(folder / place, "query")
            document += _read_route(folder / place, "document")
    if _width(query, width) is None or _width(query, width) != _width(document, width):
        raise InputError(folder, None, "its dense layers do not fit together")
    return Modules(pooling, normalised or not (query or document), tuple(query), tuple(document))


def _width(layers: Sequence[Dense], width: int) -> int | None:
    """The width of vectors after some layers; None if one does not fit the layer before it."""
    for layer in layers:
        if layer.weight.shape[1] != width:
            return None
        width = len(layer.weight)
    return width


def read_prompts(folder: Path) -> Prompts:
    """The prompts of queries and of documents, as sentence-transformers records them.

    Its ``default_prompt_name`` is for texts that are neither.
    """
    path = folder / _CONFIG
    recorded = read_object(path).get("prompts") if path.is_file() else None
    prompts = {} if recorded is None else recorded
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise InputError(path, None, 'prompts: expected an object of texts, such as {"query": "query: "}')
    known = {name: text for name, text in prompts.items() if text is not None}
    return Prompts(known.get("query", ""), next((known[name] for name in DOCUMENT_PROMPTS if name in known), ""))


def read_length(folder: Path) -> int | None:
    """The maximum length that the folder records."""
    path = folder / "sentence_bert_config.json"
    length = read_object(path).get("max_seq_length") if path.is_file() else None
    return length if isinstance(length, int) else None


def read_base(folder: Path) -> str | None:
    """The name of the bi-encoder whose vectors the dense layers were fitted on, if the folder records it."""
    path = folder / _CONFIG
    recorded = read_object(path).get("rankwell") if path.is_file() else None
    return str(recorded["base"]) if isinstance(recorded, dict) and "base" in recorded else None


def save_bi_encoder(
    folder: Path,
    encoder: Encoder | ForeignEncoder,
    tokenizer: Tokenizer,
    modules: Modules,
    *,
    max_length: int,
    prompts: Prompts | None = None,
    base: str | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write a folder that rankwell and sentence-transformers load with equal vectors; it must not exist yet.

    ``base`` is the name of the bi-encoder that has the same encoder and no dense layers: documents' vectors stored
    under that name need not be computed again.
    """
    prompts = prompts or Prompts()
    settings: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "prompts": asdict(prompts),
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    if base is not None:
        settings["rankwell"] = {"base": base}
    pooling = {
        "word_embedding_dimension": encoder.config.hidden_size,
        "pooling_mode_cls_token": modules.pooling == "first",
        "pooling_mode_mean_tokens": modules.pooling == "mean",
        "include_prompt": True,
    }
    layers = _layer_files(modules)
    listed = [("Transformer", ""), ("Pooling", "1_Pooling"), *((kind, place) for kind, place, _ in layers)]
    texts: dict[str, Any] = {
        "modules.json": [
            {"idx": number, "name": str(number), "path": place, "type": _type_name(kind)}
            for number, (kind, place) in enumerate(listed)
        ],
        _CONFIG: settings,
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "1_Pooling/config.json": pooling,
    }
    files: dict[str, str | bytes] = {name: _as_json(value) for name, value in texts.items()}
    files["README.md"] = bi_encoder_card(encoder.config, modules.pooling, max_length, asdict(prompts), history)
    for _, _, more in layers:
        files |= more
    if isinstance(encoder, ForeignEncoder):
        tensors, description = encoder.backbone.state_dict(), foreign_description(encoder.backbone)
    else:
        family = FAMILIES[encoder.config.model_type]
        prefix = f"{family.prefix}."
        tensors = {name.removeprefix(prefix): tensor for name, tensor in encoder_tensors(encoder).items()}
        description = describe(encoder, f"{family.name}Model")
    write_folder(folder, tensors, description, tokenizer, max_length, files)


# Reading


def _read_list(folder: Path) -> list[tuple[str, str]]:
    """The kinds of a folder's modules and their folders, in order; empty if there is no ``modules.json``."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        modules = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in read_json(path)]
    except (KeyError, TypeError):
        raise InputError(path, None, "not a list of modules, each with a type and a path") from None
    other = next((kind for kind, _ in modules if kind not in MODULES), None)
    if other is not None:
        raise InputError(path, None, f"vectors pass a module {other}; expected {', '.join(MODULES)} and no other")
    return modules


def _read_pooling(folder: Path, place: str | None, *, prompted: bool) -> PoolingKind:
    """How the states of the tokens become one vector."""
    path = folder / (place or "1_Pooling") / "config.json"
    if place is None and not path.is_file():
        return "mean"
    if not path.is_file():
        raise InputError(path, None, "missing; it says how vectors are pooled")
    settings = read_object(path)
    if prompted and settings.get("include_prompt") is False:
        raise InputError(
            path, None, "include_prompt is false: vectors leave the prompt out; expected vectors of all tokens"
        )
    ways = {name: value for name, value in settings.items() if name.startswith("pooling_mode")}
    if ways.get("pooling_mode") in ("mean", "cls"):  # as the newest versions write it
        return "mean" if ways["pooling_mode"] == "mean" else "first"
    modes = [name for name, value in ways.items() if value is True]
    if modes == ["pooling_mode_mean_tokens"]:
        return "mean"
    if modes == ["pooling_mode_cls_token"]:
        return "first"
    raise InputError(path, None, f"pooling by {', '.join(modes) or 'nothing'}; expected the mean or the first token")


def _read_dense(folder: Path) -> Dense:
    """A module ``Dense``."""
    path = folder / "config.json"
    try:
        settings = read_object(path)
    except FileNotFoundError:
        raise InputError(path, None, "missing; it describes a dense layer") from None
    names = {theirs.rpartition(".")[2]: ours for ours, theirs in _ACTIVATIONS.items()}
    activation = names.get(str(settings.get("activation_function", "Tanh")).rpartition(".")[2])
    ends = {settings.get("module_input_name", _VECTOR), settings.get("module_output_name") or _VECTOR}
    if activation is None or ends != {_VECTOR} or settings.get("use_residual"):
        raise InputError(path, None, "expected a dense layer on vectors, with tanh or no activation and no residual")
    tensors = read_tensors(folder)
    if "linear.weight" not in tensors or tensors["linear.weight"].ndim != 2:
        raise InputError(folder, None, "the weights lack linear.weight")
    return Dense(tensors["linear.weight"].float(), tensors.get("linear.bias"), activation)


def _read_route(folder: Path, route: str) -> list[Dense]:
    """The dense layers of one of a router's routes."""
    path = folder / "router_config.json"
    try:
        record = read_object(path)
        names, types = record["structure"][route], record["types"]
        kinds = {name: str(types[name]).rpartition(".")[2] for name in names}
    except (FileNotFoundError, KeyError, TypeError):
        raise InputError(path, None, "not a router with a route for queries and one for documents") from None
    other = next((kind for kind in kinds.values() if kind != "Dense"), None)
    if other is not None:
        raise InputError(path, None, f"the route {route} passes a module {other}; expected Dense and no other")
    return [layer for name in names if not (layer := _read_dense(folder / name)).is_identity]


# Writing


def _type_name(kind: str) -> str:
    return f"sentence_transformers.{_WHERE[kind]}.{kind}"


def _as_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _layer_files(modules: Modules) -> list[tuple[str, str, dict[str, str | bytes]]]:
    """The modules after pooling: kind, folder, and files by their path."""
    kinds: list[tuple[str, dict[str, str | bytes]]] = []
    if modules.query or modules.document:
        if modules.normalised:
            kinds.append(("Normalize", {"config.json": "{}\n"}))
        if modules.query == modules.document:
            kinds += [("Dense", _dense_files(layer)) for layer in modules.query]
        else:
            kinds.append(("Router", _router_files(modules)))
    kinds.append(("Normalize", {"config.json": "{}\n"}))
    placed = [(kind, f"{number}_{kind}", files) for number, (kind, files) in enumerate(kinds, start=2)]
    return [(kind, place, {f"{place}/{name}": file for name, file in files.items()}) for kind, place, files in placed]


def _dense_files(layer: Dense) -> dict[str, str | bytes]:
    out_features, in_features = layer.weight.shape
    config = {
        "in_features": in_features,
        "out_features": out_features,
        "bias": layer.bias is not None,
        "activation_function": _ACTIVATIONS[layer.activation],
        "module_input_name": _VECTOR,
        "module_output_name": _VECTOR,
    }
    return {"config.json": _as_json(config), "model.safetensors": tensor_bytes(layer.tensors)}


def _router_files(modules: Modules) -> dict[str, str | bytes]:
    """A router has at least one module on each route, so a side without layers gets the identity."""
    files: dict[str, str | bytes] = {}
    structure: dict[str, list[str]] = {}
    width = (modules.query or modules.document)[0].weight.shape[1]
    for route, layers in (("query", modules.query), ("document", modules.document)):
        structure[route] = []
        for number, layer in enumerate(layers or (Dense(torch.eye(width)),)):
            name = f"{route}_{number}_Dense"
            structure[route].append(name)
            files |= {f"{name}/{file}": content for file, content in _dense_files(layer).items()}
    types = {name: _type_name("Dense") for names in structure.values() for name in names}
    parameters = {"default_route": "document", "allow_empty_key": True, "route_mappings": {}}
    files["router_config.json"] = _as_json({"types": types, "structure": structure, "parameters": parameters})
    return files
