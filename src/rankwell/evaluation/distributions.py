"""The two distributions that paired tests need: Student's t, and the sum of signed ranks.

Both are a page of arithmetic, and the package that has them is larger than the rest of an installation without torch.
"""

from __future__ import annotations

import math

import numpy as np

from rankwell.core.types import Values

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
