"""Figures against an option's value, a line for each of several ways, with intervals over queries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rankwell.core.types import Values
from rankwell.evaluation.pictures import new_picture, save_picture
from rankwell.evaluation.significance import Interval, bootstrap_interval

Line = tuple[Values, Values]
"""The option's values (X,) and the figures of each query under them (X, queries)."""

ROUNDS = 1000
DODGE = 0.008
"""From one line's points to the next one's, as a share of the axis."""


def mean_interval(values: Values, *, rounds: int = ROUNDS) -> Interval:
    """The 95 % bootstrap interval of the mean over queries."""
    return bootstrap_interval(values, np.zeros_like(values), rounds=rounds)


def draw_sweep(lines: Mapping[str, Line], path: Path, *, option: str, measure: str) -> None:
    """Draw the means over queries with their 95 % bootstrap intervals as a png."""
    figure, axes = new_picture("drawing a sweep", 5.4, 3.4)
    # Beside each other rather than in one another's way.
    width = max(float(np.ptp(x)) for x, _ in lines.values()) * DODGE
    for place, (name, (x, values)) in enumerate(lines.items()):
        mean = values.mean(axis=1)
        low, high = np.array([mean_interval(row) for row in values]).T
        axes.errorbar(
            x + width * (place - (len(lines) - 1) / 2),
            mean,
            yerr=np.maximum([mean - low, high - mean], 0.0),
            marker="o",
            markersize=3.5,
            linewidth=1.2,
            elinewidth=0.6,
            label=name,
        )
    axes.set_xlabel(option)
    axes.set_ylabel(measure)
    if all(float(value).is_integer() for x, _ in lines.values() for value in x):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=8)
    save_picture(figure, path)
