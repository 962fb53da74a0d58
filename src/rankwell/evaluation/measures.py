"""The measures. Each is a short function of one query's :class:`JudgedRanking`; the figures are trec_eval's.

A document is relevant if its grade is at least ``rel``; unjudged documents are not relevant. A query without relevant
documents gets 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwell.evaluation.notation import DEPTH, MULTIPLE, RECALL, Grades, JudgedRanking, measure

ELEVEN_RECALL_LEVELS = tuple(level / 10 for level in range(11))


def share(part: float, whole: float) -> float:
    """``part / whole``, or 0 if ``whole`` is 0."""
    return part / whole if whole else 0.0


# Where the first relevant documents are


@measure("RR", cutoff=DEPTH)
def reciprocal_rank(ranking: JudgedRanking, *, rel: int = 1, cutoff: int | None = None) -> float:
    """One over the rank of the first relevant document; its mean is MRR."""
    ranks = ranking.relevant_ranks(rel, cutoff)
    return 1.0 / float(ranks[0]) if len(ranks) else 0.0


@measure("Success", cutoff=DEPTH)
def success(ranking: JudgedRanking, *, cutoff: int, rel: int = 1) -> float:
    """1 if a relevant document is among the first ``cutoff``, else 0; also known as hit rate."""
    return float(len(ranking.relevant_ranks(rel, cutoff)) > 0)


# How many relevant documents there are down to a rank


@measure("P", cutoff=DEPTH)
def precision(ranking: JudgedRanking, *, cutoff: int, rel: int = 1) -> float:
    """The share of relevant documents among the first ``cutoff`` ranks; missing ranks count as non-relevant."""
    return len(ranking.relevant_ranks(rel, cutoff)) / cutoff


@measure("R", cutoff=DEPTH)
def recall(ranking: JudgedRanking, *, cutoff: int, rel: int = 1) -> float:
    """The share of the relevant documents that are among the first ``cutoff``."""
    return share(len(ranking.relevant_ranks(rel, cutoff)), ranking.relevant_count(rel))


@measure("Rprec", cutoff=MULTIPLE)
def r_precision(ranking: JudgedRanking, *, rel: int = 1, cutoff: float = 1.0) -> float:
    """Precision at rank R, the number of relevant documents; ``Rprec@0.5`` is precision at half of R."""
    depth = int(cutoff * ranking.relevant_count(rel) + 0.9)  # trec_eval's way of rounding up
    return share(len(ranking.relevant_ranks(rel, depth)), depth)


@measure("Judged", cutoff=DEPTH)
def judged(ranking: JudgedRanking, *, cutoff: int | None = None) -> float:
    """The share of the retrieved documents, down to ``cutoff``, that are judged; low values mean doubtful figures."""
    top = ranking.grades[:cutoff]
    return share(int(np.count_nonzero(top >= 0)), len(top))


# The whole ranking in one number


@measure("AP", cutoff=DEPTH)
def average_precision(ranking: JudgedRanking, *, rel: int = 1, cutoff: int | None = None) -> float:
    """The mean precision at the rank of each relevant document, 0 if not retrieved; its mean over queries is MAP."""
    ranks = ranking.relevant_ranks(rel, cutoff)
    return share(float(np.sum(np.arange(1, len(ranks) + 1) / ranks)), ranking.relevant_count(rel))


@measure("IPrec", cutoff=RECALL)
def interpolated_precision(
    ranking: JudgedRanking, *, rel: int = 1, trec_eval: int = 10, cutoff: float | None = None
) -> float:
    """The best precision at this recall level or beyond; without a level, the average over 0, 0.1, … 1.

    The number of relevant documents that reaches a level is rounded: to the nearest by trec_eval 10, up by trec_eval 9.
    """
    rounding = 0.9 if trec_eval == 9 else 0.5
    ranks = ranking.relevant_ranks(rel)
    best_from_here = np.maximum.accumulate((np.arange(1, len(ranks) + 1) / ranks)[::-1])[::-1]
    total = 0.0
    levels = ELEVEN_RECALL_LEVELS if cutoff is None else (cutoff,)
    for level in levels:
        needed = max(int(level * ranking.relevant_count(rel) + rounding), 1)
        if needed <= len(ranks):
            total += float(best_from_here[needed - 1])
    return total / len(levels)


@measure("Bpref")
def binary_preference(ranking: JudgedRanking, *, rel: int = 1) -> float:
    """How rarely judged non-relevant documents rank above relevant ones; unjudged documents are ignored."""
    relevant, nonrelevant = ranking.relevant_count(rel), len(ranking.judged) - ranking.relevant_count(rel)
    above = np.cumsum((ranking.grades >= 0) & (ranking.grades < rel))[ranking.relevant_ranks(rel) - 1]
    penalties = np.minimum(above, relevant) / max(min(relevant, nonrelevant), 1)
    return share(float(np.sum(1.0 - penalties)), relevant)


@measure("RBP", cutoff=DEPTH)
def rank_biased_precision(ranking: JudgedRanking, *, p: float = 0.8, rel: int = 1, cutoff: int | None = None) -> float:
    """The expected relevance for a user who reads on with probability ``p`` at each rank (Moffat and Zobel 2008)."""
    ranks = ranking.relevant_ranks(rel, cutoff)
    return (1.0 - p) * float(np.sum(p ** (ranks - 1.0)))


# Grades as gains


def discounted_gain(grades: Grades, dcg: str) -> float:
    """The sum of the positive grades' gains over log2(rank + 1)."""
    places = np.flatnonzero(grades > 0)
    gains: NDArray[np.float64] = grades[places].astype(np.float64)
    if dcg == "exp-log2":
        gains = np.exp2(gains) - 1.0
    return float(np.sum(gains / np.log2(places + 2)))


@measure("nDCG", cutoff=DEPTH)
def ndcg(ranking: JudgedRanking, *, dcg: str = "log2", cutoff: int | None = None) -> float:
    """Discounted cumulative gain divided by that of the best possible ranking.

    The gain is the grade itself (``dcg=log2``, trec_eval) or ``2^grade - 1`` (``dcg=exp-log2``, gdeval).
    """
    return share(discounted_gain(ranking.grades[:cutoff], dcg), discounted_gain(ranking.judged[:cutoff], dcg))


@measure("ERR", cutoff=DEPTH)
def expected_reciprocal_rank(ranking: JudgedRanking, *, max_rel: int = 4, cutoff: int | None = None) -> float:
    """One over the rank at which a user is expected to be satisfied (Chapelle et al. 2009), as gdeval computes it.

    A document of grade g satisfies with probability ``(2^g - 1) / 2^max_rel``; gdeval fixes the highest grade at 4.
    """
    places = np.flatnonzero(ranking.grades[:cutoff] > 0)
    satisfied = (np.exp2(np.minimum(ranking.grades[places], max_rel)) - 1.0) / 2.0**max_rel
    still_looking = np.cumprod(np.concatenate(([1.0], 1.0 - satisfied)))[: len(places)]
    return float(np.sum(still_looking * satisfied / (places + 1)))


# The retrieved documents as a set


@measure("SetP")
def set_precision(ranking: JudgedRanking, *, rel: int = 1) -> float:
    """The share of the retrieved documents that are relevant."""
    return share(len(ranking.relevant_ranks(rel)), len(ranking.grades))


@measure("SetR")
def set_recall(ranking: JudgedRanking, *, rel: int = 1) -> float:
    """The share of the relevant documents that are retrieved."""
    return share(len(ranking.relevant_ranks(rel)), ranking.relevant_count(rel))


@measure("SetF")
def set_f(ranking: JudgedRanking, *, rel: int = 1, beta: float = 1.0) -> float:
    """The weighted harmonic mean of SetP and SetR; ``beta`` is trec_eval's weight of recall, not squared."""
    p, r = set_precision(ranking, rel=rel), set_recall(ranking, rel=rel)
    return share((beta + 1.0) * p * r, beta * p + r)


# Counts, which are added over the queries


@measure("NumQ", summary="sum")
def number_of_queries(ranking: JudgedRanking) -> float:
    """The number of queries."""
    return 1.0


@measure("NumRet", summary="sum")
def number_retrieved(ranking: JudgedRanking) -> float:
    """The number of retrieved documents."""
    return float(len(ranking.grades))


@measure("NumRel", summary="sum")
def number_relevant(ranking: JudgedRanking, *, rel: int = 1) -> float:
    """The number of relevant documents, retrieved or not."""
    return float(ranking.relevant_count(rel))


@measure("NumRelRet", summary="sum")
def number_relevant_retrieved(ranking: JudgedRanking, *, rel: int = 1) -> float:
    """The number of relevant documents that are retrieved."""
    return float(len(ranking.relevant_ranks(rel)))
