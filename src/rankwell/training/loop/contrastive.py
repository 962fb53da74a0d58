"""Learning vectors from pairs: each query is to find its document among all documents of the batch (InfoNCE).

The documents of other queries serve as negatives, so a batch of B pairs has B·(B − 1) of them for the price of 2·B
vectors. What a batch holds by accident, a further relevant document of a query or a copy of its document, is ignored.
A larger bi-encoder can teach: the softmax of its scores over all documents of the batch is learned beside that.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.nn import functional

from rankwell.core.arrays import Rows
from rankwell.inputs.batching import Sequences, slice_sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.stored import StoredTokens
from rankwell.training.data.sampling import Lists, RelevantDocuments
from rankwell.training.loop.losses import kl
from rankwell.training.loop.task import DrawnLists, Step, StepParts

TAUGHT = 0.5
"""The weight of what a teacher says."""


def in_batch_softmax(
    queries: Tensor, documents: Tensor, targets: Tensor, ignored: Tensor, scale: float = 20.0
) -> Tensor:
    """−log softmax of each query's document among all that are not ignored: the costs of the queries (B,).

    | queries (B, H), documents (M, H) | targets (B,)               | ignored (B, M)            | costs |
    |----------------------------------|----------------------------|---------------------------|-------|
    | vectors of length 1              | the query's document, in M | true where a pair is left out | (B,)  |

    Scores are ``scale`` times the cosine. van den Oord, Li and Vinyals, 2018.
    """
    scores = (scale * (queries @ documents.T)).masked_fill(ignored, -torch.inf)
    return functional.cross_entropy(scores, targets, reduction="none")


class PairTask(DrawnLists):
    """Pairs of a query and a document, each list with further negatives after its relevant document, if any.

    Batches beyond the step's budget go through the gradient cache. Of several processes each computes its part of the
    vectors; the loss is that of the whole batch, as in one process.
    """

    items = "pairs"

    def __init__(
        self,
        draw: Callable[[int], Lists],
        relevant: RelevantDocuments,
        scale: float,
        teacher: Callable[[Rows, Rows], Tensor] | None = None,
    ):
        super().__init__(draw)
        self._relevant, self._scale, self._teacher = relevant, scale, teacher

    @abstractmethod
    def texts(self, lists: Lists, step: Step) -> StepParts:
        """The queries and then all documents."""

    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """See :class:`~rankwell.training.loop.task.Task`; also logs ``spread``, similarities' deviation in a batch."""
        whole, own = self.drawn(items), self.drawn(items[part])
        per_list = whole.documents.shape[1]
        ignored = self._relevant.ignored(whole.queries, whole.documents.reshape(-1))
        targets = np.arange(len(whole)) * per_list
        ignored[np.arange(len(whole)), targets] = False
        masked = torch.from_numpy(ignored).to(step.device, non_blocking=True)
        columns = torch.from_numpy(targets).to(step.device, non_blocking=True)
        taught = None if self._teacher is None else self._teacher(whole.queries, whole.documents.reshape(-1))
        texts = self.texts(own, step)
        spread = torch.zeros((), device=step.device)
        share = len(own) / len(whole)

        def loss(vectors: Tensor) -> Tensor:
            nonlocal spread
            vectors = texts.in_order(vectors)
            queries, documents = vectors[: len(own)], vectors[len(own) :]
            if distributed.is_initialized() and distributed.get_world_size() > 1:
                queries, documents = _gathered(queries), _gathered(documents)
            with torch.no_grad():
                spread = (queries @ documents.T).std(dim=1, correction=0).mean()
            costs = in_batch_softmax(queries, documents, columns, masked, self._scale)
            if taught is not None:
                own_scores, wanted = self._scale * (queries @ documents.T), self._scale * taught.to(step.device)
                costs = costs + TAUGHT * kl(own_scores, wanted)
            return costs.mean()

        value, _ = texts.backward(model, loss, step)
        return {"loss": value * share, "spread": spread * share}


def _gathered(vectors: Tensor) -> Tensor:
    """The vectors of all processes in their order; only those of this one have a gradient."""
    sizes = [torch.zeros(1, dtype=torch.int64, device=vectors.device) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, torch.tensor([len(vectors)], device=vectors.device))
    most = max(int(size) for size in sizes)
    padded = functional.pad(vectors.detach(), (0, 0, 0, most - len(vectors)))
    parts = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(parts, padded)
    parts = [part[: int(size)] for part, size in zip(parts, sizes, strict=True)]
    parts[distributed.get_rank()] = vectors
    return torch.cat(parts)


class TextPairTask(PairTask):
    """Pairs of texts for a bi-encoder; documents are tokenised already."""

    def __init__(
        self,
        draw: Callable[[int], Lists],
        relevant: RelevantDocuments,
        queries: Pieces,
        documents: StoredTokens,
        reader: Reader,
        scale: float,
        *,
        document_prompt: Pieces | None = None,
        teacher: Callable[[Rows, Rows], Tensor] | None = None,
    ):
        super().__init__(draw, relevant, scale, teacher)
        self._queries, self._documents, self._reader = queries, documents, reader
        self._document_prompt = document_prompt

    def texts(self, lists: Lists, step: Step) -> StepParts:
        """See :class:`PairTask`; a text costs its tokens."""
        sequences, places = step.sort(self.lay_out(lists))

        def encode(model: nn.Module, chunk: slice) -> Tensor:
            vectors: Tensor = model(*step.place(slice_sequences(sequences, chunk.start, chunk.stop)))
            return vectors

        return StepParts(sequences.lengths(), encode, places)

    def lay_out(self, lists: Lists) -> Sequences:
        """The queries of these lists, then all their documents."""
        documents = self._documents.at(lists.documents.reshape(-1))
        if self._document_prompt is not None:
            documents = documents.after(self._document_prompt)
        return self._reader.lay_out({"query": Pieces.concat([self._queries.take(lists.queries), documents])}).sequences
