"""Sampling: the lists of an epoch, drawn from the candidates. A pure function of seed and epoch.

Every list is one query with N⁺ relevant and N⁻ other documents. Pointwise training with k negatives a positive,
pairwise training and triples are lists too: what differs is the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows
from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Query
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.training.data.candidates import Mask, TrainingCandidates


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
    """Tokenized queries with their types, where there are any (an empty row is a query without one), and documents."""

    queries: Pieces
    types: Pieces | None
    documents: StoredTokens

    @classmethod
    def of(
        cls,
        queries: Sequence[Query],
        qids: Sequence[str],
        documents: StoredTokens,
        tokenizer: Tokenizer,
        *,
        stems: bool = False,
    ) -> TrainingSet:
        """Tokenize the queries with these ids; markers need ``stems``, of the documents too."""
        by_id = {query.qid: query for query in queries}
        missing = [qid for qid in qids if qid not in by_id]
        if missing:
            raise RankwellError(f"query {missing[0]!r} has candidates but no text ({len(missing):,} such queries)")
        ordered = [by_id[qid] for qid in qids]
        labels = [(query.type or "").lower() for query in ordered]
        return cls(
            tokenizer.encode([query.text for query in ordered], stems=stems),
            tokenizer.encode(labels) if any(labels) else None,
            documents,
        )


KEYS_AT_A_TIME = 2**21

Weighting = Literal["uniform", "rank"]
Per = Literal["positive", "query"]
Labels = Literal["relevance", "grade"]


@dataclass(frozen=True)
class Plan:
    """How lists are drawn.

    ``positives`` and ``negatives``   N⁺ and N⁻
    ``weighting``                     of a query's negatives: ``uniform``; ``rank``, the r-th of them with weight 1/r,
                                      so that hard ones come more often
    ``per``                           a list for each ``positive`` (it is the first of its list), or one for each
                                      ``query`` (the first is drawn)
    ``labels``                        ``relevance`` (1 or 0) or the ``grade`` (unjudged: 0)
    """

    positives: int = 1
    negatives: int = 5
    weighting: Weighting = "uniform"
    per: Per = "positive"
    labels: Labels = "relevance"


def draw(candidates: TrainingCandidates, plan: Plan, seed: int, epoch: int) -> Lists:
    """The lists of an epoch, in a random order; the positives are the first N⁺ columns.

    Documents are drawn without replacement where a query has enough. Where it has too few, each comes once before any
    comes again, and as evenly as possible from there on.
    """
    queries, places = _draw(candidates, plan, seed, epoch)
    return Lists(queries, candidates.documents[places], _labels(candidates, plan)[places])


def _draw(
    candidates: TrainingCandidates, plan: Plan, seed: int, epoch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The query of each list (L,) and its documents (L, N⁺ + N⁻), as places among the candidates."""
    random = np.random.default_rng([seed, epoch])
    positives, negatives = _Pools.of(candidates, candidates.relevant), _Pools.of(candidates, ~candidates.relevant)
    for pools, kind in ((positives, "relevant document"), (negatives, "non-relevant candidate")):
        if not pools.sizes.all():
            raise RankwellError(f"query {candidates.qids[int(pools.sizes.argmin())]!r} has no {kind} to draw from")
    if plan.per == "positive":
        queries = np.repeat(np.arange(len(positives.sizes)), positives.sizes)
        positive = np.arange(len(queries)) - positives.begins[queries]
    else:
        queries = np.arange(len(positives.sizes))
        positive = random.integers(positives.sizes)
    order = random.permutation(len(queries))
    queries, positive = queries[order], positive[order]
    others = _choose(random, positives.sizes[queries] - 1, plan.positives - 1, "uniform")
    others += others >= positive[:, None]  # skip the list's first positive
    first = _repeat_evenly(np.concatenate([positive[:, None], others], axis=1), positives.sizes[queries])
    rest = _choose(random, negatives.sizes[queries], plan.negatives, plan.weighting)
    rest = _repeat_evenly(rest, negatives.sizes[queries])
    return queries, np.concatenate([positives.places(queries, first), negatives.places(queries, rest)], axis=1)


@dataclass(frozen=True, eq=False)
class _Pools:
    """For each query the candidates of one kind: those of query ``q`` are ``members[begins[q]:][:sizes[q]]``."""

    members: NDArray[np.int64]
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, candidates: TrainingCandidates, mask: Mask) -> _Pools:
        sizes = candidates.per_query(mask)
        return cls(np.flatnonzero(mask), np.cumsum(sizes) - sizes, sizes)

    def places(self, queries: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """``chosen`` (L, n) counts within each query's pool; the result counts among all candidates."""
        places: NDArray[np.int64] = self.members[self.begins[queries][:, None] + chosen]
        return places


def _choose(
    random: np.random.Generator, sizes: NDArray[np.int64], count: int, weighting: Weighting
) -> NDArray[np.int64]:
    """``count`` distinct numbers below ``sizes[i]`` for each i; of a smaller size only the first are valid.

    Each number gets the key e/w with e exponential and w its weight; those with the smallest keys are an exact weighted
    sample without replacement (Efraimidis and Spirakis), in the order they would have been drawn.
    """
    if not count:
        return np.empty((len(sizes), 0), np.int64)
    sample = np.empty((len(sizes), count), np.int64)
    step = max(1, KEYS_AT_A_TIME // max(1, int(sizes.max(initial=0))))
    for begin in range(0, len(sizes), step):
        some = sizes[begin : begin + step, None]
        width = max(count, int(some.max()))
        ranks = np.arange(width, dtype=np.float32)
        if weighting == "uniform":  # any increasing function of e keeps the order, so plain uniform numbers will do
            keys = random.random((len(some), width), np.float32)
        else:
            keys = random.standard_exponential((len(some), width), np.float32)
            keys *= ranks + 1
        keys[ranks >= some] = np.inf
        if width > count:
            near = np.argpartition(keys, count - 1, axis=1)[:, :count]
            order = np.argsort(np.take_along_axis(keys, near, axis=1), axis=1)
            sample[begin : begin + step] = np.take_along_axis(near, order, axis=1)
        else:
            sample[begin : begin + step] = np.argsort(keys, axis=1)
    return sample


def _repeat_evenly(chosen: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where a row has fewer than its columns, go through them again from the first."""
    columns = np.arange(chosen.shape[1])
    return np.take_along_axis(chosen, columns % sizes[:, None], axis=1)


def _labels(candidates: TrainingCandidates, plan: Plan) -> NDArray[np.float32]:
    """The label of each candidate."""
    if plan.labels == "relevance":
        return candidates.relevant.astype(np.float32)
    return np.maximum(candidates.grades, 0).astype(np.float32)


# Pairs of a query and a relevant document, and which documents of a batch are no negatives of a query


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
