"""Cross-encoders of several modules, as sentence-transformers saves them: encoder, pooling, and layers to a score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankwell.core.errors import InputError
from rankwell.core.manifest import read_object
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.describe import Checkpoint
from rankwell.models.checkpoints.folders import as_monobert, load_encoder
from rankwell.models.checkpoints.tensors import read_tensors
from rankwell.models.encoder import Encoder
from rankwell.models.foreign import ForeignEncoder
from rankwell.models.layout import Layout, Packed
from rankwell.models.pooling import pool_states
from rankwell.models.spec import PoolingKind
from rankwell.models.vector_layers import read_layer, read_pooling

_SKIPPED = ("Dropout",)
KINDS = ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", *_SKIPPED)


class Normalize(nn.Module):
    """Vectors of length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, H) → (B, H)."""
        return functional.normalize(vectors, dim=1)


class ModularCrossEncoder(nn.Module):
    """An encoder of pairs, pooling, and the ``layers`` that make 1 score or 2 logits of a vector."""

    similarity = 0.0
    needs_parts = False

    def __init__(self, encoder: Encoder | ForeignEncoder, pooling: PoolingKind, layers: nn.Sequential, outputs: int):
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.layers = layers
        self.outputs = outputs

    def forward(self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed) -> Tensor:
        """The logits (B, outputs)."""
        first = self.pooling == "first"
        states = self.encoder(tokens, segments, positions, layout, first_only=first)
        pooled = states if first else pool_states(states, layout.lengths.long(), self.pooling)
        with torch.autocast(pooled.device.type, enabled=False):
            logits: Tensor = self.layers.float()(pooled.float())
        return logits


def load_modular(
    checkpoint: Checkpoint, changes: Mapping[str, Any], *, trust_remote_code: bool = False
) -> tuple[ModularCrossEncoder, Tokenizer, RankerConfig]:
    """A cross-encoder of several modules with the configuration of a ranker."""
    folder = checkpoint.folder
    entries = [(kind, folder / place) for kind, place in checkpoint.modules]
    other = next((kind for kind, _ in entries if kind not in KINDS), None)
    if other is not None:
        raise InputError(folder / "modules.json", None, f"scores pass a module {other}; expected {', '.join(KINDS)}")
    (_, start), (kind, place), *rest = entries
    if kind != "Pooling":
        raise InputError(folder / "modules.json", None, f"a module {kind} after the Transformer, expected Pooling")
    encoder, _, tokenizer = load_encoder(start, trust_remote_code=trust_remote_code)
    layers = nn.Sequential(*(_read(kind, place) for kind, place in rest if kind not in _SKIPPED))
    outputs = int(read_object(entries[-1][1] / "config.json")["out_features"])
    config = as_monobert(outputs, encoder.config, tokenizer, folder).changed(changes)
    if config.attention != "full" or config.apart or config.similarity or config.attention_layers is not None:
        raise InputError(folder, None, "a cross-encoder of several modules follows no attention rule; train it first")
    model = ModularCrossEncoder(encoder, read_pooling(place / "config.json"), layers, outputs)
    return model.eval(), tokenizer, config


def _read(kind: str, folder: Path) -> nn.Module:
    """One of the modules after pooling."""
    if kind == "Normalize":
        return Normalize()
    if kind == "Dense":
        return read_layer(folder)
    tensors = {name.rpartition(".")[2]: tensor.float() for name, tensor in read_tensors(folder).items()}
    norm = nn.LayerNorm(len(tensors["weight"]))
    norm.load_state_dict(tensors)
    return norm
