"""Fusion: one run from several.

    linear   Σ weight · score, after a normalisation within each query       α·A + (1−α)·B for two runs
    rrf      Σ weight · 1 / (k + rank)                                       reciprocal rank fusion

Scores of different systems are on different scales (BM25 is unbounded, log p(relevant) is at most 0), so a linear
combination mostly wants a normalisation; rank fusion needs none. :func:`tune_fusion` chooses on judged queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.core.registry import Registry
from rankwell.core.types import Scores
from rankwell.corpus.records import Qrels, Ranking, Run
from rankwell.evaluation.cross_validation import CrossValidation, cross_validate
from rankwell.evaluation.judged import judge
from rankwell.evaluation.notation import parse_measure
from rankwell.retrieve.numbering import NumberedRun, Numbering

Table = NDArray[np.float64]
Places = NDArray[np.int64]
Names = Callable[[Places], list[str]]
"""The ids of the documents in some columns of a table."""

NORMALISATIONS: Registry[Callable[[Table], Table]] = Registry("normalisation")
FUSIONS: Registry[Callable[[Candidates, Fusion], Table]] = Registry("fusion")


@dataclass(frozen=True, eq=False)
class Candidates:
    """One query's documents: ``scores`` and ``ranks`` (from 1) are (runs, documents), NaN where a run lacks one."""

    docids: Names
    scores: Table
    ranks: Table
    _parts: dict[tuple[str, str, float], Table] = field(default_factory=dict)

    @cached_property
    def found_by(self) -> NDArray[np.int64]:
        """How many runs have each document."""
        count: NDArray[np.int64] = (~np.isnan(self.ranks)).sum(axis=0)
        return count

    def parts(self, fusion: Fusion) -> Table:
        """What each run adds to each document before it is weighted; computed once for all weights that are tried."""
        key = fusion.method, fusion.normalise, fusion.k
        if key not in self._parts:
            self._parts[key] = FUSIONS[fusion.method](self, fusion)
        return self._parts[key]


@dataclass(frozen=True, slots=True)
class Fusion:
    """How runs become one. ``weights`` has one entry a run; :func:`interpolation` makes the usual pair from α.

    ``missing`` says what becomes of a document that a run does not have: ``minimum`` gives it the lowest score that run
    gives any document of the query (rank fusion: nothing), ``drop`` keeps only documents that every run has.
    """

    method: str = "linear"
    weights: tuple[float, ...] = (0.5, 0.5)
    normalise: str = "min-max"
    missing: Literal["minimum", "drop"] = "minimum"
    k: float = 60.0

    def __post_init__(self) -> None:
        FUSIONS[self.method], NORMALISATIONS[self.normalise]
        if self.missing not in ("minimum", "drop"):
            raise RankwellError(f"missing documents: {self.missing!r}, expected minimum or drop")
        if len(self.weights) < 2 or not all(0 <= weight < np.inf for weight in self.weights) or not any(self.weights):
            raise RankwellError(f"weights {self.weights}: two or more, none negative, not all 0")
        if not 0 <= self.k < np.inf:
            raise RankwellError(f"k is {self.k:g} in rank fusion, expected 0 or more")

    def __str__(self) -> str:
        weights = ":".join(f"{weight:g}" for weight in self.weights)
        return f"linear {weights} {self.normalise}" if self.method == "linear" else f"{self.method} {weights}"


def interpolation(alpha: float, normalise: str = "min-max", missing: Literal["minimum", "drop"] = "minimum") -> Fusion:
    """α·A + (1−α)·B.

    >>> print(interpolation(0.8))
    linear 0.8:0.2 min-max
    """
    if not 0 <= alpha <= 1:
        raise RankwellError(f"α is {alpha:g}, expected a number from 0 to 1")
    return Fusion("linear", (alpha, round(1 - alpha, 12)), normalise, missing)


def told_shares(fuse: float | None, blend: float | None, normalise: str = "min-max") -> Fusion | None:
    """What ``--fuse``, the first stage's share, and ``--blend``, a bi-encoder's, make of a model's scores.

    The runs' order is first stage, model; or model, bi-encoder, first stage where there is a bi-encoder.

    >>> print(told_shares(0.1, 0.3, "z-score"))
    linear 0.6:0.3:0.1 z-score
    """
    if blend is None:
        return None if fuse is None else interpolation(fuse, normalise)
    first = fuse or 0.0
    if min(first, blend) < 0 or first + blend > 1:
        raise RankwellError(f"--fuse {first:g} and --blend {blend:g}: two shares of 1, expected 0 or more, at most 1")
    return Fusion("linear", (round(1 - first - blend, 12), blend, first), normalise)


def check_hybrid(share: float | None) -> None:
    """An error where a bi-encoder's share in hybrid search is none; to be had before anything is opened."""
    if share is not None and not 0 < share <= 1:  # nor NaN
        raise RankwellError(f"a share of {share:g} for the bi-encoder; expected more than 0 and at most 1")


def rank_fusion(runs: int = 2, k: float = 60.0) -> Fusion:
    """Σ 1 / (k + rank) over ``runs`` runs of equal weight."""
    return Fusion("rrf", (1.0,) * runs, k=k)


@NORMALISATIONS.register("none")
def _as_they_are(scores: Table) -> Table:
    return scores


@NORMALISATIONS.register("min-max")
def _min_max(scores: Table) -> Table:
    """From 0 to 1 within each run; where all scores are equal, 0."""
    low = np.nanmin(scores, axis=1, keepdims=True)
    width = np.nanmax(scores, axis=1, keepdims=True) - low
    normal: Table = (scores - low) / np.where(width > 0, width, 1.0)
    return normal


@NORMALISATIONS.register("z-score")
def _z_score(scores: Table) -> Table:
    """Mean 0 and standard deviation 1 within each run; where all scores are equal, 0."""
    found = ~np.isnan(scores)
    count = np.count_nonzero(found, axis=1, keepdims=True)
    # Measured from the highest, equal scores are exactly 0; their mean could miss them by a rounding.
    moved = np.where(found, scores - np.nanmax(scores, axis=1, keepdims=True), 0.0)
    apart = np.where(found, moved - moved.sum(axis=1, keepdims=True) / count, 0.0)
    deviation = np.sqrt((apart * apart).sum(axis=1, keepdims=True) / count)
    return np.where(found, apart / np.where(deviation > 0, deviation, 1.0), np.nan)


@FUSIONS.register("linear")
def _linear(candidates: Candidates, fusion: Fusion) -> Table:
    normal = NORMALISATIONS[fusion.normalise](candidates.scores)
    return np.where(np.isnan(normal), np.nanmin(normal, axis=1, keepdims=True), normal)


@FUSIONS.register("rrf")
def _reciprocal_ranks(candidates: Candidates, fusion: Fusion) -> Table:
    return np.nan_to_num(1.0 / (fusion.k + candidates.ranks))


def _weighted_sum(parts: Table, weights: Sequence[float]) -> Table:
    # Not a matrix product, whose order of addition (and so whose last bit) depends on the machine.
    total = np.zeros(parts.shape[1])
    for weight, part in zip(weights, parts, strict=True):
        total += weight * part
    return total


_NOTHING = Ranking((), np.zeros(0, np.float32))


def fuse(runs: Sequence[Run], fusion: Fusion | None = None, *, depth: int | None = None, name: str = "fusion") -> Run:
    """Fuse ``runs``, of which the i-th has the i-th weight; ``depth`` keeps the best of each query.

    A query that one run does not have is ranked by the others, or with ``missing="drop"`` left out.

    >>> bm25 = Run.from_scores({"q": {"a": 12.0, "b": 10.0, "c": 2.0}})
    >>> mono = Run.from_scores({"q": {"a": -3.0, "b": -1.0}})
    >>> list(fuse([bm25, mono], interpolation(0.5))["q"])
    [('b', 0.8999999761581421), ('a', 0.5), ('c', 0.0)]
    """
    chosen = fusion or Fusion()
    align = _Alignment(runs)
    found = ((qid, _fuse_query(align(qid), chosen, depth)) for qid in _all_queries(runs))
    return Run({qid: ranking for qid, ranking in found if len(ranking)}, name=name)


def _all_queries(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(qid for run in runs for qid in run))


class _Alignment:
    """Brings a query's documents of several runs together, those of the first run first.

    Runs have a row each, documents a column. Where all runs are over one index, documents are known by their numbers
    there, and only those that are kept get an id.
    """

    def __init__(self, runs: Sequence[Run]):
        numbered = [run for run in runs if isinstance(run, NumberedRun)]
        alike = len(numbered) == len(runs) and len({id(run.documents) for run in numbered}) == 1
        self._runs = runs
        self._numbered = numbered if alike else []
        self._column = np.full(len(numbered[0].documents) if alike else 0, -1, np.int64)

    def __call__(self, qid: str) -> Candidates:
        """The candidates of a query. A run without the query has a row of zeros."""
        docids, found = self._by_number(qid) if self._numbered else self._by_id(qid)
        scores = np.full((len(found), max(int(columns.max(initial=-1)) for columns, _ in found) + 1), np.nan)
        ranks = scores.copy()
        for row, (columns, own) in enumerate(found):
            scores[row, columns] = own
            ranks[row, columns] = np.arange(1, len(columns) + 1)
            if not len(columns):
                scores[row] = 0.0
        return Candidates(docids, scores, ranks)

    def _by_id(self, qid: str) -> tuple[Names, list[tuple[Places, Scores]]]:
        """What names a query's documents, and each run's columns and scores."""
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
        found = [(turns[own], ranking.scores) for own, ranking in zip(places, rankings, strict=True)]
        return lambda chosen: [names[column] for column in chosen.tolist()], found

    def _by_number(self, qid: str) -> tuple[Names, list[tuple[Places, Scores]]]:
        """The same by the documents' numbers."""
        found: list[tuple[Places, Scores]] = []
        numbers = np.zeros(0, np.int64)
        for run in self._numbered:
            own, scores = run.numbered(qid) if qid in run else (numbers[:0], _NOTHING.scores)
            new = own[self._column[own] < 0]
            self._column[new] = np.arange(len(numbers), len(numbers) + len(new))
            numbers = np.concatenate([numbers, new])
            found.append((self._column[own], scores))
        self._column[numbers] = -1
        return _OnceNamed(self._numbered[0].documents, numbers), found


class _OnceNamed:
    """The ids of documents, each made when it is first wanted: settings that are compared want mostly the same ones."""

    def __init__(self, documents: Numbering, numbers: Places):
        self._documents, self._numbers = documents, numbers
        self._names = np.zeros(len(numbers), object)

    def __call__(self, chosen: Places) -> list[str]:
        new = chosen[self._names[chosen] == 0]
        self._names[new] = self._documents.docids(self._numbers[new])
        names: list[str] = self._names[chosen].tolist()
        return names


def _fuse_query(candidates: Candidates, fusion: Fusion, depth: int | None) -> Ranking:
    if len(candidates.scores) != len(fusion.weights):
        raise RankwellError(f"{len(candidates.scores)} runs to fuse, but {len(fusion.weights)} weights")
    keep = candidates.found_by >= (len(fusion.weights) if fusion.missing == "drop" else 1)
    if not keep.any():
        return _NOTHING
    scores = _weighted_sum(candidates.parts(fusion), fusion.weights).astype(np.float32)
    if depth is not None and depth < np.count_nonzero(keep):
        # Only what can be among the best is sorted; equal scores at the border stay in, the sort decides.
        keep &= scores >= np.partition(scores[keep], -depth)[-depth]
    chosen = np.flatnonzero(keep)
    chosen = chosen[np.argsort(-scores[chosen])]  # what is in order but for ties is soon sorted
    ranking = Ranking.of(candidates.docids(chosen), scores[chosen])
    return ranking.head(depth) if depth is not None else ranking


def default_settings(step: float = 0.1) -> tuple[Fusion, ...]:
    """The grid for two runs: α from 0 to 1 under each normalisation, and rank fusion."""
    alphas = np.linspace(0, 1, _steps(step) + 1).round(10).tolist()
    linear = [interpolation(alpha, normalise) for normalise in NORMALISATIONS for alpha in alphas]
    return (*linear, rank_fusion())


def share_settings(runs: int, step: float = 0.1, normalise: str = "z-score") -> tuple[Fusion, ...]:
    """The grid for several runs: all multiples of ``step`` that sum to 1, the first run's largest first.

    >>> [fusion.weights for fusion in share_settings(2, 0.5)]
    [(1.0, 0.0), (0.5, 0.5), (0.0, 1.0)]
    """
    steps = _steps(step)
    parts = [parts for parts in product(range(steps, -1, -1), repeat=runs) if sum(parts) == steps]
    return tuple(Fusion("linear", tuple(part / steps for part in own), normalise) for own in parts)


def _steps(step: float) -> int:
    """How many steps there are from 0 to 1."""
    steps = round(1 / step) if 0 < step <= 1 else 0
    if abs(steps * step - 1) > 1e-9:
        raise RankwellError(f"a step of {step:g} between two weights; expected 1, 0.5, 0.25, 0.1 or another 1/n")
    return steps


@dataclass(frozen=True, eq=False)
class FusionTuning:
    """The settings tried, their figures ``values (settings, queries)``, and what cross-validation chose."""

    measure: str
    settings: tuple[Fusion, ...]
    values: Table
    found: CrossValidation
    runs: tuple[Run, ...]
    qids: tuple[str, ...]
    """The queries of ``values``: those that are judged."""

    @cached_property
    def held_out(self) -> Run:
        """Each query fused by the setting that was chosen without it: the run whose figures are to be quoted."""
        # A query that is not judged belongs to no fold.
        setting_of = dict(zip(self.qids, self.found.settings.tolist(), strict=True))
        rankings: dict[str, Ranking] = {}
        align = _Alignment(self.runs)
        for qid in _all_queries(self.runs):
            fusion = self.settings[setting_of.get(qid, self.found.best)]
            rankings[qid] = _fuse_query(align(qid), fusion, None)
        return Run({qid: ranking for qid, ranking in rankings.items() if len(ranking)}, name="held-out")

    @property
    def best(self) -> Fusion:
        """The setting to use from now on."""
        return self.settings[self.found.best]

    def table(self) -> str:
        """Every setting with its figure, and those to quote, as text."""
        means = self.values.mean(axis=1)
        lines = [
            f"{fusion!s:<30}{mean:.4f}{'*' if i == self.found.best else ''}"
            for i, (fusion, mean) in enumerate(zip(self.settings, means, strict=True))
        ]
        figures = f"best on all {self.values.shape[1]:,} queries: {self.best}, {means[self.found.best]:.4f}"
        honest = f"cross-validated, {len(self.found.chosen)} folds: {self.found.mean:.4f}"
        return "\n".join([f"{self.measure} by setting", "", *lines, "", figures, honest])


def tune_fusion(
    runs: Sequence[Run],
    qrels: Qrels,
    *,
    measure: str = "RR@10",
    settings: Sequence[Fusion] | None = None,
    folds: int = 5,
    seed: int = 0,
) -> FusionTuning:
    """Choose the fusion that ranks best on judged queries; the figure to quote is the cross-validated one.

    As in evaluation, a judged query that no run has counts 0.
    """
    parsed = parse_measure(measure)
    chosen = tuple(settings or default_settings())
    judged, found = list(qrels), set(_all_queries(runs))
    if found.isdisjoint(judged):
        raise RankwellError("none of the runs' queries is judged in the qrels")
    depth = parsed.cutoff if isinstance(parsed.cutoff, int) else None
    figure = parsed.function()
    values = np.zeros((len(chosen), len(judged)))
    align = _Alignment(runs)
    # Query by query: its documents are brought together and normalised once, for all settings.
    for column, qid in enumerate(track(judged, "tuning", unit="queries")):
        if qid not in found:
            continue
        candidates, grades = align(qid), qrels[qid]
        values[:, column] = [figure(judge(_fuse_query(candidates, own, depth).docids, grades)) for own in chosen]
    validated = cross_validate(values, folds=folds, seed=seed)
    return FusionTuning(str(parsed), chosen, values, validated, tuple(runs), tuple(judged))
