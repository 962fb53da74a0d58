"""The BERT encoder over unpadded sequences.

Every matrix product runs over the real tokens only, (T, H) with T = the sum of the lengths. Only attention may need a
padded grid: in training on a CPU, and in fp32 on a GPU. Query, key and value are one product. If only ``[CLS]`` is
needed, the last layer is computed for it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankwell.core.errors import RankwellError
from rankwell.models.attention import attend, attend_first, without_rule
from rankwell.models.layout import Layout, Packed
from rankwell.models.spec import EncoderConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class Dropout(nn.Dropout):
    """torch's dropout, except on a CPU, where that is slow."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop some elements in training."""
        if self.training and input.device.type == "cpu":
            from rankwell.models.kernels.cpu_dropout import drop  # imports numba, which scoring does not need

            return drop(input, self.p)
        return super().forward(input)


class Layer(nn.Module):
    """One transformer block, post-norm as in BERT: (T, H) → (T, H)."""

    def __init__(self, config: EncoderConfig, number: int = 0):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.mix_norm = nn.LayerNorm(hidden, config.layer_norm_eps)
        self.inner = nn.Linear(hidden, inner)
        self.outer = nn.Linear(inner, hidden)
        self.outer_norm = nn.LayerNorm(hidden, config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.attention_dropout = config.attention_probs_dropout_prob
        # The places of dropout in a packed batch are numbered: the embeddings are 0, each layer has three.
        self.site = 1 + 3 * number
        self.joined_gelu = False  # see Encoder.join_gelu
        self.int8: Callable[..., Tensor] | None = None  # computes this layer on a CPU, see models/int8.py

    def forward(self, x: Tensor, layout: Layout | Packed) -> Tensor:
        """All tokens."""
        if self.int8 is not None and isinstance(layout, Layout):
            return self.int8(x, layout)
        mixed = attend(self.qkv(x), layout, self.heads, self.attention_dropout if self.training else 0.0, self.site)
        return self._finish_packed(x, mixed, layout) if isinstance(layout, Packed) else self.finish(x, mixed)

    def forward_first(self, x: Tensor, layout: Layout | Packed) -> Tensor:
        """The first token of each sequence alone: (T, H) → (B, H)."""
        if self.int8 is not None and isinstance(layout, Layout):
            return self.int8(x, layout, first_only=True)
        hidden = x.shape[1]
        # The gradient of index_select is one pass; for indexing, torch would sort the indices.
        first = x.index_select(0, layout.first) if isinstance(layout, Packed) else x[layout.first]
        weight, bias = self.qkv.weight, self.qkv.bias
        query = functional.linear(first, weight[:hidden], bias[:hidden])
        keys_values = functional.linear(x, weight[hidden:], bias[hidden:])
        dropout = self.attention_dropout if self.training else 0.0
        mixed = attend_first(query, keys_values, layout, self.heads, dropout, self.site)
        return self._finish_packed(first, mixed, layout) if isinstance(layout, Packed) else self.finish(first, mixed)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """What follows attention: ``x`` is the input of the block, ``mixed`` the output of attention."""
        x = self.mix_norm(x + self.dropout(self.mix(mixed)))
        out: Tensor = self.outer_norm(x + self.dropout(self.outer(self.activation(self.inner(x)))))
        return out

    def _finish_packed(self, x: Tensor, mixed: Tensor, layout: Packed) -> Tensor:
        if self.training or torch.is_grad_enabled():
            from rankwell.models.kernels.triton_training_layers import add_norm_trained

            dropout = self.dropout.p if self.training else 0.0
            x = add_norm_trained(x, self.mix(mixed), self.mix_norm, dropout, layout.seeds, self.site + 1)
            outer = self.outer(self.activation(self.inner(x)))
            return add_norm_trained(x, outer, self.outer_norm, dropout, layout.seeds, self.site + 2)
        from rankwell.models.kernels.triton_layers import add_norm

        x = add_norm(x, self.mix(mixed), self.mix_norm)
        if self.joined_gelu:
            inner = torch._addmm_activation(self.inner.bias, x, self.inner.weight.t(), use_gelu=True)
        else:
            inner = self.activation(self.inner(x))
        return add_norm(x, self.outer(inner), self.outer_norm)


class Encoder(nn.Module):
    """Embeddings and layers.

    ``apart`` is how many of the first layers read the parts of a sequence separately, ``ruled`` which layers follow
    the attention rule (``None``: all of them; -1 is the last).
    """

    def __init__(self, config: EncoderConfig, *, apart: int = 0, ruled: Sequence[int] | None = None):
        super().__init__()
        self.apart = apart
        self.ruled = ruled
        if config.hidden_act not in ACTIVATIONS:
            raise RankwellError(f"no activation is called {config.hidden_act!r} (known: {', '.join(ACTIVATIONS)})")
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.segments = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList([Layer(config, number) for number in range(config.num_hidden_layers)])

    def restrict(self, apart: int, ruled: Sequence[int] | None) -> None:
        """Change how many layers read the parts apart, and which ones follow the attention rule."""
        self.apart, self.ruled = apart, ruled

    def join_gelu(self, joined: bool) -> None:
        """Choose whether inference on packed batches computes gelu, in its tanh form, within the matrix product."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.joined_gelu = joined and self.config.hidden_act.startswith("gelu")

    def embed(self, tokens: Tensor, segments: Tensor, positions: Tensor) -> Tensor:
        """(T,) ids → (T, H)."""
        summed = self.tokens(tokens) + self.segments(segments) + self.positions(positions)
        embedded: Tensor = self.dropout(self.norm(summed))
        return embedded

    def _embed(self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed) -> Tensor:
        if not isinstance(layout, Packed):
            return self.embed(tokens, segments, positions)
        ids, tables = (tokens, segments, positions), (self.tokens.weight, self.segments.weight, self.positions.weight)
        if self.training or torch.is_grad_enabled():
            from rankwell.models.kernels.triton_training_layers import embed_norm_trained

            return embed_norm_trained(
                ids, tables, self.norm, self.dropout.p if self.training else 0.0, layout.seeds, site=0
            )
        from rankwell.models.kernels.triton_layers import embed_norm

        return embed_norm(ids, tables, self.norm)

    def forward(
        self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed, *, first_only: bool = True
    ) -> Tensor:
        """The last hidden states: of ``[CLS]`` (B, H) or, with ``first_only=False``, of all tokens (T, H)."""
        x = self._embed(tokens, segments, positions, layout)
        return self._run(x, self.views(layout), first_only=first_only)

    def read_twice(
        self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed
    ) -> tuple[Tensor, Tensor]:
        """The last hidden states of ``[CLS]`` (B, H), and those of all tokens (T, H) with the parts read separately.

        The first ``apart`` layers are common to both and computed once.
        """
        x = self._embed(tokens, segments, positions, layout)
        together, alone = self.views(layout), self.views(layout, len(self.layers))
        for layer, view in zip(self.layers[: self.apart], alone, strict=False):
            x = layer(x, view)
        states = self._run(x, alone, begin=self.apart, first_only=False)
        if self.apart == len(self.layers):
            return states.index_select(0, layout.first), states
        return self._run(x, together, begin=self.apart), states

    def _run(self, x: Tensor, views: Sequence[Layout | Packed], *, begin: int = 0, first_only: bool = True) -> Tensor:
        """The layers from ``begin`` on."""
        for layer, view in zip(self.layers[begin:-1], views[begin:], strict=False):
            x = layer(x, view)
        if begin == len(self.layers):
            return x
        final = self.layers[-1]
        assert isinstance(final, Layer)
        return final.forward_first(x, views[-1]) if first_only else final(x, views[-1])

    def _follows_rule(self, number: int) -> bool:
        return self.ruled is None or number in self.ruled or number - len(self.layers) in self.ruled

    def views(self, layout: Layout | Packed, apart: int | None = None) -> list[Layout | Packed]:
        """The layout of a batch for each layer; ``apart`` replaces the encoder's."""
        apart = self.apart if apart is None else apart
        views: list[Layout | Packed] = []
        for number in range(len(self.layers)):
            seen = layout.parts if number < apart else layout
            assert seen is not None
            views.append(seen if self._follows_rule(number) else without_rule(seen))
        return views

    def masks(self, ruled: Tensor, free: Tensor, segments: Tensor, apart: int | None = None) -> list[Tensor]:
        """:meth:`views` as masks (B, 1, L, L), given the masks with and without the rule, and ``segments`` (B, L).
        Layers with equal masks share a tensor.
        """
        follows = [self._follows_rule(number) for number in range(len(self.layers))]
        masks = [ruled if follow else free for follow in follows]
        apart = self.apart if apart is None else apart
        if apart:
            query = segments == 0
            same = query[:, None, :, None] == query[:, None, None, :]
            within = {True: ruled & same, False: free & same}
            masks[:apart] = [within[follow] for follow in follows[:apart]]
        return masks


class CrossEncoder(nn.Module):
    """An encoder and a head over ``[CLS]``: 2 logits (not relevant, relevant), 1 score, or a logit for each class.

    ``pooler`` puts a dense layer between the two, followed by ``activation``: tanh in BERT, others elsewhere. With
    ``similarity`` the same weights also read query and document separately, as a bi-encoder does, and this many times
    the cosine of their mean states (minus a half) is added to the score.
    """

    def __init__(
        self,
        encoder: Encoder,
        outputs: int,
        *,
        pooler: bool,
        activation: str = "tanh",
        similarity: float = 0.0,
    ):
        super().__init__()
        hidden = encoder.config.hidden_size
        self.encoder = encoder
        self.similarity = similarity
        self.pooler = nn.Linear(hidden, hidden) if pooler else None
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(encoder.config.hidden_dropout_prob)
        self.head = nn.Linear(hidden, outputs)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed) -> Tensor:
        """The logits (B, outputs)."""
        batch = (tokens, segments, positions, layout)
        alike = None
        if self.similarity:
            assert layout.parts is not None
            first, states = self.encoder.read_twice(*batch)
            with torch.autocast(first.device.type, enabled=False):
                alike = compare_parts(states.float(), layout.parts.lengths)
        else:
            first = self.encoder(*batch)
        if self.pooler is not None:
            first = self.activation(self.pooler(first))
        # In 16 bits, scores have two or three digits and candidates would tie, so the head is computed in 32.
        with torch.autocast(first.device.type, enabled=False):
            weight, bias = self.head.weight.float(), self.head.bias.float()
            logits = functional.linear(self._drop(first.float(), layout), weight, bias)
            return logits if alike is None else logits + add_similarity(alike, self.similarity)

    @property
    def outputs(self) -> int:
        """The numbers per sequence."""
        return self.head.out_features

    def set_head(self, head: nn.Linear) -> None:
        """Replace the head."""
        self.head = head

    @property
    def needs_parts(self) -> bool:
        """Whether a batch's layout must locate the parts of its sequences."""
        return bool(self.similarity) or self.encoder.apart > 0

    def _drop(self, first: Tensor, layout: Layout | Packed) -> Tensor:
        if not (self.training and isinstance(layout, Packed)):
            dropped: Tensor = self.dropout(first)
            return dropped
        from rankwell.models.kernels.triton_training_layers import dropout_trained

        layers = self.encoder.config.num_hidden_layers
        return dropout_trained(first, self.dropout.p, layout.seeds, site=1 + 3 * layers)


def compare_parts(states: Tensor, lengths: Tensor) -> Tensor:
    """The cosine of the mean states of each sequence's two parts: (T, H) and (2B,) → (B,)."""
    sums = torch.segment_reduce(states, "sum", lengths=lengths.long(), unsafe=True, initial=0)
    # Spare sequences have no second part: its mean is 0, and so is its gradient.
    means = sums / lengths.clamp(min=1)[:, None]
    return cosine(means[0::2], means[1::2])


def add_similarity(alike: Tensor, times: float) -> Tensor:
    """What cosines (B,) add to a score, (B, 1). A half is subtracted so that a score of 0 still means a probability of
    a half, and the probabilities of high scores do not all round to 1.
    """
    return times * (alike[:, None] - 0.5)


def cosine(left: Tensor, right: Tensor) -> Tensor:
    """(B, H) and (B, H) → (B,)."""
    return (functional.normalize(left, dim=1) * functional.normalize(right, dim=1)).sum(dim=1)
