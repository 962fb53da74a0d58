"""The query writer of doc2query: an encoder reads a passage, a decoder writes a query piece by piece.

Both halves start from the same BERT checkpoint. The encoder is the ranker's, over unpadded passages. The decoder is
BERT with two changes: a piece attends only to those before it, and each layer also attends to the passage
(cross-attention). Queries are short, so the decoder works on a padded grid.

    passage  (T, H) ──► grid (B, L, H) ──► keys and values of each layer, computed once
    query    [CLS] q1 q2 …  (R, M) ──► (R, M, H) ──► the next piece:  q1 q2 … [SEP]

R is B in training, and B · n when n queries are written for each passage, which are then neighbouring rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rankwell.inputs.pieces import Pieces
from rankwell.inputs.templates import SpecialTokens
from rankwell.models.encoder import ACTIVATIONS, Encoder, Layer
from rankwell.models.layout import Layout, Packed
from rankwell.models.spec import EncoderConfig


@dataclass(frozen=True, eq=False)
class Memory:
    """Passages as one layer of the decoder sees them: keys and values (B, heads, L, d), and ``real`` (B, 1, 1, L)."""

    keys: Tensor
    values: Tensor
    real: Tensor

    def take(self, passages: Tensor) -> Memory:
        """The memory of these passages, in this order."""
        return Memory(*(part.index_select(0, passages) for part in (self.keys, self.values, self.real)))


class KeyValueCache:
    """One layer's keys and values of the pieces so far: room for ``steps``, of which ``length`` are filled."""

    def __init__(self, rows: int, heads: int, steps: int, size: int, like: Tensor):
        self.keys = like.new_empty(rows, heads, steps, size)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def add(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new pieces (R, heads, M, d) and return all so far."""
        end = self.length + key.shape[2]
        self.keys[:, :, self.length : end] = key
        self.values[:, :, self.length : end] = value
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def take(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)


class WritingLayer(Layer):
    """A layer of the decoder: BERT's own, with cross-attention between self-attention and the two dense layers."""

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        hidden = config.hidden_size
        self.cross_query = nn.Linear(hidden, hidden)
        self.cross_keys_values = nn.Linear(hidden, 2 * hidden)
        self.cross_mix = nn.Linear(hidden, hidden)
        self.cross_norm = nn.LayerNorm(hidden, config.layer_norm_eps)

    def start_cross_attention(self) -> None:
        """Copy self-attention's weights into cross-attention.

        BERT checkpoints have no weights for it. Random ones would add noise to every layer, and the pre-trained layers
        above would first unlearn what they know. Self-attention's projections are a far better start: they already
        match words that belong together, and the encoder's states lie in the space that they were trained on.
        """
        hidden = self.mix.out_features
        with torch.no_grad():
            for part in ("weight", "bias"):
                joined = getattr(self.qkv, part)
                getattr(self.cross_query, part).copy_(joined[:hidden])
                getattr(self.cross_keys_values, part).copy_(joined[hidden:])
                getattr(self.cross_mix, part).copy_(getattr(self.mix, part))
                getattr(self.cross_norm, part).copy_(getattr(self.mix_norm, part))

    def remember(self, states: Tensor, real: Tensor) -> Memory:
        """The keys and values of passages for this layer, from the encoder's states (B, L, H)."""
        batch, longest, _ = states.shape
        both = self.cross_keys_values(states).view(batch, longest, 2, self.heads, -1)
        keys, values = both.permute(2, 0, 3, 1, 4)
        return Memory(keys, values, real)

    def write(self, x: Tensor, memory: Memory, past: KeyValueCache | None = None) -> Tensor:
        """(R, M, H) → (R, M, H). With ``past``, ``x`` is one new piece per row and ``past`` has those before it."""
        rows, length, hidden = x.shape
        dropout = self.attention_dropout if self.training else 0.0
        query, key, value = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            key, value = past.add(key, value)
        # A single new piece attends to everything before it, so no mask is needed.
        mixed = functional.scaled_dot_product_attention(query, key, value, None, dropout, is_causal=past is None)
        x = self.mix_norm(x + self.dropout(self.mix(mixed.transpose(1, 2).reshape(rows, length, hidden))))
        # The queries of one passage share one attention call, so its keys are not repeated for each of them.
        batch = memory.keys.shape[0]
        query = self.cross_query(x).view(batch, -1, self.heads, hidden // self.heads).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(query, memory.keys, memory.values, memory.real, dropout)
        mixed = mixed.transpose(1, 2).reshape(rows, length, hidden)
        x = self.cross_norm(x + self.dropout(self.cross_mix(mixed)))
        out: Tensor = self.outer_norm(x + self.dropout(self.outer(self.activation(self.inner(x)))))
        return out


class Decoder(Encoder):
    """BERT's embeddings, layers that attend to earlier pieces and to the passage, and an output over tokens.

    The output is BERT's MLM head: a transform, then the token embeddings as a matrix, with a bias for each token.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        self.layers = nn.ModuleList([WritingLayer(config) for _ in range(config.num_hidden_layers)])
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.transform_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))
        nn.init.normal_(self.transform.weight, std=0.02)
        nn.init.zeros_(self.transform.bias)

    @property
    def writing_layers(self) -> list[WritingLayer]:
        """The layers."""
        return [layer for layer in self.layers if isinstance(layer, WritingLayer)]

    def remember(self, states: Tensor, real: Tensor) -> list[Memory]:
        """Passages as each layer sees them; ``real`` (B, 1, 1, L) is false at padding."""
        return [layer.remember(states, real) for layer in self.writing_layers]

    def states(self, tokens: Tensor, memories: list[Memory], past: list[KeyValueCache] | None = None) -> Tensor:
        """The last states (R, M, H) of ``tokens`` (R, M); with ``past``, of the next token of each row (R, 1)."""
        begin = past[0].length if past else 0
        positions = torch.arange(begin, begin + tokens.shape[1], device=tokens.device)
        x = self.embed(tokens, torch.zeros_like(tokens), positions)
        for number, (layer, memory) in enumerate(zip(self.writing_layers, memories, strict=True)):
            x = layer.write(x, memory, past[number] if past else None)
        return x

    def logits(self, states: Tensor) -> Tensor:
        """States (…, H) → a logit for each token (…, vocabulary)."""
        transformed = self.transform_norm(self.activation(self.transform(states)))
        return functional.linear(transformed, self.tokens.weight, self.output_bias)

    def start_past(self, rows: int, steps: int) -> list[KeyValueCache]:
        """Empty caches for ``rows`` queries of up to ``steps`` pieces."""
        shape = rows, self.config.num_attention_heads, steps, self.config.head_size
        return [KeyValueCache(*shape, self.tokens.weight) for _ in self.layers]


class QueryWriter(nn.Module):
    """Encoder and decoder."""

    def __init__(self, encoder: Encoder, decoder: Decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def read(
        self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed, slots: Tensor, real: Tensor
    ) -> list[Memory]:
        """Encode a packed batch as each layer of the decoder sees it.

        ``slots`` (B, L) is the packed row of each place of the grid (any row at padding), ``real`` (B, L) is false at
        padding.
        """
        states = self.encoder(tokens, segments, positions, layout, first_only=False)
        grid = states.index_select(0, slots.flatten()).view(*slots.shape, -1)
        return self.decoder.remember(grid, real[:, None, None, :])

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor,
        positions: Tensor,
        layout: Layout | Packed,
        slots: Tensor,
        real: Tensor,
        queries: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """The logits of the next pieces, at ``rows`` (K,) of the flattened grid of ``queries`` (B, M)."""
        memories = self.read(tokens, segments, positions, layout, slots, real)
        states = self.decoder.states(queries, memories)
        return self.decoder.logits(states.flatten(0, 1).index_select(0, rows))


# The inputs of a query writer


def passage_grid(ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The packed row of each place of a padded grid (B, L), and whether there is one (false at padding)."""
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    lengths = ends - begins
    places = np.arange(int(lengths.max()))
    real = places < lengths[:, None]
    return np.where(real, begins[:, None] + places, 0), real


def query_grid(
    queries: Pieces, special: SpecialTokens, max_query: int, pad: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Queries to learn: ``[CLS] q1 q2 …`` and the targets ``q1 q2 … [SEP]``, at most ``max_query`` of them.

    Returns the decoder's inputs (B, M), the rows (K,) of its flattened grid that count, and the target of each of these
    rows (K,). A truncated query has no ``[SEP]``, because it does not end there.
    """
    lengths = np.minimum(queries.lengths(), max_query)
    pieces = queries.cut(queries.begins, lengths)
    counts = np.minimum(queries.lengths() + 1, max_query)  # of targets
    width = int(counts.max(initial=1))
    places = np.arange(width)
    whole = np.full((len(queries), width + 1), pad, np.int64)
    whole[:, 0] = special.cls
    whole[:, 1:][places < lengths[:, None]] = pieces.ids
    fits = np.flatnonzero(counts > lengths)
    whole[fits, 1 + lengths[fits]] = special.sep
    counted = places < counts[:, None]
    return np.ascontiguousarray(whole[:, :-1]), np.flatnonzero(counted), whole[:, 1:][counted]
