"""Query writers on disk: a Hugging Face folder that transformers loads as EncoderDecoderModel, plus ``writer.json``.

A BERT checkpoint becomes a new writer: both halves start as its encoder, and the output as its MLM head if it has one
(for example after a ``pretrain`` stage).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from rankwell.core.errors import InputError
from rankwell.core.manifest import read_object
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import first_problem
from rankwell.models.checkpoints.describe import bert_config, describe
from rankwell.models.checkpoints.folders import write_folder
from rankwell.models.checkpoints.names import find_model
from rankwell.models.checkpoints.tensors import (
    MLM_BIAS,
    MLM_PARTS,
    MLM_WEIGHT,
    encoder_state,
    encoder_tensors,
    fill,
    read_weights,
)
from rankwell.models.encoder import Encoder
from rankwell.models.new_heads import seeded
from rankwell.models.spec import EncoderConfig
from rankwell.papers.doc2query.writer import Decoder, QueryWriter
from rankwell.papers.shared.bert import load_bert

_CROSS_PARTS = {
    "cross_query": "crossattention.self.query",
    "cross_mix": "crossattention.output.dense",
    "cross_norm": "crossattention.output.LayerNorm",
}
_CROSS_KEYS_VALUES = ("crossattention.self.key", "crossattention.self.value")
_KINDS = ("weight", "bias")


class WriterConfig(BaseModel):
    """``writer.json``: the lengths a writer was trained with, and what made it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    max_length: int = Field(default=256, ge=8)
    """Maximum length of a passage, or of a window of it, in tokens."""
    max_query: int = Field(default=32, ge=2)
    """Maximum length of a query in pieces, [SEP] included."""
    history: list[dict[str, Any]] = Field(default_factory=list)
    figures: dict[str, Any] = Field(default_factory=dict)


def load_writer(folder: str | Path, *, seed: int = 0) -> tuple[QueryWriter, Tokenizer, WriterConfig]:
    """Load a writer: a folder of rankwell's, or transformers' EncoderDecoderModel of two BERTs.

    Any other BERT checkpoint gives a new, untrained writer, whose new weights are drawn with ``seed``.
    """
    folder = find_model(folder)
    checkpoint = describe(folder)
    if checkpoint.family != "encoder-decoder":
        return _new_writer(folder, seed)
    tensors, tokenizer = read_weights(folder), Tokenizer.open(folder)
    reading, writing = (_half_config(checkpoint.settings, half, folder) for half in ("encoder", "decoder"))
    if reading.hidden_size != writing.hidden_size:
        sizes = f"{reading.hidden_size} and {writing.hidden_size}"
        raise InputError(folder, None, f"encoder and decoder have different widths ({sizes})")
    of_encoder = encoder_state(_below(tensors, "encoder."), reading, folder)
    of_decoder = _decoder_state({**_below(tensors, "decoder."), **_below(tensors, "decoder.bert.")}, writing, folder)
    encoder, decoder = Encoder(reading), Decoder(writing)
    fill(encoder, of_encoder, folder)
    fill(decoder, of_decoder, folder)
    return QueryWriter(encoder, decoder).eval(), tokenizer, read_writer_config(folder)


def save_writer(folder: str | Path, model: QueryWriter, tokenizer: Tokenizer, config: WriterConfig) -> None:
    """Write a folder that rankwell and transformers' EncoderDecoderModel load; it must not exist yet."""
    special = tokenizer.special
    description = {
        "architectures": ["EncoderDecoderModel"],
        "model_type": "encoder-decoder",
        "is_encoder_decoder": True,
        "decoder_start_token_id": special.cls,
        "bos_token_id": special.cls,
        "eos_token_id": special.sep,
        "encoder": {"architectures": ["BertModel"], **model.encoder.config.as_settings()},
        "decoder": {
            "architectures": ["BertLMHeadModel"],
            **model.decoder.config.as_settings(),
            "is_decoder": True,
            "add_cross_attention": True,
            "tie_word_embeddings": True,
        },
    }
    files = {"writer.json": config.model_dump_json(indent=2) + "\n", "README.md": _card(config)}
    write_folder(folder, writer_tensors(model), description, tokenizer, config.max_length, files)


def writer_tensors(model: QueryWriter) -> dict[str, Tensor]:
    """All tensors under the names of transformers' EncoderDecoderModel."""
    decoder = model.decoder
    out = {f"encoder.{name.removeprefix('bert.')}": tensor for name, tensor in encoder_tensors(model.encoder).items()}
    out |= {f"decoder.{name}": tensor for name, tensor in encoder_tensors(decoder).items()}
    for number, layer in enumerate(decoder.writing_layers):
        prefix = f"decoder.bert.encoder.layer.{number}."
        for kind in _KINDS:
            for ours, theirs in _CROSS_PARTS.items():
                out[f"{prefix}{theirs}.{kind}"] = getattr(getattr(layer, ours), kind)
            halves = getattr(layer.cross_keys_values, kind).chunk(2)
            out |= {f"{prefix}{name}.{kind}": half for name, half in zip(_CROSS_KEYS_VALUES, halves, strict=True)}
    for ours, theirs in MLM_PARTS.items():
        out |= {f"decoder.{theirs}.{kind}": getattr(getattr(decoder, ours), kind) for kind in _KINDS}
    out[f"decoder.{MLM_BIAS}"] = decoder.output_bias
    return out


def _new_writer(folder: Path, seed: int) -> tuple[QueryWriter, Tokenizer, WriterConfig]:
    encoder, tensors, tokenizer = load_bert(folder, "a query writer")
    with seeded(seed):
        decoder = Decoder(encoder.config)
    state = {**decoder.state_dict(), **encoder_state(tensors, encoder.config, folder)}
    state |= _output_state(tensors, folder, needed=False)
    fill(decoder, state, folder)
    for layer in decoder.writing_layers:
        layer.start_cross_attention()
    limit = encoder.config.max_position_embeddings
    usual = WriterConfig()
    config = WriterConfig(max_length=min(usual.max_length, limit), max_query=min(usual.max_query, limit))
    return QueryWriter(encoder, decoder).eval(), tokenizer, config


def _decoder_state(tensors: Mapping[str, Tensor], config: EncoderConfig, folder: Path) -> dict[str, Tensor]:
    """The decoder's parameters from transformers' tensors, whose names have no prefix here."""
    state = encoder_state(tensors, config, folder)
    for number in range(config.num_hidden_layers):
        old, new = f"encoder.layer.{number}.", f"layers.{number}."
        for kind in _KINDS:
            for ours, theirs in _CROSS_PARTS.items():
                state[f"{new}{ours}.{kind}"] = _tensor(tensors, f"{old}{theirs}.{kind}", folder)
            halves = [_tensor(tensors, f"{old}{name}.{kind}", folder) for name in _CROSS_KEYS_VALUES]
            state[f"{new}cross_keys_values.{kind}"] = torch.cat(halves)
    return {**state, **_output_state(tensors, folder, needed=True)}


def _output_state(tensors: Mapping[str, Tensor], folder: Path, *, needed: bool) -> dict[str, Tensor]:
    """The MLM head's tensors; empty if the checkpoint has none and it is not ``needed``."""
    if not needed and f"{MLM_PARTS['transform']}.weight" not in tensors:
        return {}
    output, embeddings = tensors.get(MLM_WEIGHT), tensors["embeddings.word_embeddings.weight"]
    if output is not None and not output.equal(embeddings):
        raise InputError(folder, None, "the output matrix differs from the token embeddings, which a writer shares")
    state = {
        f"{ours}.{kind}": _tensor(tensors, f"{theirs}.{kind}", folder)
        for ours, theirs in MLM_PARTS.items()
        for kind in _KINDS
    }
    return {**state, "output_bias": _tensor(tensors, MLM_BIAS, folder)}


def _tensor(tensors: Mapping[str, Tensor], name: str, folder: Path) -> Tensor:
    if name not in tensors:
        raise InputError(folder, None, f"the weights lack {name}")
    return tensors[name]


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _half_config(description: Mapping[str, Any], half: str, folder: Path) -> EncoderConfig:
    path, settings = folder / "config.json", description.get(half)
    if not isinstance(settings, dict) or settings.get("model_type", "bert") != "bert":
        raise InputError(path, None, f"its {half} is not a BERT; a query writer has two")
    if half == "decoder" and not (settings.get("is_decoder") and settings.get("add_cross_attention")):
        raise InputError(path, None, "its decoder has no cross-attention")
    return bert_config(settings, path, half)


def read_writer_config(folder: Path) -> WriterConfig:
    """The lengths that a query writer was trained with, from ``writer.json``."""
    path = folder / "writer.json"
    try:
        return WriterConfig.model_validate(read_object(path))
    except FileNotFoundError:
        return WriterConfig()
    except ValidationError as error:
        raise InputError(path, None, f"not a writer's configuration: {first_problem(error)}") from None


def _card(config: WriterConfig) -> str:
    lines = [
        "---",
        "library_name: rankwell",
        "tags: [doc2query, query-generation]",
        "---",
        "",
        "# A query writer",
        "",
        "Writes queries that a passage answers; they are added to the passage before it is indexed (doc2query).",
        f"Passages of up to {config.max_length} tokens, queries of up to {config.max_query} pieces.",
        "",
        "    rankwell expand COLLECTION --model THIS --n 5 --out expansions.jsonl.gz",
        "",
        'In transformers: `EncoderDecoderModel.from_pretrained("THIS")`; its pooler is unused.',
    ]
    if config.figures:
        lines += ["", *(f"- {name}: {value}" for name, value in config.figures.items())]
    return "\n".join(lines) + "\n"
