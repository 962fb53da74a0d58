"""Learning to write queries: from a passage, the query it answers (doc2query)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Query
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.stored import TokenSource
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.placing import Batch, Placer
from rankwell.models.writing.inputs import lay_out_passages, passage_grid, query_grid
from rankwell.training.tasks.task import Step, Task, chunk_by_tokens

TARGET_COST = 5
"""A piece to be written needs the memory of so many that are read: it has a logit for every token there is."""


@dataclass(frozen=True, eq=False)
class QueryPairs:
    """Queries with a passage that answers each: row ``i`` of ``queries`` and the document number ``documents[i]``."""

    queries: Pieces
    documents: NDArray[np.int64]
    tokens: TokenSource

    @classmethod
    def of(
        cls, queries: Sequence[Query], qrels: Qrels, tokens: TokenSource, tokenizer: Tokenizer, *, level: int = 1
    ) -> QueryPairs:
        """Every judged query with each document that is relevant to it, of a grade of ``level`` or more."""
        texts: list[str] = []
        docids: list[str] = []
        for query in queries:
            relevant = [docid for docid, grade in qrels.get(query.qid, {}).items() if grade >= level]
            texts += [query.text] * len(relevant)
            docids += relevant
        if not docids:
            raise RankwellError("no query has a relevant document, so there is nothing to learn to write")
        return cls(tokenizer.encode(texts), tokens.numbers(docids), tokens)

    def __len__(self) -> int:
        return len(self.documents)


@dataclass(frozen=True)
class WritingLimits:
    """Most tokens of a passage, and most pieces of a query ([SEP] included)."""

    max_length: int = 256
    max_query: int = 32


class QueryWritingTask(Task):
    """Cross entropy of a query's pieces, given the passage and the pieces before each; every pair once an epoch.

    The loss is the mean over the pieces of a batch, ``smoothing`` of it spread evenly over the vocabulary.
    """

    items = "pairs"

    def __init__(self, pairs: QueryPairs, tokenizer: Tokenizer, limits: WritingLimits, *, smoothing: float = 0.0):
        self.pairs = pairs
        self.limits = limits
        self.smoothing = smoothing
        self._special, self._pad = tokenizer.special, tokenizer.pad
        self._targets = np.minimum(pairs.queries.lengths() + 1, limits.max_query)

    @property
    def passages_cut(self) -> int:
        """How many pairs' passages are longer than what is read of them."""
        return int((self.pairs.tokens.lengths(self.pairs.documents) > self.limits.max_length - 2).sum())

    def draw(self, epoch: int) -> int:
        """See :class:`~rankwell.training.tasks.task.Task`."""
        return len(self.pairs)

    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """See :class:`~rankwell.training.tasks.task.Task`; also logs ``accuracy``, the share of likeliest pieces."""
        own, whole = items[part], int(self._targets[items].sum())
        loss, right = torch.zeros((), device=step.device), torch.zeros((), device=step.device)
        for number, chunk in enumerate(self.chunks(own, step.budget)):
            step.seed(number)
            logits, targets = self.logits(model, chunk, step)
            # The mean is over the whole batch's pieces, so a chunk adds the sum of its own over the number of all.
            summed = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=self.smoothing)
            share = summed / whole
            step.backward(share)
            loss += share.detach()
            right += (logits.detach().argmax(dim=1) == targets).sum() / whole
        return {"loss": loss, "accuracy": right}

    def chunks(self, own: NDArray[np.int64], budget: int) -> list[NDArray[np.int64]]:
        """The pairs in chunks within the budget, those with passages of like length together."""
        read = np.minimum(self.pairs.tokens.lengths(self.pairs.documents[own]) + 2, self.limits.max_length)
        order = np.argsort(-read, kind="stable")
        costs = (read + TARGET_COST * self._targets[own])[order]
        return [own[order[chunk]] for chunk in chunk_by_tokens(costs, budget)]

    def logits(self, model: nn.Module, chunk: NDArray[np.int64], step: Step) -> tuple[Tensor, Tensor]:
        """The logits (K, vocabulary) of all pieces these pairs' queries have, and the pieces (K,)."""
        passages = lay_out_passages(
            self.pairs.tokens.at(self.pairs.documents[chunk]), self._special, self.limits.max_length
        )
        grid = query_grid(self.pairs.queries.take(chunk), self._special, self.limits.max_query, self._pad)
        arrays = (*passage_grid(passages.ends), grid.inputs, grid.rows, grid.targets)
        slots, real, inputs, rows, targets = (torch.from_numpy(a).to(step.device, non_blocking=True) for a in arrays)
        batch: Batch = step.place(passages)
        with step.computing():
            logits = model(*batch, slots, real, inputs, rows)
        return logits.float(), targets


class PerplexityOn:
    """Measures a writer on other pairs while it trains: ``train(…, validate=PerplexityOn(task))``."""

    def __init__(self, task: QueryWritingTask, *, budget: int = 8192):
        self._task = task
        self._budget = budget

    @torch.inference_mode()
    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        """``log_likelihood``, the mean over pieces, which is the higher the better; ``perplexity`` is e to minus it."""
        device = next(model.parameters()).device
        model.eval()
        step = Step(Placer(device, "full"), self._budget, 0, lambda: torch.autocast(device.type, enabled=False), _same)
        total, count = 0.0, 0
        for chunk in self._task.chunks(np.arange(len(self._task.pairs)), self._budget):
            logits, targets = self._task.logits(model, chunk, step)
            total += float(functional.cross_entropy(logits, targets, reduction="sum"))
            count += len(targets)
        return {"log_likelihood": -total / count, "perplexity": math.exp(min(total / count, 50.0))}


def _same(loss: Tensor) -> Tensor:
    return loss
