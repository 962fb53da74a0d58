"""New heads: weights drawn with a seed, and a listwise start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from rankwell.core.errors import RankwellError
from rankwell.models.foreign import PairModel


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw new weights with ``seed`` without changing the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def start_listwise_head(
    model: PairModel, start: Literal["difference", "normal", "zero"] = "difference", *, seed: int = 0
) -> None:
    """Replace the head of ``model`` by a new one with one score (DR-BERT's fourth stage).

    ``difference`` starts from relevant − not relevant of a head of two logits, so that the model ranks as before;
    ``normal`` draws small weights with ``seed``; ``zero`` scores everything alike at first.
    """
    old = model.head
    new = nn.Linear(old.in_features, 1, device=old.weight.device, dtype=old.weight.dtype)
    with torch.no_grad(), seeded(seed):
        if start == "difference":
            if old.out_features != 2:
                raise RankwellError(f"a head of {old.out_features} outputs has no difference to start from")
            new.weight.copy_(old.weight[1:] - old.weight[:1])
            new.bias.copy_(old.bias[1:] - old.bias[:1])
        else:
            nn.init.zeros_(new.bias)
            # Drawn on the CPU, so that a seed means the same weights on every device.
            drawn = torch.zeros(new.weight.shape) if start == "zero" else torch.randn(new.weight.shape) * 0.02
            new.weight.copy_(drawn)
    model.set_head(new)
