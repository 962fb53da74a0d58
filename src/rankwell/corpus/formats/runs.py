"""Runs and judgments: TREC's and MS MARCO's columns, or any table that names its fields.

The score decides the order, as in trec_eval; TREC's rank column is ignored. Files with ranks only, such as MS MARCO's,
have the scores 1/rank. Scores are written as the shortest decimal that reads back as the same 32-bit float, so a run
that is written and read again is the same run. Files named ``.npz`` hold the same in arrays, for rankwell's own use: a
run of millions of documents is read in seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import chain
from math import nan
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rankwell.core.arrays import Scores
from rankwell.core.errors import InputError, RankwellError, excerpt, one_line
from rankwell.core.files import Unpacked, atomic_binary
from rankwell.corpus.formats.lines import (
    FilePath,
    Lines,
    by_query,
    whole_number,
    writable_id,
    writable_ids,
    write_lines,
    wrong_columns,
)
from rankwell.corpus.formats.pairs import PairRows, open_pairs, whole
from rankwell.corpus.records import GRADE_LIMIT, Qrels, Ranking, Run

TREC = ("query id", "Q0", "document id", "rank", "score", "run name")
MSMARCO = ("query id", "document id", "rank")
# From here on a number rounds to infinity as a 32-bit float.
SCORE_LIMIT = float(np.finfo(np.float32).max) + 2.0**103
RANK_LIMIT = 2**63
ARRAYS = ".npz"
ARRAY_TYPES = {"ids": np.uint8, "ends": np.int64, "documents": np.int32, "scores": np.float32}
RUN_FIELDS = {"score": ("score", "relevancescore", "similarity"), "rank": ("rank", "position")}

Rows = Iterator[tuple[int, str, str, float]]


def read_run(path: FilePath, *, name: str | None = None) -> Run:
    """Read a run: TREC, MS MARCO, or a table with named ids and scores or ranks.

    ``name`` defaults to the run name in the file, or else to the file name.
    """
    if Path(path).suffix == ARRAYS:
        return _read_arrays(path, name)
    opened, tag = open_pairs(path, "a run", RUN_FIELDS), Path(path).name
    if not isinstance(opened, tuple):
        rows = _named_scores(path, opened)
    else:
        first, lines = opened
        columns = first.split()
        if len(columns) >= len(TREC):
            rows, tag = _trec_rows(path, lines), columns[5]
        elif len(columns) == len(MSMARCO):
            rows = _msmarco_rows(path, lines)
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
        yield number, columns[0], columns[2], _score(path, number, columns[4])


def _score(path: FilePath, number: int, value: Any) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = nan
    if not -SCORE_LIMIT < score < SCORE_LIMIT or "_" in str(value):  # Python takes 1_000 for a number
        problem = f"the score is {excerpt(str(value))}, expected a finite number (32-bit float)"
        raise InputError(path, number, problem)
    return score


def _msmarco_rows(path: FilePath, lines: Lines) -> Rows:
    for number, line in lines:
        columns = line.split()
        if not columns or columns[0].startswith("#"):
            continue
        if len(columns) != len(MSMARCO):
            raise wrong_columns(path, number, line, columns, MSMARCO)
        qid, docid, text = columns
        yield number, qid, docid, _reciprocal(path, number, text)


def _named_scores(path: FilePath, rows: PairRows) -> Rows:
    for number, qid, docid, values in rows:
        by_score = "score" in values
        score = _score(path, number, values["score"]) if by_score else _reciprocal(path, number, str(values["rank"]))
        yield number, qid, docid, score


def _reciprocal(path: FilePath, number: int, text: str) -> float:
    """The score of a rank."""
    try:
        rank = whole_number(text)
    except ValueError:
        rank = 0
    if not 1 <= rank <= RANK_LIMIT:
        raise InputError(path, number, f"the rank is {excerpt(text)}, expected a whole number from 1")
    return 1.0 / rank


def write_run(run: Run, path: FilePath, *, format: Literal["trec", "msmarco"] = "trec") -> None:
    """Write ``run`` whole or not at all. The format ``msmarco`` has ranks but no scores; ``.npz`` files hold arrays."""
    if Path(path).suffix == ARRAYS:
        _write_arrays(run, path)
        return
    if format not in ("trec", "msmarco"):
        raise RankwellError(f"no run format is called {format!r} (known: trec, msmarco)")
    write_lines(path, "ranked documents", trec_lines(run, path) if format == "trec" else _msmarco_lines(run, path))


def trec_lines(run: Run, path: FilePath) -> Iterator[str]:
    """The lines of a TREC file, those of a query together; ``path`` is its name in errors."""
    name = writable_id(path, "run name", run.name)
    for qid, ranking in run.items():
        writable_ids(path, qid, ranking.docids)
        rows = enumerate(zip(ranking.docids, decimals(ranking.scores), strict=True), 1)
        if lines := "".join([f"{qid} Q0 {docid} {rank} {score} {name}\n" for rank, (docid, score) in rows]):
            yield lines


def _msmarco_lines(run: Run, path: FilePath) -> Iterator[str]:
    for qid, ranking in run.items():
        writable_ids(path, qid, ranking.docids)
        for rank, docid in enumerate(ranking.docids, 1):
            yield f"{qid}\t{docid}\t{rank}\n"


def _write_arrays(run: Run, path: FilePath) -> None:
    """Each document id once, as JSON, and the rankings as places among them."""
    docids = list(chain.from_iterable(ranking.docids for ranking in run.values()))
    places = {docid: place for place, docid in enumerate(dict.fromkeys(docids))}
    documents = np.fromiter(map(places.__getitem__, docids), np.int32, len(docids))
    ids = json.dumps({"name": run.name, "qids": list(run), "docids": list(places)})
    with atomic_binary(path) as file:
        np.savez(
            file,
            ids=np.frombuffer(ids.encode(), np.uint8),
            ends=np.cumsum([len(ranking) for ranking in run.values()], dtype=np.int64),
            documents=documents,
            scores=np.concatenate([np.zeros(0, np.float32), *(ranking.scores for ranking in run.values())]),
        )


def _read_arrays(path: FilePath, name: str | None) -> Run:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            sizes = [member.file_size for member in arrays.zip.infolist()]  # no more is read of each
            Unpacked(path, os.stat(path).st_size).add(sum(sizes))
            parts = [arrays[key].astype(kind, casting="equiv").ravel() for key, kind in ARRAY_TYPES.items()]
        ids, ends, (documents, scores) = json.loads(parts[0].tobytes()), parts[1].tolist(), parts[2:]
        if sorted(ends) != ends or not len(documents) == len(scores) == max(0, *ends[-1:]):
            raise ValueError("rankings that overlap or have no scores")
        docids = np.array(ids["docids"], object)[documents].tolist()
        spans = zip(ids["qids"], [0, *ends[:-1]], ends, strict=True)
        rankings = {qid: Ranking(tuple(docids[begin:end]), scores[begin:end]) for qid, begin, end in spans}
        return Run(rankings, name=name or ids["name"])
    except RankwellError:
        raise
    except Exception as error:  # numpy, zipfile and zlib have many
        raise InputError(path, None, f"cannot be read as a run that rankwell stored ({one_line(error)})") from None


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
BEIR_HEADER = ["query-id", "corpus-id", "score"]
GRADES = {"grade": ("grade", "score", "relevance", "label", "rel", "relevant", "judgment")}


def read_qrels(path: FilePath) -> Qrels:
    """Read judgments: TREC's or MS MARCO's four columns, or a table with named ids and grades, such as BEIR's."""
    opened = open_pairs(path, "qrels", GRADES)
    rows = _trec_grades(path, *opened) if isinstance(opened, tuple) else _named_grades(path, opened)
    grades = by_query(path, rows)
    if not grades:
        raise InputError(path, None, "is empty, expected qrels")
    return Qrels(grades)


def _trec_grades(path: FilePath, first: str, lines: Lines) -> Iterator[tuple[int, str, str, int]]:
    if (count := len(first.split())) != len(QRELS):
        # Three columns without the header may be an MS MARCO run, whose ranks must not be read as grades.
        hint = "; is this a run?" if count in (3, 6) else ""
        problem = f"found {count} column{'s' * (count != 1)}, expected {len(QRELS)} ({', '.join(QRELS)}) or a header "
        raise InputError(path, next(lines)[0], f"{problem}such as {','.join(BEIR_HEADER)}{hint}: {excerpt(first)}")
    for number, line in lines:
        columns = line.split()
        if not columns or columns[0].startswith("#"):
            continue
        if len(columns) != len(QRELS):
            raise wrong_columns(path, number, line, columns, QRELS)
        try:
            grade = whole_number(columns[-1])
        except ValueError:
            raise InputError(path, number, f"the grade is {excerpt(columns[-1])}, expected a whole number") from None
        yield number, columns[0], columns[-2], _checked(path, number, grade)


def _named_grades(path: FilePath, rows: PairRows) -> Iterator[tuple[int, str, str, int]]:
    for number, qid, docid, values in rows:
        yield number, qid, docid, _checked(path, number, whole(path, number, "grade", values["grade"]))


def _checked(path: FilePath, number: int, grade: int) -> int:
    if not -GRADE_LIMIT < grade < GRADE_LIMIT:
        raise InputError(path, number, f"the grade is {excerpt(str(grade))}, expected a number of at most 63 bits")
    return grade


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
