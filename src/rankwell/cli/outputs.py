"""Outputs: checked when the command line is read, written at the end.

An option that names an output has the callback :func:`output_file` or :func:`output_folder`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from rankwell.core import progress
from rankwell.core.errors import RankwellError
from rankwell.core.stopping import interruptible
from rankwell.core.streams import check_output, check_parent, is_stream

if TYPE_CHECKING:
    from rankwell.rank.search_request import RunResult
    from rankwell.scale.workers import Cluster


def output_file(path: Path | None) -> Path | None:
    """Check an option that names a file to write; ``-`` is standard output. Its folder must exist."""
    if path is not None:
        check_output(path)
    return path


def output_folder(path: Path | None) -> Path | None:
    """Check an option that names a folder to make or to fill; the folder around it must exist."""
    if path is not None:
        check_parent(path)
    return path


def check_run(path: Path | None, tag: str | None, cluster: Cluster | None) -> None:
    """Raise unless a run called ``tag`` can be written to ``path``. Work on a cluster needs a file to resume for."""
    if tag is not None:
        from rankwell.corpus.formats.lines import writable_id

        writable_id(path or "the run", "run name", tag)
    if cluster is not None:
        need_file(path, "--ray")


def need_file(path: Path | None, reason: str) -> None:
    """Raise unless ``path`` is a file, because only work for a file can be resumed."""
    if path is None or is_stream(path):
        raise RankwellError(f"{reason} needs --out with a file, by whose name interrupted work is resumed")


def write_result(result: RunResult, out: Path, format: Literal["trec", "msmarco"]) -> None:
    """Write a run and its manifest, and print its report."""
    from rankwell.corpus.formats import write_run

    write_run(result.run, out, format=format)
    result.manifest.write_beside(out)
    say(out, result.report)


def say(out: Path, report: str) -> None:
    """Print a line about an output file."""
    print(f"{out}: {report}", file=reports(out))


def reports(out: Path | None) -> TextIO:
    """Where to print reports on an output: standard error if the output itself goes to standard output."""
    return sys.stderr if out is not None and is_stream(out) else sys.stdout


@contextmanager
def resumable() -> Iterator[None]:
    """Say how to resume the work inside if it is interrupted with Ctrl-C."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        progress.clear()
        print("rankwell: interrupted; rerun the command to resume", file=sys.stderr)
        raise
