"""Tiles of matrix products, against numpy: int8 sums are exact, with and without the processor's dot product."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from rankwell.models.devices import INT8_UNIT, PANEL
from rankwell.models.kernels import tile_kernels
from rankwell.models.kernels.int8_kernels import _quantise
from rankwell.models.kernels.tile_kernels import (
    LEAST,
    ROWS,
    gelu,
    int8_tile,
    mix_tile,
    scores_tile,
    softmax_columns,
)

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("dot", [True, False])
def test_int8_sums_are_exact(dot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_kernels, "_DOT", tile_kernels._DOT if dot else 0)

    @njit
    def multiply(rows, columns, out, scales, middles, weights, totals, bias):  # type: ignore[no-untyped-def]
        int8_tile(
            rows.ctypes.data,
            rows.shape[1],
            columns.ctypes.data,
            len(columns),
            out.ctypes.data,
            4 * out.shape[1],
            scales.ctypes.data,
            middles.ctypes.data,
            weights.ctypes.data,
            totals.ctypes.data,
            bias.ctypes.data,
        )

    rows = RANDOM.integers(LEAST, LEAST + 256, (ROWS, 96))
    columns = RANDOM.integers(-128, 128, (PANEL, 96))
    padded = np.zeros((ROWS, 101), np.int8)  # rows may be farther apart than their numbers
    padded[:, :96] = rows.astype(np.int8)
    panel = np.ascontiguousarray(columns.astype(np.int8).reshape(PANEL, 24, 4).transpose(1, 0, 2))
    ones, zeros, out = np.ones(PANEL, np.float32), np.zeros(PANEL, np.float32), np.zeros((ROWS, PANEL + 3), np.float32)
    multiply(padded, panel, out, ones, zeros, ones, zeros, zeros)
    sums = rows @ columns.T
    np.testing.assert_array_equal(out[:, :PANEL], sums)
    assert not out[:, PANEL:].any()
    scales, middles, weights, totals, bias = RANDOM.normal(size=(5, PANEL)).astype(np.float32)
    multiply(padded, panel, out, scales, middles, weights, totals, bias)
    expected = scales[:ROWS, None] * weights * sums + middles[:ROWS, None] * totals + bias
    np.testing.assert_allclose(out[:, :PANEL], expected, rtol=1e-5, atol=1e-2)


def test_fp32_tiles_are_products() -> None:
    @njit
    def score(rows, columns, out):  # type: ignore[no-untyped-def]
        scores_tile(rows.ctypes.data, 4 * rows.shape[1], columns.ctypes.data, len(columns), out.ctypes.data)

    @njit
    def mix(rows, columns, steps, out, factors):  # type: ignore[no-untyped-def]
        addresses = rows.ctypes.data, columns.ctypes.data, 4 * columns.shape[1]
        mix_tile(*addresses, steps, out.ctypes.data, 4 * out.shape[1], factors.ctypes.data)

    rows, columns = (RANDOM.normal(size=(rows, PANEL)).astype(np.float32) for rows in (ROWS, INT8_UNIT))
    rows, out = np.resize(rows, (ROWS, INT8_UNIT + 5)), np.zeros((ROWS, PANEL), np.float32)
    score(rows, columns, out)
    np.testing.assert_allclose(out, rows[:, :INT8_UNIT] @ columns, atol=1e-5)
    scores, values = (RANDOM.normal(size=(7, width)).astype(np.float32) for width in (PANEL, PANEL + 5))
    factors, out = RANDOM.normal(size=ROWS).astype(np.float32), np.zeros((ROWS, PANEL + 3), np.float32)
    mix(scores, values, 7, out, factors)
    np.testing.assert_allclose(out[:, :PANEL], factors[:, None] * (scores[:, :ROWS].T @ values[:, :PANEL]), atol=1e-5)
    assert not out[:, PANEL:].any()


def test_softmax_over_rows() -> None:
    scores = (8 * RANDOM.normal(size=(37, PANEL))).astype(np.float32)
    scores[3, 2] = -1e30
    expected = np.exp(scores.astype(np.float64) - scores.max(axis=0))
    factors = np.empty(PANEL, np.float32)

    @njit
    def apply(scores, factors):  # type: ignore[no-untyped-def]
        softmax_columns(scores.ctypes.data, len(scores), factors.ctypes.data)

    apply(scores, factors)
    np.testing.assert_allclose(scores * factors, expected / expected.sum(axis=0), atol=3e-5)
    assert scores[3, 2] < 1e-30


def test_gelu_is_within_a_thousandth_of_an_8_bit_step() -> None:
    torch = pytest.importorskip("torch")

    @njit
    def apply(numbers):  # type: ignore[no-untyped-def]
        gelu(numbers.ctypes.data, len(numbers))

    x = np.linspace(-9, 9, 10_240).astype(np.float32)
    found = x.copy()
    apply(found)
    np.testing.assert_allclose(found, torch.nn.functional.gelu(torch.from_numpy(x)).numpy(), atol=4e-5)


def test_a_quantised_row_spans_its_own_range() -> None:
    x = np.stack([RANDOM.normal(size=16), np.full(16, 3.0), RANDOM.uniform(0, 9, 16)]).astype(np.float32)
    rows, scales, middles = np.zeros((3, 20), np.int8), np.zeros(3, np.float32), np.zeros(3, np.float32)
    _quantise(x, 3, rows, scales, middles)
    whole = rows[:, :16].view(np.int8 if LEAST else np.uint8)
    found = scales[:, None] * whole + middles[:, None]
    steps = np.ptp(x, axis=1)[:, None] / 255
    assert (np.abs(found - x) <= 0.51 * steps + 1e-5).all()
    assert whole[0].min() == LEAST
    assert whole[0].max() == LEAST + 255
    assert not rows[:, 16:].any()
