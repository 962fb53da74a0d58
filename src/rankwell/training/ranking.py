"""Learning to rank: lists of documents, scored together, and a loss over the scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.inputs.batching import slice_sequences
from rankwell.inputs.sequences import Sequences
from rankwell.inputs.templates import SpecialTokens, Template, TruncationReport, lay_out_pairs
from rankwell.training.gradient_cache import backward_scores
from rankwell.training.lists import Lists, TrainingSet
from rankwell.training.task import Step, Task, chunk_by_tokens

Loss = Callable[[Tensor, Tensor], Tensor]


def log_odds(logits: Tensor) -> Tensor:
    """The score a loss sees: of two logits the log-odds of "relevant", or the one score itself; (B, 1 or 2) → (B,)."""
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


class RankingTask(Task):
    """Lists drawn anew for each epoch; pointwise, pairwise and listwise training differ only in lists and loss.

    ``max_pairs`` bounds the pairs whose activations are held at once, beside the step's budget of tokens: longer lists
    go through the gradient cache.
    """

    items = "lists"

    def __init__(
        self,
        data: TrainingSet,
        draw: Callable[[int], Lists],
        loss: Loss,
        template: Template,
        special: SpecialTokens,
        *,
        segments: int = 2,
        max_pairs: int | None = None,
    ):
        self.data = data
        self.truncation = TruncationReport()
        self._draw = draw
        self._loss = loss
        self._template = template
        self._special = special
        self._segments = segments
        self._max_pairs = max_pairs
        self._lists: Lists | None = None
        self._epoch = -1

    def draw(self, epoch: int) -> int:
        """See :class:`~rankwell.training.task.Task`."""
        if self._lists is None or epoch != self._epoch:
            self._lists, self._epoch = self._draw(epoch), epoch
        return len(self._lists.queries)

    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """See :class:`~rankwell.training.task.Task`; also logs ``spread``, the scores' deviation within a list."""
        own = items[part]
        if not len(own):
            nothing = torch.zeros((), device=step.device)
            return {"loss": nothing, "spread": nothing}
        assert self._lists is not None
        labels = torch.from_numpy(self._lists.labels[own]).to(step.device, non_blocking=True)
        sequences = self.lay_out(own)
        chunks = chunk_by_tokens(sequences.lengths(), step.budget, self._max_pairs)
        share = len(own) / len(items)

        def score(chunk: slice) -> Tensor:
            batch = step.place(slice_sequences(sequences, chunk.start, chunk.stop))
            return log_odds(model(*batch)).float()

        def loss(scores: Tensor) -> Tensor:
            return self._loss(scores.view(labels.shape), labels) * share

        value, scores = backward_scores(score, chunks, loss, step)
        spread = scores.view(labels.shape).std(dim=1, correction=0).mean() * share
        return {"loss": value, "spread": spread}

    def lay_out(self, lists: NDArray[np.int64]) -> Sequences:
        """The pairs of these lists, list after list."""
        assert self._lists is not None
        documents = self._lists.documents[lists]
        queries = np.repeat(self._lists.queries[lists], documents.shape[1])
        fields = {"query": self.data.queries.take(queries), "document": self.data.documents.at(documents.reshape(-1))}
        if self._lists.others is not None:
            fields["other"] = self.data.documents.at(self._lists.others[lists].reshape(-1))
        if self.data.types is not None:
            fields["type"] = self.data.types.take(queries)
        return lay_out_pairs(self._template, self._special, fields, self.truncation, segments=self._segments)
