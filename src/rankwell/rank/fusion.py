"""Fusion: one run from several.

    linear   Σ weight · score, after a normalisation within each query       α·A + (1−α)·B for two runs
    rrf      Σ weight · 1 / (k + rank)                                       reciprocal rank fusion

Scores of different systems are on different scales (BM25 is unbounded, log p(relevant) is at most 0), so a linear
combination mostly wants a normalisation; rank fusion needs none. :func:`tune_fusion` chooses on judged queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.core.registry import Registry
from rankwell.corpus.records import Qrels, Ranking, Run
from rankwell.evaluation.cross_validation import CrossValidation, cross_validate
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import parse_measure

Table = NDArray[np.float64]
"""Scores of one query (runs, documents); NaN where a run does not have a document."""

NORMALISATIONS: Registry[Callable[[Table], Table]] = Registry("normalisation")
FUSIONS: Registry[Callable[[Table, "Fusion"], Table]] = Registry("fusion")


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


@NORMALISATIONS.register("none")
def _as_they_are(scores: Table) -> Table:
    return scores


@NORMALISATIONS.register("min-max")
def _min_max(scores: Table) -> Table:
    """From 0 to 1 within each run; where all scores are equal, 0."""
    low = np.nanmin(scores, axis=1, keepdims=True)
    width = np.nanmax(scores, axis=1, keepdims=True) - low
    return (scores - low) / np.where(width > 0, width, 1.0)


@NORMALISATIONS.register("z-score")
def _z_score(scores: Table) -> Table:
    """Mean 0 and standard deviation 1 within each run; where all scores are equal, 0."""
    flat = np.nanmax(scores, axis=1, keepdims=True) == np.nanmin(scores, axis=1, keepdims=True)
    deviation = np.nanstd(scores, axis=1, keepdims=True)
    centred = scores - np.nanmean(scores, axis=1, keepdims=True)
    return np.where(flat & ~np.isnan(scores), 0.0, centred / np.where(flat, 1.0, deviation))


@FUSIONS.register("linear")
def _linear(scores: Table, fusion: Fusion) -> Table:
    normal = NORMALISATIONS[fusion.normalise](scores)
    filled = np.where(np.isnan(normal), np.nanmin(normal, axis=1, keepdims=True), normal)
    return _weighted_sum(filled, fusion.weights)


@FUSIONS.register("rrf")
def _reciprocal_ranks(scores: Table, fusion: Fusion) -> Table:
    """Each run has its documents in THE order, so that ranks need no scores: see :func:`_align`."""
    parts = np.zeros_like(scores)
    for part, own in zip(parts, scores, strict=True):
        present = ~np.isnan(own)
        part[present] = 1.0 / (fusion.k + own[present])
    return _weighted_sum(parts, fusion.weights)


def _weighted_sum(parts: Table, weights: Sequence[float]) -> Table:
    # Not a matrix product, whose order of addition (and so whose last bit) depends on the machine.
    total: Table = sum((weight * part for weight, part in zip(weights, parts, strict=True)), np.zeros(parts.shape[1]))
    return total
