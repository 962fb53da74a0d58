"""Training SDNet: lists of passages from kept features, and how good the network is meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.corpus.records import Qrels, Query, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import Measure
from rankwell.models.sdnet.network import Sdnet
from rankwell.models.sdnet.word_features import FeatureEncoder, FeatureSource, PairMaker, WordTable
from rankwell.rank.sdnet import PassageSource, SdnetRanker
from rankwell.training.data.lists import Lists
from rankwell.training.tasks.ranking import ListTask, Loss
from rankwell.training.tasks.task import Step


class SdnetTask(ListTask):
    """Lists of a query and passages, scored from features of the frozen encoder; a step's budget counts words."""

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
        super().__init__(draw, loss, max_pairs=max_pairs)
        self._queries, self._passages, self._table = queries, passages, table

    def pairs(self, lists: Lists, step: Step) -> tuple[NDArray[np.int64], Callable[[nn.Module, slice], Tensor]]:
        """See :class:`~rankwell.training.tasks.ranking.ListTask`."""
        passages = lists.documents.reshape(-1)
        queries = np.repeat(lists.queries, lists.documents.shape[1])
        make = PairMaker(self._queries, self._passages, self._table, step.device)

        def score(model: nn.Module, chunk: slice) -> Tensor:
            scores: Tensor = model(*make(queries[chunk], passages[chunk]))
            return scores

        # An empty passage takes a place, too.
        return np.maximum(1, self._passages.lengths(passages)), score


@dataclass(frozen=True, eq=False)
class SdnetValidation:
    """What ``train`` calls to validate: re-ranks ``run`` from kept features and evaluates it."""

    run: Run
    queries: Sequence[Query]
    qrels: Qrels
    query_features: FeatureSource
    passages: PassageSource
    encoder: FeatureEncoder
    table: WordTable
    measure: Measure
    depth: int = 100

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        """The measure's figure, by its notation."""
        assert isinstance(model, Sdnet)
        ranker = SdnetRanker(model, self.encoder, self.table)
        found = ranker.rerank(
            self.run, self.queries, passages=self.passages, query_features=self.query_features, depth=self.depth
        )
        return dict(evaluate(self.qrels, found, [self.measure]).mean)
