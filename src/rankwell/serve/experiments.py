"""The results of experiments, for the page: what ``rankwell experiment`` wrote into a folder."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.jsonfile import read_object
from rankwell.serve.requests import LOG

PLOTS = {".png": "image/png", ".svg": "image/svg+xml"}
MOST_BYTES = 4 << 20


def check_experiments(folders: Sequence[Path]) -> None:
    """An error where a folder holds no results."""
    for folder in folders:
        read_experiment(folder)


def read_experiments(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Those that can be read now; an experiment may be writing its results anew."""
    found = []
    for folder in folders:
        try:
            found.append(read_experiment(folder))
        except RankwellError as error:
            LOG.warning("experiment", extra={"about": {"error": str(error)}})
    return found


def read_experiment(folder: Path) -> dict[str, Any]:
    """An experiment's tables, and its plots within the answer: an image of a page cannot bring a key."""
    try:
        results = read_object(folder / "results.json")
        plots = [
            f"data:{PLOTS[file.suffix]};base64,{b64encode(file.read_bytes()).decode()}"
            for file in sorted(folder.iterdir())
            if file.suffix in PLOTS and file.stat().st_size <= MOST_BYTES
        ]
    except OSError:
        raise InputError(folder, None, "no experiment's results here (it has no results.json)") from None
    if not isinstance(results.get("tables"), dict):
        raise InputError(folder / "results.json", None, "not the results of an experiment")
    return {"name": folder.resolve().name, "results": results, "plots": plots}
