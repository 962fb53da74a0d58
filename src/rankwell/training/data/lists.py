"""What training reads: a set of queries with their candidates, and the lists an epoch is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Query
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.stored import TokenSource
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.training.data.candidates import TrainingCandidates


@dataclass(frozen=True, eq=False)
class Lists:
    """L lists of N documents each, which are scored together.

    ==============  =================  ================================================================================
    ``queries``     (L,) int64         rows of the training set's queries
    ``documents``   (L, N) int64       document numbers
    ``labels``      (L, N) float32     1 relevant and 0 not; or the grade; or a teacher's score
    ``others``      (L, N) int64       for pairs of documents: what each is compared with; or None
    ==============  =================  ================================================================================
    """

    queries: NDArray[np.int64]
    documents: NDArray[np.int64]
    labels: NDArray[np.float32]
    others: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.queries)

    def take(self, order: NDArray[np.int64]) -> Lists:
        """These lists, in this order."""
        others = None if self.others is None else self.others[order]
        return Lists(self.queries[order], self.documents[order], self.labels[order], others)


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Tokenized queries with their types, where there are any (an empty row is a query without one), and candidates."""

    queries: Pieces
    types: Pieces | None
    documents: TokenSource
    candidates: TrainingCandidates

    @classmethod
    def of(
        cls,
        queries: Sequence[Query],
        candidates: TrainingCandidates,
        documents: TokenSource,
        tokenizer: Tokenizer,
        *,
        types: Mapping[str, str] | None = None,
        stems: bool = False,
    ) -> TrainingSet:
        """Tokenize the queries of ``candidates``.

        ``types`` (by query id) go before a query's own type; markers need ``stems``, of the documents too.
        """
        by_id = {query.qid: query for query in queries}
        missing = [qid for qid in candidates.qids if qid not in by_id]
        if missing:
            raise RankwellError(f"query {missing[0]!r} has candidates but no text ({len(missing):,} such queries)")
        ordered = [by_id[qid] for qid in candidates.qids]
        labels = [((types or {}).get(query.qid) or query.type or "").lower() for query in ordered]
        return cls(
            tokenizer.encode([query.text for query in ordered], stems=stems),
            tokenizer.encode(labels) if any(labels) else None,
            documents,
            candidates,
        )
