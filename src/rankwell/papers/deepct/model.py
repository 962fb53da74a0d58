"""BERT with a weight for each token, and its folders."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from rankwell.core.errors import InputError
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.folders import (
    encoder_settings,
    fill_if_present,
    label_settings,
    load_bert,
    write_folder,
)
from rankwell.models.checkpoints.names import find_model
from rankwell.models.checkpoints.tensors import encoder_tensors
from rankwell.models.encoder import Encoder
from rankwell.models.heads import seeded
from rankwell.models.layout import Layout, Packed


class TokenWeightModel(nn.Module):
    """A weight for each token (DeepCT): one linear output, and no sigmoid."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(encoder.config.hidden_dropout_prob)
        self.head = nn.Linear(encoder.config.hidden_size, 1)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed) -> Tensor:
        """The weights of all tokens (T,). The head is always computed in 32 bits."""
        states: Tensor = self.encoder(tokens, segments, positions, layout, first_only=False)
        with torch.autocast(states.device.type, enabled=False):
            weight, bias = self.head.weight.float(), self.head.bias.float()
            return nn.functional.linear(self.dropout(states.float()), weight, bias)[:, 0]


def load_token_weights(folder: str | Path, *, seed: int = 0) -> tuple[TokenWeightModel, Tokenizer]:
    """A BERT that weighs tokens, with the folder's head if it has one, else a new one."""
    folder = find_model(folder)
    encoder, tensors, tokenizer = load_bert(folder, "token weights")
    with seeded(seed):
        model = TokenWeightModel(encoder)
    if "BertForTokenClassification" in describe(folder).architectures:
        outputs = len(tensors["classifier.weight"]) if "classifier.weight" in tensors else 0
        if outputs != 1:
            raise InputError(folder, None, f"{outputs} outputs per token, expected one")
        fill_if_present(model.head, "classifier", tensors, folder)
    return model.eval(), tokenizer


def save_token_weights(
    folder: str | Path, model: TokenWeightModel, tokenizer: Tokenizer, max_length: int | None = None
) -> None:
    """Write a folder that transformers loads as BertForTokenClassification; it must not exist yet."""
    tensors = encoder_tensors(model.encoder)
    tensors |= {f"classifier.{kind}": value for kind, value in model.head.state_dict().items()}
    description = {**encoder_settings(model.encoder, "BertForTokenClassification"), **label_settings(["weight"])}
    write_folder(folder, tensors, description, tokenizer, max_length)
