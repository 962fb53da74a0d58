"""Pictures of attention (DR-BERT's Figure 4, MarkedBERT's Figure 3).

A picture is drawn from an :class:`AttentionMap`, plain data. Cells that the rule closes are hatched, tokens of a split
word are in italics, and words that share a stem with the other side are green. A line stands where tokens are left
out.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.plots.pictures import check_picture, need_matplotlib, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL = 0.19  # inches; a label of 8 points fits
INK, MATCH = "#222222", "#17703a"
CLOSED: dict[str, Any] = {"facecolor": "#f7f7f7", "edgecolor": "#b5b5b5", "hatch": "/////", "linewidth": 0}
LEGEND = "Hatched: closed by the rule. Italics: tokens of one word. Green: same stem."
STYLE: dict[str, Any] = {
    "font.size": 8,
    "text.color": INK,
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
    rows, columns = maps[0].rows, maps[0].columns
    if not rows or not columns:
        raise RankwellError("nothing to draw: the query or the document has no tokens")
    need_matplotlib("drawing attention")
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {**STYLE, "font.family": _fonts({char for label in (*rows, *columns) for char in label.text})}
    with matplotlib.rc_context(style):
        # Few columns are drawn wider, so that the title has room above them.
        wide, high = max(2.6, CELL * len(columns)) + 2, len(maps) * (CELL * len(rows) + 1) + 0.9
        figure = Figure(figsize=(wide, high), layout="constrained")
        panels: list[Axes] = figure.subplots(len(maps), squeeze=False)[:, 0].tolist()
        highest = max(float(drawn.weights.max(initial=0.0)) for drawn in maps) or 1.0
        for letter, axes, drawn in zip("abcdefgh", panels, maps, strict=False):
            filled = _fill(axes, drawn, highest)
            number = f"({letter})  " if len(maps) > 1 else ""
            axes.set_title(number + drawn.title, loc="left", fontsize=8.5, parse_math=False)
        figure.colorbar(filled, ax=panels, label="attention weight").outline.set_visible(False)
        figure.suptitle(title, fontsize=10, weight="bold", parse_math=False)
        note = " ".join([LEGEND, *dict.fromkeys(drawn.note for drawn in maps if drawn.note)])
        figure.supxlabel(textwrap.fill(note, int(wide * 15)), fontsize=7, color="#555555", parse_math=False)
        save_picture(figure, path, bbox_inches="tight", pad_inches=0.08)


def _fill(axes: Axes, drawn: AttentionMap, highest: float) -> Any:
    """Colour the open cells by their weights, hatch the closed ones, and label both sides."""
    cells = np.ma.masked_where(~drawn.open, drawn.weights)
    filled = axes.pcolormesh(cells, cmap="Blues", vmin=0, vmax=highest, edgecolors="white", linewidth=0.6)
    axes.patch.set(**CLOSED)  # which shows where no cell is filled
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks(np.arange(len(drawn.columns)) + 0.5, [label.text for label in drawn.columns], rotation=90)
    axes.set_yticks(np.arange(len(drawn.rows)) + 0.5, [label.text for label in drawn.rows])
    axes.set_ylim(len(drawn.rows), 0)
    for labels, ticks in ((drawn.rows, axes.get_yticklabels()), (drawn.columns, axes.get_xticklabels())):
        pieces = Counter(label.word for label in labels)
        for label, tick in zip(labels, ticks, strict=True):
            tick.set_parse_math(False)
            tick.set_color(MATCH if label.match else INK)
            tick.set_fontstyle("italic" if pieces[label.word] > 1 else "normal")
    for place in np.flatnonzero(np.diff([label.position for label in drawn.columns]) != 1).tolist():
        axes.axvline(place + 1, color="#8c8c8c", linewidth=0.8)
    return filled


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
