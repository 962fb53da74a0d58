"""Attention rules: which token may be attended to.

    full          every token of the sequence
    strm          the tokens of the same word, and the last piece of any word: a split word is matched only as a whole
    strict        strm, but only last pieces attend to the last pieces of other words
    exact_match   strm in which all occurrences of a split word count as one word

    allowed(a, b) = real(b) and (word(a) == word(b) or last(b))            a attends, b is attended

A rule is the same in every head, and in every layer that follows it. :func:`dense_mask` is its definition; each kernel
must agree with it. For ``exact_match`` the word ids already say which words count as one
(:func:`rankwell.models.spec.under_rule`).

A layer may also read the *parts* of a sequence, query and document, separately, as if each were a sequence.

A batch is on a padded grid or packed (``layout.py``); attention takes either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from rankwell.models.layout import Bounds, Layout, Packed
from rankwell.models.spec import AttentionRule


def make_layout(words: Tensor, last: Tensor, ends: Tensor, rule: AttentionRule) -> Layout:
    """The layout of packed sequences: ``words`` and ``last`` are (T,), ``ends`` (B,).

    ``ends`` may be on the CPU while the others are on a GPU: then nothing here waits for the GPU.
    """
    device = words.device
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    lengths = ends - begins
    batch, longest = len(ends), int(lengths.max())
    if bool((lengths == longest).all()):
        mask = None if rule == "full" else dense_mask(words.view(batch, -1), last.view(batch, -1), None, rule)
        return Layout(batch, longest, None, None, mask, begins.to(device), lengths.to(device))
    offsets = torch.arange(longest, device=ends.device)
    real = offsets < lengths[:, None]
    slots = torch.where(real, begins[:, None] + offsets, 0).flatten()
    places = real.flatten().nonzero().squeeze(1)
    bounds = tuple(zip(begins.tolist(), ends.tolist(), strict=True)) if device.type == "cpu" else None
    real, slots, places, begins, lengths = (
        index.to(device, non_blocking=True) for index in (real, slots, places, begins, lengths)
    )
    if rule == "full":
        mask = real[:, None, None, :]
    else:
        mask = dense_mask(words[slots].view(batch, longest), last[slots].view(batch, longest), real, rule)
    return Layout(batch, longest, slots, places, mask, begins, lengths, bounds)


def without_rule(layout: Layout | Packed) -> Layout | Packed:
    """The same batch for a layer in which every token attends to its whole sequence."""
    if isinstance(layout, Packed):
        return replace(layout, rule="full")
    if layout.slots is None:
        return replace(layout, mask=None)
    real = torch.arange(layout.longest, device=layout.lengths.device) < layout.lengths[:, None]
    return replace(layout, mask=real[:, None, None, :])


def within(layout: Layout | Packed, window: int) -> Layout | Packed:
    """The same batch for a layer in which a token attends to itself and at most ``window`` tokens on each side."""
    if isinstance(layout, Packed):
        return replace(layout, window=window)
    if layout.longest <= window + 1:
        return layout
    places = torch.arange(layout.longest, device=layout.lengths.device)
    near = (places[:, None] - places).abs() <= window
    return replace(layout, mask=near[None, None] if layout.mask is None else near & layout.mask)


def dense_mask(words: Tensor, last: Tensor, real: Tensor | None, rule: AttentionRule) -> Tensor:
    """The rule as a mask (B, 1, L, L), true where row ``a`` may attend to column ``b``; all inputs are (B, L)."""
    if rule == "full":
        allowed = torch.ones(words.shape[0], words.shape[1], words.shape[1], dtype=torch.bool, device=words.device)
    else:
        same = words[:, :, None] == words[:, None, :]
        seen = last[:, None, :] & last[:, :, None] if rule == "strict" else last[:, None, :]
        allowed = same | seen
    if real is not None:
        # Padding is masked as columns only: a row without any column would give NaN.
        allowed = allowed & real[:, None, :]
    return allowed[:, None]


def attend(qkv: Tensor, layout: Layout | Packed, heads: int, dropout: float = 0.0, site: int = 0) -> Tensor:
    """Attention over packed rows: ``qkv`` (T, 3H) → (T, H). ``site`` is the number of the dropout's place."""
    if isinstance(layout, Packed):
        if dropout or torch.is_grad_enabled():
            from rankwell.models.kernels.triton_training import attend_trained

            return attend_trained(qkv, layout, heads, dropout, site)
        from rankwell.models.kernels.triton_attention import attend_packed

        return attend_packed(qkv, layout, heads)
    size = qkv.shape[1] // (3 * heads)
    if layout.bounds is not None:
        whole = (rows.view(1, -1, 3, heads, size).permute(2, 0, 3, 1, 4) for rows in _sequences(qkv, layout.bounds))
        return _one_by_one((rows.unbind() for rows in whole), layout.mask, dropout)
    grid = qkv if layout.slots is None else qkv.index_select(0, layout.slots)
    query, key, value = grid.view(layout.batch, layout.longest, 3, heads, size).permute(2, 0, 3, 1, 4)
    mixed = _scaled(query, key, value, layout.mask, dropout)
    rows = mixed.transpose(1, 2).reshape(layout.batch * layout.longest, heads * size)
    return rows if layout.places is None else rows.index_select(0, layout.places)


def attend_first(
    query: Tensor, keys_values: Tensor, layout: Layout | Packed, heads: int, dropout: float = 0.0, site: int = 0
) -> Tensor:
    """:func:`attend` for the first token of each sequence alone: ``query`` (B, H), ``keys_values`` (T, 2H) → (B, H)."""
    if isinstance(layout, Packed):
        if dropout or torch.is_grad_enabled():
            from rankwell.models.kernels.triton_training import attend_first_trained

            return attend_first_trained(query, keys_values, layout, heads, dropout, site)
        from rankwell.models.kernels.triton_attention import attend_first_packed

        return attend_first_packed(query, keys_values, layout, heads)
    size = query.shape[1] // heads
    if layout.bounds is not None:
        firsts = query.view(-1, 1, heads, 1, size).unbind()
        others = (rows.view(1, -1, 2, heads, size) for rows in _sequences(keys_values, layout.bounds))
        whole = ((first, *rows.permute(2, 0, 3, 1, 4).unbind()) for first, rows in zip(firsts, others, strict=True))
        return _one_by_one(whole, layout.mask, dropout)
    grid = keys_values if layout.slots is None else keys_values.index_select(0, layout.slots)
    key, value = grid.view(layout.batch, layout.longest, 2, heads, size).permute(2, 0, 3, 1, 4)
    # [CLS] is a whole word, so under any rule it attends to the last pieces alone.
    mask = None if layout.mask is None else layout.mask[:, :, :1]
    mixed = _scaled(query.view(layout.batch, 1, heads, size).transpose(1, 2), key, value, mask, dropout)
    return mixed.transpose(1, 2).reshape(layout.batch, heads * size)


def _scaled(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Attention by torch. On a CPU it has no fast dropout of weights, so none are dropped."""
    drop = 0.0 if query.device.type == "cpu" else dropout
    return functional.scaled_dot_product_attention(query, key, value, mask, drop)


def _sequences(rows: Tensor, bounds: Bounds) -> Sequence[Tensor]:
    """The rows of each sequence. Split at once: the gradient of a slice would be as large as all of them."""
    return torch.split_with_sizes(rows, [end - begin for begin, end in bounds])


def _one_by_one(sequences: Iterable[Sequence[Tensor]], mask: Tensor | None, dropout: float) -> Tensor:
    """Attention within each sequence, without padding: query, key and value (1, heads, R, size) of each → (T, H)."""
    ruled = mask is not None and mask.shape[2] > 1  # otherwise it only marks padding
    rows = []
    for number, (query, key, value) in enumerate(sequences):
        part = mask[number : number + 1, :, : query.shape[2], : key.shape[2]] if ruled and mask is not None else None
        rows.append(_scaled(query, key, value, part, dropout).transpose(1, 2).flatten(2)[0])
    return torch.cat(rows)
