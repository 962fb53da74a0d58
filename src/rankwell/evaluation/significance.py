"""Is a difference between two runs more than chance? Paired tests, an interval, and the correction for many tests.

All are functions of two arrays with the same queries in the same order. They never return NaN: two equal runs, or a
single query, are no evidence and give p = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rankwell.core.arrays import Values
from rankwell.core.registry import Registry

EXACT_RANKS = 50
"""Up to so many differences the distribution of signed ranks is counted; beyond, it is close to the normal one."""
_TINY = 1e-300
_PRECISION = 1e-16


def student_t_p(statistic: float, freedom: float) -> float:
    """The two-sided p-value of Student's t with ``freedom`` degrees of freedom.

    >>> round(student_t_p(2.228139, 10), 6)
    0.05
    """
    if statistic == 0.0:
        return 1.0
    if math.isinf(statistic):
        return 0.0
    # p is the regularised incomplete beta function I(x; a, 1/2) with x = freedom / (freedom + t²).
    a, ratio = freedom / 2, statistic * statistic / freedom
    x, rest = 1 / (1 + ratio), ratio / (1 + ratio)
    log_scale = _log_gamma_step(a) - math.log(math.pi) / 2 - a * math.log1p(ratio) + math.log(rest) / 2
    # The continued fraction converges quickly only on this side of the distribution's middle.
    if x < (a + 1) / (a + 2.5):
        return math.exp(log_scale) * _beta_fraction(a, 0.5, x) / a
    return 1 - math.exp(log_scale) * _beta_fraction(0.5, a, rest) / 0.5


def _log_gamma_step(a: float) -> float:
    """log Γ(a + 1/2) - log Γ(a), by its series where the difference of two large numbers would lose digits."""
    if a < 20:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    return math.log(a) / 2 - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value, m, change = d, 0, 0.0
    while abs(change - 1) > _PRECISION and m < 100_000:
        m += 1
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _nonzero(1 + numerator * d)
            c = _nonzero(1 + numerator / c)
            change = c * d
            value *= change
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def signed_rank_p(differences: Values) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test of at least one difference, none of them 0.

    Exact for up to 50 differences of different sizes, otherwise from the normal distribution, corrected for ties.
    """
    _, group, ties = np.unique(np.abs(differences), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[group]
    count = len(differences)
    positive = float(ranks[differences > 0].sum())
    if count <= EXACT_RANKS and len(ties) == count:
        ways = _ways_to_sum(count)
        smaller = min(round(positive), len(ways) - 1 - round(positive))
        return min(1.0, 2 * int(ways[: smaller + 1].sum()) / (1 << count))
    variance = (count * (count + 1) * (2 * count + 1) - float((ties**3 - ties).sum()) / 2) / 24
    return math.erfc(abs(positive - count * (count + 1) / 4) / math.sqrt(2 * variance))


def _ways_to_sum(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """In how many ways some of the ranks 1 … ``count`` add up to 0, 1, 2, …"""
    ways = np.zeros(count * (count + 1) // 2 + 1, np.int64)
    ways[0] = 1
    for rank in range(1, count + 1):
        ways[rank:] += ways[:-rank].copy()
    return ways


Test = Callable[[Values, Values], float]

TESTS: Registry[Test] = Registry("significance test")

SEED = 0
SIGN_ROUNDS = 10_000
BOOTSTRAP_ROUNDS = 5_000
MEAN_ROUNDS = 1_000
CELLS_AT_ONCE = 4_000_000  # bounds the memory of the resampling methods to some tens of megabytes


def differences(ours: Values, theirs: Values) -> Values:
    """``ours - theirs``, rounded so that 1/2 - 1/3 and 1/3 - 1/6 are equal."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape or ours.ndim != 1:
        raise ValueError(f"the values are not paired: shapes {ours.shape} and {theirs.shape}")
    return np.round(ours - theirs, 12) + 0.0


@TESTS.register("t")
def paired_t_test(ours: Values, theirs: Values) -> float:
    """The two-sided p-value of Student's paired t-test."""
    gaps = differences(ours, theirs)
    if len(gaps) < 2 or not gaps.any():
        return 1.0
    if np.ptp(gaps) == 0.0:
        return 0.0  # the same difference on every query
    return student_t_p(float(gaps.mean() / (gaps.std(ddof=1) / np.sqrt(len(gaps)))), len(gaps) - 1)


@TESTS.register("wilcoxon")
def wilcoxon_test(ours: Values, theirs: Values) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test; queries without a difference are left out."""
    gaps = differences(ours, theirs)
    gaps = gaps[gaps != 0.0]
    if len(gaps) < 2:
        return 1.0
    return signed_rank_p(gaps)


@TESTS.register("randomisation")
def randomisation_test(ours: Values, theirs: Values, *, rounds: int = SIGN_ROUNDS, seed: int = SEED) -> float:
    """The two-sided p-value of Fisher's randomisation test: how often do random signs give as large a difference?

    All sign patterns are tried if there are at most ``rounds``, otherwise ``rounds`` random ones. The observed pattern
    is counted among these, so p is never 0.
    """
    gaps = differences(ours, theirs)
    gaps = gaps[gaps != 0.0]  # a query without a difference is the same with either sign
    if len(gaps) == 0:
        return 1.0
    observed = abs(float(gaps.sum())) - 1e-9  # a pattern as extreme as the observed one must not fail by rounding
    if len(gaps) < 63 and 2 ** len(gaps) <= rounds:
        patterns = np.arange(2 ** len(gaps))[:, None] >> np.arange(len(gaps)) & 1
        return float(np.mean(np.abs(gaps.sum() - patterns @ (2.0 * gaps)) >= observed))
    random = np.random.default_rng(seed)
    extreme = 0
    for size in batches(rounds, len(gaps)):
        patterns = random.integers(0, 2, (size, len(gaps)), np.int8)
        extreme += int(np.count_nonzero(np.abs(gaps.sum() - patterns @ (2.0 * gaps)) >= observed))
    return (extreme + 1) / (rounds + 1)


class Interval(NamedTuple):
    """The ends of a confidence interval."""

    low: float
    high: float


def bootstrap_interval(
    ours: Values, theirs: Values, *, confidence: float = 0.95, rounds: int = BOOTSTRAP_ROUNDS, seed: int = SEED
) -> Interval:
    """The percentile bootstrap interval of the mean difference, from ``rounds`` samples of the queries."""
    gaps = differences(ours, theirs)
    if len(gaps) == 0 or bool(np.all(gaps == gaps[0])):
        same = float(gaps[0]) if len(gaps) else 0.0
        return Interval(same, same)
    random = np.random.default_rng(seed)
    means = [
        gaps[random.integers(0, len(gaps), (size, len(gaps)), np.int32)].mean(axis=1)
        for size in batches(rounds, len(gaps))
    ]
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.concatenate(means), (tail, 1.0 - tail))
    return Interval(float(low), float(high))


def mean_interval(values: Values) -> Interval:
    """The 95 % bootstrap interval of the mean over queries."""
    return bootstrap_interval(values, np.zeros_like(values), rounds=MEAN_ROUNDS)


def batches(rounds: int, width: int) -> list[int]:
    """``rounds`` in parts that fit in memory."""
    size = max(1, CELLS_AT_ONCE // width)
    return [min(size, rounds - begin) for begin in range(0, rounds, size)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, which keeps the probability of any false positive below the level.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        corrected[i] = largest
    return corrected
