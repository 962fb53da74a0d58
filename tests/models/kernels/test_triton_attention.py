"""The Triton kernels against the definition of the attention rules.

Without a GPU they run in Triton's interpreter: see kernels/test_interpreted.py.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rankwell.models.attention import attend, attend_first, dense_mask
from rankwell.models.layout import Blocks, Packed
from rankwell.models.spec import AttentionRule

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
kernels_run = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="no GPU, no interpreter")

RULES: tuple[AttentionRule, ...] = ("full", "strm", "strict", "exact_match")
SMALL = Blocks(16, 16, 1, 1)  # small blocks meet their boundaries in short sequences


def packed(words: Tensor, last: Tensor, lengths: list[int], rule: AttentionRule, blocks: Blocks) -> Packed:
    from rankwell.models.kernels.triton_attention import make_tiles, pack

    tiles, sequences = (torch.from_numpy(table).to(DEVICE) for table in make_tiles(np.cumsum(lengths), blocks.rows))
    return pack(words.to(DEVICE), last.to(DEVICE), tiles, sequences, rule, blocks)


def by_definition(qkv: Tensor, words: Tensor, last: Tensor, lengths: list[int], rule: AttentionRule) -> Tensor:
    """Attention (T, heads, 3, size) → (T, heads, size) of each sequence by itself, in fp32, from the dense mask."""
    parts = []
    for own, word, is_last in zip(qkv.float().split(lengths), words.split(lengths), last.split(lengths), strict=True):
        query, key, value = own.permute(2, 1, 0, 3)
        scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~dense_mask(word[None], is_last[None], None, rule)[0], -torch.inf)
        parts.append((torch.softmax(scores, dim=-1) @ value).transpose(0, 1))
    return torch.cat(parts)


def inputs(lengths: list[int], heads: int, size: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random projections (T, heads, 3, size), words in any order, and last pieces."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    qkv = torch.randn(total, heads, 3, size, generator=generator)
    words = torch.randint(0, max(2, total // 3), (total,), generator=generator, dtype=torch.int32)
    return qkv, words, torch.rand(total, generator=generator) < 0.6


def joined(qkv: Tensor) -> Tensor:
    """(T, heads, 3, size) → (T, 3H), the encoder's order: all queries, then all keys, then all values."""
    return qkv.transpose(1, 2).reshape(len(qkv), -1)


@kernels_run
@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([1, 2, 5, 15, 16, 17, 31, 32, 33, 40]), min_size=1, max_size=5),
    rule=st.sampled_from(RULES),
    seed=st.integers(0, 1000),
)
@torch.no_grad()
def test_attention_is_that_of_the_dense_mask(lengths: list[int], rule: AttentionRule, seed: int) -> None:
    qkv, words, last = inputs(lengths, 2, 16, seed)
    layout = packed(words, last, lengths, rule, SMALL)
    expected = by_definition(qkv, words, last, lengths, rule).flatten(1)
    rows = joined(qkv).to(DEVICE)
    torch.testing.assert_close(attend(rows, layout, 2).cpu(), expected, rtol=1e-5, atol=1e-5)
    query = rows[layout.first.long(), :32].contiguous()
    first = attend_first(query, rows[:, 32:].contiguous(), layout, 2)
    torch.testing.assert_close(first.cpu(), expected[layout.first.long().cpu()], rtol=1e-5, atol=1e-5)


@kernels_run
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2.5e-2)])
@pytest.mark.parametrize("size", [32, 64])
@torch.no_grad()
def test_the_blocks_in_use_give_the_same(rule: AttentionRule, dtype: torch.dtype, tolerance: float, size: int) -> None:
    from rankwell.models.kernels.triton_attention import blocks_for

    lengths = [1, 64, 65]
    qkv, words, last = inputs(lengths, 1, size, 7)
    qkv = qkv.to(dtype)
    blocks = blocks_for(size, rule)
    assert blocks is not None
    found = attend(joined(qkv).to(DEVICE), packed(words, last, lengths, rule, blocks), 1).float().cpu()
    expected = by_definition(qkv, words, last, lengths, rule).flatten(1)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@kernels_run
@torch.no_grad()
def test_a_row_whose_first_keys_are_all_closed_is_no_nan() -> None:
    # 40 pieces of one word, then 8 of another: the second word's first pieces see nothing in two whole blocks.
    words = torch.tensor([0] * 40 + [1] * 8, dtype=torch.int32)
    last = torch.zeros(48, dtype=torch.bool)
    qkv, _, _ = inputs([48], 1, 16, 3)
    found = attend(joined(qkv).to(DEVICE), packed(words, last, [48], "strm", SMALL), 1).cpu()
    torch.testing.assert_close(found, by_definition(qkv, words, last, [48], "strm").flatten(1), rtol=1e-5, atol=1e-5)


@kernels_run
@torch.no_grad()
def test_another_sequences_tokens_are_never_read() -> None:
    lengths = [5, 20, 3]
    qkv, words, last = inputs(lengths, 2, 16, 5)
    layout = packed(words, last, lengths, "strm", SMALL)
    before = attend(joined(qkv).to(DEVICE), layout, 2).cpu()
    qkv[:5], qkv[25:] = 1e4, -1e4
    after = attend(joined(qkv).to(DEVICE), layout, 2).cpu()
    assert torch.equal(before[5:25], after[5:25])


def test_tiles_cover_each_row_once() -> None:
    from rankwell.models.kernels.triton_attention import make_tiles

    lengths = np.array([1, 16, 17, 40])
    tiles, sequences = make_tiles(np.cumsum(lengths), 16)
    assert sequences.tolist() == [[0, 1, 0], [1, 16, 1], [17, 17, 2], [34, 40, 4]]
    rows = [begin + row for begin, length, first in tiles.tolist() for row in range(first, min(first + 16, length))]
    assert rows == list(range(74))


@kernels_run
@torch.no_grad()
@pytest.mark.parametrize("width", [32, 48])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_normalised_as_by_torch(width: int, dtype: torch.dtype) -> None:
    from rankwell.models.kernels.triton_layers import add_norm, embed_norm

    torch.manual_seed(0)
    norm = nn.LayerNorm(width, 1e-12).to(DEVICE, dtype)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    exact = nn.LayerNorm(width, 1e-12).to(DEVICE)
    exact.load_state_dict(norm.state_dict())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    x, y = torch.randn(2, 7, width, device=DEVICE).to(dtype)
    torch.testing.assert_close(
        add_norm(x, y, norm).float(), exact(x.float() + y.float()), rtol=tolerance, atol=tolerance
    )
    tables = tuple(torch.randn(count, width, device=DEVICE).to(dtype) for count in (20, 2, 9))
    ids = (
        torch.randint(0, 20, (7,), dtype=torch.int32, device=DEVICE),
        torch.randint(0, 2, (7,), dtype=torch.int8, device=DEVICE),
        torch.arange(7, dtype=torch.int32, device=DEVICE),
    )
    summed = sum((table.float()[i.long()] for table, i in zip(tables, ids, strict=True)), torch.zeros(()).to(DEVICE))
    found = embed_norm(ids, tables, norm).float()  # type: ignore[arg-type]
    torch.testing.assert_close(found, exact(summed), rtol=tolerance, atol=tolerance)
