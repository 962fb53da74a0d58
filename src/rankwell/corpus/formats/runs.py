"""Runs: TREC's six columns and MS MARCO's three.

The score decides the order, as in trec_eval; TREC's rank column is ignored. MS MARCO files have ranks only, which
become the scores 1/rank. Scores are written as the shortest decimal that reads back as the same 32-bit float, so a run
that is written and read again is the same run.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from pathlib import Path
from typing import Literal

import numpy as np

from rankwell.core.arrays import Scores
from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.corpus.formats.lines import (
    FilePath,
    Lines,
    by_query,
    open_lines,
    whole_number,
    writable_id,
    writable_ids,
    write_lines,
    wrong_columns,
)
from rankwell.corpus.records import GRADE_LIMIT, Qrels, Run

TREC = ("query id", "Q0", "document id", "rank", "score", "run name")
MSMARCO = ("query id", "document id", "rank")
# From here on a number rounds to infinity as a 32-bit float.
SCORE_LIMIT = float(np.finfo(np.float32).max) + 2.0**103
RANK_LIMIT = 2**63

Rows = Iterator[tuple[int, str, str, float]]


def read_run(path: FilePath, *, name: str | None = None) -> Run:
    """Read a TREC or MS MARCO run; ``name`` defaults to the run name in the file, or else to the file name."""
    first, lines = open_lines(path, "a run", comments=True)
    columns = first.split()
    if len(columns) >= len(TREC):
        rows, tag = _trec_rows(path, lines), columns[5]
    elif len(columns) == len(MSMARCO):
        rows, tag = _msmarco_rows(path, lines), Path(path).name
    else:
        hint = "; is this a qrels file?" if len(columns) == 4 else ""
        number = next(lines)[0]
        problem = f"found {len(columns)} columns, expected {len(TREC)} ({', '.join(TREC)}) or {len(MSMARCO)} "
        raise InputError(path, number, f"{problem}({', '.join(MSMARCO)}){hint}: {excerpt(first)}")
    scores = by_query(path, rows)
    if not scores:
        raise InputError(path, None, "is empty, expected a run")
    return Run.from_scores(scores, name=name or tag)


def _trec_rows(path: FilePath, lines: Lines) -> Rows:
    for number, line in lines:
        columns = line.split()
        if not columns or columns[0][0] == "#":
            continue
        # trec_eval ignores text after the run name. But a number there means that an id contained a space.
        if len(columns) != len(TREC) and (len(columns) < len(TREC) or columns[5][0] in "-.0123456789"):
            raise wrong_columns(path, number, line, columns, TREC)
        try:
            score = float(columns[4])
        except ValueError:
            score = nan
        if not -SCORE_LIMIT < score < SCORE_LIMIT or "_" in columns[4]:  # Python takes 1_000 for a number
            problem = f"the score is {excerpt(columns[4])}, expected a finite number (32-bit float)"
            raise InputError(path, number, problem)
        yield number, columns[0], columns[2], score


def _msmarco_rows(path: FilePath, lines: Lines) -> Rows:
    for number, line in lines:
        columns = line.split()
        if not columns or columns[0].startswith("#"):
            continue
        if len(columns) != len(MSMARCO):
            raise wrong_columns(path, number, line, columns, MSMARCO)
        qid, docid, text = columns
        try:
            rank = whole_number(text)
        except ValueError:
            rank = 0
        if not 1 <= rank <= RANK_LIMIT:
            raise InputError(path, number, f"the rank is {excerpt(text)}, expected a whole number from 1")
        yield number, qid, docid, 1.0 / rank


def write_run(run: Run, path: FilePath, *, format: Literal["trec", "msmarco"] = "trec") -> None:
    """Write ``run`` whole or not at all. The format ``msmarco`` has ranks but no scores."""
    if format not in ("trec", "msmarco"):
        raise RankwellError(f"no run format is called {format!r} (known: trec, msmarco)")
    write_lines(path, "ranked documents", trec_lines(run, path) if format == "trec" else _msmarco_lines(run, path))


def trec_lines(run: Run, path: FilePath) -> Iterator[str]:
    """The lines of a TREC file; ``path`` is its name in errors."""
    name = writable_id(path, "run name", run.name)
    for qid, ranking in run.items():
        writable_ids(path, qid, ranking.docids)
        for rank, (docid, score) in enumerate(zip(ranking.docids, decimals(ranking.scores), strict=True), 1):
            yield f"{qid} Q0 {docid} {rank} {score} {name}\n"


def _msmarco_lines(run: Run, path: FilePath) -> Iterator[str]:
    for qid, ranking in run.items():
        writable_ids(path, qid, ranking.docids)
        for rank, docid in enumerate(ranking.docids, 1):
            yield f"{qid}\t{docid}\t{rank}\n"


def decimals(scores: Scores) -> list[str]:
    """The shortest decimals that read back as ``scores``."""
    texts = list(map(str, scores))
    # A decimal is read as a 64-bit float first; the few that then round to the wrong neighbour are written in full.
    read = np.array(list(map(float, texts)), np.float32)
    for i in np.flatnonzero(read != scores):
        texts[i] = repr(float(scores[i]))
    return texts


# Judgments


QRELS = ("query id", "0", "document id", "grade")
BEIR = ("query id", "document id", "grade")
BEIR_HEADER = ["query-id", "corpus-id", "score"]


def read_qrels(path: FilePath) -> Qrels:
    """Read TREC, MS MARCO or BEIR judgments."""
    first, lines = open_lines(path, "qrels", comments=True)
    columns = first.split()
    if columns == BEIR_HEADER:
        next(lines)
        names: tuple[str, ...] = BEIR
    elif len(columns) == len(QRELS):
        names = QRELS
    else:
        # Three columns without the header may be an MS MARCO run, whose ranks must not be read as grades.
        hint = "; is this a run?" if len(columns) in (3, 6) else ""
        problem = f"found {len(columns)} columns, expected {len(QRELS)} ({', '.join(QRELS)}) or the header "
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
