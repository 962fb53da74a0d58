"""The stored values of a page: reading them, comparing two ways of training, and cells of tables."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.arrays import Values
from rankwell.evaluation.significance import paired_t_test, student_t_p

Seeds = Mapping[int, Values]
"""The values of an arm by seed, each with the same queries in the same order."""
Runs = dict[str, dict[int, Values]]
"""The values of each arm by seed, in the order of the file's rows."""


MEASURES = ("RR@10", "nDCG@10", "AP")
POINTWISE_ONLY = 2250
"""Steps of 64 pairs where training is pointwise alone."""
MODELS = ("full", "STRM")
"""The two models of the rare-words experiment: without and with the rule."""
POWER = 0.8
POWER_ERRORS = 2.802
"""Standard errors that a true difference must have to be found at p < .05, two-sided, with that power."""


@dataclass(frozen=True, eq=False)
class PerQuery:
    """A file of values: the columns that describe a row, and the arms by name, such as ``minilm/full``."""

    labels: dict[str, list[str]]
    arms: Runs
    repeated: Runs

    def rows(self, label: str, value: str) -> Runs:
        """The arms on the rows whose ``label`` is ``value``."""
        mask = np.array([cell == value for cell in self.labels[label]])
        return {arm: {seed: values[mask] for seed, values in seeds.items()} for arm, seeds in self.arms.items()}


def read_values(path: Path) -> PerQuery:
    """Read a file whose columns of values end in ``/seed N`` or, for a training done twice, ``/seed N repeated``."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    labels: dict[str, list[str]] = {}
    arms: Runs = {}
    repeated: Runs = {}
    for name, column in zip(header, zip(*rows, strict=True), strict=True):
        arm, slash, seed = name.rpartition("/seed ")
        if not slash:
            labels[name] = list(column)
            continue
        number, _, again = seed.partition(" ")
        (repeated if again else arms).setdefault(arm, {})[int(number)] = np.array(column, np.float64)
    return PerQuery(labels, arms, repeated)


class Results:
    """The files of one folder."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.runs = self.record("runs")

    def values(self, name: str) -> PerQuery:
        """The file of this name."""
        return read_values(self._folder / f"{name}.csv.gz")

    def record(self, name: str) -> dict[str, Any]:
        """The figures in the JSON file of this name."""
        record: dict[str, Any] = json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8"))
        return record

    def of_page(self, name: str) -> Results:
        """The files of another page, in the folder beside this one."""
        return Results(self._folder.parent / name)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self._folder / f"{name}.csv.gz").exists()


def first_stage(file: PerQuery) -> dict[int, Values]:
    """BM25's own values, the same for every seed."""
    values = np.array(file.labels["BM25"], np.float64)
    return dict.fromkeys((1, 2, 3), values)


@dataclass(frozen=True)
class Difference:
    """Two arms compared on the seeds that both have.

    ``p_queries`` tests each query's mean over seeds, so it takes the trained models as given; ``p_seeds`` tests the
    means of the seeds, None for fewer than three. ``detectable`` is the smallest true difference that the comparison
    would find with a power of .8, by the larger of the two standard errors.
    """

    mean: float
    p_queries: float
    p_seeds: float | None
    detectable: float


def compare(ours: Seeds, theirs: Seeds) -> Difference:
    """Compare two arms row by row and seed by seed."""
    seeds = sorted(ours.keys() & theirs.keys())
    a, b = (np.array([arm[seed] for seed in seeds]) for arm in (ours, theirs))
    gaps, by_seed = (a - b).mean(0), (a - b).mean(1)
    errors = [values.std(ddof=1) / np.sqrt(len(values)) for values in (gaps, by_seed) if len(values) > 1]
    p_seeds = paired_t_test(a.mean(1), b.mean(1)) if len(seeds) > 2 else None
    return Difference(
        float(gaps.mean()), paired_t_test(a.mean(0), b.mean(0)), p_seeds, POWER_ERRORS * float(max(errors))
    )


def average(seeds: Seeds) -> float:
    """The mean over seeds and rows."""
    return float(np.mean([values.mean() for values in seeds.values()]))


def wins(seeds: Seeds) -> dict[int, Values]:
    """1 where a margin is positive, else 0."""
    return {seed: (margins > 0).astype(np.float64) for seed, margins in seeds.items()}


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


# Cells


def number(value: float, digits: int = 4) -> str:
    """A figure below 1 without its zero."""
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign."""
    text = f"{abs(value):.{digits}f}"
    sign = "" if float(text) == 0 else "−" if value < 0 else "+"
    return sign + (text[1:] if text.startswith("0.") else text)


def p_value(p: float | None) -> str:
    """A p-value to three digits."""
    return "" if p is None else "< .001" if p < 0.001 else number(p, 3)


def mean_cell(seeds: Seeds) -> str:
    """The mean, and the standard deviation between seeds."""
    means = [float(values.mean()) for values in seeds.values()]
    deviation = f" ± {number(float(np.std(means, ddof=1)), 3)}" if len(means) > 1 else ""
    return number(average(seeds)) + deviation


def rate_cell(rate: float) -> str:
    """A learning rate, such as 2.5e-4."""
    mantissa, exponent = f"{rate:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def gap_cell(gap: Difference, digits: int = 3) -> str:
    """A difference with its p-value over queries."""
    return f"{signed(gap.mean, digits)} (p {equals(gap.p_queries)})"


def effect_cells(effect: Effect) -> tuple[str, str, str]:
    """A difference, its p-value over seeds and queries, and the smallest difference that would be found."""
    return signed(effect.mean), p_value(effect.p), number(effect.detectable, 3)


def equals(p: float) -> str:
    """A p-value with its relation: = .012 or < .001."""
    text = p_value(p)
    return text if text.startswith("<") else f"= {text}"


def interval_cell(effect: Effect) -> str:
    """A difference with half of its 95 % interval."""
    return f"{signed(effect.mean)} ± {number(effect.width, 3)}"


def difference_cells(ours: Seeds, theirs: Seeds) -> tuple[str, str, str]:
    """The difference, its p-value and the smallest difference that would be found."""
    return effect_cells(Effect.of(ours, theirs))
