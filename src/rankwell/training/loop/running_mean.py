"""The running mean of a model's weights: what is validated and kept in place of the newest weights, where asked for.

Late steps jump about a minimum at a distance that the learning rate sets; their mean lies nearer to it than each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class RunningMean:
    """The mean over the steps so far, each weighing ``decay`` times as much as the one after it."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._names, self._weights = list(trained), list(trained.values())
        self._means = [parameter.detach().clone() for parameter in self._weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after step ``step``, counted from 1. Early means are short: the start is soon forgotten."""
        decay = min(self.decay, step / (step + 9))
        get_ema_multi_avg_fn(decay)(self._means, self._weights, 0)  # type: ignore[no-untyped-call]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model's weights are their mean while this is open, and afterwards what they were, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # Contents, not tensors: recorded graphs and the optimiser know the weights by their place in memory.
        for weight, mean in zip(self._weights, self._means, strict=True):
            newest = weight.detach().clone()
            weight.copy_(mean)
            mean.copy_(newest)

    def tensors(self) -> dict[str, Tensor]:
        """The means by their weights' names, for safetensors."""
        return dict(zip(self._names, self._means, strict=True))

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`tensors` gave; a KeyError where it is another model's."""
        for name, mean in zip(self._names, self._means, strict=True):
            mean.copy_(tensors[name])
