"""Attention rules: the mask by hand, layouts that agree with it, and attention that agrees with a slow softmax."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from rankwell.models.attention import attend, attend_first, dense_mask, make_layout

# [CLS] bog ##ue [SEP] | [CLS] a [SEP] | [CLS] ins ##ou ##cian ##tly [SEP]
WORDS = torch.tensor([0, 1, 1, 2, 0, 1, 2, 0, 1, 1, 1, 1, 2])
LAST = torch.tensor([1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1], dtype=torch.bool)
ENDS = torch.tensor([4, 7, 13])
RULES = ["full", "strm", "strict"]


def shown(mask: Any) -> list[str]:
    """A mask (1, 1, L, L) as rows of # (open) and . (closed)."""
    return ["".join("#" if column else "." for column in row) for row in mask[0, 0].tolist()]


class TestTheMask:
    WORDS = WORDS[None, :4]
    LAST = LAST[None, :4]

    def test_full_is_open(self) -> None:
        assert shown(dense_mask(self.WORDS, self.LAST, None, "full")) == ["####"] * 4

    def test_strm_closes_the_column_of_a_first_piece_to_other_words(self) -> None:
        assert shown(dense_mask(self.WORDS, self.LAST, None, "strm")) == ["#.##", "####", "####", "#.##"]

    def test_strict_also_closes_its_row(self) -> None:
        assert shown(dense_mask(self.WORDS, self.LAST, None, "strict")) == ["#.##", ".##.", "####", "#.##"]

    @pytest.mark.parametrize("rule", RULES)
    def test_padding_is_closed_as_columns_only(self, rule: str) -> None:
        real = torch.tensor([[True, True, True, False]])
        mask = dense_mask(self.WORDS, self.LAST, real, rule)
        without = dense_mask(self.WORDS, self.LAST, None, rule)
        assert not mask[..., 3].any()
        assert torch.equal(mask[..., :3], without[..., :3])


def sequences() -> list[slice]:
    return [slice(begin, end) for begin, end in pairwise([0, *ENDS.tolist()])]


class TestLayouts:
    @pytest.mark.parametrize("rule", RULES)
    def test_a_padded_layout_has_each_sequences_own_mask(self, rule: str) -> None:
        layout = make_layout(WORDS, LAST, ENDS, rule)
        mask = layout.mask.expand(3, 1, 6, 6)
        for row, part in enumerate(sequences()):
            own = dense_mask(WORDS[None, part], LAST[None, part], None, rule)[0]
            size = own.shape[-1]
            assert torch.equal(mask[row, :, :size, :size], own)
            assert not mask[row, :, :, size:].any()
        assert bool(mask.any(dim=-1).all()), "rows of padding, too, have a column"

    def test_equal_lengths_need_no_padding(self) -> None:
        layout = make_layout(WORDS[:8], LAST[:8], torch.tensor([4, 8]), "full")
        assert layout.slots is None
        assert layout.mask is None
        assert layout.first.tolist() == [0, 4]

    def test_packed_rows_and_places_are_inverse(self) -> None:
        layout = make_layout(WORDS, LAST, ENDS, "strm")
        assert layout.slots is not None
        assert layout.slots[layout.places].tolist() == list(range(len(WORDS)))
        assert layout.first.tolist() == [0, 4, 7]


def slow_attention(qkv: Any, rule: str, heads: int) -> Any:
    """Softmax attention, sequence by sequence and head by head, in float64."""
    hidden = qkv.shape[1] // 3
    size = hidden // heads
    out = torch.empty(len(qkv), hidden, dtype=torch.float64)
    for part in sequences():
        mask = dense_mask(WORDS[None, part], LAST[None, part], None, rule)[0, 0]
        for head in range(heads):
            columns = [slice(i * hidden + head * size, i * hidden + (head + 1) * size) for i in range(3)]
            query, key, value = (qkv[part, column].double() for column in columns)
            weights = (query @ key.T / size**0.5).masked_fill(~mask, float("-inf")).softmax(dim=1)
            out[part, head * size : (head + 1) * size] = weights @ value
    return out


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("padded", [True, False], ids=["on the grid", "one by one"])
def test_attention_and_its_gradient_agree_with_a_slow_softmax(rule: str, padded: bool) -> None:
    qkv = torch.randn(len(WORDS), 3 * 12, generator=torch.Generator().manual_seed(1), requires_grad=True)
    layout = make_layout(WORDS, LAST, ENDS, rule)
    expected = slow_attention(qkv, rule, heads=3)
    if padded:
        layout = replace(layout, bounds=None)
    found = attend(qkv, layout, 3)
    first = attend_first(qkv[layout.first, :12], qkv[:, 12:], layout, 3)
    assert torch.allclose(found.double(), expected, atol=1e-6)
    assert torch.allclose(first.double(), expected[layout.first], atol=1e-6)
    for ours, theirs in ((found, expected), (first, expected[layout.first])):
        gradients = [torch.autograd.grad(out.square().sum(), qkv, retain_graph=True)[0] for out in (ours, theirs)]
        assert torch.allclose(*gradients, atol=1e-5)
