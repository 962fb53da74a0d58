"""Sentence-transformers folders: how a text's states become its vector, and the files that record it.

``modules.json`` lists what follows the encoder: pooling, normalisation and dense layers. A ``Router`` holds dense
layers of queries and others of documents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from rankwell.core.errors import InputError
from rankwell.core.manifest import read_object
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.card import bi_encoder_card
from rankwell.models.checkpoints.describe import SENTENCE_SETTINGS, Checkpoint
from rankwell.models.checkpoints.folders import encoder_settings, write_folder
from rankwell.models.checkpoints.tensors import encoder_tensors, tensor_bytes
from rankwell.models.encoder import Encoder
from rankwell.models.foreign import ForeignEncoder, foreign_description
from rankwell.models.spec import FAMILIES, PoolingKind
from rankwell.models.vector_layers import ACTIVATIONS, OLD_POOLING, POOLING, VECTOR, Dense, read_dense, read_pooling

Similarity = Literal["cosine", "dot"]

MODULES = ("Transformer", "Pooling", "Normalize", "Dense", "Router")
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of the documents' prompt; the first that a folder records is used."""
_WHERE = {
    "Transformer": "base.modules.transformer",
    "Pooling": "sentence_transformer.modules.pooling",
    "Normalize": "base.modules.normalize",
    "Dense": "base.modules.dense",
    "Router": "base.modules.router",
}


@dataclass(frozen=True, eq=False)
class Modules:
    """What follows the encoder: pooling, then dense layers of queries and of documents, then normalisation.

    ``normalised`` says whether the pooled vectors are normalised before dense layers, too. ``truncate`` is how many of
    the numbers are used, None for all. With ``similarity`` dot, vectors keep their length unless ``unit``.
    """

    pooling: PoolingKind = "mean"
    normalised: bool = True
    query: tuple[Dense, ...] = ()
    document: tuple[Dense, ...] = ()
    truncate: int | None = None
    similarity: Similarity = "cosine"
    unit: bool = True

    def finish(self, vectors: Tensor) -> Tensor:
        """Vectors after dense layers as they are compared: their product is the similarity."""
        if self.truncate is not None:
            vectors = vectors[:, : self.truncate]
        return functional.normalize(vectors, dim=1) if self.unit else vectors


def read_modules(checkpoint: Checkpoint, width: int, *, prompted: bool = False) -> Modules:
    """What follows an encoder of this width in a folder; without ``modules.json``, pooling and normalisation."""
    folder, listed = checkpoint.folder, checkpoint.modules
    other = next((kind for kind, _ in listed if kind not in MODULES), None)
    if other is not None:
        problem = f"vectors pass a module {other}; expected {', '.join(MODULES)} and no other"
        raise InputError(folder / "modules.json", None, problem)
    similarity, truncate = _read_similarity(checkpoint)
    pooling = _read_pooling(folder, dict(listed).get("Pooling"), prompted=prompted)
    normalised, query, document = False, list[Dense](), list[Dense]()
    for number, (kind, place) in enumerate(listed):
        if kind == "Normalize" and not (query or document):
            normalised = True
        elif kind == "Normalize" and any(later in ("Dense", "Router") for later, _ in listed[number:]):
            problem = "dense layers before and after a Normalize; expected them side by side"
            raise InputError(folder / "modules.json", None, problem)
        elif kind == "Dense":
            layer = read_dense(folder / place)
            query.append(layer)
            document.append(layer)
        elif kind == "Router":
            query += _read_route(folder / place, "query")
            document += _read_route(folder / place, "document")
    unit = similarity == "cosine" or not listed or (listed[-1][0] == "Normalize" and truncate is None)
    if _width(query, width) is None or _width(query, width) != _width(document, width):
        raise InputError(folder, None, "its dense layers do not fit together")
    normalised = normalised or (unit and not (query or document))
    return Modules(pooling, normalised, tuple(query), tuple(document), truncate, similarity, unit)


def _read_similarity(checkpoint: Checkpoint) -> tuple[Similarity, int | None]:
    """How vectors are compared, and how many of their numbers are used."""
    path, settings = checkpoint.folder / SENTENCE_SETTINGS, checkpoint.sentence_settings
    similarity, truncate = settings.get("similarity_fn_name") or "cosine", settings.get("truncate_dim")
    if similarity not in ("cosine", "dot"):
        raise InputError(path, None, f"vectors are compared by {similarity}; expected cosine or dot")
    if truncate is not None and (not isinstance(truncate, int) or truncate < 1):
        raise InputError(path, None, f"truncate_dim is {truncate}, expected a whole number of at least 1")
    return "dot" if similarity == "dot" else "cosine", truncate


def _width(layers: Sequence[Dense], width: int) -> int | None:
    """The width of vectors after some layers; None if one does not fit the layer before it."""
    for layer in layers:
        if layer.weight.shape[1] != width:
            return None
        width = len(layer.weight)
    return width


def read_prompts(checkpoint: Checkpoint) -> tuple[str, str]:
    """The prompts of queries and of documents, as sentence-transformers records them.

    Its ``default_prompt_name`` is for texts that are neither.
    """
    recorded = checkpoint.sentence_settings.get("prompts")
    prompts = {} if recorded is None else recorded
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        path, problem = checkpoint.folder / SENTENCE_SETTINGS, "prompts: expected an object of texts"
        raise InputError(path, None, f'{problem}, such as {{"query": "query: "}}')
    known = {name: text for name, text in prompts.items() if text is not None}
    return known.get("query", ""), next((known[name] for name in DOCUMENT_PROMPTS if name in known), "")


def read_length(folder: Path) -> int | None:
    """The maximum length that the folder records."""
    path = folder / "sentence_bert_config.json"
    length = read_object(path).get("max_seq_length") if path.is_file() else None
    return length if isinstance(length, int) else None


def read_base(checkpoint: Checkpoint) -> str | None:
    """The name of the bi-encoder whose vectors the dense layers were fitted on, if the folder records it."""
    recorded = checkpoint.sentence_settings.get("rankwell")
    return str(recorded["base"]) if isinstance(recorded, dict) and "base" in recorded else None


def save_bi_encoder(
    folder: Path,
    encoder: Encoder | ForeignEncoder,
    tokenizer: Tokenizer,
    modules: Modules,
    *,
    max_length: int,
    prompts: tuple[str, str] = ("", ""),
    base: str | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write a folder that rankwell and sentence-transformers load with equal vectors; it must not exist yet.

    ``prompts`` are the texts before each query and each document.
    ``base`` is the name of the bi-encoder that has the same encoder and no dense layers: documents' vectors stored
    under that name need not be computed again.
    """
    texts_before = dict(zip(("query", "document"), prompts, strict=True))
    settings: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "prompts": texts_before,
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    if base is not None:
        settings["rankwell"] = {"base": base}
    pooling = {
        "word_embedding_dimension": encoder.config.hidden_size,
        **{name: POOLING[mode] == modules.pooling for name, mode in OLD_POOLING.items()},
        "include_prompt": True,
    }
    layers = _layer_files(modules)
    listed = [("Transformer", ""), ("Pooling", "1_Pooling"), *((kind, place) for kind, place, _ in layers)]
    texts: dict[str, Any] = {
        "modules.json": [
            {"idx": number, "name": str(number), "path": place, "type": _type_name(kind)}
            for number, (kind, place) in enumerate(listed)
        ],
        SENTENCE_SETTINGS: settings,
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "1_Pooling/config.json": pooling,
    }
    files: dict[str, str | bytes] = {name: _as_json(value) for name, value in texts.items()}
    files["README.md"] = bi_encoder_card(encoder.config, modules.pooling, max_length, texts_before, history)
    for _, _, more in layers:
        files |= more
    if isinstance(encoder, ForeignEncoder):
        tensors, description = encoder.backbone.state_dict(), foreign_description(encoder.backbone)
    else:
        family = FAMILIES[encoder.config.model_type]
        prefix = f"{family.prefix}."
        tensors = {name.removeprefix(prefix): tensor for name, tensor in encoder_tensors(encoder).items()}
        description = encoder_settings(encoder, f"{family.name}Model")
    write_folder(folder, tensors, description, tokenizer, max_length, files)


# Reading


def _read_pooling(folder: Path, place: str | None, *, prompted: bool) -> PoolingKind:
    """How the states of the tokens become one vector."""
    path = folder / (place or "1_Pooling") / "config.json"
    if place is None and not path.is_file():
        return "mean"
    return read_pooling(path, prompted=prompted)


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
    return [layer for name in names if not (layer := read_dense(folder / name)).is_identity]


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
        "activation_function": ACTIVATIONS[layer.activation],
        "module_input_name": VECTOR,
        "module_output_name": VECTOR,
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
