"""Calibration: fits relevance (:mod:`rankwell.rank.relevance`) to judged queries, and measures it.

Each judged query is two lists: what is found for it, and the same without its relevant documents, as if nothing in the
collection answered it. Figures are cross-validated: each query is rated by what was fitted to the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Values
from rankwell.rank.relevance import COMPARED, Calibration, Signals, features, logistic

LEAST, CURVED = 50, 200
"""The queries that a calibration needs, and those from which on a monotone curve is fitted, too."""
LEARNED = 3
"""The regression learns from so many of the first documents of a list."""
FOLDS, BINS = 5, 10
KEPT = 0.95
"""The part of the right first answers that stays at the threshold."""
RIDGE = 1.0
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Judged:
    """A list: the signals (N, S) of its documents, and which of them are relevant."""

    values: Values
    relevant: Flags

    def unanswered(self) -> Judged:
        """The list without its relevant documents."""
        return Judged(self.values[~self.relevant], self.relevant[~self.relevant])


@dataclass(frozen=True, eq=False)
class Trial:
    """What a calibration gives queries that it was not fitted to.

    ``right`` is the relevance of first answers that are relevant, ``unanswered`` the highest of each list that has no
    relevant document.
    """

    right: Values
    unanswered: Values
    first: Values
    first_relevant: Flags

    def at(self, threshold: float) -> tuple[float, float]:
        """The parts of right first answers that stay, and of queries without an answer that return nothing."""
        return float((self.right >= threshold).mean()), float((self.unanswered < threshold).mean())

    def curves(self) -> dict[str, list[float]]:
        """Both parts at thresholds from 0 to 1, a hundredth apart."""
        both = [self.at(place / 100) for place in range(101)]
        return {"kept": [kept for kept, _ in both], "silent": [silent for _, silent in both]}

    @property
    def threshold(self) -> float:
        """The highest threshold of three digits at which enough of the right first answers stay."""
        return math.floor(1000 * float(np.quantile(self.right, 1 - KEPT, method="lower"))) / 1000

    @property
    def error(self) -> float:
        """The calibration error (ECE) of first answers: the mean gap in ten groups of equal size, by relevance."""
        groups = np.array_split(np.argsort(self.first, kind="stable"), BINS)
        gaps = [len(group) * abs((self.first - self.first_relevant)[group].mean()) for group in groups if len(group)]
        return float(sum(gaps)) / len(self.first)


def judged_lists(signals: Mapping[str, Signals], qrels: Mapping[str, Mapping[str, int]]) -> list[Judged]:
    """The lists of the queries that have a relevant document, found or not."""
    lists = list[Judged]()
    for qid, found in signals.items():
        relevant = {docid for docid, grade in qrels[qid].items() if grade > 0}
        if relevant and len(found.docids):
            lists.append(Judged(found.values, np.array([docid in relevant for docid in found.docids])))
    return lists


def calibrate(names: Sequence[str], lists: Sequence[Judged], documents: int) -> tuple[Calibration, Trial] | None:
    """The calibration of all lists and its cross-validated trial; None if too few have a relevant document first."""
    if len(lists) < LEAST or sum(bool(judged.relevant[0]) for judged in lists) < LEAST / 5:
        return None
    groups = [lists[fold::FOLDS] for fold in range(FOLDS)]
    rated = [try_out(fit(names, list(chain(*groups[:k], *groups[k + 1 :]))), group) for k, group in enumerate(groups)]
    trial = Trial(*(np.concatenate([getattr(part, name) for part in rated]) for name in Trial.__dataclass_fields__))
    kept, silent = trial.at(trial.threshold)
    figures: dict[str, Any] = {"threshold": trial.threshold, "kept": kept, "silent": silent, "error": trial.error}
    return replace(fit(names, lists), queries=len(lists), documents=documents, **figures), trial


def fit(names: Sequence[str], lists: Sequence[Judged]) -> Calibration:
    """Fit the regression to the lists with and without their answers and, from 200 queries on, the curve."""
    both = [each for judged in lists for each in (judged, judged.unanswered())]
    rows = np.concatenate([features(names, each.values)[:LEARNED] for each in both if len(each.values)])
    relevant = np.concatenate([each.relevant[:LEARNED] for each in both])
    weights = fit_logistic(rows, relevant)
    levels = fit_isotonic(rows @ weights[1:] + weights[0], relevant) if len(lists) >= CURVED else ()
    return Calibration(tuple(names), tuple(weights.tolist()), tuple(levels))


def try_out(calibration: Calibration, lists: Sequence[Judged]) -> Trial:
    """What a calibration gives some lists."""
    found = [calibration.rate(judged.values)[:COMPARED] for judged in lists]
    without = [judged.unanswered().values for judged in lists]
    rated = [calibration.rate(values)[:COMPARED] for values in without if len(values)]
    silent = np.zeros(len(lists) - len(rated))  # nothing else was found
    right = [some[0] for some, judged in zip(found, lists, strict=True) if judged.relevant[0]]
    first = np.array([some[0] for some in (*found, *rated)], np.float64)
    relevant = [bool(judged.relevant[0]) for judged in lists] + [False] * len(rated)
    unanswered = np.concatenate([[some.max() for some in rated], silent])
    return Trial(np.array(right, np.float64), unanswered, first, np.array(relevant))


def fit_logistic(rows: Values, labels: Flags, ridge: float = RIDGE) -> Values:
    """The weights of a logistic regression, the intercept first, by Newton's method.

    ``ridge`` is the penalty of squared weights, half of it, of columns in units of their deviation.
    """
    middle, width = rows.mean(axis=0), rows.std(axis=0)
    width = np.where(width > 0, width, 1.0)
    scaled = np.column_stack([np.ones(len(rows)), (rows - middle) / width])
    penalty = np.diag([0.0, *[ridge] * rows.shape[1]])
    weights = np.zeros(scaled.shape[1])
    for _ in range(100):
        likely = logistic(scaled @ weights)
        gradient = scaled.T @ (likely - labels) + penalty @ weights
        curvature = (scaled.T * (likely * (1 - likely))) @ scaled + penalty + 1e-9 * np.eye(len(weights))
        weights = weights - (change := np.linalg.solve(curvature, gradient))
        if np.abs(change).max() < 1e-10:
            break
    own = weights[1:] / width
    fitted: Values = np.array([weights[0] - float(own @ middle), *own])
    return fitted


def fit_isotonic(values: Values, labels: Flags) -> list[tuple[float, float]]:
    """Points of the rising curve nearest to the labels, by merging neighbours that fall (PAV).

    Each is the mean of the values in a group and the part of them that is relevant; between points, the curve is a
    line, so that different values stay different.
    """
    distinct, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    sums = distinct * counts, np.bincount(place, labels), counts
    groups = list[tuple[float, float, int]]()  # sums of values and labels, and their number
    for group in zip(*(column.tolist() for column in sums), strict=True):
        groups.append(group)
        while len(groups) > 1 and groups[-2][1] * groups[-1][2] >= groups[-1][1] * groups[-2][2]:
            (x, y, n), (a, b, m) = groups.pop(), groups.pop()
            groups.append((x + a, y + b, n + m))
    return [(x / n, y / n) for x, y, n in groups]
