"""Is a difference between two ways of training more than chance, given some seeds and some queries?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rankwell.core.types import Values
from rankwell.evaluation.distributions import student_t_p

Seeds = Mapping[int, Values]
"""The values of an arm by seed, each with the same queries in the same order."""
POWER = 0.8


@dataclass(frozen=True)
class Effect:
    """A difference between two arms, with seeds and queries both drawn at random.

    Every query meets every seed, so the variance of the mean is that of the crossed design (Clark, 1973): the mean
    squares of seeds and queries less that of the rest, with Satterthwaite's degrees of freedom.
    """

    mean: float
    error: float
    freedom: float

    @classmethod
    def of(cls, ours: Seeds, theirs: Seeds) -> Effect:
        """``ours`` less ``theirs``, on the seeds that both have: two or more."""
        gaps = np.array([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])
        seeds, queries = gaps.shape
        mean, by_seed, by_query = gaps.mean(), gaps.mean(1, keepdims=True), gaps.mean(0, keepdims=True)
        of_seeds = queries * ((by_seed - mean) ** 2).sum() / (seeds - 1)
        of_queries = seeds * ((by_query - mean) ** 2).sum() / (queries - 1)
        of_rest = ((gaps - by_seed - by_query + mean) ** 2).sum() / ((seeds - 1) * (queries - 1))
        # An estimate of a variance may come out negative; then that factor adds nothing.
        total = max(of_seeds + of_queries - of_rest, of_seeds, of_queries)
        parts = ((of_seeds, seeds - 1), (of_queries, queries - 1), (of_rest, (seeds - 1) * (queries - 1)))
        freedom = total**2 / sum(square**2 / count for square, count in parts)
        return cls(float(mean), float(np.sqrt(total / (seeds * queries))), float(freedom))

    @property
    def p(self) -> float:
        """The two-sided p-value."""
        return student_t_p(self.mean / self.error, self.freedom)

    @property
    def width(self) -> float:
        """Half of the 95 % interval."""
        return student_t_quantile(0.05, self.freedom) * self.error

    @property
    def detectable(self) -> float:
        """The smallest true difference that would be found at p < .05 with a power of .8."""
        return self.width + student_t_quantile(2 * (1 - POWER), self.freedom) * self.error

    def verdict(self, published: float | None) -> str:
        """Whether an effect that the paper found positive is found here, too."""
        if self.mean - self.width > 0:
            return "reproduced"
        return "not reproduced" if self.mean + self.width < (published or 0) else "cannot be told"


def student_t_quantile(p: float, freedom: float) -> float:
    """The statistic whose two-sided p-value is ``p``."""
    low, high = 0.0, 1000.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_p(middle, freedom) > p else (low, middle)
    return low
