"""An experiment's pictures: the table as one, and the first measure against an option."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rankwell.evaluation.tables import mark
from rankwell.plots.pictures import new_picture, save_picture
from rankwell.training.experiments.tables import Compared, Measured, deviations

BETTER, WORSE, ALIKE = "#2a6f97", "#c1554a", "#8a8a8a"
ROW = 0.26
"""Inches of a variant's line."""


def draw_table(compared: Compared, measured: Measured, path: Path) -> None:
    """The first measure of each variant: the mean, its 95 % interval over queries, and each seed.

    Blue is better than the baseline, red worse, by the table's own test; grey may be chance.
    """
    comparison = compared.comparison
    measure, names = comparison.measures[0], list(comparison.mean)
    figure, axes = new_picture("drawing an experiment", 6.2, 0.9 + ROW * len(names))
    reference = comparison.mean[comparison.baseline][str(measure)]
    axes.axvline(reference, color="black", linewidth=0.6, linestyle=(0, (4, 3)))
    for row, name in enumerate(names):
        mean = comparison.mean[name][str(measure)]
        differs = name != comparison.baseline and bool(mark(comparison, name, measure))
        colour = "black" if name == comparison.baseline else ALIKE
        if differs:
            colour = BETTER if mean > reference else WORSE
        axes.plot(compared.intervals[name][str(measure)], (row, row), color=colour, linewidth=1.4)
        axes.plot(mean, row, "o", color=colour, markersize=5)
        seeds = [evaluation.mean[str(measure)] for evaluation in measured[name]]
        if len(seeds) > 1:
            axes.plot(seeds, np.full(len(seeds), row + 0.3), "|", color=colour, markersize=4)
        axes.annotate(f"{mean:.3f}", (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    ticks = " ticks: seeds;" if any(len(measured[name]) > 1 for name in names) else ""
    axes.set_xlabel(f"{measure}, 95 % over queries;{ticks} dashed: {comparison.baseline}", fontsize=8)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    save_picture(figure, path)


def draw_axis(values: Mapping[str, float], measured: Measured, axis: str, path: Path) -> None:
    """The first measure against the option ``axis``, of which ``values`` has each variant's, with the deviation."""
    points = []
    for name, value in values.items():
        if name in measured:
            measure = str(measured[name][0].measures[0])
            figures = [evaluation.mean[measure] for evaluation in measured[name]]
            points.append((value, np.mean(figures), deviations(measured[name])[measure] or 0.0))
    x, y, deviation = np.array(sorted(points)).T
    figure, axes = new_picture("drawing an experiment", 5, 3.2)
    axes.errorbar(x, y, yerr=deviation, marker="o", capsize=3, linewidth=1.2)
    axes.set_xlabel(axis)
    axes.set_ylabel(measure)
    if min(x) > 0 and max(x) / min(x) >= 20:  # 1 to 31 negatives, 1 to 100 % of the queries
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(x, [f"{value:g}" for value in x])
    save_picture(figure, path)
