"""Heads other than a ranker's: MLM and NSP for pre-training, a weight for each token, a class for a text.

Each is saved as the Hugging Face folder of the same kind, and the encoder of each loads as a ranker's again
(``checkpoints.folders.load_checkpoint``). New heads are drawn with a seed: loading twice gives the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.jsonfile import read_object
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.folders import (
    describe,
    describe_labels,
    encoder_tensors,
    fill,
    fill_head,
    head_names,
    load_encoder,
    new_cross_encoder,
    seeded,
    transformers_state,
    without_other_heads,
    write_folder,
)
from rankwell.models.checkpoints.foreign import ForeignEncoder
from rankwell.models.checkpoints.names import find_model
from rankwell.models.encoder import ACTIVATIONS, CrossEncoder, Encoder
from rankwell.models.layouts import Layout, Packed

# Ours under transformers' names, of BertForPreTraining.
_PRETRAINING_PARTS = {
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "pooler": "pooler.dense",
    "next": "cls.seq_relationship",
}
_OUTPUT_BIAS = "cls.predictions.bias"
_OUTPUT_WEIGHT = "cls.predictions.decoder.weight"


class PretrainingModel(nn.Module):
    """BERT's two heads: which token was masked (MLM), and whether the second span follows the first (NSP).

    The MLM decoder is the table of token embeddings, with a bias for each token; it is computed for chosen rows only.
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
        """The weights of the packed rows (T,)."""
        states = self.encoder(tokens, segments, positions, layout, first_only=False)
        weights: Tensor = self.head(self.dropout(states))[:, 0]
        return weights


@dataclass(frozen=True, eq=False)
class Classifier:
    """A cross-encoder whose outputs are classes: output ``i`` is the logit of ``labels[i]``."""

    model: CrossEncoder
    tokenizer: Tokenizer
    labels: tuple[str, ...]


def load_pretraining(folder: str | Path, *, seed: int = 0) -> tuple[PretrainingModel, Tokenizer]:
    """A BERT with both heads for pre-training: its own where it has them, else new ones."""
    folder = find_model(folder)
    encoder, tensors, tokenizer = _load_bert(folder, "pre-training")
    with seeded(seed):
        model = PretrainingModel(encoder)
    for ours, theirs in _PRETRAINING_PARTS.items():
        _fill_if_there(getattr(model, ours), theirs, tensors, folder)
    output = tensors.get(_OUTPUT_WEIGHT)
    if output is not None and not torch.equal(output, encoder.tokens.weight):
        raise InputError(
            folder, None, "an MLM head with a matrix of its own; only the token embeddings are used for it"
        )
    if (bias := tensors.get(_OUTPUT_BIAS)) is not None:
        if bias.shape != model.output_bias.shape:
            raise InputError(folder, None, f"{_OUTPUT_BIAS} has {len(bias)} values for {len(model.output_bias)} tokens")
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
    tensors[_OUTPUT_BIAS] = model.output_bias
    write_folder(folder, tensors, describe(model.encoder, "BertForPreTraining"), tokenizer, max_length)


def load_token_weights(folder: str | Path, *, seed: int = 0) -> tuple[TokenWeightModel, Tokenizer]:
    """A BERT with a weight for each token: its own head where it has one of one output, else a new one."""
    folder = find_model(folder)
    encoder, tensors, tokenizer = _load_bert(folder, "token weights")
    with seeded(seed):
        model = TokenWeightModel(encoder)
    if "BertForTokenClassification" in (read_object(folder / "config.json").get("architectures") or []):
        outputs = len(tensors["classifier.weight"]) if "classifier.weight" in tensors else 0
        if outputs != 1:
            raise InputError(folder, None, f"{outputs} outputs for each token; a weight is one")
        _fill_if_there(model.head, "classifier", tensors, folder)
    return model.eval(), tokenizer


def save_token_weights(
    folder: str | Path, model: TokenWeightModel, tokenizer: Tokenizer, max_length: int | None = None
) -> None:
    """Write a folder that transformers loads as BertForTokenClassification; it must not exist yet."""
    tensors = encoder_tensors(model.encoder)
    tensors |= {f"classifier.{kind}": value for kind, value in model.head.state_dict().items()}
    description = {**describe(model.encoder, "BertForTokenClassification"), **describe_labels(["weight"])}
    write_folder(folder, tensors, description, tokenizer, max_length)


def load_classifier(folder: str | Path, labels: Sequence[str] | None = None, *, seed: int = 0) -> Classifier:
    """A classifier of texts or pairs of texts: three classes for NLI, five for query types.

    Without ``labels`` it is the folder's own. With them, the folder's head is kept where its labels are these in this
    order; otherwise a new one takes its place, with a warning where there was one.
    """
    folder = find_model(folder)
    encoder, tensors, tokenizer = load_encoder(folder)
    tensors = without_other_heads(tensors, folder, encoder.config)
    names = head_names(encoder.config)
    own = _own_labels(folder, tensors, names.output)
    if labels is None and not own:
        raise InputError(folder, None, "no classifier, and no labels are given for a new one")
    wanted = tuple(own if labels is None else labels)
    if len(set(wanted)) != len(wanted) or not wanted:
        raise RankwellError(f"the labels of a classifier must differ: {', '.join(wanted)}")
    dense = f"{names.dense}.weight" in tensors or (encoder.config.model_type != "bert" and bool(names.dense))
    model = new_cross_encoder(encoder, len(wanted), pooler=dense, seed=seed)
    if wanted != own:
        if own:
            warnings.warn(f"{folder} tells {', '.join(own)} apart: its head is replaced, untrained", stacklevel=2)
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{names.output}.")}
    fill_head(model, tensors, folder)
    return Classifier(model.eval(), tokenizer, wanted)


def save_classifier(folder: str | Path, classifier: Classifier, max_length: int | None = None) -> None:
    """Write a folder that transformers loads as a classifier with these labels; it must not exist yet."""
    model, labels = classifier.model, classifier.labels
    if len(labels) != model.head.out_features:
        raise RankwellError(f"{len(labels)} labels for {model.head.out_features} outputs")
    description = describe(model.encoder, head_names(model.encoder.config).architecture)
    tensors = transformers_state(model)
    write_folder(folder, tensors, {**description, **describe_labels(labels)}, classifier.tokenizer, max_length)


def start_listwise_head(
    model: CrossEncoder, start: Literal["difference", "normal", "zero"] = "difference", *, seed: int = 0
) -> None:
    """Give ``model`` a head of one score in place of its own (DR-BERT's fourth stage).

    ``difference`` starts from relevant − not relevant of a head of two logits, so that the model ranks as before;
    ``normal`` draws small weights with ``seed``; ``zero`` scores everything alike at first.
    """
    old = model.head
    new = nn.Linear(old.in_features, 1, device=old.weight.device, dtype=old.weight.dtype)
    with torch.no_grad(), seeded(seed):
        if start == "difference":
            if old.out_features != 2:
                raise RankwellError(f"a head of {old.out_features} outputs has no difference to start from")
            new.weight.copy_(old.weight[1:] - old.weight[:1])
            new.bias.copy_(old.bias[1:] - old.bias[:1])
        else:
            nn.init.zeros_(new.bias)
            # Drawn on the CPU, so that a seed means the same weights on every device.
            drawn = torch.zeros(new.weight.shape) if start == "zero" else torch.randn(new.weight.shape) * 0.02
            new.weight.copy_(drawn)
    model.head = new


def _load_bert(folder: Path, purpose: str) -> tuple[Encoder, dict[str, Tensor], Tokenizer]:
    encoder, tensors, tokenizer = load_encoder(folder)
    if isinstance(encoder, ForeignEncoder):
        raise InputError(
            folder, None, f"a model of the type {encoder.config.model_type}; heads for {purpose} are BERT's only"
        )
    return encoder, tensors, tokenizer


def _fill_if_there(part: nn.Module, name: str, tensors: Mapping[str, Tensor], folder: Path) -> None:
    found = {kind: tensors[f"{name}.{kind}"] for kind in ("weight", "bias") if f"{name}.{kind}" in tensors}
    if len(found) == 1:
        raise InputError(folder, None, f"the weights have half of {name}")
    if found:
        fill(part, found, folder)


def _own_labels(folder: Path, tensors: Mapping[str, Tensor], output: str) -> tuple[str, ...]:
    """The labels of the folder's classifier, empty where it has none."""
    outputs = len(tensors.get(f"{output}.weight", ()))
    named: dict[str, Any] = read_object(folder / "config.json").get("id2label") or {}
    return tuple(str(named.get(str(number), f"LABEL_{number}")) for number in range(outputs))
