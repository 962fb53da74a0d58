"""Pairs to score as rows of distinct texts, and the runs they come from and become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rankwell.core.types import Rows, Scores
from rankwell.corpus.records import Ranking, Run
from rankwell.rank.cache import Keys, join_hashes, text_hashes
from rankwell.rank.texts import Documents

PAIRS_AT_A_TIME = 4096


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs as rows of distinct texts: pair ``i`` has the query ``queries[query_of[i]]``, the type
    ``types[type_of[i]]`` ("" for none) and the document in row ``document_of[i]`` of ``documents``.

    Pairs of a run also have its queries' document ids, in the order of the pairs.
    """

    queries: Sequence[str]
    query_of: Rows
    types: Sequence[str]
    type_of: Rows
    documents: Documents
    document_of: Rows
    docids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.query_of)

    def take(self, rows: Rows) -> Pairs:
        """Some of the pairs."""
        return replace(
            self, query_of=self.query_of[rows], type_of=self.type_of[rows], document_of=self.document_of[rows]
        )

    def keys(self, scope: str) -> Keys:
        """The pairs' keys in a score cache."""
        return join_hashes(
            text_hashes([scope], "model"),
            text_hashes(self.queries, "query")[self.query_of],
            text_hashes(self.types, "type")[self.type_of],
            text_hashes(self.documents.texts(), "document")[self.document_of],
        )


def split_rankings(docids: Mapping[str, tuple[str, ...]], scores: Scores) -> dict[str, Ranking]:
    """The rankings of queries from the scores of all their documents, one query after the other."""
    parts = np.split(scores, np.cumsum([len(names) for names in docids.values()]))[:-1]
    return {qid: Ranking.of(names, part) for (qid, names), part in zip(docids.items(), parts, strict=True)}


def groups_of_queries(run: Run, depth: int, most: int | None = None) -> list[list[str]]:
    """Consecutive queries with at most ``most`` candidates together, to bound memory."""
    groups: list[list[str]] = []
    room = 0
    for qid, ranking in run.items():
        size = min(depth, len(ranking))
        if not groups or size > room:
            groups.append([])
            room = most or 4 * PAIRS_AT_A_TIME
        groups[-1].append(qid)
        room -= size
    return groups
