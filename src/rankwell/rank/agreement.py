"""How well an exported model agrees with the one it was made from: rank correlation on a few queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.types import Scores
from rankwell.corpus.datasets import open_dataset
from rankwell.rank.ranker import Ranker

QUERIES, DOCUMENTS = 10, 20


@dataclass(frozen=True)
class Agreement:
    """Spearman's correlation of two models' scores within a query, over ``queries`` queries of ``documents`` each."""

    mean: float
    least: float
    queries: int
    documents: int

    def __str__(self) -> str:
        where = f"{self.queries} queries of {self.documents} documents each"
        return f"Spearman {self.mean:.4f} (least {self.least:.4f}), {where}"


def rank_agreement(
    model: str | Path, exported: Path, backend: str, data: Path, changes: Mapping[str, Any] | None = None
) -> Agreement:
    """Compare the scores of a model and its export for the first queries and documents of a data set's folder."""
    sample, changes = open_dataset(data), changes or {}
    queries = [query.text for query in sample.queries("train")[:QUERIES]]
    documents = [record.contents for record, _ in zip(sample.documents(), range(QUERIES * DOCUMENTS), strict=False)]
    pairs = [(query, documents[row * DOCUMENTS + i]) for row, query in enumerate(queries) for i in range(DOCUMENTS)]
    shape = len(queries), DOCUMENTS
    exact = np.asarray(Ranker(model, device="cpu", **changes).predict(pairs)).reshape(shape)
    other = np.asarray(Ranker(exported, backend=backend, **changes).predict(pairs)).reshape(shape)
    each = [spearman(a, b) for a, b in zip(exact, other, strict=True)]
    return Agreement(float(np.mean(each)), min(each), *shape)


def spearman(left: Scores, right: Scores) -> float:
    """The correlation of two rankings; equal scores share the mean of their ranks.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    0.5
    """
    return float(np.corrcoef(_ranks(left), _ranks(right))[0, 1])


def _ranks(scores: Scores) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = (ends - (counts - 1) / 2)[inverse]
    return ranks
