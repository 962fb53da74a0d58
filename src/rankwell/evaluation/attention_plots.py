"""Pictures of attention: who looks at what (DR-BERT's Figure 4, MarkedBERT's Figure 3), and the rule itself (Figure 3).

A picture is drawn from an :class:`AttentionMap`, plain data. Cells the rule closes are hatched, a bracket holds the
pieces of one split word together, words with the stem of a word of the other side are green.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.evaluation.pictures import check_picture, need_matplotlib, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL = 0.19  # inches; a label of 8 points fits
GAP = 0.45  # of a cell, where words are left out
INK, GREY, SPLIT, MATCH = "#222222", "#8c8c8c", "#c8550b", "#17703a"
OPEN, OWN = "#a9c9e8", "#2f6fb0"
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


class Piece(Protocol):
    """A row or column: the piece's text and place, its word, whether it is the word's last piece, a match's number."""

    @property
    def piece(self) -> str: ...  # noqa: D102
    @property
    def position(self) -> int: ...  # noqa: D102
    @property
    def word(self) -> int: ...  # noqa: D102
    @property
    def last(self) -> bool: ...  # noqa: D102
    @property
    def match(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """Attention from rows to columns: ``weights`` and ``open`` are (rows, columns), closed cells weigh 0."""

    title: str
    rows: Sequence[Piece]
    columns: Sequence[Piece]
    weights: NDArray[np.float32]
    open: NDArray[np.bool_]
    note: str = ""


def rule_text(rule: AttentionMap) -> str:
    """The rule as text: a row attends to the columns with ●, those with · are closed to it; places count from 1."""
    width = max(len(piece.piece) for piece in rule.rows)
    wide = max(len(str(piece.position + 1)) for piece in rule.columns)
    lines = [" " * (width + wide + 2) + " ".join(f"{piece.position + 1:>{wide}}" for piece in rule.columns)]
    for piece, cells in zip(rule.rows, rule.open, strict=True):
        marks = " ".join(f"{'●' if cell else '·':>{wide}}" for cell in cells)
        lines.append(f"{piece.position + 1:>{wide}} {piece.piece:<{width}} {marks}")
    return "\n".join(lines)


def draw_attention(maps: Sequence[AttentionMap], path: str | Path, *, title: str = "") -> None:
    """Draw one map, or several of the same rows and columns under each other with one scale of colours."""
    highest = max(float(drawn.weights.max(initial=0.0)) for drawn in maps) or 1.0

    def fill(axes: Axes, drawn: AttentionMap) -> Any:
        places = _places(drawn.columns)
        mesh = None
        for begin, end in _runs(drawn.columns):
            edges = np.arange(end - begin + 1) + places[begin]
            mesh = axes.pcolormesh(
                edges,
                np.arange(len(drawn.rows) + 1),
                np.where(drawn.open, drawn.weights, np.nan)[:, begin:end],
                cmap="Blues",
                vmin=0,
                vmax=highest,
                edgecolors="white",
                linewidth=0.6,
            )
        return mesh

    _draw(maps, path, title, fill, rule=False)


def draw_rule(rules: Sequence[AttentionMap], path: str | Path, *, title: str = "") -> None:
    """Draw who may attend to whom: a row's open columns are filled, darker within one word."""

    def fill(axes: Axes, drawn: AttentionMap) -> None:
        from matplotlib.patches import Rectangle

        across, down = _places(drawn.columns), _places(drawn.rows)
        for row, a in enumerate(drawn.rows):
            for column, b in enumerate(drawn.columns):
                if drawn.open[row, column]:
                    colour = OWN if a.word == b.word else OPEN
                    place = (float(across[column]), float(down[row]))
                    axes.add_patch(Rectangle(place, 1, 1, facecolor=colour, edgecolor="white", linewidth=0.6))

    _draw(rules, path, title, fill, rule=True)


def _runs(pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    """Where consecutive positions begin and end; between two runs something is left out."""
    positions = np.array([piece.position for piece in pieces])
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    yield from itertools.pairwise([0, *cuts.tolist(), len(pieces)])


def _places(pieces: Sequence[Piece]) -> NDArray[np.float64]:
    """Where each piece's cell begins, with a gap where something is left out."""
    return np.concatenate([np.arange(begin, end) + GAP * i for i, (begin, end) in enumerate(_runs(pieces))])


def _draw(maps: Sequence[AttentionMap], path: str | Path, title: str, fill: Any, *, rule: bool) -> None:
    check_picture(path)
    if not all(len(drawn.rows) and len(drawn.columns) for drawn in maps):
        raise RankwellError("nothing to draw: the query or the document has no pieces")
    need_matplotlib("drawing attention")
    import matplotlib
    from matplotlib.figure import Figure

    families, codes = _fonts(
        {char for drawn in maps for piece in (*drawn.rows, *drawn.columns) for char in piece.piece}
    )
    if codes:
        maps = [_recoded(drawn, codes) for drawn in maps]
    style: Any = {**STYLE, "font.family": families}
    with matplotlib.rc_context(style):
        figure = Figure()
        _compose(figure, maps, title, fill, rule)
        save_picture(figure, path, bbox_inches="tight", pad_inches=0.08)


def _compose(figure: Figure, maps: Sequence[AttentionMap], title: str, fill: Any, rule: bool) -> None:
    """Lay the panels out in inches: square ones beside each other, wide ones under each other."""
    rows, columns = maps[0].rows, maps[0].columns
    across, down = _places(columns)[-1] + 1, _places(rows)[-1] + 1
    # Few columns are drawn wider, so that the title has room above them.
    wide, high = across * CELL if rule else across * max(CELL, min(0.42, 2.6 / across)), down * CELL
    beside = rule
    left, below = (0.065 * max(len(_label(p, rule)) for p in pieces) + 0.2 for pieces in (rows, columns))
    step = wide + left + 0.25 if beside else high + 0.42
    further, lower = (step * (len(maps) - 1), 0.0) if beside else (0.0, step * (len(maps) - 1))
    width, height = left + max(wide, 2.6) + further + 0.9, below + high + lower + 0.9
    figure.set_size_inches(width, height)

    def axes_at(x: float, y: float, w: float, h: float) -> Axes:
        return figure.add_axes((x / width, y / height, w / width, h / height))

    filled: Any = None
    for number, drawn in enumerate(maps):
        x = left + number * step if beside else left
        y = below if beside else below + (len(maps) - 1 - number) * step
        axes = axes_at(x, y, wide, high)
        filled = fill(axes, drawn)
        _hatch(axes, drawn)
        _label_sides(axes, drawn, rule, columns_too=beside or number == len(maps) - 1)
        letter = f"({'abcdefgh'[number]})  " if len(maps) > 1 else ""
        axes.set_title(letter + drawn.title, loc="left", fontsize=8.5, pad=5, parse_math=False)
    if not rule:
        colours = axes_at(left + max(wide, 2.6 if len(maps) > 1 else 0) + 0.15, below, 0.1, high + lower)
        scale = figure.colorbar(filled, cax=colours)
        scale.set_label("attention weight")
        scale.outline.set_visible(False)
        scale.ax.tick_params(length=2, width=0.5)
    _foot(figure, maps, rule, width, height)
    if title:
        top = (below + high + lower + 0.26) / height
        figure.text(left / width, top, title, fontsize=10, va="bottom", weight="bold", parse_math=False)


def _hatch(axes: Axes, drawn: AttentionMap) -> None:
    """Hatch what the rule closes; one patch for each cell, so that the grid stays visible."""
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


def _label(piece: Piece, rule: bool) -> str:
    return f"{piece.position + 1}  {piece.piece}" if rule else piece.piece


def _label_sides(axes: Axes, drawn: AttentionMap, rule: bool, *, columns_too: bool) -> None:
    """Write the pieces beside and below the cells, and a bracket along the pieces of one split word."""
    # What stands for its word is closed to nobody but, under the strict rule, to pieces that stand for nothing.
    closed = {drawn.columns[i].position for i in np.argwhere(~drawn.open)[:, 1] if not drawn.columns[i].last}
    for pieces, upright in ((drawn.rows, True), (drawn.columns, False)):
        if not upright and not columns_too:
            continue
        places = _places(pieces)
        frame = axes.get_yaxis_transform() if upright else axes.get_xaxis_transform()
        inches = axes.get_position().size * axes.figure.get_size_inches()  # type: ignore[union-attr]
        inch = 1 / inches[0 if upright else 1]
        for piece, place in zip(pieces, places, strict=True):
            is_closed, is_match = piece.position in closed, piece.match > 0 and not rule
            colour = MATCH if is_match else GREY if is_closed else INK
            x, y = (-0.12 * inch, place + 0.5) if upright else (place + 0.5, -0.12 * inch)
            axes.text(
                x,
                y,
                _label(piece, rule),
                transform=frame,
                rotation=0 if upright else 90,
                ha="right" if upright else "center",
                va="center" if upright else "top",
                color=colour,
                style="italic" if is_closed else "normal",
                weight="bold" if is_match and not is_closed else "normal",
                parse_math=False,
            )
        for begin, end in _split(pieces):
            a, b = places[begin] + 0.2, places[end - 1] + 0.8
            near, far = -0.03 * inch, -0.08 * inch
            along, off = [a, a, b, b], [near, far, far, near]
            x_line, y_line = (off, along) if upright else (along, off)
            axes.plot(x_line, y_line, color=SPLIT, linewidth=1.2, transform=frame, clip_on=False)


def _split(pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    """The stretches of two or more pieces of one word."""
    for _, group in itertools.groupby(range(len(pieces)), key=lambda i: pieces[i].word):
        members = list(group)
        if len(members) > 1:
            yield members[0], members[-1] + 1


def _foot(figure: Figure, maps: Sequence[AttentionMap], rule: bool, width: float, height: float) -> None:
    """The legend, of what occurs only, and the notes, below everything."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    pieces = [piece for drawn in maps for piece in (*drawn.rows, *drawn.columns)]
    handles: list[Any] = []
    if rule:
        handles += [Patch(facecolor=OPEN, label="open"), Patch(facecolor=OWN, label="open, within one word")]
    if not all(drawn.open.all() for drawn in maps):
        handles.append(Patch(label="closed by the rule", **CLOSED))
    if any(True for drawn in maps for side in (drawn.rows, drawn.columns) for _ in _split(side)):
        handles.append(Line2D([], [], color=SPLIT, linewidth=1.4, label="pieces of one word"))
    if not rule and any(piece.match for piece in pieces):
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


def _fonts(characters: set[str]) -> tuple[list[str], dict[int, str]]:
    """DejaVu Sans and, for characters it lacks, installed fonts that have them; codes for those that none has."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    def covered(file: str) -> set[str]:
        return set(map(chr, FT2Font(file).get_charmap()))

    families = ["DejaVu Sans"]
    missing = characters - covered(font_manager.findfont("DejaVu Sans"))
    # The font of last resort has a box for every character, which says less than its code.
    upright = (f for f in font_manager.fontManager.ttflist if f.style == "normal" and "Last Resort" not in f.name)
    for font in upright:
        if missing and (found := missing & covered(font.fname)):
            families.append(font.name)
            missing -= found
    return families, {ord(char): f"U+{ord(char):04X}" for char in missing}


@dataclass(frozen=True, slots=True)
class _Recoded:
    piece: str
    position: int
    word: int
    last: bool
    match: int


def _recoded(drawn: AttentionMap, codes: dict[int, str]) -> AttentionMap:
    """The map with characters no font has written as their codes."""
    rows, columns = (
        [_Recoded(p.piece.translate(codes), p.position, p.word, p.last, p.match) for p in side]
        for side in (drawn.rows, drawn.columns)
    )
    return replace(drawn, rows=rows, columns=columns)
