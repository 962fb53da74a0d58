"""Inline SVG pictures of a fitted system's page: its steps, quality against time, and what a least relevance drops.

They take their colours from the page's style sheet, so they follow its light and dark themes.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 460
LABEL, ROW, AXIS = 190, 34, 28
LINE, CHARACTER = 15, 7
"""The height of a line of text, and the width of a character."""
MEANING = {
    "RR": "1 for a query whose first document is relevant, 1/2 if the second is the first such, and so on",
    "nDCG": "1 for a query whose relevant documents come first, and less the lower they are",
    "R": "the share of a query's relevant documents that are among the first",
}
"""What measures are, for readers who do not know them."""


@dataclass(frozen=True)
class Bar:
    """A mean with its interval; ``kept`` is drawn in colour. ``milliseconds`` is the time of a query."""

    label: str
    mean: float
    low: float
    high: float
    kept: bool
    milliseconds: float


def draw_steps(bars: Sequence[Bar], measure: str) -> str:
    """Means with intervals, one row each, the first at the bottom."""
    low, high = _range([bar.low for bar in bars], [bar.high for bar in bars])
    height = ROW * len(bars) + AXIS

    def x(value: float) -> float:
        return LABEL + (WIDTH - LABEL - 60) * (value - low) / (high - low)

    parts = [_grid(tick, x(tick), height - AXIS, f"{tick:.2f}") for tick in _ticks(low, high)]
    for row, bar in enumerate(reversed(bars)):
        y, kind = ROW * (row + 0.5), "kept" if bar.kept else "left"
        parts += [
            f'<text x="{LABEL - 12}" y="{y + 4:.1f}" text-anchor="end">{html.escape(bar.label)}</text>',
            f'<line class="{kind}" x1="{x(bar.low):.1f}" x2="{x(bar.high):.1f}" y1="{y}" y2="{y}" stroke-width="2"/>',
            f'<circle class="{kind}" cx="{x(bar.mean):.1f}" cy="{y}" r="5"/>',
            f'<text x="{x(bar.high) + 8:.1f}" y="{y + 4:.1f}">{bar.mean:.3f}</text>',
        ]
    meaning = MEANING.get(measure.partition("@")[0])
    told = f"{measure}, a mean over queries: {meaning}." if meaning else ""
    return _svg(height, f"{measure} of each step with its 95 % interval", parts, told)


def draw_costs(bars: Sequence[Bar], measure: str) -> str:
    """The mean of each step against the milliseconds of a query, on a logarithmic scale."""
    height, top, left, right = 300, 16, 52, 30
    low, high = _range([bar.mean for bar in bars], [bar.mean for bar in bars])
    times = [max(bar.milliseconds, 0.1) for bar in bars]
    first, last = math.floor(math.log10(min(times))), max(math.ceil(math.log10(max(times)) + 1e-9), 1)

    def x(milliseconds: float) -> float:
        share = (math.log10(max(milliseconds, 0.1)) - first) / max(1, last - first)
        return left + (WIDTH - left - right) * share

    def y(value: float) -> float:
        return top + (height - top - AXIS - 18) * (1 - (value - low) / (high - low))

    floor = height - AXIS - 18
    parts = [_grid(power, x(10.0**power), floor, f"{10.0**power:g}") for power in range(first, last + 1)]
    for tick in _ticks(low, high):
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="dim" x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.2f}</text>')
    points = [(x(bar.milliseconds), y(bar.mean)) for bar in bars]
    taken = [(middle + 4, centre - 6, 12.0) for centre, middle in points]
    for bar, (centre, middle) in sorted(zip(bars, points, strict=True), key=lambda pair: -pair[0].mean):
        kind, width = "kept" if bar.kept else "left", CHARACTER * len(bar.label)
        side, shift, begin = ("end", -9, centre - 9 - width) if centre > 0.6 * WIDTH else ("start", 9, centre + 9)
        # As near to its point as other points and their labels leave room.
        heights = [middle + 4 + LINE * step for step in sorted(range(-5, 6), key=abs)]
        free = (place for place in heights if not any(_meet(place, begin, width, other) for other in taken))
        place = next(free, heights[0])
        taken.append((place, begin, width))
        parts.append(f'<circle class="{kind}" cx="{centre:.1f}" cy="{middle:.1f}" r="5"/>')
        label = html.escape(bar.label)
        parts.append(f'<text x="{centre + shift:.1f}" y="{place:.1f}" text-anchor="{side}">{label}</text>')
    parts.append(f'<text class="dim" x="{WIDTH / 2}" y="{height - 4}" text-anchor="middle">milliseconds a query</text>')
    return _svg(height, f"{measure} against milliseconds a query", parts)


def draw_thresholds(kept: Sequence[float], silent: Sequence[float], threshold: float) -> str:
    """Two parts of the queries, from 0 to 1, at least relevances from 0 to 1, and the one that is suggested."""
    height, top, left, right = 200, 10, 52, 100
    floor = height - AXIS - 18

    def x(value: float) -> float:
        return left + (WIDTH - left - right) * value

    def y(value: float) -> float:
        return top + (floor - top) * (1 - value)

    parts = [_grid(tick, x(tick), floor, f"{tick:g}") for tick in (0, 0.25, 0.5, 0.75, 1)]
    for tick in (0, 0.5, 1):
        parts.append(f'<text class="dim" x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.0%}</text>')
    for label, kind, values in (("keep theirs", "kept", kept), ("return nothing", "left", silent)):
        points = " ".join(f"{x(place / (len(values) - 1)):.1f},{y(value):.1f}" for place, value in enumerate(values))
        parts.append(f'<polyline class="{kind}" style="fill:none" stroke-width="2" points="{points}"/>')
        parts.append(f'<text x="{x(1) + 6:.1f}" y="{y(values[-1]) + 4:.1f}">{label}</text>')
    parts.append(f'<line class="kept" x1="{x(threshold):.1f}" x2="{x(threshold):.1f}" y1="{top}" y2="{floor}"/>')
    parts.append(f'<text class="dim" x="{x(0.5):.1f}" y="{height - 4}" text-anchor="middle">least relevance</text>')
    return _svg(height, "Right answers that stay, and queries without an answer that return nothing", parts)


def _meet(y: float, begin: float, width: float, other: tuple[float, float, float]) -> bool:
    """Whether a label overlaps another, or a point."""
    return abs(y - other[0]) < LINE and begin < other[1] + other[2] and other[1] < begin + width


def _svg(height: float, title: str, parts: Sequence[str], told: str = "") -> str:
    name = html.escape(title)
    picture = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">{"".join(parts)}</svg>'
    return f'<div class="picture">{picture}<p class="dim">{html.escape(told)}</p></div>'


def _grid(value: float, x: float, floor: float, label: str) -> str:
    line = f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{floor}"/>'
    return f'{line}<text class="dim" x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{label}</text>'


def _range(lows: Sequence[float], highs: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis, with some room."""
    low, high = min(lows), max(highs)
    room = max(0.01, 0.08 * (high - low))
    return max(0.0, low - room), high + room


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between the ends, about five."""
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 10, 100, 1e9) if (high - low) / step <= 6)
    return [round(place * step, 6) for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
