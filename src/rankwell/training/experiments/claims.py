"""Claims of a paper beside what an experiment measured: a difference between two rows, its interval, and a verdict.

Values are kept in one file for each measure, with a row for each query and a column ``ROW/seed N`` for each training,
from which every table of claims can be computed again.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from rankwell.core.arrays import Values
from rankwell.core.files import atomic_text
from rankwell.evaluation.significance import student_t_p
from rankwell.evaluation.tables import Cell, Table, name_cell
from rankwell.training.options import Options

Seeds = Mapping[int, Values]
"""The values of a row by seed, each with the same queries in the same order."""
Rows = Mapping[str, Seeds]

POWER = 0.8
NOTES = (
    "± is a 95 % interval that treats seeds and queries as two random samples (with one seed, queries alone); "
    "detectable is the smallest true difference that this design finds at p < .05 with a power of .8",
    "reproduced: the interval lies above zero; not reproduced: it reaches zero or less and stays below the published "
    "difference (without one: it lies below zero); open: it holds both",
)


class Claim(Options):
    """A claim of a paper: one row is better than another."""

    claim: str = Field(description="What is claimed, in a few words.")
    row: str = Field(description="Variant that is claimed to be better.")
    against: str = Field(description="Variant that it is compared with, or `first stage`.")
    published: float | None = Field(default=None, description="The difference that the paper reports; none: no figure.")
    data: str = Field(default="dev", description="What it is measured on: `dev`, or a name of `evaluate_on`.")


@dataclass(frozen=True)
class Effect:
    """A difference between two rows, with seeds and queries both drawn at random.

    Every query meets every seed, so the variance of the mean is that of the crossed design (Clark, 1973): the mean
    squares of seeds and queries less that of the rest, with Satterthwaite's degrees of freedom. A row with one seed
    only, such as a first stage, is compared with each seed of the other.
    """

    mean: float
    error: float
    freedom: float
    seeds: int = 2

    @classmethod
    def of(cls, ours: Seeds, theirs: Seeds) -> Effect:
        """``ours`` less ``theirs``, on the seeds that both have."""
        common = sorted(ours.keys() & theirs.keys())
        if min(len(ours), len(theirs)) == 1:
            gaps = np.array([a - b for a in ours.values() for b in theirs.values()])
        else:
            gaps = np.array([ours[seed] - theirs[seed] for seed in common])
        seeds, queries = gaps.shape
        mean, by_seed, by_query = gaps.mean(), gaps.mean(1, keepdims=True), gaps.mean(0, keepdims=True)
        of_queries = seeds * float(((by_query - mean) ** 2).sum()) / (queries - 1)
        if seeds == 1:
            return cls(float(mean), float(np.sqrt(of_queries / queries)), queries - 1, seeds)
        of_seeds = queries * float(((by_seed - mean) ** 2).sum()) / (seeds - 1)
        of_rest = float(((gaps - by_seed - by_query + mean) ** 2).sum()) / ((seeds - 1) * (queries - 1))
        # An estimate of a variance may come out negative; then that factor adds nothing.
        total = max(of_seeds + of_queries - of_rest, of_seeds, of_queries)
        parts = ((of_seeds, seeds - 1), (of_queries, queries - 1), (of_rest, (seeds - 1) * (queries - 1)))
        squares = sum(square**2 / count for square, count in parts)
        return cls(float(mean), float(np.sqrt(total / (seeds * queries))), total**2 / squares if squares else 1.0)

    @property
    def width(self) -> float:
        """Half of the 95 % interval."""
        return student_t_quantile(0.05, self.freedom) * self.error

    @property
    def detectable(self) -> float:
        """The smallest true difference that would be found at p < .05 with a power of .8."""
        return self.width + student_t_quantile(2 * (1 - POWER), self.freedom) * self.error

    def verdict(self, published: float | None) -> str:
        """Whether an effect that the paper found positive is found here, too; of one seed, no more than that."""
        found = "not reproduced" if self.mean + self.width < (published or 0) else "open"
        found = "reproduced" if self.mean - self.width > 0 else found
        return f"{found}, one seed" if self.seeds == 1 else found


def student_t_quantile(p: float, freedom: float) -> float:
    """The statistic whose two-sided p-value is ``p``."""
    low, high = 0.0, 1000.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_p(middle, freedom) > p else (low, middle)
    return low


def claims_table(claims: Sequence[Claim], columns: Sequence[str], values: Mapping[tuple[str, str], Rows]) -> Table:
    """For each claim what the paper reports and, for each column that has both rows, what was measured.

    ``values`` are those of each column on each data set that a claim is about.
    """
    rows = []
    for claim in claims:
        published = "" if claim.published is None else signed(claim.published)
        cells = [name_cell(claim.claim), name_cell(f"{claim.row} − {claim.against}"), Cell(claim.published, published)]
        for column in columns:
            measured = values[column, claim.data]
            if claim.row not in measured or claim.against not in measured:
                cells += [Cell(None, "")] * 3
                continue
            effect = Effect.of(measured[claim.row], measured[claim.against])
            cells += [
                Cell(effect.mean, f"{signed(effect.mean)} ± {number(effect.width)}"),
                Cell(effect.detectable, number(effect.detectable)),
                name_cell(effect.verdict(claim.published)),
            ]
        rows.append(tuple(cells))
    heads = [head for name in columns for head in (name or "here", "detectable", "verdict")]
    return Table(("claim", "difference", "published", *heads), tuple(rows), labels=2, notes=NOTES)


def number(value: float, digits: int = 3) -> str:
    """A figure below 1 without its zero."""
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign."""
    text = number(abs(value), digits)
    return text if float(text) == 0 else ("−" if value < 0 else "+") + text


# The values of each query


def write_values(path: Path, qids: Sequence[str], rows: Rows) -> None:
    """Write the values of each query as a compressed CSV file."""
    columns = {f"{name}/seed {seed}": values for name, seeds in rows.items() for seed, values in sorted(seeds.items())}
    lines = zip(qids, *([f"{value:.5g}" for value in values] for values in columns.values()), strict=True)
    with atomic_text(path) as file:
        csv.writer(file, lineterminator="\n").writerows([["qid", *columns], *lines])
