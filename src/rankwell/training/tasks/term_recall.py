"""DeepCT's training: the weight of a term in a passage is the share of the passage's queries that ask for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.core.arrays import gather
from rankwell.core.errors import RankwellError
from rankwell.core.types import Rows
from rankwell.enrich.term_weights import STEM_BITS, Passages, lay_out_passages, weights_of
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.stored import TokenSource
from rankwell.inputs.templates import SpecialTokens
from rankwell.models.heads import TokenWeightModel
from rankwell.training.tasks.task import Step, Task, chunk_by_tokens


@dataclass(frozen=True, eq=False)
class TermRecall:
    """The targets of passages that have queries.

    =============  ======  ==============================================================
    ``documents``  (N,)    the passages' document numbers, ascending
    ``keys``       (K,)    row of the passage and stem as one number, ascending
    ``shares``     (K,)    the share of the passage's queries that have the stem, above 0
    =============  ======  ==============================================================
    """

    documents: Rows
    keys: Rows
    shares: NDArray[np.float32]

    @classmethod
    def of(cls, queries: Pieces, rows: Rows, documents: Rows) -> TermRecall:
        """Targets from judgments: query ``rows[i]`` has the relevant document ``documents[i]``.

        ``queries`` are pieces with stems. A query that repeats a word has it once; one of stop words alone counts, too.
        """
        if len(queries.stems) != len(queries.ids):
            raise ValueError("term recall needs queries with stems")
        if not len(rows):
            raise RankwellError("no query has a relevant document, so there is nothing to learn from")
        judged = np.unique(np.stack([documents, rows], axis=1), axis=0)
        passages, passage_of = np.unique(judged[:, 0], return_inverse=True)
        # The distinct stems of each query, query after query.
        query_of = np.repeat(np.arange(len(queries)), queries.lengths())[queries.opens]
        asked = np.unique((query_of << STEM_BITS) | queries.stems[queries.opens])
        ends = np.searchsorted(asked, (np.arange(len(queries)) + 1) << STEM_BITS)
        counts = np.diff(ends, prepend=0)[judged[:, 1]]
        # Each judgment takes all stems of its query.
        stems = asked[gather(ends[judged[:, 1]] - counts, counts)] & ((1 << STEM_BITS) - 1)
        keys, times = np.unique((np.repeat(passage_of, counts) << STEM_BITS) | stems, return_counts=True)
        queries_of = np.bincount(passage_of)
        return cls(passages, keys, (times / queries_of[keys >> STEM_BITS]).astype(np.float32))

    def __len__(self) -> int:
        return len(self.documents)

    def targets(self, rows: Rows, stems: Rows) -> NDArray[np.float32]:
        """The share of stems in passages, given by row; 0 for those nobody asked for."""
        wanted = (rows << STEM_BITS) | stems
        if not len(self.keys):
            return np.zeros(len(wanted), np.float32)
        places = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[places] == wanted, self.shares[places], np.float32(0.0))


class TermWeightTask(Task):
    """Mean squared error of the weights of words, each at its first piece; every passage once an epoch.

    Stop words and punctuation are left out. A passage longer than ``max_length`` is read in windows; what stands in two
    of them counts in both.
    """

    items = "passages"

    def __init__(
        self, source: TokenSource, recall: TermRecall, special: SpecialTokens, *, max_length: int, segments: int = 2
    ):
        self.recall = recall
        self._source = source
        self._special = special
        self._max_length = max_length
        self._segments = segments

    def draw(self, epoch: int) -> int:
        """See :class:`~rankwell.training.tasks.task.Task`."""
        return len(self.recall)

    def lay_out(self, items: Rows) -> tuple[Passages, NDArray[np.float32]]:
        """These passages, and the target of each of their words (F,)."""
        pieces = self._source.at(self.recall.documents[items])
        passages = lay_out_passages(pieces, self._special, self._max_length, segments=self._segments)
        return passages, self.recall.targets(items[passages.rows], passages.stems)

    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """See :class:`~rankwell.training.tasks.task.Task`; also logs ``zero_loss``, that of weighing every word 0.

        The mean is over the words of the whole batch, which is therefore laid out whole, whatever this part of it is.
        """
        assert isinstance(model, TokenWeightModel)
        passages, targets = self.lay_out(items)
        begin, end, _ = part.indices(len(items))
        first, last = np.searchsorted(passages.owners, [begin, end]).tolist()
        own = targets[(passages.rows >= begin) & (passages.rows < end)]
        words = max(1, len(targets))
        wanted = torch.from_numpy(own).to(step.device, non_blocking=True)
        found = {"loss": torch.zeros((), device=step.device), "zero_loss": wanted.square().sum() / words}
        if first == last:
            return found
        windows, done = passages.part(first, last), 0
        for number, chunk in enumerate(chunk_by_tokens(windows.sequences.lengths(), step.budget)):
            step.seed(number)
            here = windows.part(chunk.start, chunk.stop)
            with step.computing():
                weights = weights_of(model, step.place(here.sequences))
            rows = torch.from_numpy(here.tokens).to(step.device, non_blocking=True)
            errors = weights.index_select(0, rows) - wanted[done : done + len(here.tokens)]
            done += len(here.tokens)
            loss = errors.square().sum() / words
            step.backward(loss)
            found["loss"] += loss.detach()
        return found
