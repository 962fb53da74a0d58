"""Pairs of a query and a relevant document, and which documents of a batch are no negatives of a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows
from rankwell.corpus.records import Qrels
from rankwell.inputs.stored import StoredTokens
from rankwell.training.data.sampling import Lists


@dataclass(frozen=True, eq=False)
class RelevantDocuments:
    """The relevant documents of each training query, by number, end to end: query ``q`` ends at ``ends[q]``.

    ``copy_of`` maps documents to another one with the same text, which stands for all of them.
    """

    documents: Rows
    ends: Rows
    copy_of: Mapping[int, int]

    @classmethod
    def of(cls, qids: Sequence[str], qrels: Qrels, source: StoredTokens, level: int = 1) -> RelevantDocuments:
        """The documents judged at least ``level`` for each of these queries; ``source`` has their texts."""
        judged = [[docid for docid, grade in qrels.get(qid, {}).items() if grade >= level] for qid in qids]
        documents = source.numbers([docid for docids in judged for docid in docids])
        ends = np.cumsum([len(docids) for docids in judged], dtype=np.int64)
        return cls(documents, ends, find_copies(documents, source))

    def knowing(self, copy_of: Mapping[int, int]) -> RelevantDocuments:
        """The same with these copies."""
        return replace(self, copy_of=copy_of)

    def pairs(self) -> Lists:
        """Every pair of a query and a relevant document, as lists of one document."""
        queries = np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))
        return Lists(queries, self.documents[:, None], np.ones((len(queries), 1), np.float32))

    def ignored(self, queries: Rows, documents: Rows) -> NDArray[np.bool_]:
        """Which documents (M,) are relevant to which queries (B,), or copies of such documents: (B, M)."""
        columns = self._originals(documents)
        order = np.argsort(columns, kind="stable")
        ranked = columns[order]
        lengths = np.diff(self.ends, prepend=0)[queries]
        begins = self.ends[queries] - lengths
        rows = np.repeat(np.arange(len(queries)), lengths)
        places = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        wanted = self._originals(self.documents[places])
        first, last = np.searchsorted(ranked, wanted), np.searchsorted(ranked, wanted, side="right")
        ignored = np.zeros((len(queries), len(documents)), np.bool_)
        for row, begin, end in zip(rows.tolist(), first.tolist(), last.tolist(), strict=True):
            if begin < end:
                ignored[row, order[begin:end]] = True
        return ignored

    def _originals(self, documents: Rows) -> Rows:
        return np.array([self.copy_of.get(number, number) for number in documents.tolist()], np.int64)


def find_copies(documents: Rows, source: StoredTokens) -> dict[int, int]:
    """The documents that have the same tokens as an earlier one, each with that one."""
    numbers = np.unique(documents)
    pieces = source.at(numbers)
    earlier: dict[bytes, int] = {}
    copies = {}
    for number, begin, end in zip(numbers.tolist(), pieces.begins.tolist(), pieces.ends.tolist(), strict=True):
        original = earlier.setdefault(pieces.ids[begin:end].tobytes(), number)
        if original != number:
            copies[number] = original
    return copies
