"""BERT as the papers use it."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from rankwell.core.errors import InputError
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.folders import load_encoder
from rankwell.models.encoder import Encoder


def load_bert(folder: Path, purpose: str) -> tuple[Encoder, dict[str, Tensor], Tokenizer]:
    """A BERT encoder with all tensors of its folder; raises for other encoders, which ``purpose`` does not suit."""
    encoder, tensors, tokenizer = load_encoder(folder)
    if not isinstance(encoder, Encoder) or encoder.config.model_type != "bert":
        raise InputError(folder, None, f"a model of the type {encoder.config.model_type}; {purpose} needs a BERT")
    return encoder, tensors, tokenizer
