"""SDNet's layers on hand-built cases."""

from __future__ import annotations

import math

import pytest
import torch

from rankwell.papers.ccnu.network import (
    Attention,
    BiLSTM,
    LayerMix,
    Pool,
    VariationalDropout,
    masked_softmax,
    match_signals,
    top_signals,
)

YES, NO = True, False


def plain_attention(size: int = 2) -> Attention:
    """Scores are relu(x)·relu(y): the projection is the identity and so is the diagonal."""
    attention = Attention(size, size, dropout=0.0)
    with torch.no_grad():
        attention.project.weight.copy_(torch.eye(size))
    return attention


def test_a_softmax_over_nothing_is_nothing() -> None:
    scores = torch.tensor([[1.0, 2.0, 9.0], [1.0, 2.0, 3.0]], requires_grad=True)
    weights = masked_softmax(scores, torch.tensor([[YES, YES, NO], [NO, NO, NO]]))
    expected = math.exp(1) / (math.exp(1) + math.exp(2))
    assert torch.allclose(weights, torch.tensor([[expected, 1 - expected, 0], [0, 0, 0]]))
    weights[:, 0].sum().backward()
    assert torch.isfinite(scores.grad).all()


def test_attention_by_hand() -> None:
    x = torch.tensor([[[1.0, 0.0], [0.0, -5.0]]])
    y = torch.tensor([[[1.0, 0.0], [0.0, 3.0], [7.0, 7.0]]])
    values = torch.tensor([[[10.0], [20.0], [99.0]]])
    mask = torch.tensor([[YES, YES, NO]])
    found = plain_attention()(x, y, mask, values)
    # The first word scores 1 and 0; the second, negative, is cut to nothing and sees both alike.
    assert torch.allclose(found, torch.tensor([[[(10 * math.e + 20) / (math.e + 1)], [15.0]]]))


def test_the_diagonal_is_dropped() -> None:
    x = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [5.0, 5.0]]])
    mask = torch.tensor([[YES, YES, YES, NO]])
    weights = plain_attention().weights(x, x, mask, others=True)[0, :3]
    # Of word 1 the scores are 2 (word 2) and 0 (word 3); of word 2 they are 2 and 0; of word 3 both are 0.
    high = math.exp(2) / (math.exp(2) + 1)
    expected = [[0, high, 1 - high, 0], [high, 0, 1 - high, 0], [0.5, 0.5, 0, 0]]
    assert torch.allclose(weights, torch.tensor(expected))


def test_a_word_alone_sees_itself() -> None:
    x = torch.tensor([[[1.0, 2.0], [5.0, 5.0]], [[1.0, 1.0], [2.0, 2.0]], [[1.0, 1.0], [2.0, 2.0]]])
    mask = torch.tensor([[YES, NO], [YES, YES], [NO, NO]])
    weights = plain_attention().weights(x, x, mask, others=True)
    assert weights.tolist() == [[[1, 0], [1, 0]], [[0, 1], [1, 0]], [[0, 0], [0, 0]]]


def test_the_fixed_diagonal_is_not_learned() -> None:
    fixed, learned = Attention(3, 4, 0.0, fixed=True), Attention(3, 4, 0.0)
    assert [name for name, _ in fixed.named_parameters()] == ["project.weight"]
    assert [name for name, _ in learned.named_parameters()] == ["diagonal", "project.weight"]
    assert fixed.diagonal == 0.5


def test_layers_are_mixed_by_gamma_and_a_softmax_of_alpha() -> None:
    mix = LayerMix(3)
    layers = torch.tensor([[[3.0, 0.0], [0.0, 3.0], [6.0, 6.0]]])
    assert torch.allclose(mix(layers), torch.tensor([[3.0, 3.0]]))
    with torch.no_grad():
        mix.alpha.copy_(torch.tensor([0.0, math.log(2), math.log(3)]))
        mix.gamma.fill_(2.0)
    assert torch.allclose(mix(layers.half()), torch.tensor([[2 * (3 + 18) / 6, 2 * (6 + 18) / 6]]))


def test_recurrent_layers_do_not_read_padding() -> None:
    torch.manual_seed(0)
    layer = BiLSTM(3, 2, dropout=0.0, layers=2)
    x = torch.randn(1, 3, 3)
    mask = torch.tensor([[YES, YES, YES]])
    alone = layer(x, torch.tensor([3]), mask)
    longer = torch.cat([x, torch.full((1, 2, 3), 9.0)], dim=1)
    two = torch.cat([longer, torch.randn(1, 5, 3)])
    masks = torch.tensor([[YES, YES, YES, NO, NO], [YES] * 5])
    padded = layer(two, torch.tensor([3, 5]), masks)
    for one, other in zip(alone, padded, strict=True):
        assert torch.allclose(one[0], other[0, :3], atol=1e-6)
        assert other[0, 3:].abs().sum() == 0
    assert [tuple(out.shape) for out in alone] == [(1, 3, 4), (1, 3, 4)]
    # Both ways: the first word's state knows of the last word.
    other = x.clone()
    other[0, 2] += 1
    assert not torch.allclose(layer(other, torch.tensor([3]), mask)[0][0, 0], alone[0][0, 0])


def test_an_empty_text_has_states_of_zero() -> None:
    layer = BiLSTM(3, 2, dropout=0.0)
    (out,) = layer(torch.randn(2, 4, 3), torch.tensor([0, 4]), torch.tensor([[NO] * 4, [YES] * 4]))
    assert out[0].abs().sum() == 0
    assert out[1].abs().sum() > 0


def test_pooling_by_hand() -> None:
    pool = Pool(2, dropout=0.0)
    with torch.no_grad():
        pool.weigh.weight.copy_(torch.tensor([[1.0, 0.0]]))
    x = torch.tensor([[[math.log(3), 4.0], [0.0, 8.0], [9.0, 9.0]]] * 2)
    found = pool(x, torch.tensor([[YES, YES, NO], [NO, NO, NO]]))
    assert torch.allclose(found, torch.tensor([[0.75 * math.log(3), 5.0], [0.0, 0.0]]))


def test_signals_by_hand() -> None:
    query = torch.tensor([[2.0, 0.0]])
    words = torch.tensor([[[3.0, 4.0], [-1.0, 0.0], [0.0, 0.0], [9.0, 9.0]]])
    mask = torch.tensor([[YES, YES, YES, NO]])
    assert match_signals(query, words, mask, "dot").tolist() == [[6, -2, 0, 0]]
    assert torch.allclose(match_signals(query, words, mask, "cosine"), torch.tensor([[0.6, -1.0, 0.0, 0.0]]))
    raised = torch.tensor([6.0, -2.0, 0.0]).exp()
    assert torch.allclose(match_signals(query, words, mask, "softmax")[0, :3], raised / raised.sum())


def test_the_largest_signals_come_sorted_and_then_zeros() -> None:
    signals = torch.tensor([[0.1, -0.5, 0.7, 0.0], [0.3, 9.0, 9.0, 9.0]])
    mask = torch.tensor([[YES, YES, YES, NO], [YES, NO, NO, NO]])
    assert torch.allclose(top_signals(signals, mask, 2), torch.tensor([[0.7, 0.1], [0.3, 0.0]]))
    assert torch.allclose(
        top_signals(signals, mask, 6), torch.tensor([[0.7, 0.1, -0.5, 0, 0, 0], [0.3, 0, 0, 0, 0, 0]])
    )


def test_dropout_is_the_same_for_all_words_of_a_text() -> None:
    torch.manual_seed(0)
    drop = VariationalDropout(0.4)
    x = torch.ones(50, 3, 40)
    found = drop(x)
    assert torch.equal(found[:, 0], found[:, 1])
    assert found.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
    assert abs(float((found == 0).float().mean()) - 0.4) < 0.05
    assert not torch.equal(found[0], found[1])
    assert torch.equal(drop.eval()(x), x)
