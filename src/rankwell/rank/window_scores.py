"""Scores of documents' windows on disk: computed once, then aggregated and weighted in many ways.

The file has a line for each pair. Its header says how many of the best windows are stored:

    query    document    windows    first    mean    best1    best2    best3
    q1       d7          5          0.12     0.31    0.88     0.40     0.12
    q1       d2          1          0.05     0.05    0.05
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rankwell.core.arrays import Rows, Scores, positions
from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.corpus.formats.lines import FilePath, open_lines, whole_number, writable_ids, write_lines
from rankwell.corpus.formats.runs import decimals
from rankwell.corpus.records import Query, Run
from rankwell.inputs.windows import aggregate_windows, parse_aggregate
from rankwell.rank.pairs import split_rankings
from rankwell.rank.ranker import Activation, Ranker
from rankwell.rank.texts import Texts

COLUMNS = ("query", "document", "windows", "first", "mean")


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

    def aggregate(self, how: str) -> Scores:
        """One score for each pair (P,), as :func:`~rankwell.inputs.windows.aggregate_windows` gives it."""
        kind, weights = parse_aggregate(how)
        if kind in ("first", "mean"):
            return self.first if kind == "first" else self.mean
        n = len(weights)
        if n > self.best.shape[1] and bool((self.counts > self.best.shape[1]).any()):
            raise RankwellError(f"{how} needs the {n} best windows, but only {self.best.shape[1]} are stored")
        best = self.best[:, :n]
        weight_of = np.where(np.isnan(best), np.float32(0), np.array(weights[: best.shape[1]], np.float32))
        total: Scores = (np.nan_to_num(best) * weight_of).sum(axis=1) / weight_of.sum(axis=1)
        return total

    def run(self, how: str) -> Run:
        """The run of the aggregated scores."""
        return Run(split_rankings(self.docids, self.aggregate(how)), name="windows")

    def write(self, path: FilePath) -> None:
        """Write a tsv file; ``.gz`` compresses it. Reading it gives the same scores, bit for bit."""
        write_lines(path, "scores of windows", self._lines(path))

    def _lines(self, path: FilePath) -> Iterator[str]:
        names = [*COLUMNS, *(f"best{i + 1}" for i in range(self.best.shape[1]))]
        yield "\t".join(names) + "\n"
        first, mean = decimals(self.first), decimals(self.mean)
        best, counts = decimals(self.best[~np.isnan(self.best)]), self.counts.tolist()
        row = begin = 0
        for qid, docids in self.docids.items():
            writable_ids(path, qid, docids)
            for docid in docids:
                end = begin + min(counts[row], self.best.shape[1])
                yield "\t".join((qid, docid, str(counts[row]), first[row], mean[row], *best[begin:end])) + "\n"
                row, begin = row + 1, end

    @classmethod
    def read(cls, path: FilePath) -> WindowScores:
        """Read what :meth:`write` wrote."""
        header, lines = open_lines(path, "scores of windows")
        names = header.split("\t")
        if tuple(names[: len(COLUMNS)]) != COLUMNS or len(names) == len(COLUMNS):
            raise InputError(path, 1, f"expected the columns {', '.join(COLUMNS)}, best1, …")
        next(lines)
        docids: dict[str, list[str]] = {}
        counts: list[int] = []
        numbers: list[list[float]] = []
        stored = len(names) - len(COLUMNS)
        for number, line in lines:
            cells = line.split("\t")
            try:
                count, values = whole_number(cells[2]), list(map(float, cells[3:]))
            except (ValueError, IndexError):
                count, values = 0, []
            if count < 1 or len(values) != 2 + min(count, stored) or not np.isfinite(values).all():
                expected = f"{', '.join(COLUMNS)} and as many of the {stored} best as there are windows"
                raise InputError(path, number, f"expected {expected}, found {excerpt(line)}")
            if docids and cells[0] in docids and cells[0] != next(reversed(docids)):
                raise InputError(path, number, f"query {cells[0]!r} comes again after another")
            docids.setdefault(cells[0], []).append(cells[1])
            counts.append(count)
            numbers.append([*values, *[np.nan] * (stored - min(count, stored))])
        table = np.array(numbers, np.float32).reshape(-1, 2 + stored)
        whole = {qid: tuple(names) for qid, names in docids.items()}
        return cls(whole, np.array(counts, np.int64), table[:, 0], table[:, 1], table[:, 2:])


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
    first, mean = (aggregate_windows(scores, owners, how) for how in ("first", "mean"))
    return counts, first, mean, best
