"""Curves: a measure over an option's values, and per-query differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rankwell.core.arrays import Values
from rankwell.plots.pictures import new_picture, save_picture

Line = tuple[Values, Values]
"""The option's values (X,) and, for each, the mean with the ends of its interval (X, 3)."""

DODGE = 0.008
"""Distance between the points of two lines at the same value, as a share of the axis."""


def draw_sweep(lines: Mapping[str, Line], path: Path, *, option: str, measure: str) -> None:
    """Draw one line with error bars per name."""
    figure, axes = new_picture("drawing a sweep", 5.4, 3.4)
    # Error bars of different lines stand beside each other instead of overlapping.
    width = max(float(np.ptp(x)) for x, _ in lines.values()) * DODGE
    for place, (name, (x, intervals)) in enumerate(lines.items()):
        mean, low, high = intervals.T
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


def draw_differences(differences: Sequence[float], path: Path, *, title: str, measure: str) -> None:
    """Draw each query's difference from the baseline, in the given order, with the number of wins, ties and losses."""
    figure, axes = new_picture("drawing differences", 5.4, 3.0)
    from matplotlib.ticker import MaxNLocator

    gaps = np.asarray(differences, np.float64)
    axes.stairs(np.maximum(gaps, 0), fill=True, color="#2a6f97")
    axes.stairs(np.minimum(gaps, 0), fill=True, color="#c1554a")
    axes.axhline(0, color="black", linewidth=0.6)
    wins, ties, losses = ((np.sign(gaps) == sign).sum() for sign in (1, 0, -1))
    axes.set_xlabel(f"queries: {wins} better, {ties} equal, {losses} worse")
    axes.set_ylabel(f"Δ {measure}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(title, fontsize=9)
    save_picture(figure, path)
