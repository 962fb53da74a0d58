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
from rankwell.evaluation.significance import holm, student_t_p
from rankwell.evaluation.tables import Cell, Table, name_cell
from rankwell.training.options import Options
from rankwell.training.recipe_results import FIRST_STAGE

Seeds = Mapping[int, Values]
"""The values of a row by seed, each with the same queries in the same order."""
Rows = Mapping[str, Seeds]

POWER, LEVEL = 0.8, 0.05
NOTES = (
    "± is a 95 % interval that treats seeds and queries as two random samples (with one seed, queries alone); "
    "detectable is the smallest true difference that this design finds at p < .05 with a power of .8",
    "found: above zero at p < .05, by Holm over the verdicts; found, smaller: the interval also lies below the "
    "published difference; opposite: below zero at p < .05; smaller than published: neither, and the interval lies "
    "below the published difference; open: neither, and it does not; seen once: one training, which is no verdict",
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
    squares of seeds and queries less that of the rest, with Satterthwaite's degrees of freedom.
    """

    mean: float
    error: float
    freedom: float
    seeds: int = 2

    @classmethod
    def of(cls, ours: Seeds, theirs: Seeds) -> Effect:
        """``ours`` less ``theirs``, on the seeds that both have."""
        gaps = np.array([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])
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

    @property
    def p(self) -> float:
        """The two-sided p-value of no difference."""
        return student_t_p(self.mean / self.error, self.freedom) if self.error else float(self.mean == 0)

    def verdict(self, published: float | None, p: float | None = None) -> str:
        """What became of an effect that the paper found positive; ``p`` is corrected for other verdicts."""
        if self.seeds == 1:
            return "seen once"
        below = published is not None and self.mean + self.width < published
        if (self.p if p is None else p) >= LEVEL:
            return "smaller than published" if below else "open"
        if self.mean < 0:
            return "opposite"
        return "found, smaller" if below else "found"


def effect_of(rows: Rows, row: str, against: str) -> Effect | None:
    """The difference between two rows, None without a seed that both have.

    A first stage, which is not trained, is compared with each seed.
    """
    ours, theirs = rows.get(row, {}), rows.get(against, {})
    if against == FIRST_STAGE:
        theirs = dict.fromkeys(ours, *theirs.values()) if theirs else {}
    elif row == FIRST_STAGE:
        ours = dict.fromkeys(theirs, *ours.values()) if ours else {}
    return Effect.of(ours, theirs) if ours.keys() & theirs.keys() else None


def corrected(effects: Sequence[Effect]) -> list[float]:
    """The p-values by Holm, which counts those of several trainings only."""
    several = iter(holm([effect.p for effect in effects if effect.seeds > 1]))
    return [next(several) if effect.seeds > 1 else effect.p for effect in effects]


def student_t_quantile(p: float, freedom: float) -> float:
    """The statistic whose two-sided p-value is ``p``."""
    low, high = 0.0, 1000.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_p(middle, freedom) > p else (low, middle)
    return low


def claims_table(
    claims: Sequence[Claim],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], Rows],
    beside: Sequence[Effect] = (),
) -> Table:
    """For each claim what the paper reports and, for each column that has both rows, what was measured.

    ``values`` are those of each column on each data set that a claim is about. The verdicts are corrected for each
    other and for ``beside``, the effects of other tables on the same page.
    """
    effects = {
        (claim, column): effect
        for claim in claims
        for column in columns
        if (effect := effect_of(values[column, claim.data], claim.row, claim.against)) is not None
    }
    p_values = dict(zip(effects, corrected([*effects.values(), *beside]), strict=False))
    rows = []
    for claim in claims:
        published = "" if claim.published is None else signed(claim.published)
        cells = [name_cell(claim.claim), name_cell(f"{claim.row} − {claim.against}"), Cell(claim.published, published)]
        for column in columns:
            effect = effects.get((claim, column))
            if effect is None:
                cells += [Cell(None, "")] * 3
                continue
            cells += [
                Cell(effect.mean, f"{signed(effect.mean)} ± {number(effect.width)}"),
                Cell(effect.detectable, number(effect.detectable)),
                name_cell(effect.verdict(claim.published, p_values[claim, column])),
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
