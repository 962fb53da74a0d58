"""The query writer of doc2query: an encoder reads a passage, a decoder writes a query, piece by piece.

Both halves start from one BERT checkpoint. The encoder is the ranker's, over unpadded passages. The decoder is BERT's
layers with two changes: a piece sees only those before it, and each layer then looks at the passage (cross-attention).
Targets are short, so the decoder works on a padded grid.

    passage  (T, H) ──► grid (B, L, H) ──► keys and values of each layer, computed once
    query    [CLS] q1 q2 …  (R, M) ──► (R, M, H) ──► the next piece:  q1 q2 … [SEP]

R is B rows in training; in writing B · n, the n queries of a passage side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankwell.models.encoder import ACTIVATIONS, Encoder, Layer
from rankwell.models.layout import Layout, Packed
from rankwell.models.spec import EncoderConfig


@dataclass(frozen=True, eq=False)
class Passages:
    """What the encoder made of a batch: ``states`` (B, L, H), and ``real`` (B, 1, 1, L), false where it is padding."""

    states: Tensor
    real: Tensor


@dataclass(frozen=True, eq=False)
class Memory:
    """A passage as one layer of the decoder sees it: keys and values (B, heads, L, d), and which are real."""

    keys: Tensor
    values: Tensor
    real: Tensor

    def take(self, passages: Tensor) -> Memory:
        """The memory of these passages, in this order."""
        return Memory(*(part.index_select(0, passages) for part in (self.keys, self.values, self.real)))


class Past:
    """The keys and values of the pieces one layer has seen: room for ``steps``, of which ``length`` are filled."""

    def __init__(self, rows: int, heads: int, steps: int, size: int, like: Tensor):
        self.keys = like.new_empty(rows, heads, steps, size)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def add(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add pieces (R, heads, M, d); gives all so far."""
        end = self.length + key.shape[2]
        self.keys[:, :, self.length : end] = key
        self.values[:, :, self.length : end] = value
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def take(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be taken several times."""
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

        No checkpoint has weights for it. Drawn at random, it would mix noise into every layer and the pre-trained
        layers above would first unlearn what they know. Self-attention's own projections already match words that
        belong together, and the encoder's states lie in the space the same layers worked in: a far better start.
        """
        hidden = self.mix.out_features
        with torch.no_grad():
            for part in ("weight", "bias"):
                joined = getattr(self.qkv, part)
                getattr(self.cross_query, part).copy_(joined[:hidden])
                getattr(self.cross_keys_values, part).copy_(joined[hidden:])
                getattr(self.cross_mix, part).copy_(getattr(self.mix, part))
                getattr(self.cross_norm, part).copy_(getattr(self.mix_norm, part))

    def remember(self, passages: Passages) -> Memory:
        """The passages' keys and values for this layer."""
        batch, longest, _ = passages.states.shape
        both = self.cross_keys_values(passages.states).view(batch, longest, 2, self.heads, -1)
        keys, values = both.permute(2, 0, 3, 1, 4)
        return Memory(keys, values, passages.real)

    def write(self, x: Tensor, memory: Memory, past: Past | None = None) -> Tensor:
        """(R, M, H) → (R, M, H). With ``past``, ``x`` is one new piece a row and the ones before it are there."""
        rows, length, hidden = x.shape
        dropout = self.attention_dropout if self.training else 0.0
        query, key, value = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            key, value = past.add(key, value)
        # A single new piece may see all there is.
        mixed = functional.scaled_dot_product_attention(query, key, value, None, dropout, is_causal=past is None)
        x = self.mix_norm(x + self.dropout(self.mix(mixed.transpose(1, 2).reshape(rows, length, hidden))))
        # The queries of one passage are rows of one attention, so its keys are not repeated for each of them.
        batch = memory.keys.shape[0]
        query = self.cross_query(x).view(batch, -1, self.heads, hidden // self.heads).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(query, memory.keys, memory.values, memory.real, dropout)
        mixed = mixed.transpose(1, 2).reshape(rows, length, hidden)
        x = self.cross_norm(x + self.dropout(self.cross_mix(mixed)))
        out: Tensor = self.outer_norm(x + self.dropout(self.outer(self.activation(self.inner(x)))))
        return out


class Decoder(Encoder):
    """The half that writes: BERT's embeddings, layers that look back and at the passage, the output over tokens.

    The output is BERT's MLM head: a transform, then the table of token embeddings itself with a bias for each token.
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

    def remember(self, passages: Passages) -> list[Memory]:
        """The passages as each layer sees them."""
        return [layer.remember(passages) for layer in self.writing_layers]

    def states(self, tokens: Tensor, memories: list[Memory], past: list[Past] | None = None) -> Tensor:
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

    def start_past(self, rows: int, steps: int) -> list[Past]:
        """Room for ``rows`` queries of up to ``steps`` pieces."""
        config = self.config
        like = self.tokens.weight
        shape = rows, config.num_attention_heads, steps, config.head_size
        return [Past(*shape, like) for _ in self.layers]


class QueryWriter(nn.Module):
    """Encoder and decoder."""

    def __init__(self, encoder: Encoder, decoder: Decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def read(
        self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed, slots: Tensor, real: Tensor
    ) -> Passages:
        """The passages of a packed batch; ``slots`` (B, L) is the packed row of each place of the grid (any for
        padding), ``real`` (B, L) whether there is one.
        """
        states = self.encoder(tokens, segments, positions, layout, first_only=False)
        grid = states.index_select(0, slots.flatten()).view(*slots.shape, -1)
        return Passages(grid, real[:, None, None, :])

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
        """The logits of the pieces that follow ``queries`` (B, M), at ``rows`` (K,) of its flattened grid alone."""
        passages = self.read(tokens, segments, positions, layout, slots, real)
        states = self.decoder.states(queries, self.decoder.remember(passages))
        return self.decoder.logits(states.flatten(0, 1).index_select(0, rows))
