"""Training SDNet: lists of passages from kept features, and how good the network is meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.corpus.records import Qrels, Query, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import Measure
from rankwell.models.sdnet import Sdnet
from rankwell.models.word_features import FeatureEncoder, FeatureSource, PairMaker, WordTable
from rankwell.rank.sdnet_ranker import Passages, SdnetRanker
from rankwell.training.gradient_cache import backward_scores
from rankwell.training.lists import Lists
from rankwell.training.ranking import Loss
from rankwell.training.task import Step, Task, chunk_by_tokens


class SdnetTask(Task):
    """Lists of a query and passages, scored from features of the frozen encoder; a step's budget counts words."""

    items = "lists"

    def __init__(
        self,
        queries: FeatureSource,
        passages: FeatureSource,
        table: WordTable,
        draw: Callable[[int], Lists],
        loss: Loss,
        *,
        max_pairs: int | None = None,
    ):
        self._queries, self._passages, self._table = queries, passages, table
        self._draw = draw
        self._loss = loss
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
        passages = self._lists.documents[own].reshape(-1)
        queries = np.repeat(self._lists.queries[own], labels.shape[1])
        make = PairMaker(self._queries, self._passages, self._table, step.device)
        # An empty passage takes a place, too.
        chunks = chunk_by_tokens(np.maximum(1, self._passages.lengths(passages)), step.budget, self._max_pairs)
        share = len(own) / len(items)

        def score(chunk: slice) -> Tensor:
            scores: Tensor = model(*make(queries[chunk], passages[chunk]))
            return scores

        def loss(scores: Tensor) -> Tensor:
            return self._loss(scores.view(labels.shape), labels) * share

        value, scores = backward_scores(score, chunks, loss, step)
        spread = scores.view(labels.shape).std(dim=1, correction=0).mean() * share
        return {"loss": value, "spread": spread}


@dataclass(frozen=True, eq=False)
class SdnetValidation:
    """What ``train`` calls to validate: re-ranks ``run`` from kept features and evaluates it."""

    run: Run
    queries: Sequence[Query]
    qrels: Qrels
    asked: FeatureSource
    passages: Passages
    encoder: FeatureEncoder
    table: WordTable
    measure: Measure
    depth: int = 100

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        """The measure's figure, by its notation."""
        assert isinstance(model, Sdnet)
        ranker = SdnetRanker(model, self.encoder, self.table)
        found = ranker.rerank(self.run, self.queries, passages=self.passages, asked=self.asked, depth=self.depth)
        return dict(evaluate(self.qrels, found, [self.measure]).mean)
