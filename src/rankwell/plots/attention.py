"""Pictures of attention (DR-BERT's Figure 4, MarkedBERT's Figure 3).

A picture is drawn from an :class:`AttentionMap`, plain data. Cells that the rule closes are hatched, a bracket joins
the tokens of a split word, and words that share a stem with the other side are green.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.plots.pictures import check_picture, need_matplotlib, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL = 0.19  # inches; a label of 8 points fits
GAP = 0.45  # share of a cell, where words are left out
INK, GREY, SPLIT, MATCH = "#222222", "#8c8c8c", "#c8550b", "#17703a"
CLOSED: dict[str, Any] = {"facecolor": "#f7f7f7", "edgecolor": "#b5b5b5", "hatch": "/////", "linewidth": 0}
STYLE: dict[str, Any] = {
    "font.size": 8,
    "text.color": INK,
    "figure.facecolor": "white",
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "svg.hashsalt": "rankwell",
}


@dataclass(frozen=True, slots=True)
class Label:
    """A row or column: a token's text and position, its word, whether it is the word's last token, its match number."""

    text: str
    position: int
    word: int
    last: bool
    match: int = 0


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """Attention from rows to columns: ``weights`` and ``open`` are (rows, columns); closed cells weigh 0."""

    title: str
    rows: Sequence[Label]
    columns: Sequence[Label]
    weights: NDArray[np.float32]
    open: NDArray[np.bool_]
    note: str = ""


def draw_attention(maps: Sequence[AttentionMap], path: str | Path, *, title: str = "") -> None:
    """Draw one map, or several with the same rows and columns, one below the other on one colour scale."""
    check_picture(path)
    if not all(len(drawn.rows) and len(drawn.columns) for drawn in maps):
        raise RankwellError("nothing to draw: the query or the document has no tokens")
    need_matplotlib("drawing attention")
    import matplotlib
    from matplotlib.figure import Figure

    used = {char for drawn in maps for label in (*drawn.rows, *drawn.columns) for char in label.text}
    style: Any = {**STYLE, "font.family": _fonts(used)}
    with matplotlib.rc_context(style):
        figure = Figure()
        _compose(figure, maps, title)
        save_picture(figure, path, bbox_inches="tight", pad_inches=0.08)


def _runs(labels: Sequence[Label]) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of consecutive positions; tokens are left out between two runs."""
    positions = np.array([label.position for label in labels])
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    yield from itertools.pairwise([0, *cuts.tolist(), len(labels)])


def _places(labels: Sequence[Label]) -> NDArray[np.float64]:
    """Where each cell begins, with a gap where tokens are left out."""
    return np.concatenate([np.arange(begin, end) + GAP * i for i, (begin, end) in enumerate(_runs(labels))])


def _compose(figure: Figure, maps: Sequence[AttentionMap], title: str) -> None:
    """Lay out the panels in inches, one below the other."""
    rows, columns = maps[0].rows, maps[0].columns
    across, down = _places(columns)[-1] + 1, _places(rows)[-1] + 1
    # Few columns are drawn wider, so that the title has room above them.
    wide, high = across * max(CELL, min(0.42, 2.6 / across)), down * CELL
    left, below = (0.065 * max(len(label.text) for label in side) + 0.2 for side in (rows, columns))
    step = high + 0.42
    lower = step * (len(maps) - 1)
    width, height = left + max(wide, 2.6) + 0.9, below + high + lower + 0.9
    figure.set_size_inches(width, height)

    def axes_at(x: float, y: float, w: float, h: float) -> Axes:
        return figure.add_axes((x / width, y / height, w / width, h / height))

    filled: Any = None
    highest = max(float(drawn.weights.max(initial=0.0)) for drawn in maps) or 1.0
    for number, drawn in enumerate(maps):
        axes = axes_at(left, below + (len(maps) - 1 - number) * step, wide, high)
        filled = _fill(axes, drawn, highest)
        _hatch(axes, drawn)
        _label_sides(axes, drawn, columns_too=number == len(maps) - 1)
        letter = f"({'abcdefgh'[number]})  " if len(maps) > 1 else ""
        axes.set_title(letter + drawn.title, loc="left", fontsize=8.5, pad=5, parse_math=False)
    colours = axes_at(left + max(wide, 2.6 if len(maps) > 1 else 0) + 0.15, below, 0.1, high + lower)
    scale = figure.colorbar(filled, cax=colours)
    scale.set_label("attention weight")
    scale.outline.set_visible(False)
    scale.ax.tick_params(length=2, width=0.5)
    _foot(figure, maps, width, height)
    if title:
        top = (below + high + lower + 0.26) / height
        figure.text(left / width, top, title, fontsize=10, va="bottom", weight="bold", parse_math=False)


def _fill(axes: Axes, drawn: AttentionMap, highest: float) -> Any:
    """Colour the open cells by their weights."""
    places, mesh = _places(drawn.columns), None
    for begin, end in _runs(drawn.columns):
        mesh = axes.pcolormesh(
            np.arange(end - begin + 1) + places[begin],
            np.arange(len(drawn.rows) + 1),
            np.where(drawn.open, drawn.weights, np.nan)[:, begin:end],
            cmap="Blues",
            vmin=0,
            vmax=highest,
            edgecolors="white",
            linewidth=0.6,
        )
    return mesh


def _hatch(axes: Axes, drawn: AttentionMap) -> None:
    """Hatch the closed cells one by one, so that the grid stays visible."""
    from matplotlib.patches import Rectangle

    across, down = _places(drawn.columns), _places(drawn.rows)
    for row, column in np.argwhere(~drawn.open):
        place = (float(across[column]) + 0.04, float(down[row]) + 0.04)
        axes.add_patch(Rectangle(place, 0.92, 0.92, **CLOSED))
    axes.set_xlim(-0.02, across[-1] + 1.02)
    axes.set_ylim(down[-1] + 1.02, -0.02)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _label_sides(axes: Axes, drawn: AttentionMap, *, columns_too: bool) -> None:
    """Write the tokens beside and below the cells, with a bracket along the tokens of each split word."""
    # A word's last token represents it: only the strict rule closes it, and only to tokens that represent no word.
    closed = {drawn.columns[i].position for i in np.argwhere(~drawn.open)[:, 1] if not drawn.columns[i].last}
    for labels, upright in ((drawn.rows, True), (drawn.columns, False)):
        if not upright and not columns_too:
            continue
        places = _places(labels)
        frame = axes.get_yaxis_transform() if upright else axes.get_xaxis_transform()
        inches = axes.get_position().size * axes.figure.get_size_inches()  # type: ignore[union-attr]
        inch = 1 / inches[0 if upright else 1]
        for label, place in zip(labels, places, strict=True):
            is_closed, is_match = label.position in closed, label.match > 0
            colour = MATCH if is_match else GREY if is_closed else INK
            x, y = (-0.12 * inch, place + 0.5) if upright else (place + 0.5, -0.12 * inch)
            axes.text(
                x,
                y,
                label.text,
                transform=frame,
                rotation=0 if upright else 90,
                ha="right" if upright else "center",
                va="center" if upright else "top",
                color=colour,
                style="italic" if is_closed else "normal",
                weight="bold" if is_match and not is_closed else "normal",
                parse_math=False,
            )
        for begin, end in _split_words(labels):
            a, b = places[begin] + 0.2, places[end - 1] + 0.8
            near, far = -0.03 * inch, -0.08 * inch
            along, off = [a, a, b, b], [near, far, far, near]
            x_line, y_line = (off, along) if upright else (along, off)
            axes.plot(x_line, y_line, color=SPLIT, linewidth=1.2, transform=frame, clip_on=False)


def _split_words(labels: Sequence[Label]) -> Iterator[tuple[int, int]]:
    """Begin and end of each word of two or more tokens."""
    for _, group in itertools.groupby(range(len(labels)), key=lambda i: labels[i].word):
        members = list(group)
        if len(members) > 1:
            yield members[0], members[-1] + 1


def _foot(figure: Figure, maps: Sequence[AttentionMap], width: float, height: float) -> None:
    """Write the legend, with the entries that occur, and the notes below everything."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    sides = [side for drawn in maps for side in (drawn.rows, drawn.columns)]
    handles: list[Any] = []
    if not all(drawn.open.all() for drawn in maps):
        handles.append(Patch(label="closed by the rule", **CLOSED))
    if any(True for side in sides for _ in _split_words(side)):
        handles.append(Line2D([], [], color=SPLIT, linewidth=1.4, label="tokens of one word"))
    if any(label.match for side in sides for label in side):
        handles.append(Line2D([], [], color=MATCH, marker="s", linestyle="", markersize=5, label="same stem"))
    abreast = max(1, min(len(handles), int(width / 1.45)))
    if handles:
        figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0.0, 0.0),
            ncols=abreast,
            frameon=False,
            handlelength=1.4,
            columnspacing=1.4,
            borderaxespad=0,
        )
    note = " ".join(dict.fromkeys(drawn.note for drawn in maps if drawn.note))
    if note:
        lines = textwrap.fill(note, int(width * 17))
        drop = 0.2 * -(-len(handles) // abreast) + 0.08
        figure.text(0.01, -drop / height, lines, fontsize=7, color="#555555", va="top", parse_math=False)


def _fonts(characters: set[str]) -> list[str]:
    """DejaVu Sans and, for the characters it lacks, installed fonts that have them."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    def covered(file: str) -> set[str]:
        return set(map(chr, FT2Font(file).get_charmap()))

    families = ["DejaVu Sans"]
    missing = characters - covered(font_manager.findfont("DejaVu Sans"))
    for font in font_manager.fontManager.ttflist if missing else ():
        if font.style == "normal" and (drawable := missing & covered(font.fname)):
            families.append(font.name)
            missing -= drawable
    return families
