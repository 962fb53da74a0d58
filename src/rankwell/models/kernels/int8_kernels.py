"""BERT's layers in 8 bits on a CPU: matrix products of int8 with exact sums, everything between them in fp32.

With AMX, attention multiplies in bf16.

Each row of an input has its own range: ``x ≈ scale · q + middle`` with ``q`` in -128 … 127, or in 0 … 255 where the
processor multiplies unsigned bytes by signed ones. Each column of a weight has its own scale, symmetric around 0. Sums
of integers are exact, and every row is computed alone, so a text has the same result in any batch.

A *product* is the tuple of a linear layer's arrays: weights in panels (N / TILE, K / 4, TILE, 4), and for each column
its scale, the sum of its weights (scaled), and the bias, (N,) each. ``count`` rows of a buffer are real; its rows are a
multiple of SPAN · TILE.
"""

from __future__ import annotations

import numpy as np

from rankwell.core.native import native
from rankwell.models.kernels.tile_kernels import (
    LEAST,
    SPAN,
    TILE,
    bf16_pair,
    bf16_tiles,
    close_tiles,
    fp32_tile,
    int8_tile,
    int8_tiles,
    larger,
    open_tiles,
    pair_rows,
    smaller,
    softmax_columns,
)

BLOCK = 32
"""Rows that pass through a layer together: what lies between its products stays in a core's cache."""
# gelu(x) = x (½ + x p(x²)) for |x| < 4.3, and 1 - Φ(4.3) = 9e-6. The polynomial is a least-squares fit in
# 2 x² / 4.3² - 1; the error of gelu is at most 3e-5, a thousandth of what rounding to 8 bits adds.
_REACH = np.float32(4.3)
_GELU = tuple(
    np.float32(c)
    for c in (
        0.164052754,
        -0.0800476865,
        0.0556062567,
        -0.0396331473,
        0.0258831427,
        -0.0146870296,
        0.00953989248,
        -0.00694504822,
        0.00250926558,
    )
)
_CLOSED = np.float32(-1e30)


@native()
def _aligned(rows, columns):
    """Zeros (rows, columns) of 4 bytes each, from the start of a line of the cache: AMX loads whole lines."""
    memory = np.zeros(rows * columns + 16, np.int32)
    first = (64 - memory.ctypes.data % 64) % 64 // 4
    return memory[first : first + rows * columns].reshape(rows, columns)


@native(fastmath=True, error_model="numpy")
def _gelu(x):
    """Replace the numbers of ``x`` (N,) by their gelu."""
    for i in range(len(x)):
        near = min(max(x[i], -_REACH), _REACH)
        place = near * near * (np.float32(2) / (_REACH * _REACH)) - np.float32(1)
        value = _GELU[8]
        value = value * place + _GELU[7]
        value = value * place + _GELU[6]
        value = value * place + _GELU[5]
        value = value * place + _GELU[4]
        value = value * place + _GELU[3]
        value = value * place + _GELU[2]
        value = value * place + _GELU[1]
        value = value * place + _GELU[0]
        x[i] = x[i] * (np.float32(0.5) + near * value)


@native(fastmath=True, error_model="numpy")
def _quantise(x, count, panels, scales, middles, row, tiles):
    """Write the first ``count`` rows of ``x`` (·, K) as int8 panels, as int32 (·, K / 4, TILE); ``row`` is (K,).

    For AMX's ``tiles``, rows stay rows.
    """
    for r in range(count):
        values = x[r]
        low = high = values[0]
        for k in range(len(values)):
            low = smaller(low, values[k])
            high = larger(high, values[k])
        scale = (high - low) / np.float32(255)
        factor = np.float32(1) / scale if scale > 0 else np.float32(0)
        for k in range(len(values)):
            row[k] = np.int8(np.int32((values[k] - low) * factor + np.float32(0.5)) + np.int32(LEAST))
        scales[r], middles[r] = scale, low - np.float32(LEAST) * scale
        quads, panel, place = row.view(np.int32), panels[r // TILE], r % TILE
        if tiles:
            rows, first = panel.reshape(-1), place * len(quads)
            for k in range(len(quads)):
                rows[first + k] = quads[k]
        else:
            for k in range(len(quads)):
                panel[k, place] = quads[k]


@native()
def _multiply(panels, count, scales, middles, product, out, tiles):
    """``out`` (·, N) = the first ``count`` quantised rows times the weights, plus the bias."""
    weights, of_columns, totals, bias = product
    steps, columns, span = weights.shape[1], 4 * len(bias), SPAN if tiles else 1
    if tiles:
        open_tiles()
    for c in range(0, weights.shape[0], span):
        column = 4 * TILE * c
        for r in range(0, (count + TILE - 1) // TILE, span):
            row = 4 * TILE * r
            places = (
                panels.ctypes.data + row * steps,
                weights.ctypes.data + column * steps,
                steps,
                out.ctypes.data + TILE * r * columns + column,
                columns,
                scales.ctypes.data + row,
                middles.ctypes.data + row,
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


@native(fastmath=True, error_model="numpy")
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
def project(x, product, tiles):
    """A linear layer: ``x`` (T, K) → (T, N); the result has rows to spare."""
    rows, width = x.shape
    out = np.empty((rows + SPAN * TILE, len(product[3])), np.float32)
    panels = _aligned(BLOCK, width // 4).reshape(BLOCK // TILE, width // 4, TILE)
    scales, middles, row = np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32), np.empty(width, np.int8)
    for begin in range(0, rows, BLOCK):
        count = min(BLOCK, rows - begin)
        _quantise(x[begin:], count, panels, scales, middles, row, tiles)
        _multiply(panels, count, scales, middles, product, out[begin:], tiles)
    return out


@native()
def finish(x, mixed, mix, mix_norm, inner, outer, outer_norm, epsilon, tiles):
    """What follows attention in a layer: ``x`` (R, H) is its input, ``mixed`` (≥ R, H) the output of attention."""
    rows, width, deep = len(x), x.shape[1], len(inner[3])
    out = np.empty((rows, width), np.float32)
    panels = _aligned(BLOCK, width // 4).reshape(BLOCK // TILE, width // 4, TILE)
    deep_panels = _aligned(BLOCK, deep // 4).reshape(BLOCK // TILE, deep // 4, TILE)
    scales, middles, row = np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32), np.empty(width, np.int8)
    deep_row = np.empty(deep, np.int8)
    sums, normal = _aligned(BLOCK, width).view(np.float32), _aligned(BLOCK, width).view(np.float32)
    activated = _aligned(BLOCK, deep).view(np.float32)
    for begin in range(0, rows, BLOCK):
        count = min(BLOCK, rows - begin)
        _quantise(mixed[begin:], count, panels, scales, middles, row, tiles)
        _multiply(panels, count, scales, middles, mix, sums, tiles)
        _add_norm(x[begin:], sums, count, mix_norm, epsilon, normal)
        _quantise(normal, count, panels, scales, middles, row, tiles)
        _multiply(panels, count, scales, middles, inner, activated, tiles)
        _gelu(activated[:count].reshape(-1))
        _quantise(activated, count, deep_panels, scales, middles, deep_row, tiles)
        _multiply(deep_panels, count, scales, middles, outer, sums, tiles)
        _add_norm(normal, sums, count, outer_norm, epsilon, out[begin:])
    return out


@native()
def _close(scores, allowed, length):
    """Hide what the rows of a tile may not attend to; ``scores`` (·, TILE) are transposed."""
    for lane in range(min(TILE, len(allowed))):
        for j in range(length):
            if not allowed[lane, j]:
                scores[j, lane] = _CLOSED


@native()
def attend_in_bf16(qkv, begins, lengths, mask, heads, first_only):
    """What :func:`attend` computes, by AMX: products of bf16 numbers with sums in fp32. Heads have 32 · n dimensions.

    Keys and values are the rows of tiles, queries and exponentials the columns, so the result is transposed.
    """
    width, step = qkv.shape[1] // 3, SPAN * TILE
    size, longest = width // heads, -(-lengths.max() // step) * step
    half, pairs = size // 2, longest // 2
    out = np.empty((len(lengths) if first_only else len(qkv), width), np.float32)
    keys, values, exponentials = _aligned(longest, half), _aligned(size, pairs), _aligned(pairs, TILE)
    queries = _aligned(longest, half).reshape(longest // TILE, half, TILE)
    scores, mixed = _aligned(longest, TILE).view(np.float32), _aligned(size, TILE).view(np.float32)
    factors = np.empty(TILE, np.float32)
    open_tiles()
    for number in range(len(lengths)):
        begin, length = begins[number], lengths[number]
        count, steps = 1 if first_only else length, -(-length // step)
        for head in range(heads):
            first = head * size
            for j in range(length):
                query, key, panel = qkv[begin + j, first:], qkv[begin + j, width + first :], queries[j // TILE]
                for d in range(half):
                    keys[j, d] = bf16_pair(key[2 * d], key[2 * d + 1])
                if j < count:
                    for d in range(half):
                        panel[d, j % TILE] = bf16_pair(query[2 * d], query[2 * d + 1])
            for j in range(0, length, 2):
                value = qkv[begin + j, 2 * width + first :]
                following = qkv[begin + min(j + 1, length - 1), 2 * width + first :]
                for d in range(size):
                    values[d, j // 2] = bf16_pair(value[d], following[d])
            for row in range(0, count, TILE):
                asked = queries.ctypes.data + 4 * row * half
                for j in range(0, length, step):
                    place = scores.ctypes.data + 4 * j * TILE
                    bf16_tiles(keys.ctypes.data + 4 * j * half, 4 * half, asked, size // step, place)
                if len(mask):
                    _close(scores, mask[number, row:count], length)
                softmax_columns(scores.ctypes.data, length, factors.ctypes.data)
                scores[length : steps * step] = 0
                pair_rows(scores.ctypes.data, steps * step // 2, exponentials.ctypes.data)
                for d in range(0, size, step):
                    place = mixed.ctypes.data + 4 * d * TILE
                    bf16_tiles(values.ctypes.data + 4 * d * pairs, 4 * pairs, exponentials.ctypes.data, steps, place)
                for lane in range(min(TILE, count - row)):
                    result = out[(number if first_only else begin + row) + lane, first:]
                    for d in range(size):
                        result[d] = mixed[d, lane] * factors[lane]
    close_tiles()
    return out


@native()
def attend(qkv, begins, lengths, mask, heads, first_only):
    """Attention within each sequence, in fp32: ``qkv`` (≥ T, 3 H) → (≥ T, H), or (≥ B, H) for the first tokens alone.

    ``mask`` (B, L, L) says which column each row may attend to; (0, 0, 0) allows all. Queries are scaled already.
    Scores are computed transposed, a column for each of a tile's rows, as the second product needs them.
    """
    width = qkv.shape[1] // 3
    size, longest = width // heads, -(-lengths.max() // TILE) * TILE
    parts, corner = -(-size // TILE), np.empty((TILE, TILE), np.float32)
    out = np.empty(((len(lengths) if first_only else len(qkv)) + TILE, width), np.float32)
    queries, keys = (
        np.zeros((longest // TILE, size, TILE), np.float32),
        np.zeros((longest // TILE, size, TILE), np.float32),
    )
    values = np.zeros((parts, longest, TILE), np.float32)
    scores = np.empty((longest, TILE), np.float32)
    ones, factors = np.ones(TILE, np.float32), np.empty(TILE, np.float32)
    none = 0
    for number in range(len(lengths)):
        begin, length = begins[number], lengths[number]
        count = 1 if first_only else length
        for head in range(heads):
            first = head * size
            for j in range(length):
                query, key, value = (
                    qkv[begin + j, first:],
                    qkv[begin + j, width + first :],
                    qkv[begin + j, 2 * width + first :],
                )
                panel, place = j // TILE, j % TILE
                for d in range(size):
                    keys[panel, d, place] = key[d]
                for part in range(parts):
                    for d in range(min(TILE, size - part * TILE)):
                        values[part, j, d] = value[part * TILE + d]
                if j < count:
                    for d in range(size):
                        queries[panel, d, place] = query[d]
            for row in range(0, count, TILE):
                for column in range(0, length, TILE):
                    fp32_tile(
                        keys.ctypes.data + 4 * column * size,
                        queries.ctypes.data + 4 * row * size,
                        size,
                        scores.ctypes.data + 4 * column * TILE,
                        4 * TILE,
                        ones.ctypes.data,
                        none,
                        none,
                        none,
                        none,
                    )
                if len(mask):
                    _close(scores, mask[number, row:count], length)
                softmax_columns(scores.ctypes.data, length, factors.ctypes.data)
                to = number if first_only else begin + row
                for d in range(parts):
                    columns = min(TILE, size - d * TILE)
                    place, stride = out.ctypes.data + 4 * (to * width + first + d * TILE), 4 * width
                    if columns < TILE:  # a whole tile would reach into the next head
                        place, stride = corner.ctypes.data, 4 * TILE
                    fp32_tile(
                        scores.ctypes.data,
                        values.ctypes.data + 4 * d * longest * TILE,
                        length,
                        place,
                        stride,
                        factors.ctypes.data,
                        none,
                        none,
                        none,
                        none,
                    )
                    if columns < TILE:
                        for lane in range(TILE):
                            for i in range(columns):
                                out[to + lane, first + d * TILE + i] = corner[lane, i]
    return out
