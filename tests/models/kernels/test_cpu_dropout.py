"""Dropout on a CPU: the right share, the same elements both ways, and attention without any."""

from __future__ import annotations

import pytest
import torch

from rankwell.models import attention
from rankwell.models.encoder import Dropout
from rankwell.models.kernels.cpu_dropout import drop


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_a_share_is_dropped_and_the_rest_makes_up_for_it(dtype: torch.dtype, probability: float) -> None:
    torch.manual_seed(3)
    found = drop(torch.ones(500, 401, dtype=dtype), probability)
    assert set(found.unique().tolist()) == {0.0, torch.tensor(1 / (1 - probability), dtype=dtype).item()}
    gone = (found == 0).double()
    assert gone.mean().item() == pytest.approx(probability, abs=0.004)
    # No row or column is spared, and neighbours go independently of each other.
    assert gone.mean(0).std().item() == pytest.approx((probability * (1 - probability) / 500) ** 0.5, rel=0.15)
    assert gone.mean(1).std().item() == pytest.approx((probability * (1 - probability) / 401) ** 0.5, rel=0.15)
    assert (gone[:, 1:] * gone[:, :-1]).mean().item() == pytest.approx(probability**2, abs=0.006)


def test_the_seed_decides_and_each_call_has_its_own() -> None:
    x = torch.randn(64, 33)
    torch.manual_seed(5)
    first, second = drop(x, 0.3), drop(x, 0.3)
    torch.manual_seed(5)
    assert torch.equal(drop(x, 0.3), first)
    assert not torch.equal(second, first)


def test_the_same_elements_have_no_gradient() -> None:
    x = torch.randn(7, 5, 11).transpose(0, 1).requires_grad_()  # not in order in memory
    dropped = drop(x, 0.4)
    weights = torch.randn_like(dropped)
    (dropped * weights).sum().backward()
    assert x.grad is not None
    expected = torch.where(dropped == 0, 0.0, weights / 0.6)
    torch.testing.assert_close(x.grad, expected)


def test_nothing_is_dropped_outside_of_training_nor_at_zero() -> None:
    x = torch.randn(20, 3)
    assert Dropout(0.5).eval()(x) is x
    assert drop(x, 0.0) is x
    assert not torch.equal(Dropout(0.5)(x), x)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_drops_no_weights(masked: bool) -> None:
    torch.manual_seed(1)
    query, key, value = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    mask = torch.rand(2, 1, 5, 5) > 0.4 if masked else None
    if mask is not None:
        mask[..., 0] = True
        mask[1, 0, 3] = False  # a row of padding, which sees nothing
    found = attention._scaled(query, key, value, mask, 0.2)
    seen = slice(None) if mask is None else mask.any(-1).expand(2, 3, 5)
    bias = 0.0 if mask is None else torch.where(mask, 0.0, -torch.inf)
    weights = torch.softmax(torch.einsum("bhld,bhmd->bhlm", query, key) / 2 + bias, -1)
    torch.testing.assert_close(found[seen], torch.einsum("bhlm,bhmd->bhld", weights, value)[seen])
    found[seen].square().sum().backward()
    assert all(one.grad is not None and bool(one.grad.isfinite().all()) for one in (query, key, value))


def test_under_autocast_types_stay_as_they_are() -> None:
    query, key, value = (torch.randn(1, 2, 4, 8, dtype=torch.bfloat16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        assert attention._scaled(query, key, value, None, 0.1).dtype == torch.bfloat16
    assert drop(query, 0.1).dtype == torch.bfloat16
