"""Floors: the least that a search must reach, so that a change that makes it worse is not released."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rankwell.core.errors import RankwellError, excerpt
from rankwell.evaluation.evaluate import Evaluation
from rankwell.evaluation.notation import Measure, parse_measure

MOST_NAMED = 5
"""Queries that are named because they lost most."""


@dataclass(frozen=True)
class Floor:
    """The least figure of a measure."""

    measure: Measure
    least: float


def parse_floors(text: str, *, rel: int | None = None) -> tuple[Floor, ...]:
    """Read measures, each with its least figure.

    >>> [(str(floor.measure), floor.least) for floor in parse_floors("RR@10 0.70, nDCG@10 0.5")]
    [('RR@10', 0.7), ('nDCG@10', 0.5)]
    """
    parts = list(filter(None, re.split(r"[\s,]+(?![^()]*\))", text)))
    try:
        least = [float(number) for number in parts[1::2]]
    except ValueError:
        least = []
    if not least or 2 * len(least) != len(parts):
        raise RankwellError(
            f"--floor: expected measures with their least figures, as in 'RR@10 0.70', not {excerpt(text)}"
        )
    return tuple(Floor(parse_measure(name, rel=rel), figure) for name, figure in zip(parts[::2], least, strict=True))


def fallen_below(
    floors: tuple[Floor, ...], evaluations: Mapping[str, Evaluation], baseline: Evaluation | None
) -> Iterator[str]:
    """A line for each run and measure below its floor, with the queries that lost most against the baseline."""
    for name, evaluation in evaluations.items():
        for floor in floors:
            measure = str(floor.measure)
            if evaluation is baseline or evaluation.mean[measure] >= floor.least:
                continue
            line = f"{name}: {measure} {evaluation.mean[measure]:.4f} is below the floor of {floor.least:g}"
            if baseline is not None:
                gaps = evaluation.per_query[measure] - baseline.per_query[measure]
                worst = [place for place in np.argsort(gaps, kind="stable")[:MOST_NAMED] if gaps[place] < 0]
                lost = ", ".join(f"{evaluation.qids[place]} {gaps[place]:+.2f}" for place in worst)
                line += f"; what lost most against {baseline.run}: {lost}" * bool(worst)
            yield line
