"""Encoders other than BERT, computed by transformers: ELECTRA, DistilBERT, MPNet, and others that take a mask.

:class:`ForeignEncoder` is called like :class:`~rankwell.models.encoder.Encoder`. It pads the batch, and every token
attends to every other: attention rules are for BERT only.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.models.layout import Layout, Packed
from rankwell.models.spec import EncoderConfig


@dataclass(frozen=True, slots=True)
class HeadNames:
    """The names in transformers of the parts of a family's classifier, and the activation of its dense layer.

    Without ``dense`` the head is directly on ``[CLS]``; transformers has no such classifier.
    """

    dense: str
    activation: str
    output: str
    architecture: str


HEADS = {
    "bert": HeadNames("pooler.dense", "tanh", "classifier", "BertForSequenceClassification"),
    "electra": HeadNames("classifier.dense", "gelu", "classifier.out_proj", "ElectraForSequenceClassification"),
    "distilbert": HeadNames("pre_classifier", "relu", "classifier", "DistilBertForSequenceClassification"),
    "mpnet": HeadNames("classifier.dense", "tanh", "classifier.out_proj", "MPNetForSequenceClassification"),
    "roberta": HeadNames("classifier.dense", "tanh", "classifier.out_proj", "RobertaForSequenceClassification"),
}


_POSITIONS = 2**20
"""Encoders with relative positions name more of them than any of their tensors has rows, but hardly over a million."""


class ForeignEncoder(nn.Module):
    """A transformers model without a head, called with packed rows and a :class:`Layout`."""

    def __init__(self, backbone: Any):
        super().__init__()
        self.backbone = backbone
        accepted = inspect.signature(backbone.forward).parameters
        self._takes_segments = "token_type_ids" in accepted
        self.config = _numbers(backbone, segments=self._takes_segments)
        self.layers = nn.ModuleList()  # transformers has its own layers

    @property
    def tokens(self) -> nn.Embedding:
        """The token embeddings."""
        table = self.backbone.get_input_embeddings()
        assert isinstance(table, nn.Embedding)
        return table

    def embed(self, tokens: Tensor, segments: Tensor, positions: Tensor) -> Tensor:
        """Not supported: exports and attention maps, which need the encoder's parts, work for BERT only."""
        raise RankwellError(
            f"models of the type {self.config.model_type} are computed whole by transformers: only BERT can do this"
        )

    def forward(
        self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed, *, first_only: bool = True
    ) -> Tensor:
        """The last hidden states: of the first token (B, H) or, with ``first_only=False``, of all tokens (T, H).

        ``positions`` are ignored: each sequence fills a row from its beginning, and transformers counts positions
        itself, in some models not from 0.
        """
        if isinstance(layout, Packed):
            raise RankwellError(f"models of the type {self.config.model_type} cannot be computed packed")
        grid, kinds = (values if layout.slots is None else values[layout.slots] for values in (tokens, segments))
        shape = layout.batch, layout.longest
        hidden = self._run(grid.view(shape), kinds.view(shape), self._mask(layout))
        if first_only:
            return hidden[:, 0]
        rows = hidden.reshape(-1, hidden.shape[2])
        return rows if layout.places is None else rows[layout.places]

    @torch.no_grad()
    def reads_both_ways(self) -> bool:
        """Whether the first token attends to those after it, as in every encoder but in no decoder."""
        weight = self.tokens.weight
        tokens = torch.tensor([[2, 3, 4, 5], [2, 3, 4, 6]], device=weight.device) % len(weight)
        training = self.training
        self.eval()
        try:
            first, second = self._run(tokens, torch.zeros_like(tokens), None).float()
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):  # whatever transformers raises
            return False
        finally:
            self.train(training)
        return bool((first[0] - second[0]).abs().max() > 0)

    def _mask(self, layout: Layout) -> Tensor | None:
        if layout.mask is None:
            return None
        if layout.mask.shape[2] != 1:
            raise RankwellError(f"models of the type {self.config.model_type} follow no attention rule, only full")
        return layout.mask[:, 0, 0].long()  # where there is no padding

    def _run(self, tokens: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        """(B, L) → (B, L, H)."""
        kinds = {"token_type_ids": segments.long()} if self._takes_segments else {}
        hidden: Tensor = self.backbone(input_ids=tokens.long(), attention_mask=mask, **kinds, return_dict=True)[0]
        return hidden


def load_foreign(folder: Path, kind: str, tensors: Mapping[str, Tensor]) -> ForeignEncoder:
    """The encoder of a folder of the kind ``kind``; the weights are under transformers' names."""
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError:
        raise MissingExtraError("transformers", "models", "a model other than BERT") from None
    path = folder / "config.json"
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        if config.is_encoder_decoder or type(config) not in AutoModel._model_mapping:
            raise InputError(
                path, None, f"a model of the type {kind}; rankwell reads bert, and other encoders through transformers"
            )
        _check_sizes(config, tensors, path)
        build: Callable[..., Any] = AutoModel.from_config
        backbone = build(config, trust_remote_code=False, dtype=torch.float32)
    except RankwellError:
        raise
    except Exception as error:  # a wrong setting may come out as anything
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            path, None, f"a model of the type {kind}, which transformers cannot build ({problem})"
        ) from None
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None  # classifiers have none; the head has the dense layer
    _fill_backbone(backbone, tensors, folder)
    encoder = ForeignEncoder(backbone)
    if "attention_mask" not in inspect.signature(backbone.forward).parameters:
        raise InputError(path, None, f"a model of the type {kind}, which takes no mask and so cannot be padded")
    if not encoder.reads_both_ways():
        raise InputError(path, None, f"a model of the type {kind}, whose first token sees nothing of those after it")
    return encoder


def _check_sizes(config: Any, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise for sizes that the weights cannot have, before a model of that size is built."""
    largest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    limits = {"num_hidden_layers": len(tensors), "max_position_embeddings": max(largest, _POSITIONS)}
    widths = ("hidden_size", "intermediate_size", "hidden_dim")
    limits |= dict.fromkeys(("vocab_size", "type_vocab_size", *widths), largest)
    for name, limit in limits.items():
        value = getattr(config, name, None)
        if isinstance(value, int) and value > limit:
            raise InputError(path, None, f"{name} is {value}, but the weights have room for {limit} at most")


def foreign_state(encoder: ForeignEncoder) -> dict[str, Tensor]:
    """The encoder's tensors as a transformers classifier holds them."""
    prefix = encoder.backbone.base_model_prefix
    return {f"{prefix}.{name}": tensor for name, tensor in encoder.backbone.state_dict().items()}


def foreign_description(encoder: ForeignEncoder) -> dict[str, Any]:
    """``config.json`` without the entries that depend on the head."""
    settings: dict[str, Any] = json.loads(encoder.backbone.config.to_json_string(use_diff=False))
    names = HEADS.get(encoder.config.model_type)
    architecture = names.architecture if names else type(encoder.backbone).__name__
    return {**settings, "architectures": [architecture], "vocab_size": len(encoder.tokens.weight)}


def _fill_backbone(backbone: Any, tensors: Mapping[str, Tensor], where: Path) -> None:
    prefix = f"{backbone.base_model_prefix}."
    weights = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    state = backbone.state_dict()
    for name, parameter in state.items():
        if name not in weights:
            raise InputError(where, None, f"the weights lack {name}")
        if weights[name].shape != parameter.shape:
            actual, expected = tuple(weights[name].shape), tuple(parameter.shape)
            raise InputError(where, None, f"{name} has the shape {actual}, but config.json asks for {expected}")
    backbone.load_state_dict({name: weights[name] for name in state})


def _numbers(backbone: Any, *, segments: bool) -> EncoderConfig:
    """The dimensions of a transformers model, which have the same names in most families."""
    config = backbone.config
    positions = getattr(config, "max_position_embeddings", 512)
    for name, module in backbone.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            positions -= module.padding_idx + 1  # counted from there on, as in MPNet and RoBERTa
    dropouts = ("seq_classif_dropout", "classifier_dropout", "hidden_dropout_prob")
    dropout = next((value for name in dropouts if (value := getattr(config, name, None)) is not None), 0.1)
    return EncoderConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=getattr(config, "intermediate_size", None)
        or getattr(config, "hidden_dim", config.hidden_size),
        max_position_embeddings=positions,
        type_vocab_size=max(1, getattr(config, "type_vocab_size", 1)) if segments else 1,
        hidden_dropout_prob=dropout,
        model_type=config.model_type,
    )
