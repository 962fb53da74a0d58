"""Vectors of texts: the states of a text's tokens as one vector, and a bi-encoder in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankwell.models.encoder import Encoder
from rankwell.models.foreign import ForeignEncoder
from rankwell.models.layout import Layout, Packed
from rankwell.models.spec import PoolingKind


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
