"""The gradient of a loss over many scores or vectors, in the memory of a few.

A listwise loss couples all scores of a list, so a plain backward pass must hold the activations of every pair at once.
But a loss is a function of the scores alone: score all pairs without keeping anything, take the loss's gradient with
respect to the scores, then compute chunk after chunk once more, now with a graph, and push that gradient through it.
It costs one more forward pass and is exact, as long as both passes use the same dropout (:meth:`Step.seed`).
The idea is that of GradCache (Gao, Zhang, Han and Callan, 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rankwell.training.loop.task import Step


def backward_scores(
    score: Callable[[slice], Tensor],
    chunks: Sequence[slice],
    loss: Callable[[Tensor], Tensor],
    step: Step,
    *,
    cached: bool | None = None,
    parameters: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor]:
    """Add the gradient of ``loss(scores)``; returns the loss and the scores, both detached.

    ``score(chunk)`` gives the scores of one chunk with their graph, one row for each; a row may be a vector.
    ``cached=None`` keeps all graphs where there is but one chunk, and otherwise one at a time. ``parameters`` are those
    that the loss itself has.
    """

    def score_seeded(number: int) -> Tensor:
        step.seed(number)
        with step.computing():
            return score(chunks[number])

    if cached is None:
        cached = len(chunks) > 1
    if not cached:
        scores = torch.cat([score_seeded(number) for number in range(len(chunks))])
        value = loss(scores)
        step.backward(value)
        return value.detach(), scores.detach()
    with torch.no_grad():
        scores = torch.cat([score_seeded(number) for number in range(len(chunks))])
    leaf = scores.clone().requires_grad_()
    value = loss(leaf)
    gradient, *others = torch.autograd.grad(value, [leaf, *parameters])
    for parameter, own in zip(parameters, others, strict=True):
        step.backward((parameter * own).sum())
    for number, chunk in enumerate(chunks):
        step.backward((score_seeded(number) * gradient[chunk]).sum())
    return value.detach(), scores
