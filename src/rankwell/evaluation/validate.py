"""Check that a run belongs to the judgments.

Problems that make the figures meaningless are errors; those that make them doubtful are warnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Run
from rankwell.evaluation.notation import DEPTH, Measure


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with a run, described in one line. Errors stop the evaluation, warnings are only reported."""

    severity: Literal["error", "warning"]
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}"


def validate(qrels: Qrels, run: Run, measures: Iterable[Measure] = ()) -> list[Problem]:
    """All problems of ``run``, errors first.

    Rankings are checked for results and ties at the cut-offs of ``measures``, and queries for documents that are
    relevant at their levels. If there are errors, warnings are not looked for.

    >>> validate(Qrels({"q1": {"d": 1}}), Run.from_scores({"1": {"d": 0.5}}))[0].message
    "the run and the judgments have no query in common (the run has '1', the judgments 'q1')"
    """
    errors = [Problem("error", message) for message in find_errors(qrels, run)]
    if errors:
        return errors
    measures = tuple(measures)
    levels = sorted({m.level for m in measures}) or [1]
    depths = sorted({int(m.cutoff) for m in measures if m.kind.cutoff is DEPTH and m.cutoff is not None})
    return [Problem("warning", message) for message in find_warnings(qrels, run, depths, levels)]


def refuse_errors(qrels: Qrels, run: Run) -> None:
    """Raise the first error, if any."""
    for message in find_errors(qrels, run):
        raise RankwellError(f"cannot evaluate the run {run.name!r}: {message}")


def find_errors(qrels: Qrels, run: Run) -> Iterator[str]:
    """Problems that make every figure meaningless."""
    if not qrels:
        yield "the judgments are empty"
    elif not any(map(len, run.values())):
        yield "the run is empty"
    elif not any(qid in qrels for qid, ranking in run.items() if len(ranking)):
        ours, theirs = next(qid for qid in run if len(run[qid])), next(iter(qrels))
        yield f"the run and the judgments have no query in common (the run has {ours!r}, the judgments {theirs!r})"
    for qid, ranking in run.items():
        finite = np.isfinite(ranking.scores)
        if not finite.all():
            place = int(finite.argmin())
            yield f"query {qid}, document {ranking.docids[place]}: the score is {ranking.scores[place]}, not a number"


def find_warnings(qrels: Qrels, run: Run, depths: list[int], levels: list[int]) -> Iterator[str]:
    """Problems that make the figures doubtful."""
    judged = {qid: ranking for qid, ranking in run.items() if qid in qrels}
    if unknown := [qid for qid in run if qid not in qrels]:
        yield f"{count(unknown, 'query')} of the run without judgments, left out ({some(unknown)})"
    if missing := [qid for qid in qrels if not run.get(qid)]:
        yield f"{count(missing, 'judged query')} without results, counted as 0 ({some(missing)})"
    for level in levels:
        wanted = "a relevant document" if level == 1 else f"a document of grade {level} or higher (rel={level})"
        if barren := [qid for qid, grades in qrels.items() if not any(grade >= level for grade in grades.values())]:
            yield f"{count(barren, 'judged query')} without {wanted}, counted as 0 ({some(barren)})"
    if not any(docid in qrels[qid] for qid, ranking in judged.items() for docid in ranking.docids):
        qid, ranking = next((qid, ranking) for qid, ranking in judged.items() if len(ranking))
        ours, theirs = ranking.docids[0], next(iter(qrels[qid]), "none")
        yield f"no retrieved document is judged; do the ids match? (the run has {ours!r}, the judgments {theirs!r})"
    if flat := [qid for qid, ranking in judged.items() if len(ranking) > 1 and ranking.scores[0] == ranking.scores[-1]]:
        yield f"{count(flat, 'query')} with the same score for every document, ordered by id alone ({some(flat)})"
    if depths and (short := [qid for qid, ranking in judged.items() if 0 < len(ranking) < depths[-1]]):
        least = min(len(judged[qid]) for qid in short)
        yield f"{count(short, 'query')} with fewer than {depths[-1]} results, the fewest {least} ({some(short)})"
    for depth in depths:
        tied = [
            qid
            for qid, ranking in judged.items()
            if len(ranking) > depth and ranking.scores[depth - 1] == ranking.scores[depth]
        ]
        if tied:
            yield f"{count(tied, 'query')} with documents tied across rank {depth}, ordered by id ({some(tied)})"


def count(items: list[str], noun: str) -> str:
    """``1 query``, ``2 queries``."""
    return f"{len(items)} {noun if len(items) == 1 else noun.removesuffix('y') + 'ies'}"


def some(items: list[str], limit: int = 3) -> str:
    """The first few of ``items``."""
    return ", ".join(items[:limit]) + (", …" if len(items) > limit else "")
