"""Documents by number: the ids of hits are looked up only when they are read.

Otherwise a search over many queries would spend most of its time making id strings, most of them for hits that are
dropped later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType

import numpy as np

from rankwell.core.arrays import Rows, Scores
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.corpus.store import NumberedDocuments
from rankwell.retrieve.bm25 import Hits

BLOCK = 256  # queries whose documents' ids are looked up together


def join_hits(documents: NumberedDocuments, parts: Sequence[Hits], k: int, *, ordered: bool = True) -> Hits:
    """Merge the stores' lists, each by descending score.

    Ids are needed only for equal scores: those from several stores, or all if ties within a store are not
    ``ordered`` yet.
    """
    used = [(part, base) for part, base in zip(parts, documents.bases, strict=False) if part.numbers.shape[1]]
    if ordered and len(used) == 1 and not used[0][1]:
        return Hits(used[0][0].numbers[:, :k], used[0][0].scores[:, :k])
    if not used:
        return parts[0]
    numbers = np.concatenate([np.where(part.numbers >= 0, part.numbers + base, -1) for part, base in used], axis=1)
    scores = np.concatenate([part.scores for part, _ in used], axis=1)
    if len(used) > 1:
        # The padding of a part scores 0 and comes last; similarities may be negative.
        order = np.argsort(np.where(numbers >= 0, -scores, np.inf), axis=1, kind="stable")
        numbers, scores = np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)
    _order_ties(documents, numbers, scores, k, ordered)
    return Hits(np.ascontiguousarray(numbers[:, :k]), np.ascontiguousarray(scores[:, :k]))


def _order_ties(documents: NumberedDocuments, numbers: Rows, scores: Scores, width: int, ordered: bool) -> None:
    """Put equal scores in THE order, in place. Each row has them store by store, ``ordered`` within it or not."""
    tied = np.zeros(scores.shape, bool)
    tied[:, 1:] = (scores[:, 1:] == scores[:, :-1]) & (numbers[:, 1:] >= 0)
    unsorted = tied[:, 1:]
    if ordered:
        owners = np.searchsorted(documents.bases, numbers, side="right")
        unsorted = unsorted & (owners[:, 1:] != owners[:, :-1])
    if not unsorted.any():
        return
    ties = np.cumsum(~tied.ravel()).reshape(tied.shape)  # the number of each score's run of equal ones
    wanted = np.zeros(int(ties[-1, -1]) + 1, bool)
    wanted[ties[:, 1:][unsorted]] = True
    if width < scores.shape[1]:
        wanted[ties[:, width:][~tied[:, width:]]] = False  # runs that begin past the end
    affected = wanted[ties]
    unique, place = np.unique(numbers[affected], return_inverse=True)
    docids = documents.docids(unique)
    rank = np.empty(len(unique), np.int64)
    rank[sorted(range(len(unique)), key=docids.__getitem__, reverse=True)] = np.arange(len(unique))
    numbers[affected] = numbers[affected][np.lexsort([rank[place], ties[affected]])]


class NumberedRun(Run):
    """A run that holds documents by number; ids are looked up when they are first read, those of many queries at once.

    ``batches`` are queries with their hits. The documents of ``exact`` come first, of at most ``k``. A query
    without any is not in the run.
    """

    def __init__(
        self,
        batches: Iterable[tuple[Sequence[Query], Hits]],
        documents: NumberedDocuments,
        *,
        name: str,
        exact: Mapping[str, Ranking] = MappingProxyType({}),
        k: int = 0,
    ):
        super().__init__(name=name)
        self.documents = documents
        self._exact, self._k = exact, k
        self._hits: dict[str, tuple[Rows, Scores]] = {}
        self._blocks: dict[str, list[str]] = {}
        block: list[str] = []
        for queries, hits in batches:
            for row, (query, count) in enumerate(zip(queries, hits.counts.tolist(), strict=True)):
                if count or query.qid in exact:
                    block = block if len(block) < BLOCK else []
                    block.append(query.qid)
                    self._blocks[query.qid] = block
                    self._hits[query.qid] = hits.numbers[row, :count], hits.scores[row, :count]

    def numbered(self, qid: str) -> tuple[Rows, Scores]:
        """A query's hits in THE order, and their scores."""
        return self._hits[qid]

    def __getitem__(self, qid: str) -> Ranking:
        if qid not in self._rankings:
            hits = [self._hits[name] for name in self._blocks[qid]]
            unique, places = np.unique(np.concatenate([numbers for numbers, _ in hits]), return_inverse=True)
            docids = iter(np.array(self.documents.docids(unique), object)[places].tolist())
            for name, (numbers, scores) in zip(self._blocks[qid], hits, strict=True):
                ranking = Ranking(tuple(islice(docids, len(numbers))), scores)
                if (best := self._exact.get(name)) is not None and ranking.docids[: len(best)] != best.docids:
                    ranking = best.before(ranking).head(self._k)
                self._rankings[name] = ranking
        return self._rankings[qid]

    def __contains__(self, qid: object) -> bool:
        return qid in self._hits

    def __iter__(self) -> Iterator[str]:
        return iter(self._hits)

    def __len__(self) -> int:
        return len(self._hits)

    def __reduce__(self) -> tuple[partial[Run], tuple[dict[str, Ranking]]]:
        # Pickled as a plain run: other processes need the rankings, not the stores of all documents.
        return partial(Run, name=self.name), (dict(self),)
