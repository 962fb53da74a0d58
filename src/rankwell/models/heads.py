"""Heads other than a ranker's: vectors; and a listwise start."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.models.encoder import Encoder
from rankwell.models.foreign import ForeignEncoder, PairModel
from rankwell.models.layout import Layout, Packed
from rankwell.models.spec import PoolingKind


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw new weights with ``seed`` without changing the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def pool_states(states: Tensor, lengths: Tensor, kind: PoolingKind) -> Tensor:
    """The states of all tokens (T, H) as one vector for each sequence (B, H), of ``lengths`` (B,)."""
    ends = lengths.cumsum(0)
    if kind == "first":
        return states[ends - lengths]
    if kind == "last":
        return states[ends - 1]
    if kind == "weighted":
        places = torch.arange(len(states), device=states.device) - (ends - lengths).repeat_interleave(lengths)
        weights = (places + 1).to(states.dtype)
        sums = torch.segment_reduce(states * weights[:, None], "sum", lengths=lengths)
        return sums / torch.segment_reduce(weights, "sum", lengths=lengths)[:, None]
    return torch.segment_reduce(states, kind, lengths=lengths)


class VectorModel(nn.Module):
    """A bi-encoder in training: the mean of a text's states, or the first one, normalised to length 1."""

    def __init__(self, encoder: Encoder | ForeignEncoder, pooling: PoolingKind = "mean"):
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling

    @property
    def outputs(self) -> int:
        """The numbers per sequence."""
        return self.encoder.config.hidden_size

    def forward(self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed) -> Tensor:
        """The vectors (B, H), in 32 bits."""
        states = self.encoder(tokens, segments, positions, layout, first_only=self.pooling == "first")
        with torch.autocast(states.device.type, enabled=False):
            pooled = states.float()
            if self.pooling == "mean":
                lengths = layout.lengths.long()
                sums = torch.segment_reduce(pooled, "sum", lengths=lengths, unsafe=True, initial=0)
                pooled = sums / lengths.clamp(min=1)[:, None]
            return nn.functional.normalize(pooled, dim=1)


def start_listwise_head(
    model: PairModel, start: Literal["difference", "normal", "zero"] = "difference", *, seed: int = 0
) -> None:
    """Replace the head of ``model`` by a new one with one score (DR-BERT's fourth stage).

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
    model.set_head(new)


# LoRA through peft


def add_lora(encoder: Encoder | ForeignEncoder, rank: int, alpha: float, *, train_tokens: bool = False) -> None:
    """Freeze an encoder and put trainable matrices of a small ``rank`` beside its linear layers.

    With ``train_tokens`` the token embeddings stay trainable.
    """
    try:
        import peft
    except ImportError:
        raise MissingExtraError("peft", "lora", "training with LoRA") from None
    part: nn.Module = encoder if isinstance(encoder, Encoder) else encoder.backbone
    part.requires_grad_(False)
    names = [name for name, module in part.named_modules() if type(module) is nn.Linear]
    inject: Any = peft.inject_adapter_in_model
    inject(peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=names), part)
    if train_tokens:
        encoder.tokens.weight.requires_grad_(True)


def merged_copy(model: nn.Module) -> Any:
    """A copy of a model whose LoRA matrices, if any, are part of its weights."""
    plain = copy.deepcopy(model)
    for module in list(plain.modules()):
        children: list[tuple[str, Any]] = list(module.named_children())
        for name, child in children:
            if hasattr(child, "get_base_layer"):
                child.merge()
                setattr(module, name, child.get_base_layer())
    return plain
