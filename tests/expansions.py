"""Writes files of expansions, as ``rankwell expand`` does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rankwell.corpus.formats.lines import write_lines
from rankwell.corpus.formats.texts import Expansion, expansion_line


def write_expansions(expansions: Iterable[Expansion], path: Path) -> None:
    write_lines(path, "expansions", (expansion_line(path, expansion) for expansion in expansions))
