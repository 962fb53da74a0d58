"""Learning to rank: lists of documents, scored together, and a loss over the scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.inputs.batching import Sequences, slice_sequences
from rankwell.inputs.reader import Reader
from rankwell.training.data.lists import Lists, TrainingSet
from rankwell.training.loop.gradient_cache import backward_scores
from rankwell.training.loop.task import Step, Task, chunk_by_tokens

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

    ``max_pairs`` bounds the pairs whose activations are held at once, beside the step's budget: longer lists go through
    the gradient cache.
    """

    def __init__(self, draw: Callable[[int], Lists], loss: Loss, *, max_pairs: int | None = None):
        super().__init__(draw)
        self._loss = loss
        self._max_pairs = max_pairs

    @abstractmethod
    def pairs(self, lists: Lists, step: Step) -> tuple[NDArray[np.int64], Callable[[nn.Module, slice], Tensor]]:
        """What each pair of these lists costs of the step's budget, list after list, and how to score some of them."""

    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """See :class:`~rankwell.training.loop.task.Task`; also logs ``spread``, scores' deviation within a list."""
        part_items = items[part]
        if not len(part_items):
            nothing = torch.zeros((), device=step.device)
            return {"loss": nothing, "spread": nothing}
        lists = self.drawn(part_items)
        labels = torch.from_numpy(lists.labels).to(step.device, non_blocking=True)
        costs, score = self.pairs(lists, step)
        chunks = chunk_by_tokens(costs, step.budget, self._max_pairs)
        share = len(part_items) / len(items)

        def loss(scores: Tensor) -> Tensor:
            return self._loss(scores.view(labels.shape), labels) * share

        value, scores = backward_scores(lambda chunk: score(model, chunk), chunks, loss, step)
        spread = scores.view(labels.shape).std(dim=1, correction=0).mean() * share
        return {"loss": value, "spread": spread}


class RankingTask(ListTask):
    """A cross-encoder's lists; pointwise, pairwise and listwise training differ only in lists and loss.

    Whatever the reader's windows, a pair is one sequence: training truncates long documents.
    """

    def __init__(
        self,
        data: TrainingSet,
        draw: Callable[[int], Lists],
        loss: Loss,
        reader: Reader,
        *,
        max_pairs: int | None = None,
    ):
        super().__init__(draw, loss, max_pairs=max_pairs)
        self.data = data
        self.reader = replace(reader, windows=None)

    def pairs(self, lists: Lists, step: Step) -> tuple[NDArray[np.int64], Callable[[nn.Module, slice], Tensor]]:
        """See :class:`ListTask`; a pair costs its tokens."""
        sequences = self.lay_out(lists)

        def score(model: nn.Module, chunk: slice) -> Tensor:
            batch = step.place(slice_sequences(sequences, chunk.start, chunk.stop))
            return log_odds(model(*batch)).float()

        return sequences.lengths(), score

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
