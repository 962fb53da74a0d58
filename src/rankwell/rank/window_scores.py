"""Scores of documents' windows on disk: computed once, then aggregated and weighted in many ways."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from rankwell.core.arrays import Rows, Scores, positions
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_binary
from rankwell.corpus.records import Query, Run
from rankwell.inputs.windows import aggregate_windows, parse_aggregate
from rankwell.rank.pairs import split_rankings
from rankwell.rank.ranker import Activation, Ranker
from rankwell.rank.texts import Texts

SCORES = ("counts", "first", "mean", "best")


@dataclass(frozen=True, eq=False)
class WindowScores:
    """The pairs of a run, query by query.

    ===========  =====================================================================================
    ``docids``   the documents of each query, by its id
    ``counts``   (P,) how many windows each pair has
    ``first``    (P,) the score of the first
    ``mean``     (P,) the mean of all
    ``best``     (P, N) the N best, the highest first; NaN where there are fewer
    ===========  =====================================================================================
    """

    docids: dict[str, tuple[str, ...]]
    counts: Rows
    first: Scores
    mean: Scores
    best: Scores

    def __len__(self) -> int:
        return len(self.counts)

    @classmethod
    def of_run(cls, run: Run) -> WindowScores:
        """A run's scores, as if each document were one window."""
        scores = np.concatenate([np.zeros(0, np.float32), *(ranking.scores for ranking in run.values())])
        docids = {qid: ranking.docids for qid, ranking in run.items()}
        return cls(docids, np.ones(len(scores), np.int64), scores, scores, scores[:, None])

    def aggregate(self, aggregate: str) -> Scores:
        """One score for each pair (P,), as :func:`~rankwell.inputs.windows.aggregate_windows` gives it."""
        kind, weights = parse_aggregate(aggregate)
        if kind in ("first", "mean"):
            return self.first if kind == "first" else self.mean
        n = len(weights)
        if n > self.best.shape[1] and bool((self.counts > self.best.shape[1]).any()):
            raise RankwellError(f"{aggregate} needs the {n} best windows, but only {self.best.shape[1]} are stored")
        best = self.best[:, :n]
        weight_of = np.where(np.isnan(best), np.float32(0), np.array(weights[: best.shape[1]], np.float32))
        total: Scores = (np.nan_to_num(best) * weight_of).sum(axis=1) / weight_of.sum(axis=1)
        return total

    def run(self, aggregate: str) -> Run:
        """The run of the aggregated scores."""
        return Run(split_rankings(self.docids, self.aggregate(aggregate)), name="windows")

    def write(self, path: Path) -> None:
        """Write an npz file."""
        qids, docids = list(self.docids), list(chain.from_iterable(self.docids.values()))
        lengths = np.array([len(names) for names in self.docids.values()], np.int64)
        ids = {"qids": np.array(qids, np.str_), "docids": np.array(docids, np.str_), "lengths": lengths}
        with atomic_binary(path) as file:
            np.savez_compressed(file, **ids, **{name: getattr(self, name) for name in SCORES})  # type: ignore[arg-type]

    @classmethod
    def read(cls, path: Path) -> WindowScores:
        """Read what :meth:`write` wrote."""
        try:
            with np.load(path) as file:
                arrays = {name: file[name] for name in file.files}
            names = iter(arrays["docids"].tolist())
            docids = {
                qid: tuple(islice(names, length))
                for qid, length in zip(arrays["qids"].tolist(), arrays["lengths"].tolist(), strict=True)
            }
            return cls(docids, *(arrays[name] for name in SCORES))
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, BadZipFile, zlib.error):
            raise InputError(path, None, "not the scores of windows, or damaged") from None


def score_windows(
    ranker: Ranker,
    run: Run,
    queries: Sequence[Query],
    texts: Texts,
    *,
    depth: int = 1000,
    keep: int = 3,
    activation: Activation = None,
) -> WindowScores:
    """Score the windows of a run's documents, the first ``depth`` of each query, in the ranker's windows.

    The ``keep`` best of each pair are stored. The score cache is not used, since it holds scores of whole documents.
    """
    if keep < 1:
        raise RankwellError(f"keep is {keep}; it must be at least 1")
    docids: dict[str, tuple[str, ...]] = dict.fromkeys(run, ())
    empty = np.zeros(0, np.float32)
    parts = [(np.zeros(0, np.int64), empty, empty, np.zeros((0, keep), np.float32))]
    groups = ranker.groups(run, queries, texts, depth=depth)
    for pairs, scores, owners in ranker.score_windows(groups, activation):
        docids |= pairs.docids
        parts.append(_summarise(scores, owners, keep))
    counts, first, mean, best = zip(*parts, strict=True)
    return WindowScores(
        docids, np.concatenate(counts), np.concatenate(first), np.concatenate(mean), np.concatenate(best)
    )


def _summarise(scores: Scores, owners: Rows, keep: int) -> tuple[Rows, Scores, Scores, Scores]:
    """For each pair the number of its windows, the first score, the mean and the best (P, keep)."""
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    counts = np.diff(np.append(begins, len(owners)))
    order = np.lexsort((-scores, owners))
    rank = positions(counts)
    best = np.full((len(begins), keep), np.nan, np.float32)
    among = rank < keep
    best[np.repeat(np.arange(len(begins)), counts)[among], rank[among]] = scores[order][among]
    first, mean = (aggregate_windows(scores, owners, kind) for kind in ("first", "mean"))
    return counts, first, mean, best
