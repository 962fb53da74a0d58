"""The gradient of a loss over many scores is the same, in one piece or chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from rankwell.models.batch import Placer
from rankwell.training.loop.task import Step, backward_scores

CHUNKS = [slice(0, 3), slice(3, 4), slice(4, 12)]


def make_step() -> Step:
    return Step(Placer(torch.device("cpu"), "full"), 100, 7, nullcontext, lambda loss: loss)


def gradients(
    loss: Callable[[Tensor], Tensor], *, cached: bool, dropout: float = 0.3
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gradients, loss and scores with one chunk's graph at a time or, as a slow reference, with all of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))
    inputs, step = torch.randn(12, 5), make_step()

    def score(chunk: slice) -> Tensor:
        return model(inputs[chunk]).squeeze(1)

    if cached:
        value, scores = backward_scores(score, CHUNKS, loss, step)
    else:
        parts = []
        for number, chunk in enumerate(CHUNKS):
            step.seed(number)
            parts.append(score(chunk))
        scores = torch.cat(parts)
        value = loss(scores)
        value.backward()
    return [parameter.grad for parameter in model.parameters()], value, scores


def listwise(scores: Tensor) -> Tensor:
    return -torch.log_softmax(scores.view(3, 4), dim=1)[:, 0].mean()


@pytest.mark.parametrize("loss", [listwise, lambda scores: (scores**2).mean() * scores.max()])
def test_cached_equals_plain_with_dropout_on(loss: Callable[[Tensor], Tensor]) -> None:
    plain, cached = gradients(loss, cached=False), gradients(loss, cached=True)
    for own, other in zip(plain[0], cached[0], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)
    assert torch.equal(plain[1], cached[1])
    assert torch.equal(plain[2], cached[2])


def test_dropout_matters_so_the_replay_is_what_makes_them_equal() -> None:
    with_dropout, without = gradients(listwise, cached=True), gradients(listwise, cached=True, dropout=0.0)
    assert not torch.allclose(with_dropout[0][0], without[0][0], rtol=1e-3)


def test_only_several_chunks_are_cached() -> None:
    seen = []
    weight = torch.ones((), requires_grad=True)

    def score(chunk: slice) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return torch.arange(12.0)[chunk] * weight

    backward_scores(score, CHUNKS, listwise, make_step())
    assert seen == [False] * 3 + [True] * 3
    seen.clear()
    backward_scores(score, [slice(0, 12)], listwise, make_step())
    assert seen == [True]
