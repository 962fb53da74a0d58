"""Tiles of matrix products, against numpy: int8 sums are exact, with and without the processor's dot product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from rankwell.models.kernels import tile_kernels
from rankwell.models.kernels.int8_kernels import _gelu, _quantise
from rankwell.models.kernels.tile_kernels import LEAST, TILE, fp32_tile, softmax_columns

RANDOM = np.random.default_rng(0)


def product_by(tile: Any) -> Any:
    @njit
    def product(rows, columns, steps, out, scales, middles, weights, totals, bias):  # type: ignore[no-untyped-def]
        tile(
            rows.ctypes.data,
            columns.ctypes.data,
            steps,
            out.ctypes.data,
            4 * out.shape[1],
            scales.ctypes.data,
            middles.ctypes.data,
            weights.ctypes.data,
            totals.ctypes.data,
            bias.ctypes.data,
        )

    return product


@pytest.mark.parametrize("dot", [True, False])
def test_int8_sums_are_exact(dot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_kernels, "_DOT", tile_kernels._DOT if dot else 0)
    rows = RANDOM.integers(LEAST, LEAST + 256, (TILE, 96))
    columns = RANDOM.integers(-128, 128, (TILE, 96))
    packed = [np.ascontiguousarray(x.astype(np.int8).reshape(TILE, 24, 4).transpose(1, 0, 2)) for x in (rows, columns)]
    ones, zeros, out = np.ones(TILE, np.float32), np.zeros(TILE, np.float32), np.zeros((TILE, TILE + 3), np.float32)
    multiply = product_by(tile_kernels._tile_of("int8"))
    multiply(*packed, 24, out, ones, zeros, ones, zeros, zeros)
    sums = rows @ columns.T
    np.testing.assert_array_equal(out[:, :TILE], sums)
    assert not out[:, TILE:].any()
    scales, middles, weights, totals, bias = RANDOM.normal(size=(5, TILE)).astype(np.float32)
    multiply(*packed, 24, out, scales, middles, weights, totals, bias)
    expected = scales[:, None] * weights * sums + middles[:, None] * totals + bias
    np.testing.assert_allclose(out[:, :TILE], expected, rtol=1e-5, atol=1e-2)


def test_fp32_tiles_are_products() -> None:
    rows, columns = RANDOM.normal(size=(2, 20, TILE)).astype(np.float32)
    factors, out = RANDOM.normal(size=TILE).astype(np.float32), np.zeros((TILE, TILE), np.float32)
    product_by(fp32_tile)(rows, columns, 20, out, factors, factors, factors, factors, factors)
    np.testing.assert_allclose(out, factors[:, None] * (rows.T @ columns), atol=1e-5)


def test_softmax_over_rows() -> None:
    scores = (8 * RANDOM.normal(size=(37, TILE))).astype(np.float32)
    scores[3, 2] = -1e30
    expected = np.exp(scores.astype(np.float64) - scores.max(axis=0))
    factors = np.empty(TILE, np.float32)

    @njit
    def apply(scores, factors):  # type: ignore[no-untyped-def]
        softmax_columns(scores.ctypes.data, len(scores), factors.ctypes.data)

    apply(scores, factors)
    np.testing.assert_allclose(scores * factors, expected / expected.sum(axis=0), atol=3e-5)
    assert scores[3, 2] < 1e-30


def test_gelu_is_within_a_thousandth_of_an_8_bit_step() -> None:
    torch = pytest.importorskip("torch")
    x = np.linspace(-9, 9, 10_001).astype(np.float32)
    found = x.copy()
    _gelu(found)
    np.testing.assert_allclose(found, torch.nn.functional.gelu(torch.from_numpy(x)).numpy(), atol=4e-5)


@pytest.mark.parametrize("tiles", [False, True])
def test_a_quantised_row_spans_its_own_range(tiles: bool) -> None:
    x = np.stack([RANDOM.normal(size=16), np.full(16, 3.0), RANDOM.uniform(0, 9, 16)]).astype(np.float32)
    panels = np.zeros((1, 4, TILE), np.int32)
    scales, middles = np.zeros(TILE, np.float32), np.zeros(TILE, np.float32)
    _quantise(x, 3, panels, scales, middles, np.empty(16, np.int8), tiles)
    kind = np.int8 if LEAST else np.uint8
    whole = panels[0].view(kind).reshape(TILE, 16)[:3]  # for whole tiles, rows stay rows
    if not tiles:
        whole = panels[0].view(kind).reshape(4, TILE, 4).transpose(1, 0, 2).reshape(TILE, 16)[:3]
    found = scales[:3, None] * whole + middles[:3, None]
    steps = np.ptp(x, axis=1)[:, None] / 255
    assert (np.abs(found - x) <= 0.51 * steps + 1e-5).all()
    assert whole[0].min() == LEAST
    assert whole[0].max() == LEAST + 255
