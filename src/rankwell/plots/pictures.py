"""Setup shared by all pictures and pages: file formats, figures, reproducible output."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.core.files import atomic_binary, atomic_text
from rankwell.corpus.analyser import Analyzer, Word

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_NO_DATE = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}

STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --dim: #68707f; --line: #dfe3ea; --paper: #fff; --good: #1c7c54;
        --bad: #b3443a; --soft: #f4f6f9 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ef; --dim: #98a1b1; --line: #333b49; --paper: #14181f; --good: #53c08f; --bad: #e5806f;
          --soft: #1c222c } }
body { font: 16px/1.6 system-ui, sans-serif; max-width: 52em; margin: 2em auto; padding: 0 1em; color: var(--ink);
       background: var(--paper) }
h1 { font-size: 1.6em; margin-bottom: .2em; overflow-wrap: anywhere } h2 { font-size: 1.2em; margin: 2em 0 .4em }
.lead { font-size: 1.1em } .dim { color: var(--dim) } .good { color: var(--good) } .bad { color: var(--bad) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .9em; width: 100% }
th, td { text-align: right; padding: .3em .7em .3em 0; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child { text-align: left } td.words { white-space: normal; text-align: left; min-width: 14em }
details { border: 1px solid var(--line); border-radius: .4em; padding: .4em .8em; margin: .4em 0 }
summary { cursor: pointer; overflow-wrap: anywhere } details p { margin: .5em 0; overflow-wrap: anywhere }
pre { background: var(--soft); padding: .8em; border-radius: .4em; font-size: .85em; white-space: pre-wrap;
      overflow-wrap: anywhere }
@media (max-width: 40em) { table { font-size: .78em } th { white-space: normal } th, td { padding-right: .4em }
  td:first-child { white-space: normal; min-width: 5.5em } td .dim { display: block; font-size: .85em }
  td.words { min-width: 0 } .lead { font-size: 1em } }
.picture { overflow-x: auto }
svg { width: 100%; max-width: 38em; min-width: 320px; height: auto; display: block; font: 14px system-ui, sans-serif }
svg text { fill: var(--ink) } svg .dim { fill: var(--dim) } svg .grid { stroke: var(--line) }
svg .kept { fill: var(--good); stroke: var(--good) } svg .left { fill: var(--dim); stroke: var(--dim) }
.w, .n { border-radius: .2em; padding: .05em .1em } .n { background: #ffe3a8; color: #222 }
.q { color: var(--dim); font-style: italic }
.row { display: grid; grid-template-columns: 3fr 2fr; gap: 2em } .row ul { margin: 0; padding-left: 1.2em }
"""
"""The style of every page, light and dark; pictures within a page take their colours from it."""


def check_picture(path: str | Path) -> None:
    """Raise unless the file name ends in a supported picture format."""
    if Path(path).suffix.lower() not in FORMATS:
        raise RankwellError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")


def need_matplotlib(purpose: str) -> None:
    """Raise an error that names the extra to install if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plots", purpose)


def new_picture(purpose: str, width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; width and height are inches."""
    need_matplotlib(purpose)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_picture(figure: Figure, path: str | Path, **options: Any) -> None:
    """Write a figure in the format of its file name, without a date, so that the same data gives the same file."""
    kind = Path(path).suffix.lower()
    metadata: Any = _NO_DATE.get(kind, {})
    with atomic_binary(path) as file:
        figure.savefig(file, format=kind[1:], dpi=200, metadata=metadata, **options)


def page(title: str, body: Iterable[str]) -> str:
    """A self-contained HTML page under the heading ``title``; ``body`` is HTML, line by line."""
    lines = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        *body,
        "</body></html>",
    ]
    return "\n".join(lines).encode("utf-8", "replace").decode("utf-8") + "\n"


def write_page(path: str | Path, title: str, body: Iterable[str]) -> None:
    """Write a :func:`page`."""
    with atomic_text(path) as file:
        file.write(page(title, body))


def table(heads: Sequence[str], rows: Iterable[str]) -> str:
    """A table that scrolls where it is too wide; rows are HTML, and there may be no heads."""
    head = f"<tr>{''.join(f'<th>{html.escape(each)}</th>' for each in heads)}</tr>" if heads else ""
    return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>'


def words_and_gaps(text: str, analyzer: Analyzer) -> Iterator[tuple[str, Word | None]]:
    """The text in order: each word, and what is between words with ``None``."""
    done = 0
    for word in analyzer.words(text):
        if word.begin > done:
            yield text[done : word.begin], None
        yield text[word.begin : word.end], word
        done = word.end
    if done < len(text):
        yield text[done:], None


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
