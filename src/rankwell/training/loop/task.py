"""Tasks: what is learned. The loop knows when, a task knows what: its items of an epoch, and a batch's gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.inputs.batching import Sequences, slice_sequences, take_sequences
from rankwell.inputs.reader import Reader
from rankwell.models.batch import Batch, Placer
from rankwell.training.data.sampling import Lists, TrainingSet


def backward_scores(
    score: Callable[[slice], Tensor],
    chunks: Sequence[slice],
    loss: Callable[[Tensor], Tensor],
    step: Step,
) -> tuple[Tensor, Tensor]:
    """Add the gradient of ``loss(scores)``; returns the loss and the scores, both detached.

    ``score(chunk)`` gives the scores of one chunk with their graph, one row for each; a row may be a vector. Of several
    chunks, only one has its graph at a time: each is computed twice.
    """

    def score_seeded(number: int) -> Tensor:
        step.seed(number)
        with step.computing():
            return score(chunks[number])

    if len(chunks) == 1:
        scores = score_seeded(0)
        value = loss(scores)
        step.backward(value)
        return value.detach(), scores.detach()
    with torch.no_grad():
        scores = torch.cat([score_seeded(number) for number in range(len(chunks))])
    leaf = scores.clone().requires_grad_()
    value = loss(leaf)
    [gradient] = torch.autograd.grad(value, [leaf])
    for number, chunk in enumerate(chunks):
        step.backward((score_seeded(number) * gradient[chunk]).sum())
    return value.detach(), scores


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
        *,
        pads: bool = False,
    ):
        self.budget = budget
        """How many tokens' activations may be held at once."""
        self.computing = computing
        """The context matrix products are computed in: autocast, or none."""
        self._place = place
        self._seed = seed
        self._scale = scale
        self._pads = pads

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._place.device

    def place(self, sequences: Sequences) -> Batch:
        """The sequences on the device: ``model(*batch)``."""
        return self._place(sequences)

    def sort(self, sequences: Sequences) -> tuple[Sequences, Tensor | None]:
        """Sequences of like length together, if the model pads them, and the place of each; else as they are."""
        if not self._pads:
            return sequences, None
        order = np.argsort(sequences.lengths(), kind="stable")
        return take_sequences(sequences, order), torch.from_numpy(np.argsort(order)).to(self.device)

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


def chunk_by_tokens(lengths: NDArray[np.int64], budget: int) -> list[slice]:
    """Consecutive sequences whose tokens stay within ``budget``, one at the least.

    >>> chunk_by_tokens(np.array([3, 3, 5, 1]), 6)
    [slice(0, 2, None), slice(2, 4, None)]
    """
    ends = np.cumsum(lengths)
    chunks, begin = [], 0
    while begin < len(ends):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + budget, side="right")))
        chunks.append(slice(begin, end))
        begin = end
    return chunks


@dataclass(frozen=True, eq=False)
class StepParts:
    """What a step computes one by one: texts or pairs, the budget that each costs, and how to compute some.

    ``places`` are those of their rows in the task's own order, where they were sorted.
    """

    costs: NDArray[np.int64]
    compute: Callable[[nn.Module, slice], Tensor]
    places: Tensor | None = None

    def in_order(self, rows: Tensor) -> Tensor:
        """Rows of all of them in the task's own order."""
        return rows if self.places is None else rows[self.places]

    def backward(self, model: nn.Module, loss: Callable[[Tensor], Tensor], step: Step) -> tuple[Tensor, Tensor]:
        """See :func:`backward_scores`."""
        chunks = chunk_by_tokens(self.costs, step.budget)
        return backward_scores(lambda chunk: self.compute(model, chunk), chunks, loss, step)


def backward_chunks(
    costs: NDArray[np.int64], figures_of: Callable[[slice], Mapping[str, Tensor]], step: Step, names: Sequence[str]
) -> dict[str, Tensor]:
    """Add the gradient of a loss that is a sum over chunks within the budget; returns the sums of all figures.

    ``figures_of(chunk)`` gives the chunk's share of each of ``names``, of which ``loss`` has a graph.
    """
    total = {name: torch.zeros((), device=step.device) for name in names}
    for number, chunk in enumerate(chunk_by_tokens(costs, step.budget)):
        step.seed(number)
        figures = figures_of(chunk)
        step.backward(figures["loss"])
        for name in names:
            total[name] += figures[name].detach()
    return total


# Learning to rank


Loss = Callable[[Tensor, Tensor], Tensor]


def log_odds(logits: Tensor) -> Tensor:
    """The score a loss sees: of two logits the log-odds of "relevant", or the one score itself; (B, 1 or 2) → (B,)."""
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


class DrawnLists(Task):
    """Lists that are drawn anew for each epoch."""

    items = "lists"

    def __init__(self, draw: Callable[[int], Lists]):
        self._draw = draw
        self._lists: Lists | None = None
        self._epoch = -1

    def draw(self, epoch: int) -> int:
        """See :class:`~rankwell.training.loop.task.Task`."""
        if self._lists is None or epoch != self._epoch:
            self._lists, self._epoch = self._draw(epoch), epoch
        return len(self._lists.queries)

    def drawn(self, items: NDArray[np.int64]) -> Lists:
        """These lists of the epoch that was drawn last."""
        assert self._lists is not None
        return self._lists.take(items)


class ListTask(DrawnLists):
    """All pairs of a list scored together; what scores a pair is the subclass's.

    Lists beyond the step's budget go through the gradient cache.
    """

    def __init__(self, draw: Callable[[int], Lists], loss: Loss):
        super().__init__(draw)
        self._loss = loss

    @abstractmethod
    def pairs(self, lists: Lists, step: Step) -> StepParts:
        """All pairs of these lists, list after list."""

    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """See :class:`~rankwell.training.loop.task.Task`; also logs ``spread``, scores' deviation within a list."""
        part_items = items[part]
        if not len(part_items):
            nothing = torch.zeros((), device=step.device)
            return {"loss": nothing, "spread": nothing}
        lists = self.drawn(part_items)
        labels = torch.from_numpy(lists.labels).to(step.device, non_blocking=True)
        parts = self.pairs(lists, step)
        share = len(part_items) / len(items)

        def loss(scores: Tensor) -> Tensor:
            return self._loss(parts.in_order(scores).view(labels.shape), labels) * share

        value, scores = parts.backward(model, loss, step)
        spread = parts.in_order(scores).view(labels.shape).std(dim=1, correction=0).mean() * share
        return {"loss": value, "spread": spread}


class RankingTask(ListTask):
    """A cross-encoder's lists; pointwise, pairwise and listwise training differ only in lists and loss.

    Whatever the reader's windows, a pair is one sequence: training truncates long documents.
    """

    def __init__(self, data: TrainingSet, draw: Callable[[int], Lists], loss: Loss, reader: Reader):
        super().__init__(draw, loss)
        self.data = data
        self.reader = replace(reader, windows=None)

    def pairs(self, lists: Lists, step: Step) -> StepParts:
        """See :class:`ListTask`; a pair costs its tokens."""
        sequences, places = step.sort(self.lay_out(lists))

        def score(model: nn.Module, chunk: slice) -> Tensor:
            batch = step.place(slice_sequences(sequences, chunk.start, chunk.stop))
            return log_odds(model(*batch)).float()

        return StepParts(sequences.lengths(), score, places)

    def lay_out(self, lists: Lists) -> Sequences:
        """The pairs of these lists, list after list."""
        queries = np.repeat(lists.queries, lists.documents.shape[1])
        documents = self.data.documents.at(lists.documents.reshape(-1))
        fields = {"query": self.data.queries.take(queries), "document": documents}
        if lists.others is not None:
            fields["other"] = self.data.documents.at(lists.others.reshape(-1))
        if self.data.types is not None:
            fields["type"] = self.data.types.take(queries)
        return self.reader.lay_out(fields).sequences
