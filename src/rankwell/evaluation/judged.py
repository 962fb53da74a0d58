"""A ranking with its judgments: the grades in rank order, and the grades of all judged documents.

Documents are looked up only here; every measure is a function of these two arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

Grades = NDArray[np.int64]
Ranks = NDArray[np.int64]

NOT_POOLED = -1
"""The document does not occur in the query's judgments."""

POOLED_ONLY = -2
"""The document was pooled but not judged, which qrels mark with a negative grade. Only infAP tells it apart."""


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRanking:
    """The input of a measure: one query's grades.

    ``grades`` has, from rank 1 on, a grade of 0 or more, :data:`NOT_POOLED` or :data:`POOLED_ONLY`. ``judged`` has the
    grades of all judged documents, retrieved or not, the highest first.
    """

    grades: Grades
    judged: Grades

    def relevant_ranks(self, rel: int, cutoff: int | None = None) -> Ranks:
        """The ranks (from 1) of the retrieved documents with a grade of at least ``rel``."""
        return np.flatnonzero(self.grades[:cutoff] >= rel) + 1

    def relevant_count(self, rel: int) -> int:
        """The number of judged documents with a grade of at least ``rel``."""
        return int(np.count_nonzero(self.judged >= rel))

    def judged_nonrelevant(self, rel: int) -> NDArray[np.bool_]:
        """Which retrieved documents were judged with a grade below ``rel``."""
        return (self.grades >= 0) & (self.grades < rel)


def judge(docids: Sequence[str], grades: Mapping[str, int]) -> JudgedRanking:
    """Look the ranked ``docids`` up in one query's judgments.

    >>> judge(["a", "b", "c"], {"b": 2, "c": -1, "d": 3}).grades.tolist()
    [-1, 2, -2]
    """
    judged = np.array([grade for grade in grades.values() if grade >= 0], np.int64)
    judged[::-1].sort()
    if len(judged) < len(grades):
        grades = {docid: grade if grade >= 0 else POOLED_ONLY for docid, grade in grades.items()}
    return JudgedRanking(np.array(list(map(grades.get, docids, repeat(NOT_POOLED))), np.int64), judged)
