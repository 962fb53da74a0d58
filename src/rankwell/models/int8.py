"""An encoder's layers in int8 on a CPU: the weights of :class:`~rankwell.models.encoder.Layer`, quantised once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy, nn

from rankwell.core.errors import RankwellError
from rankwell.models.devices import INT8_UNIT, PANEL, may_use_tiles
from rankwell.models.encoder import Encoder, Layer
from rankwell.models.layout import Layout

Product = tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]


def _compute_layer(
    qkv: Product, heads: int, tiles: bool, rest: tuple[Any, ...], x: Tensor, layout: Layout, *, first_only: bool = False
) -> Tensor:
    """What a layer computes: all tokens (T, H) → (T, H), or (B, H) of the first tokens alone."""
    from rankwell.models.kernels.int8_kernels import attend, finish  # imports numba

    states = np.ascontiguousarray(x.numpy())
    begins, lengths = layout.first.numpy(), layout.lengths.numpy()
    mask = np.zeros((0, 0, 0), np.bool_)
    if layout.mask is not None and layout.mask.shape[2] > 1:  # otherwise it only marks padding
        mask = layout.mask[:, 0].numpy()
    mixed = attend(states, qkv, begins, lengths, mask, heads, first_only, tiles)
    return from_numpy(finish(states[begins] if first_only else states, mixed, *rest, tiles))


def int8_lacks(encoder: nn.Module | None) -> str | None:
    """Why an encoder cannot be computed in int8; ``None`` if it can."""
    if not isinstance(encoder, Encoder):
        return "int8 is for BERT encoders"
    config = encoder.config
    if not config.hidden_act.startswith("gelu"):
        return f"int8 is for encoders with gelu, not {config.hidden_act}"
    for size in (config.hidden_size, config.intermediate_size, config.head_size):
        if size % INT8_UNIT:
            return f"int8 needs sizes that are multiples of {INT8_UNIT}, not {size}"
    return None


def quantise_encoder(encoder: nn.Module | None) -> None:
    """Let an encoder compute its layers in int8. Raises if the kernels cannot compute it."""
    if problem := int8_lacks(encoder):
        raise RankwellError(f"{problem}; use the precision fp32")
    assert isinstance(encoder, Encoder)
    tiles = not (encoder.config.hidden_size % 64 or encoder.config.intermediate_size % 64) and may_use_tiles()
    for layer in encoder.layers:
        assert isinstance(layer, Layer)
        qkv = _scale_queries(quantise_linear(layer.qkv), layer.qkv.in_features, layer.heads)
        rest = (
            quantise_linear(layer.mix),
            _norm(layer.mix_norm),
            quantise_linear(layer.inner),
            quantise_linear(layer.outer),
            _norm(layer.outer_norm),
            float(layer.mix_norm.eps),
        )
        layer.int8 = partial(_compute_layer, qkv, layer.heads, tiles, rest)


def restore_encoder(encoder: nn.Module | None) -> None:
    """Undo :func:`quantise_encoder`."""
    for layer in encoder.layers if isinstance(encoder, Encoder) else ():
        assert isinstance(layer, Layer)
        layer.int8 = None


def quantise_linear(linear: nn.Linear) -> Product:
    """The arrays of a linear layer for the kernels."""
    weight = linear.weight.detach().float().numpy()
    scales = np.maximum(np.abs(weight).max(axis=1), np.float32(1e-30)) / np.float32(127)
    whole = np.rint(weight / scales[:, None]).astype(np.int8)
    columns, depth = whole.shape
    panels = whole.reshape(columns // PANEL, PANEL, depth // 4, 4).transpose(0, 2, 1, 3)
    totals = scales * whole.sum(axis=1, dtype=np.int64).astype(np.float32)
    memory = np.empty(whole.size + 64, np.int8)
    aligned = memory[-memory.ctypes.data % 64 :][: whole.size].reshape(panels.shape)  # lines of the cache, loaded whole
    np.copyto(aligned, panels)
    return aligned, scales, totals, linear.bias.detach().float().numpy().copy()


def _scale_queries(qkv: Product, width: int, heads: int) -> Product:
    """Fold the scale of attention, 1 / √(head size), into the columns of the queries."""
    panels, *columns = qkv
    for values in columns:
        values[:width] *= np.float32((width // heads) ** -0.5)
    return panels, columns[0], columns[1], columns[2]


def _norm(norm: nn.LayerNorm) -> tuple[NDArray[Any], NDArray[Any]]:
    return norm.weight.detach().float().numpy().copy(), norm.bias.detach().float().numpy().copy()
