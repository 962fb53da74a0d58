"""Output files: checked before the work begins, written at its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankwell.core.errors import RankwellError

if TYPE_CHECKING:
    from rankwell.rank.search_request import RunResult


def check_output(path: Path, tag: str | None = None) -> None:
    """Raise unless a file can be written there and can hold the run name ``tag``."""
    if path.is_dir():
        raise RankwellError(f"cannot write {path}: is a directory")
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise RankwellError(f"cannot write {path}: {nearest.name} is not a directory")
    if not os.access(nearest, os.W_OK):
        raise RankwellError(f"cannot write {path}: permission denied in {nearest}")
    if tag is not None:
        from rankwell.corpus.formats.lines import writable_id

        writable_id(path, "run name", tag)


def write_result(result: RunResult, out: Path, format: Literal["trec", "msmarco"]) -> None:
    """Write a run and its manifest, and print its report."""
    from rankwell.corpus.formats import write_run

    write_run(result.run, out, format=format)
    result.manifest.write_beside(out)
    print(f"{out}: {result.report}")
