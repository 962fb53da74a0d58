"""A ranking seen through the judgments: the grades in rank order, and all grades there were to find.

This is the only place where documents are looked up; every measure is a function of these two arrays.
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

UNJUDGED = -2
"""The document was pooled but not judged: qrels say so with a negative grade. Only infAP treats it differently."""


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRanking:
    """What a measure sees of one query.

    ``grades`` holds, from rank 1 on, a grade of 0 or more, :data:`NOT_POOLED` or :data:`UNJUDGED`; ``judged`` holds the
    grades of 0 or more of all judged documents, retrieved or not, the highest first.
    """

    grades: Grades
    judged: Grades

    def relevant_ranks(self, rel: int, cutoff: int | None = None) -> Ranks:
        """The ranks (from 1) of the retrieved documents with a grade of at least ``rel``."""
        return np.flatnonzero(self.grades[:cutoff] >= rel) + 1

    def relevant_count(self, rel: int) -> int:
        """How many documents with a grade of at least ``rel`` there are to find."""
        return int(np.count_nonzero(self.judged >= rel))

    def judged_nonrelevant(self, rel: int) -> NDArray[np.bool_]:
        """Which retrieved documents were judged and found wanting."""
        return (self.grades >= 0) & (self.grades < rel)


def judge(docids: Sequence[str], grades: Mapping[str, int]) -> JudgedRanking:
    """Look the ranked ``docids`` up in one query's judgments.

    >>> judge(["a", "b", "c"], {"b": 2, "c": -1, "d": 3}).grades.tolist()
    [-1, 2, -2]
    """
    judged = np.array([grade for grade in grades.values() if grade >= 0], np.int64)
    judged[::-1].sort()
    if len(judged) < len(grades):
        grades = {docid: grade if grade >= 0 else UNJUDGED for docid, grade in grades.items()}
    return JudgedRanking(np.array(list(map(grades.get, docids, repeat(NOT_POOLED))), np.int64), judged)
