"""Fusion: one run from several, by shares of their scores.

    model · normalised score + similarity · normalised score + first · normalised score

The scores of different systems are on different scales (BM25 is unbounded, log p(relevant) is at most 0), so they are
normalised within each query before they are added.
:func:`~rankwell.rank.tuning.tune_fusion` chooses the shares on judged queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from rankwell.core.arrays import Rows, Scores, Values
from rankwell.core.errors import RankwellError
from rankwell.core.registry import Registry
from rankwell.corpus.records import Ranking, Run
from rankwell.retrieve.numbering import NumberedRun

PARTS = ("model", "similarity", "first")
NORMALISATIONS: Registry[Callable[[Values], Values]] = Registry("normalisation")


@NORMALISATIONS.register("none")
def _unchanged(scores: Values) -> Values:
    return scores


@NORMALISATIONS.register("min-max")
def _min_max(scores: Values) -> Values:
    """From 0 to 1 within each run; where all scores are equal, 0."""
    low = np.nanmin(scores, axis=1, keepdims=True)
    width = np.nanmax(scores, axis=1, keepdims=True) - low
    normal: Values = (scores - low) / np.where(width > 0, width, 1.0)
    return normal


@NORMALISATIONS.register("z-score")
def _z_score(scores: Values) -> Values:
    """Mean 0 and standard deviation 1 within each run; where all scores are equal, 0."""
    scored = ~np.isnan(scores)
    count = np.count_nonzero(scored, axis=1, keepdims=True)
    # Relative to the highest, equal scores are exactly 0; relative to their mean they could be off by a rounding.
    below = np.where(scored, scores - np.nanmax(scores, axis=1, keepdims=True), 0.0)
    centred = np.where(scored, below - below.sum(axis=1, keepdims=True) / count, 0.0)
    deviation = np.sqrt((centred * centred).sum(axis=1, keepdims=True) / count)
    return np.where(scored, centred / np.where(deviation > 0, deviation, 1.0), np.nan)


@dataclass(frozen=True, eq=False)
class AlignedScores:
    """One query's documents: ``scores`` are (runs, documents), NaN where a run lacks one."""

    runs: tuple[str, ...]
    docids: Callable[[Rows], list[str]]
    """The ids of the documents in the given columns."""
    scores: Values
    _normalised: dict[str, Values] = field(default_factory=dict)

    def normalised(self, normalise: str) -> Values:
        """The normalised scores, each run's lowest for documents it lacks; computed once for all shares."""
        if normalise not in self._normalised:
            normal = NORMALISATIONS[normalise](self.scores)
            lowest = np.nanmin(normal, axis=1, keepdims=True)
            self._normalised[normalise] = np.where(np.isnan(normal), lowest, normal)
        return self._normalised[normalise]


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of a model's scores, a bi-encoder's similarities and the first stage's scores in a sum.

    Shares are not negative and sum to 1. ``normalise`` is applied to each run's scores within a query. A document that
    a run lacks gets the lowest score that the run gives any document of the query.

    >>> print(Shares(model=0.6, similarity=0.3, first=0.1))
    model 0.6, similarity 0.3, first 0.1 (min-max)
    """

    model: float = 0.0
    similarity: float = 0.0
    first: float = 0.0
    normalise: str = "min-max"

    def __post_init__(self) -> None:
        NORMALISATIONS[self.normalise]
        named = ", ".join(f"{name} {share:g}" for name, share in self.as_dict().items())
        # Negated, so that NaN is refused as well.
        if not (min(self.as_dict().values()) >= 0 and abs(sum(self.as_dict().values()) - 1) <= 1e-9):
            raise RankwellError(f"the weights are {named}; expected numbers of at least 0 that sum to 1")

    @classmethod
    def beside_model(cls, *, first: float = 0.0, similarity: float = 0.0, normalise: str = "min-max") -> Shares:
        """Shares of the first stage and the bi-encoder; the model has the rest.

        >>> print(Shares.beside_model(first=0.3))
        model 0.7, first 0.3 (min-max)
        """
        if not (first >= 0 and similarity >= 0 and first + similarity <= 1):
            problem = f"a weight of {first:g} for the first stage and {similarity:g} for the bi-encoder"
            raise RankwellError(f"{problem}; expected numbers of at least 0 that sum to at most 1")
        return cls(_rest(first, similarity), similarity, first, normalise)

    @classmethod
    def from_options(cls, fuse: float | None, blend: float | None, normalise: str) -> Shares | None:
        """The first stage's share ``fuse`` and the bi-encoder's share ``blend``; ``None`` if neither is given."""
        if fuse is None and blend is None:
            return None
        return cls.beside_model(first=fuse or 0.0, similarity=blend or 0.0, normalise=normalise)

    @classmethod
    def hybrid(cls, similarity: float) -> Shares:
        """A bi-encoder's share in hybrid search; BM25 has the rest. Raises unless 0 < share ≤ 1."""
        if not 0 < similarity <= 1:
            raise RankwellError(f"a weight of {similarity:g} for the bi-encoder; expected more than 0 and at most 1")
        return cls(similarity=similarity, first=_rest(similarity), normalise="z-score")

    def as_dict(self) -> dict[str, float]:
        """The share of each part by its name."""
        return {"model": self.model, "similarity": self.similarity, "first": self.first}

    def __str__(self) -> str:
        named = [f"{name} {share:g}" for name, share in self.as_dict().items() if share]
        return f"{', '.join(named)} ({self.normalise})"

    def check_runs(self, runs: Sequence[str]) -> None:
        """Raise unless ``runs`` name parts, and every part with a share is among them."""
        unknown = [name for name in runs if name not in PARTS]
        lacking = [name for name, share in self.as_dict().items() if share and name not in runs]
        if unknown:
            raise RankwellError(f"there are no weights for a run called {unknown[0]!r}; expected {', '.join(PARTS)}")
        if lacking:
            raise RankwellError(f"the weights are {self}, but there is no run called {lacking[0]!r}")

    def combine(self, candidates: AlignedScores) -> Values:
        """One score for each document."""
        # Not a matrix product, whose order of addition (and so whose last bit) depends on the machine.
        total = np.zeros(candidates.scores.shape[1])
        for name, part in zip(candidates.runs, candidates.normalised(self.normalise), strict=True):
            total += getattr(self, name) * part
        return total


def _rest(*shares: float) -> float:
    rest = 1.0
    for share in shares:
        rest -= share
    return abs(round(rest, 12))


_NOTHING = Ranking((), np.zeros(0, np.float32))


def fuse(
    runs: Mapping[str, Run],
    fusion: Shares | Callable[[str], Shares],
    *,
    depth: int | None = None,
    name: str = "fusion",
) -> Run:
    """Fuse ``runs``, called ``model``, ``similarity`` and ``first`` as in :class:`Shares`.

    ``depth`` limits the documents of each query. A query that one run lacks is ranked by the others. A function of the
    query id can choose the shares for each query.

    >>> bm25 = Run.from_scores({"q": {"a": 12.0, "b": 10.0, "c": 2.0}})
    >>> mono = Run.from_scores({"q": {"a": -3.0, "b": -1.0}})
    >>> list(fuse({"first": bm25, "model": mono}, Shares(model=0.5, first=0.5))["q"])
    [('b', 0.8999999761581421), ('a', 0.5), ('c', 0.0)]
    """
    align = Alignment(runs)
    rankings: dict[str, Ranking] = {}
    for qid in align.qids:
        shares = fusion(qid) if callable(fusion) else fusion
        shares.check_runs(align.names)
        if len(ranking := _fuse_query(align(qid), shares, depth)):
            rankings[qid] = ranking
    return Run(rankings, name=name)


def before_rest(top: Run, first: Run) -> Run:
    """The re-ranked documents of each query, and below them the rest of the first stage's, whose order stays."""
    joined = {qid: best.before(ranking) if (best := top.get(qid)) else ranking for qid, ranking in first.items()}
    return Run(joined, name=top.name)


def _fuse_query(candidates: AlignedScores, shares: Shares, depth: int | None) -> Ranking:
    scores = shares.combine(candidates).astype(np.float32)
    columns = np.arange(len(scores))
    if depth is not None and depth < len(scores):
        # Only candidates for the top are sorted, including all that tie at the cut-off.
        columns = np.flatnonzero(scores >= np.partition(scores, -depth)[-depth])
    columns = columns[np.argsort(-scores[columns])]  # Ranking.of sorts fast if only ties are out of order
    ranking = Ranking.of(candidates.docids(columns), scores[columns])
    return ranking.head(depth) if depth is not None else ranking


class Alignment:
    """Brings together a query's documents from several runs, those of the first run first.

    Runs are rows, documents are columns. If all runs are over one index, documents are identified by their numbers, and
    ids are looked up only for those that are ranked.
    """

    def __init__(self, runs: Mapping[str, Run]):
        if len(runs) < 2:
            raise RankwellError(f"{len(runs)} run to fuse; expected two or more")
        self.names = tuple(runs)
        self.qids = list(dict.fromkeys(qid for run in runs.values() for qid in run))
        self._runs = list(runs.values())
        numbered = [run for run in self._runs if isinstance(run, NumberedRun)]
        alike = len(numbered) == len(runs) and len({id(run.documents) for run in numbered}) == 1
        self._numbered = numbered if alike else []
        self._column = np.full(len(numbered[0].documents) if alike else 0, -1, np.int64)

    def __call__(self, qid: str) -> AlignedScores:
        """The candidates of a query. A run without the query has a row of zeros."""
        docids, parts = self._by_number(qid) if self._numbered else self._by_id(qid)
        scores = np.full((len(parts), max(int(columns.max(initial=-1)) for columns, _ in parts) + 1), np.nan)
        for row, (columns, values) in enumerate(parts):
            scores[row, columns] = values
            if not len(columns):
                scores[row] = 0.0
        return AlignedScores(self.names, docids, scores)

    def _by_id(self, qid: str) -> tuple[Callable[[Rows], list[str]], list[tuple[Rows, Scores]]]:
        """A function that names columns, and each run's columns and scores."""
        rankings = [run.get(qid, _NOTHING) for run in self._runs]
        begins = np.cumsum([0, *map(len, rankings)]).tolist()
        # A document is known by its first place in the rankings put end to end, and then by its turn among those.
        first: dict[str, int] = {}
        places = [
            np.fromiter(map(first.setdefault, ranking.docids, count(begin)), np.int64, len(ranking))
            for ranking, begin in zip(rankings, begins, strict=False)
        ]
        is_first = np.zeros(begins[-1], np.int64)
        is_first[np.concatenate(places)] = 1
        turns, names = np.cumsum(is_first) - 1, list(first)
        parts = [(turns[place], ranking.scores) for place, ranking in zip(places, rankings, strict=True)]
        return lambda columns: [names[column] for column in columns.tolist()], parts

    def _by_number(self, qid: str) -> tuple[Callable[[Rows], list[str]], list[tuple[Rows, Scores]]]:
        """Like :meth:`_by_id`, by the documents' numbers."""
        parts: list[tuple[Rows, Scores]] = []
        numbers = np.zeros(0, np.int64)
        for run in self._numbered:
            hits, scores = run.numbered(qid) if qid in run else (numbers[:0], _NOTHING.scores)
            new = hits[self._column[hits] < 0]
            self._column[new] = np.arange(len(numbers), len(numbers) + len(new))
            numbers = np.concatenate([numbers, new])
            parts.append((self._column[hits], scores))
        self._column[numbers] = -1
        documents = self._numbered[0].documents
        return lambda columns: documents.docids(numbers[columns]), parts
