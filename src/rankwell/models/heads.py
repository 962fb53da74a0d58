"""Heads other than a ranker's: MLM and NSP for pre-training, weights of tokens, vectors; and a listwise start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from rankwell.core.errors import RankwellError
from rankwell.models.encoder import ACTIVATIONS, Encoder
from rankwell.models.foreign import ForeignEncoder, PairModel
from rankwell.models.layout import Layout, Packed
from rankwell.models.spec import PoolingKind


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw new weights with ``seed`` without changing the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


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
    """A bi-encoder in training: the mean of a text's states, or the first one, normalised to length 1.

    With ``learn_scale`` the factor of the similarities in the loss is a parameter, which starts at ``scale``.
    """

    def __init__(
        self,
        encoder: Encoder | ForeignEncoder,
        pooling: PoolingKind = "mean",
        *,
        scale: float = 20.0,
        learn_scale: bool = False,
    ):
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.log_scale = nn.Parameter(torch.tensor(scale).log(), requires_grad=learn_scale)

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
