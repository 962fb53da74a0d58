"""Searching a system for many requests at once: BM25 or hybrid search, and the shares of re-ranked scores."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rankwell.core.arrays import Scores
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System

QID = "query"
"""The id of a request's query in the runs that are fused."""
NOTHING = Ranking.of([], [])


@dataclass(frozen=True, eq=False)
class Searcher:
    """A system that many requests share: locks guard what two threads must not use at once."""

    system: System
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Of the index's analyser, whose stemmer two threads must not use at once."""
    dense_lock: threading.Lock = field(default_factory=threading.Lock)
    """Of the bi-encoder, which two threads must not use at once."""

    @cached_property
    def first_stages(self) -> dict[str, FirstStage]:
        """The searches there are, as requests and answers call them; the default first."""
        first = self.system.first_stage
        return {"hybrid": first, "bm25": replace(first, share=0.0)} if first.share else {"bm25": first}

    @property
    def default(self) -> str:
        """The name of the default search."""
        return next(iter(self.first_stages))

    def search(self, name: str, queries: Sequence[str], k: int) -> list[Ranking]:
        """The best ``k`` documents for each query; vectors are read once for all of them."""
        first = self.first_stages[name]
        named = [Query(str(number), query) for number, query in enumerate(queries)]
        with self.lock, self.dense_lock if first.share else nullcontext():
            run = first.search(named, k)
        return [run.get(query.qid, NOTHING) for query in named]

    def fuse(self, query: str, candidates: Ranking, scores: Scores) -> Scores:
        """The model's scores of the candidates, in their order, fused with the other scores that have a share."""
        shares = self.system.shares
        if shares is None or not len(candidates):
            return scores
        first, model = Run({QID: candidates}), Run({QID: Ranking.of(candidates.docids, scores)})
        with self.dense_lock if shares.similarity else nullcontext():
            fused = dict(self.system.fuse(first, model, [Query(QID, query)])[QID])
        return np.array([fused[docid] for docid in candidates.docids], np.float32)

    def describe_shares(self) -> dict[str, Any] | None:
        """The shares of re-ranking as ``/ready`` shows them."""
        shares, first = self.system.shares, self.default
        if shares is None:
            return None
        if shares.similarity:
            parts = {"model": shares.model, "similarity": shares.similarity, first: shares.first}
        else:
            parts = {first: shares.first, "model": shares.model}
        return {"shares": parts, "normalise": shares.normalise}


@dataclass(frozen=True, slots=True)
class SearchJob:
    """A request for the ``k`` best documents of a query; ``first`` names one of the searcher's first stages."""

    searcher: Searcher
    first: str
    query: str
    k: int


def search_together(jobs: Sequence[SearchJob]) -> list[tuple[Ranking, float]]:
    """The documents of each job and the milliseconds they took; jobs with the same ``k`` are searched together."""
    alike: dict[tuple[int, str, int], list[int]] = {}
    for number, job in enumerate(jobs):
        alike.setdefault((id(job.searcher), job.first, job.k), []).append(number)
    results: dict[int, tuple[Ranking, float]] = {}
    for numbers in alike.values():
        begin = time.perf_counter()
        job = jobs[numbers[0]]
        rankings = job.searcher.search(job.first, [jobs[number].query for number in numbers], job.k)
        ms = 1000 * (time.perf_counter() - begin)
        results |= {number: (ranking, ms) for number, ranking in zip(numbers, rankings, strict=True)}
    return [results[number] for number in range(len(jobs))]
