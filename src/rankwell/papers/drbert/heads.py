"""BERT with its two heads for pre-training, and its folders."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from rankwell.core.errors import InputError
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.folders import encoder_settings, fill_if_present, load_bert, write_folder
from rankwell.models.checkpoints.names import find_model
from rankwell.models.checkpoints.tensors import MLM_BIAS, MLM_PARTS, MLM_WEIGHT, encoder_tensors
from rankwell.models.encoder import ACTIVATIONS, Encoder
from rankwell.models.heads import seeded
from rankwell.models.layout import Layout, Packed

# Our names and those of transformers' BertForPreTraining.
_PRETRAINING_PARTS = {**MLM_PARTS, "pooler": "pooler.dense", "next": "cls.seq_relationship"}


class PretrainingModel(nn.Module):
    """BERT's two heads: which token was masked (MLM), and whether the second span follows the first (NSP).

    The MLM decoder is the table of token embeddings, with a bias for each token. Only the masked rows are computed.
    """

    def __init__(self, encoder: Encoder):
        super().__init__()
        config = encoder.config
        self.encoder = encoder
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.transform_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.next = nn.Linear(config.hidden_size, 2)
        for part in (self.transform, self.pooler, self.next):
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)

    def forward(
        self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The logits of the tokens at ``rows`` (R,) of the packed batch, (R, vocabulary), and of NSP, (B, 2): class 0
        is "follows", as in transformers.
        """
        states = self.encoder(tokens, segments, positions, layout, first_only=False)
        masked = self.transform_norm(self.activation(self.transform(states.index_select(0, rows))))
        logits = nn.functional.linear(masked, self.encoder.tokens.weight, self.output_bias)
        first = torch.tanh(self.pooler(states.index_select(0, layout.first)))
        following: Tensor = self.next(first)
        return logits, following


def load_pretraining(folder: str | Path, *, seed: int = 0) -> tuple[PretrainingModel, Tokenizer]:
    """A BERT with both heads for pre-training: those of the folder if it has them, else new ones."""
    folder = find_model(folder)
    encoder, tensors, tokenizer = load_bert(folder, "pre-training")
    with seeded(seed):
        model = PretrainingModel(encoder)
    for ours, theirs in _PRETRAINING_PARTS.items():
        fill_if_present(getattr(model, ours), theirs, tensors, folder)
    output = tensors.get(MLM_WEIGHT)
    if output is not None and not torch.equal(output, encoder.tokens.weight):
        raise InputError(
            folder, None, "the output matrix of the MLM head differs from the token embeddings, which it must share"
        )
    if (bias := tensors.get(MLM_BIAS)) is not None:
        if bias.shape != model.output_bias.shape:
            raise InputError(folder, None, f"{MLM_BIAS} has {len(bias)} values for {len(model.output_bias)} tokens")
        model.output_bias.data.copy_(bias)
    return model.eval(), tokenizer


def save_pretraining(
    folder: str | Path, model: PretrainingModel, tokenizer: Tokenizer, max_length: int | None = None
) -> None:
    """Write a folder that transformers loads as BertForPreTraining; it must not exist yet."""
    tensors = encoder_tensors(model.encoder)
    for ours, theirs in _PRETRAINING_PARTS.items():
        prefix = "bert." if theirs == "pooler.dense" else ""
        tensors |= {f"{prefix}{theirs}.{kind}": value for kind, value in getattr(model, ours).state_dict().items()}
    tensors[MLM_BIAS] = model.output_bias
    write_folder(folder, tensors, encoder_settings(model.encoder, "BertForPreTraining"), tokenizer, max_length)
