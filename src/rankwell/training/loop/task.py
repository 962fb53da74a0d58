"""Tasks: what is learned. The loop knows when, a task knows what: its items of an epoch, and a batch's gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.inputs.batching import Sequences
from rankwell.models.batch import Batch, Placer


def mix_seed(*numbers: int) -> int:
    """One seed from several numbers: equal numbers give equal seeds, others independent ones."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Step:
    """One optimiser step, as a task sees it.

    Random numbers depend on nothing but the run's seed, the step, the process and the chunk. So a run that is resumed
    draws what it would have drawn, and a chunk that is computed twice has the same dropout both times.
    """

    def __init__(
        self,
        place: Placer,
        budget: int,
        seed: int,
        computing: Callable[[], AbstractContextManager[object]],
        scale: Callable[[Tensor], Tensor],
    ):
        self.budget = budget
        """How many tokens' activations may be held at once."""
        self.computing = computing
        """The context matrix products are computed in: autocast, or none."""
        self._place = place
        self._seed = seed
        self._scale = scale

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._place.device

    def place(self, sequences: Sequences) -> Batch:
        """The sequences on the device: ``model(*batch)``."""
        return self._place(sequences)

    def seed(self, chunk: int) -> None:
        """Dropout's numbers from here on are those of this chunk."""
        torch.manual_seed(mix_seed(self._seed, chunk))

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradient to the parameters'; scaled where 16 bits need it."""
        self._scale(loss).backward()  # type: ignore[no-untyped-call]


class Task(ABC):
    """What is learned."""

    items: str
    """What an item is called: "lists", "span pairs"."""

    @abstractmethod
    def draw(self, epoch: int) -> int:
        """Make the items of an epoch, a pure function of the task's seed and ``epoch``; returns how many there are."""

    @abstractmethod
    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """Add the gradient of the mean loss over ``items``, as far as ``items[part]`` contributes to it.

        ``items`` is the batch of all processes together, ``part`` this one's share, computed in chunks within
        ``step.budget``. Returns what to log, each number this part's contribution to a sum over all: ``loss`` at least.
        """


def chunk_by_tokens(lengths: NDArray[np.int64], budget: int, most: int | None = None) -> list[slice]:
    """Consecutive sequences whose tokens stay within ``budget`` (and their number within ``most``), one at the least.

    >>> chunk_by_tokens(np.array([3, 3, 5, 1]), 6)
    [slice(0, 2, None), slice(2, 4, None)]
    """
    ends = np.cumsum(lengths)
    chunks, begin = [], 0
    while begin < len(ends):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + budget, side="right")))
        if most is not None:
            end = min(end, begin + max(1, most))
        chunks.append(slice(begin, end))
        begin = end
    return chunks
