"""Judgments: TREC's and MS MARCO's four columns, and BEIR's three under a header."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.corpus.formats.lines import (
    FilePath,
    Lines,
    by_query,
    open_lines,
    whole_number,
    writable_ids,
    write_lines,
    wrong_columns,
)
from rankwell.corpus.records import GRADE_LIMIT, Qrels

TREC = ("query id", "0", "document id", "grade")
BEIR = ("query id", "document id", "grade")
BEIR_HEADER = ["query-id", "corpus-id", "score"]


def read_qrels(path: FilePath) -> Qrels:
    """Read TREC, MS MARCO or BEIR judgments."""
    first, lines = open_lines(path, "qrels", comments=True)
    columns = first.split()
    if columns == BEIR_HEADER:
        next(lines)
        names: tuple[str, ...] = BEIR
    elif len(columns) == len(TREC):
        names = TREC
    else:
        # Three columns without the header may be an MS MARCO run, whose ranks must not be read as grades.
        hint = "; is this a run?" if len(columns) in (3, 6) else ""
        problem = f"found {len(columns)} columns, expected {len(TREC)} ({', '.join(TREC)}) or the header "
        raise InputError(path, next(lines)[0], f"{problem}{excerpt(chr(9).join(BEIR_HEADER))}{hint}: {excerpt(first)}")
    grades = by_query(path, _rows(path, lines, names))
    if not grades:
        raise InputError(path, None, "is empty, expected qrels")
    return Qrels(grades)


def _rows(path: FilePath, lines: Lines, names: tuple[str, ...]) -> Iterator[tuple[int, str, str, int]]:
    for number, line in lines:
        columns = line.split()
        if not columns or columns[0].startswith("#"):
            continue
        if len(columns) != len(names):
            raise wrong_columns(path, number, line, columns, names)
        try:
            grade = whole_number(columns[-1])
        except ValueError:
            raise InputError(path, number, f"the grade is {excerpt(columns[-1])}, expected a whole number") from None
        if not -GRADE_LIMIT < grade < GRADE_LIMIT:
            raise InputError(path, number, f"the grade is {excerpt(columns[-1])}, expected a number of at most 63 bits")
        yield number, columns[0], columns[-2], grade


def write_qrels(qrels: Qrels, path: FilePath, *, format: Literal["trec", "beir"] = "trec") -> None:
    """Write ``qrels`` whole or not at all."""
    if format not in ("trec", "beir"):
        raise RankwellError(f"no qrels format is called {format!r} (known: trec, beir)")
    write_lines(path, "judgments", _lines(qrels, path, format))


def _lines(qrels: Qrels, path: FilePath, format: str) -> Iterator[str]:
    header, zero, tab = ("\t".join(BEIR_HEADER) + "\n", "", "\t") if format == "beir" else ("", " 0", " ")
    for qid, grades in qrels.items():
        writable_ids(path, qid, grades)
        for docid, grade in grades.items():
            yield f"{header}{qid}{zero}{tab}{docid}{tab}{grade}\n"
            header = ""
