"""Setup shared by all pictures and pages: file formats, figures, reproducible output."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.core.files import atomic_binary, atomic_text
from rankwell.corpus.analyser import Analyzer, Word

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_NO_DATE = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def check_picture(path: str | Path, *others: str) -> None:
    """Raise unless the file name ends in a supported picture format or in one of ``others``."""
    if Path(path).suffix.lower() not in (known := (*others, *FORMATS)):
        raise RankwellError(f"{path}: expected a name that ends in {', '.join(known)}")


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


def page(title: str, style: str, body: Iterable[str]) -> str:
    """A self-contained HTML page under the heading ``title``; ``body`` is HTML, line by line."""
    lines = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{style}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        *body,
        "</body></html>",
    ]
    return "\n".join(lines).encode("utf-8", "replace").decode("utf-8") + "\n"


def write_page(path: str | Path, title: str, style: str, body: Iterable[str]) -> None:
    """Write a :func:`page`."""
    with atomic_text(path) as file:
        file.write(page(title, style, body))


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
