"""BERT's layers in 8 bits on a CPU: matrix products of int8 with exact sums, everything between them in fp32.

Each row of an input has its own range: ``x ≈ scale · q + middle`` with ``q`` in -128 … 127, or in 0 … 255 where the
processor multiplies unsigned bytes by signed ones. Each column of a weight has its own scale, symmetric around 0. Sums
of integers are exact, and every row is computed alone, so a text has the same result in any batch.

A *product* is the tuple of a linear layer's arrays: weights in panels (N / PANEL, K / 4, PANEL, 4), and for each column
its scale, the sum of its weights (scaled), and the bias, (N,) each. Buffers have spare rows: tiles are computed whole.
"""

from __future__ import annotations

import numpy as np

from rankwell.core.native import native
from rankwell.models.devices import PANEL
from rankwell.models.kernels.tile_kernels import (
    LEAST,
    ROWS,
    TOGETHER,
    close_tiles,
    gelu,
    int8_tile,
    int8_tiles,
    larger,
    mix_tile,
    open_tiles,
    scores_tile,
    smaller,
    softmax_columns,
)

BLOCK = 64
"""Rows that pass through what follows attention together, a multiple of TOGETHER: what lies between its products stays
in a core's cache.
"""
LINE = 64
"""Bytes of a line of the cache. Rows are one longer than their numbers: at a distance of a power of two they would
share too few places of the cache.
"""
_CLOSED = np.float32(-1e30)
_FAST = {"fastmath": True, "error_model": "numpy", "forceinline": True}
"""Fast math orders sums by what is around them. Always inlined, they are the same in the process that compiles a kernel
as in later ones.
"""


@native()
def _aligned(rows, columns):
    """Zeros (rows, columns) of 4 bytes each, from the start of a line of the cache: AMX loads whole lines."""
    memory = np.zeros(rows * columns + LINE // 4, np.int32)
    first = (LINE - memory.ctypes.data % LINE) % LINE // 4
    return memory[first : first + rows * columns].reshape(rows, columns)


@native()
def _make_rows(rows, width):
    """Zeros (rows, width + LINE) in int8, with rows to spare."""
    return _aligned(rows + TOGETHER, (width + LINE) // 4).view(np.int8)


@native(**_FAST)
def _quantise(x, count, rows, scales, middles):
    """Write the first ``count`` rows of ``x`` (·, K) into int8 ``rows``."""
    for r in range(count):
        values, whole = x[r], rows[r]
        low = high = values[0]
        for k in range(len(values)):
            low = smaller(low, values[k])
            high = larger(high, values[k])
        scale = (high - low) / np.float32(255)
        factor = np.float32(1) / scale if scale > 0 else np.float32(0)
        for k in range(len(values)):
            whole[k] = np.int8(np.int32((values[k] - low) * factor + np.float32(0.5)) + np.int32(LEAST))
        scales[r], middles[r] = scale, low - np.float32(LEAST) * scale


@native()
def _multiply(rows, count, scales, middles, product, panels, out, stride, tiles):
    """Write the first ``count`` quantised rows times some ``panels`` of the weights, plus the bias, to an address.

    ``panels`` are the first and the one after the last; ``stride`` is that of the result in bytes.
    """
    weights, of_columns, totals, bias = product
    steps, below, together = weights.shape[1], rows.shape[1], TOGETHER if tiles else ROWS
    if tiles:
        open_tiles()
    for c in range(panels[0], panels[1]):
        column = 4 * PANEL * c
        for r in range(0, count, together):
            places = (
                rows.ctypes.data + r * below,
                below,
                weights.ctypes.data + column * steps,
                steps,
                out + r * stride + 4 * PANEL * (c - panels[0]),
                stride,
                scales.ctypes.data + 4 * r,
                middles.ctypes.data + 4 * r,
                of_columns.ctypes.data + column,
                totals.ctypes.data + column,
                bias.ctypes.data + column,
            )
            if tiles:
                int8_tiles(*places)
            else:
                int8_tile(*places)
    if tiles:
        close_tiles()


@native(**_FAST)
def _add_norm(x, added, count, norm, epsilon, out):
    """``out`` = layer norm of ``x + added``, row by row."""
    gain, bias = norm
    width = len(gain)
    for r in range(count):
        left, right, result = x[r], added[r], out[r]
        total = np.float32(0)
        for k in range(width):
            value = left[k] + right[k]
            result[k] = value
            total += value
        mean = total / np.float32(width)
        squares = np.float32(0)
        for k in range(width):
            squares += (result[k] - mean) * (result[k] - mean)
        factor = np.float32(1) / np.sqrt(squares / np.float32(width) + np.float32(epsilon))
        for k in range(width):
            result[k] = (result[k] - mean) * factor * gain[k] + bias[k]


@native()
def finish(x, mixed, mix, mix_norm, inner, outer, outer_norm, epsilon, tiles):
    """What follows attention in a layer: ``x`` (R, H) is its input, ``mixed`` (≥ R, H) the output of attention.

    The result takes the place of ``mixed``.
    """
    count, width, deep = len(x), x.shape[1], len(inner[3])
    rows, deep_rows = _make_rows(BLOCK, width), _make_rows(BLOCK, deep)
    scales, middles = np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32)
    sums, normal = _aligned(BLOCK, width).view(np.float32), _aligned(BLOCK, width).view(np.float32)
    activated = _aligned(BLOCK, deep).view(np.float32)
    to_sums, to_activated = (sums.ctypes.data, 4 * width, tiles), (activated.ctypes.data, 4 * deep, tiles)
    all_panels, inner_panels = (0, len(mix[0])), (0, len(inner[0]))
    for begin in range(0, count, BLOCK):
        own = min(BLOCK, count - begin)
        _quantise(mixed[begin:], own, rows, scales, middles)
        _multiply(rows, own, scales, middles, mix, all_panels, *to_sums)
        _add_norm(x[begin:], sums, own, mix_norm, epsilon, normal)
        _quantise(normal, own, rows, scales, middles)
        _multiply(rows, own, scales, middles, inner, inner_panels, *to_activated)
        gelu(activated.ctypes.data, own * deep)
        _quantise(activated, own, deep_rows, scales, middles)
        _multiply(deep_rows, own, scales, middles, outer, all_panels, *to_sums)
        _add_norm(normal, sums, own, outer_norm, epsilon, mixed[begin:])
    return mixed[:count]


@native()
def _close(scores, allowed, length):
    """Hide what the rows of a tile may not attend to; ``scores`` (·, PANEL) are transposed."""
    for lane in range(min(PANEL, len(allowed))):
        for j in range(length):
            if not allowed[lane, j]:
                scores[j, lane] = _CLOSED


@native()
def attend(x, qkv, begins, lengths, mask, heads, first_only, tiles):
    """Attention within each sequence: ``x`` (T, H) → (≥ T, H), or (≥ B, H) for the first tokens alone.

    ``mask`` (B, L, L) says which column each row may attend to; (0, 0, 0) allows all. Queries are scaled already. One
    head of one sequence is computed at a time, from its queries, keys and values on, so all stays in a core's cache.
    Scores are computed transposed, a column for each query, as the second product needs them.
    """
    width, longest = x.shape[1], lengths.max()
    size = width // heads
    room, panels, step = longest + TOGETHER, size // PANEL, 12 * size
    out = np.empty(((len(lengths) if first_only else len(x)) + PANEL, width), np.float32)
    rows, states = _make_rows(longest, width), _aligned(room, 3 * size).view(np.float32)
    scales, middles = np.zeros(room, np.float32), np.zeros(room, np.float32)
    queries, scores = _aligned(size, PANEL).view(np.float32), _aligned(room, PANEL).view(np.float32)
    factors = np.empty(PANEL, np.float32)
    for number in range(len(lengths)):
        begin, length = begins[number], lengths[number]
        count, to = (1, number) if first_only else (length, begin)
        _quantise(x[begin:], length, rows, scales, middles)
        for head in range(heads):
            for part in range(3):
                first, needed = (part * heads + head) * panels, length if part else count
                place = states.ctypes.data + 4 * part * size
                _multiply(rows, needed, scales, middles, qkv, (first, first + panels), place, step, tiles)
            keys, values = states.ctypes.data + 4 * size, states.ctypes.data + 8 * size
            for row in range(0, count, PANEL):
                own = min(PANEL, count - row)
                for lane in range(own):
                    query = states[row + lane]
                    for d in range(size):
                        queries[d, lane] = query[d]
                for j in range(0, length, ROWS):
                    scores_tile(keys + j * step, step, queries.ctypes.data, size, scores.ctypes.data + 4 * j * PANEL)
                if len(mask):
                    _close(scores, mask[number, row:count], length)
                softmax_columns(scores.ctypes.data, length, factors.ctypes.data)
                for lane in range(0, own, ROWS):
                    for d in range(0, size, PANEL):
                        mix_tile(
                            scores.ctypes.data + 4 * lane,
                            values + 4 * d,
                            step,
                            length,
                            out.ctypes.data + 4 * ((to + row + lane) * width + head * size + d),
                            4 * width,
                            factors.ctypes.data + 4 * lane,
                        )
    return out
