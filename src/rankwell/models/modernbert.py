"""ModernBERT without padding, for inference: weights, modules and configuration are those of transformers' model.

transformers pads the batch and computes norms, rotary positions and the gated layer in many passes over memory. Here
each of them is one pass (``kernels/triton_layers.py``), and most layers attend to a window only. On a :class:`Layout`
torch computes the same, which is the definition of the kernels.

    x = x + Wo · attention(rotated(Wqkv · norm(x)))         no norm in the first layer
    x = x + Wo · (gelu(a) · b),   a, b = Wi · norm(x)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankwell.models.attention import attend, within
from rankwell.models.layout import Layout, Packed

_LOCAL = "sliding_attention"


class Rotary(NamedTuple):
    """Cosines and sines of each token's angles, (T, size of a head / 2) in fp32."""

    cosines: Tensor
    sines: Tensor

    @classmethod
    def at(cls, positions: Tensor, base: float, size: int) -> Rotary:
        """The angles of positions (T,) for heads of ``size``."""
        # On the CPU, as transformers computes them: a GPU's power function rounds differently.
        frequencies = 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = positions[:, None].float() * frequencies.to(positions.device, non_blocking=True)
        return cls(angles.cos(), angles.sin())


def is_packable(backbone: Any) -> bool:
    """Whether a transformers model is a ModernBERT that :func:`encode` computes."""
    if not type(backbone).__module__.startswith("transformers.models.modernbert."):
        return False
    config = backbone.config
    plain = all(config.rope_parameters[kind]["rope_type"] == "default" for kind in set(config.layer_types))
    return plain and config.hidden_activation == "gelu"


@torch.no_grad()
def classify(model: Any, tokens: Tensor, positions: Tensor, layout: Layout | Packed) -> Tensor:
    """The logits (B, outputs) of transformers' classifier."""
    first_only = model.config.classifier_pooling == "cls"
    states = encode(model.base_model, tokens, positions, layout, first_only=first_only)
    if not first_only:
        means = torch.segment_reduce(states.float(), "mean", lengths=layout.lengths.long(), unsafe=True)
        states = means.to(states.dtype)
    # In 16 bits, scores have two or three digits and candidates would tie, so the last layer is computed in 32.
    head = model.classifier
    return functional.linear(model.head(states).float(), head.weight.float(), head.bias.float())


@torch.no_grad()
def encode(
    backbone: Any, tokens: Tensor, positions: Tensor, layout: Layout | Packed, *, first_only: bool = False
) -> Tensor:
    """The last hidden states of all tokens (T, H) or, with ``first_only``, of the first of each sequence (B, H)."""
    config, layers = backbone.config, backbone.layers
    heads = config.num_attention_heads
    size = config.hidden_size // heads
    views = {_LOCAL: within(layout, config.local_attention // 2)}
    angles = {
        kind: Rotary.at(positions, config.rope_parameters[kind]["rope_theta"], size) for kind in set(config.layer_types)
    }
    norms = [*(layer.attn_norm for layer in layers[1:]), backbone.final_norm]
    packed = isinstance(layout, Packed)
    x: Tensor = backbone.embeddings(input_ids=tokens.long()[None])[0]
    normal = x
    for layer, kind, norm in zip(layers, config.layer_types, norms, strict=True):
        qkv = rotate(layer.attn.Wqkv(normal), angles[kind], heads, packed=packed)
        mixed = attend(qkv, views.get(kind, layout), heads)
        if first_only and norm is backbone.final_norm:
            mixed, x = mixed[layout.first.long()], x[layout.first.long()]
        x, normal = add_norm(x, layer.attn.Wo(mixed), layer.mlp_norm, packed=packed)
        inner = gate(layer.mlp.Wi(normal), packed=packed)
        x, normal = add_norm(x, layer.mlp.Wo(inner), norm, packed=packed)
    return normal


def rotate(qkv: Tensor, angles: Rotary, heads: int, *, packed: bool) -> Tensor:
    """Queries and keys turned by each token's angles; ``qkv`` (T, 3H) is changed in place."""
    if packed:
        from rankwell.models.kernels.triton_layers import rotate_heads

        return rotate_heads(qkv, *angles, heads)
    rows = qkv.view(len(qkv), 3 * heads, -1)[:, : 2 * heads]
    exact = rows.float()  # the rows themselves if they are fp32
    first, second = exact.chunk(2, dim=2)
    cosines, sines = (table[:, None] for table in angles)
    turned = (first * cosines).addcmul_(second, sines, value=-1)
    second.mul_(cosines).addcmul_(first, sines)
    first.copy_(turned)
    if exact is not rows:
        rows.copy_(exact)
    return qkv


def add_norm(x: Tensor, y: Tensor, norm: nn.LayerNorm, *, packed: bool) -> tuple[Tensor, Tensor]:
    """``x + y`` and its norm."""
    if packed:
        from rankwell.models.kernels.triton_layers import add_then_norm

        return add_then_norm(x, y, norm)
    summed = x + y
    return summed, norm(summed)


def gate(x: Tensor, *, packed: bool) -> Tensor:
    """(T, 2I) → (T, I): gelu of the first half, times the second."""
    if packed:
        from rankwell.models.kernels.triton_layers import gelu_gate

        return gelu_gate(x)
    inner, factor = x.chunk(2, dim=1)
    return functional.gelu(inner) * factor
