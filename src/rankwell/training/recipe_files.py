"""The recipes and suites that ship with rankwell, found by name.

Imports nothing heavy, so that a wrong name is reported at once.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Literal

from rankwell.core.errors import InputError

_PACKAGE = Path(__file__).parents[1]
FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes")
"""Where they are: in an installed package, or beside the sources of a clone."""
SAMPLE_FOLDER = _PACKAGE / "sample"
"""The bundled sample, which suites name as a data set."""
PAPERS = "papers"
_PLACES = {"recipe": (".", PAPERS), "suite": ("suites",)}
Kind = Literal["recipe", "suite"]


def find_recipe(name: str | os.PathLike[str], kind: Kind = "recipe", folder: Path | None = None) -> Path:
    """The file of a recipe: a path, relative to ``folder``, or a name such as ``listwise`` or ``papers/drbert``.

    ``recipes/listwise.yaml`` is found from anywhere, too. A folder is not a recipe: ``train drbert --out drbert`` makes
    one of the recipe's name.
    """
    path = Path(name) if folder is None else folder / name
    if path.exists() and not path.is_dir():
        return path
    shipped = shipped_recipes(kind)
    short = "/".join(part for part in Path(name).parts if part not in ("recipes", "suites")).removesuffix(".yaml")
    if short in shipped:
        return shipped[short]
    if path.is_dir():
        raise InputError(name, None, f"is a folder, expected the file or the name of a {kind}")
    close = difflib.get_close_matches(short, shipped, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; known by name: {', '.join(shipped)}"
    raise InputError(name, None, f"no such file, and no {kind} of that name{hint if shipped else ''}")


def shipped_recipes(kind: Kind = "recipe") -> dict[str, Path]:
    """The recipes or suites that ship, by name; those with a paper's own settings as ``papers/NAME``."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        return {}
    return {
        f"{PAPERS}/{path.stem}" if place == PAPERS else path.stem: path
        for place in _PLACES[kind]
        for path in sorted((folder / place).glob("*.yaml"))
    }
