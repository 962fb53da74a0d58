"""The gradient of a loss over many scores is the same, in one piece or chunk by chunk."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from rankwell.models.batch import Placer
from rankwell.training.loop.task import Step, backward_scores

CHUNKS = [slice(0, 3), slice(3, 4), slice(4, 12)]


def make_step() -> Step:
    return Step(Placer(torch.device("cpu"), "full"), 100, 7, nullcontext, lambda loss: loss)


def gradients(loss: object, *, cached: bool | None, dropout: float = 0.3) -> tuple[list[Tensor], Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))
    inputs = torch.randn(12, 5)
    value, scores = backward_scores(
        lambda chunk: model(inputs[chunk]).squeeze(1), CHUNKS, loss, make_step(), cached=cached
    )
    return [parameter.grad for parameter in model.parameters()], value, scores


def listwise(scores: Tensor) -> Tensor:
    return -torch.log_softmax(scores.view(3, 4), dim=1)[:, 0].mean()


@pytest.mark.parametrize("loss", [listwise, lambda scores: (scores**2).mean() * scores.max()])
def test_cached_equals_plain_with_dropout_on(loss: object) -> None:
    plain, cached = gradients(loss, cached=False), gradients(loss, cached=True)
    for own, other in zip(plain[0], cached[0], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)
    assert torch.equal(plain[1], cached[1])
    assert torch.equal(plain[2], cached[2])


def test_dropout_matters_so_the_replay_is_what_makes_them_equal() -> None:
    with_dropout, without = gradients(listwise, cached=True), gradients(listwise, cached=True, dropout=0.0)
    assert not torch.allclose(with_dropout[0][0], without[0][0], rtol=1e-3)


def test_several_chunks_are_cached_unless_told_otherwise() -> None:
    seen = []

    def score(inputs: Tensor, weight: Tensor, chunk: slice) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return inputs[chunk] * weight

    weight = torch.ones((), requires_grad=True)
    work = partial(score, torch.arange(12.0), weight)
    backward_scores(work, CHUNKS, listwise, make_step())
    assert seen == [False] * 3 + [True] * 3
    seen.clear()
    backward_scores(work, [slice(0, 12)], listwise, make_step())
    assert seen == [True]
