"""Models that transformers computes: encoders without BERT's layers, whole or with their classifier.

:class:`ForeignEncoder` is called like :class:`~rankwell.models.encoder.Encoder`, :class:`ForeignCrossEncoder` like
:class:`~rankwell.models.encoder.CrossEncoder`. They pad the batch, and every token attends to every other: attention
rules need BERT's layers (``spec.py``). In inference, ModernBERT can do without padding (``modernbert.py``).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankwell.core.errors import InputError, MissingExtraError, RankwellError, one_line
from rankwell.models.checkpoints.describe import Checkpoint
from rankwell.models.encoder import CrossEncoder
from rankwell.models.layout import Layout, Packed
from rankwell.models.modernbert import classify, encode, is_packable
from rankwell.models.spec import EncoderConfig

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
        self.packable = is_packable(backbone)
        """Whether rankwell can compute batches itself, in inference (``modernbert.py``)."""
        self.layers = nn.ModuleList()  # transformers has its own layers

    @property
    def tokens(self) -> nn.Embedding:
        """The token embeddings."""
        table = self.backbone.get_input_embeddings()
        assert isinstance(table, nn.Embedding)
        return table

    def forward(
        self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed, *, first_only: bool = True
    ) -> Tensor:
        """The last hidden states: of the first token (B, H) or, with ``first_only=False``, of all tokens (T, H).

        ``positions`` are ignored: each sequence fills a row from its beginning, and transformers counts positions
        itself, in some models not from 0.
        """
        if self.computes(layout):
            return encode(self.backbone, tokens, positions, layout, first_only=first_only)
        hidden = self.run(*padded(tokens, segments, layout, self.config.model_type))
        assert isinstance(layout, Layout)
        if first_only:
            return hidden[:, 0]
        rows = hidden.reshape(-1, hidden.shape[2])
        return rows if layout.places is None else rows[layout.places]

    def computes(self, layout: Layout | Packed) -> bool:
        """Whether rankwell computes a batch itself: in inference, packed or on a CPU. Elsewhere transformers does."""
        if not self.packable or isinstance(layout, Packed):
            return self.packable
        return layout.first.device.type == "cpu" and not self.backbone.training and not torch.is_grad_enabled()

    @torch.no_grad()
    def reads_both_ways(self) -> bool:
        """Whether the first token attends to those after it, as in every encoder but in no decoder."""
        weight = self.tokens.weight
        tokens = torch.tensor([[2, 3, 4, 5], [2, 3, 4, 6]], device=weight.device) % len(weight)
        training = self.training
        self.eval()
        try:
            first, second = self.run(tokens, torch.zeros_like(tokens), torch.ones_like(tokens)).float()
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):  # whatever transformers raises
            return False
        finally:
            self.train(training)
        return bool((first[0] - second[0]).abs().max() > 0)

    def run(self, tokens: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        """(B, L) → (B, L, H)."""
        hidden: Tensor = self.backbone(**self._inputs(tokens, segments, mask))[0]
        return hidden

    def _inputs(self, tokens: Tensor, segments: Tensor, mask: Tensor | None) -> dict[str, Any]:
        kinds = {"token_type_ids": segments.long()} if self._takes_segments else {}
        return {"input_ids": tokens.long(), "attention_mask": mask, **kinds, "return_dict": True}


class ForeignCrossEncoder(nn.Module):
    """A transformers classifier of pairs, computed whole: 2 logits, 1 score, or a logit for each class."""

    similarity = 0.0
    needs_parts = False

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self._head_name = _head_name(model)
        # Not a submodule: its parameters are the model's.
        object.__setattr__(self, "encoder", ForeignEncoder(model.base_model))

    encoder: ForeignEncoder

    @property
    def head_prefix(self) -> str:
        """What the names of the head's parameters begin with."""
        return f"model.{self._head_name}."

    @property
    def head(self) -> nn.Linear:
        """The last layer."""
        head = self.model.get_submodule(self._head_name)
        assert isinstance(head, nn.Linear)
        return head

    def set_head(self, head: nn.Linear) -> None:
        """Replace the last layer."""
        self.model.set_submodule(self._head_name, head)
        self.model.config.num_labels = self.model.num_labels = head.out_features

    @property
    def outputs(self) -> int:
        """The numbers per sequence."""
        return self.head.out_features

    def forward(self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed) -> Tensor:
        """The logits (B, outputs). ``positions`` are ignored, see :meth:`ForeignEncoder.forward`."""
        if self.encoder.computes(layout):
            return classify(self.model, tokens, positions, layout)
        return self.run(*padded(tokens, segments, layout, self.encoder.config.model_type))

    def run(self, tokens: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        """(B, L) → (B, outputs)."""
        logits: Tensor = self.model(**self.encoder._inputs(tokens, segments, mask)).logits
        return logits.float()


PairModel = CrossEncoder | ForeignCrossEncoder
"""A model that scores pairs."""


def padded(
    tokens: Tensor, segments: Tensor, layout: Layout | Packed, kind: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Packed rows (T,) on the grid of their layout (B, L), and where there is no padding; None if that is everywhere.

    Each sequence fills a row from its beginning.
    """
    if isinstance(layout, Packed):
        raise RankwellError(f"models of the type {kind} cannot be computed packed")
    if layout.mask is not None and layout.mask.shape[2] != 1:
        raise RankwellError(f"models of the type {kind} follow no attention rule, only full")
    shape = layout.batch, layout.longest
    grid, kinds = (values if layout.slots is None else values[layout.slots] for values in (tokens, segments))
    return grid.view(shape), kinds.view(shape), None if layout.mask is None else layout.mask[:, 0, 0].long()


def _head_name(model: Any) -> str:
    """The name of a classifier's last layer: the last one outside the encoder that has an output for each label."""
    inside = f"{model.base_model_prefix}."
    names: list[str] = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith(inside) and module.out_features == model.num_labels
    ]
    return names[-1]


def load_foreign(
    checkpoint: Checkpoint, tensors: Mapping[str, Tensor], *, causal: bool = False, trust_remote_code: bool = False
) -> ForeignEncoder:
    """The encoder of a folder; the weights are under transformers' names.

    Raises for a decoder, whose tokens see only those before them, unless ``causal``.
    """
    backbone = build_model(checkpoint, tensors, "AutoModel", trust_remote_code=trust_remote_code)
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None  # it comes after the states
    missing = fill_model(backbone, tensors, checkpoint.folder)
    if missing:
        raise InputError(checkpoint.folder, None, f"the weights lack {missing[0]}")
    encoder = ForeignEncoder(backbone)
    _check_encoder(encoder, checkpoint, causal=causal)
    return encoder


def load_foreign_ranker(
    checkpoint: Checkpoint, tensors: Mapping[str, Tensor], outputs: int, *, trust_remote_code: bool = False
) -> tuple[ForeignCrossEncoder, list[str]]:
    """The classifier of a folder, and the names of the parts of its head that the weights lack: these are random."""
    auto = "AutoModelForSequenceClassification"
    model = build_model(checkpoint, tensors, auto, trust_remote_code=trust_remote_code, num_labels=outputs)
    missing = fill_model(model, tensors, checkpoint.folder)
    inside = f"{model.base_model_prefix}."
    lacking = next((name for name in missing if name.startswith(inside) and "pooler" not in name), None)
    if lacking is not None:
        raise InputError(checkpoint.folder, None, f"the weights lack {lacking.removeprefix(inside)}")
    ranker = ForeignCrossEncoder(model)
    _check_encoder(ranker.encoder, checkpoint)
    return ranker, list(dict.fromkeys(name.rpartition(".")[0] for name in missing))


def check_remote_code(checkpoint: Checkpoint, *, trusted: bool) -> None:
    """Raise for a model that needs code from its repository, unless that is ``trusted``."""
    if not trusted and checkpoint.remote_code:
        problem = "a model that runs code from its repository; if you trust it, add --trust-remote-code"
        raise InputError(checkpoint.folder / "config.json", None, f"{problem} (trust_remote_code=True)")


def build_model(
    checkpoint: Checkpoint,
    tensors: Mapping[str, Tensor],
    auto: str,
    *,
    trust_remote_code: bool = False,
    **changes: Any,
) -> Any:
    """A model of transformers, or of code in the folder, with new weights, of the sizes of a folder's."""
    check_remote_code(checkpoint, trusted=trust_remote_code)
    kind, path = checkpoint.family, checkpoint.folder / "config.json"
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", "models", f"a model of the type {kind}") from None
    try:
        # Trusted code may be in another repository.
        config = transformers.AutoConfig.from_pretrained(
            checkpoint.folder, trust_remote_code=trust_remote_code, local_files_only=not trust_remote_code, **changes
        )
        known = getattr(transformers, auto)
        written = config.is_encoder_decoder and "Seq2Seq" not in auto
        brought = auto in (getattr(config, "auto_map", None) or ())
        if not brought and (written or type(config) not in known._model_mapping):
            raise InputError(path, None, f"a model of the type {kind}, which is no encoder that transformers knows")
        _check_sizes(config, tensors, path)
        build: Callable[..., Any] = known.from_config
        return build(config, trust_remote_code=trust_remote_code, dtype=torch.float32)
    except RankwellError:
        raise
    except Exception as error:  # a wrong setting may come out as anything
        problem = f"a model of the type {kind}, which transformers cannot build ({one_line(error)})"
        raise InputError(path, None, problem) from None


def _check_encoder(encoder: ForeignEncoder, checkpoint: Checkpoint, *, causal: bool = False) -> None:
    kind, path = checkpoint.family, checkpoint.folder / "config.json"
    if "attention_mask" not in inspect.signature(encoder.backbone.forward).parameters:
        raise InputError(path, None, f"a model of the type {kind}, which takes no mask and so cannot be padded")
    if not causal and not encoder.reads_both_ways():
        raise InputError(path, None, f"a model of the type {kind}, whose first token sees nothing of those after it")


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


def foreign_description(model: Any) -> dict[str, Any]:
    """``config.json`` of a transformers model."""
    settings: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    vocabulary = len(model.get_input_embeddings().weight)
    return {**settings, "architectures": [type(model).__name__], "vocab_size": vocabulary, "dtype": "float32"}


def fill_model(model: Any, tensors: Mapping[str, Tensor], where: Path) -> list[str]:
    """Fill a transformers model; returns the names of the tensors there are no weights for, which stay as they are.

    A model without a head saves its tensors without the prefix of the encoder.
    """
    prefix = f"{model.base_model_prefix}."
    inner = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    filled, missing = {}, []
    for name, parameter in model.state_dict().items():
        tensor = tensors.get(name, inner.get(name.removeprefix(prefix)))
        if tensor is None:
            missing.append(name)
        elif tensor.shape == parameter.shape:
            filled[name] = tensor
        elif name.startswith(prefix) or len(tensor) == len(parameter):
            actual, expected, short = tuple(tensor.shape), tuple(parameter.shape), name.removeprefix(prefix)
            raise InputError(where, None, f"{short} has the shape {actual}, but config.json asks for {expected}")
        else:
            raise InputError(where, None, f"a head of {len(tensor)} outputs, but the model is to have {len(parameter)}")
    model.load_state_dict(filled, strict=False)
    # An output layer may share its weights with the embeddings.
    state = model.state_dict()
    places = {state[name].data_ptr() for name in filled}
    return [name for name in missing if state[name].data_ptr() not in places]


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
