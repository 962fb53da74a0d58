"""Pictures: what all that are drawn have in common."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.core.files import atomic_binary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_NO_DATE = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def check_picture(path: str | Path) -> None:
    """Whether a file's name says what kind of picture it shall be."""
    if Path(path).suffix.lower() not in FORMATS:
        raise RankwellError(f"{path}: a picture ends in {', '.join(FORMATS)}")


def need_matplotlib(purpose: str) -> None:
    """An error that names the extra where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plots", purpose)


def new_picture(purpose: str, width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches with one pair of axes."""
    need_matplotlib(purpose)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_picture(figure: Figure, path: str | Path, **options: Any) -> None:
    """Write a figure in the format its name says, without a date: what is drawn alike is the same file."""
    kind = Path(path).suffix.lower()
    metadata: Any = _NO_DATE.get(kind, {})
    with atomic_binary(path) as file:
        figure.savefig(file, format=kind[1:], dpi=200, metadata=metadata, **options)
