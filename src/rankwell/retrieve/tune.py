"""Tuning BM25's k1 and b on judged queries: every point of a grid is searched once and cross-validated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.corpus.records import Qrels, Query
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import parse_measure
from rankwell.evaluation.tuning import Tuned, check_folds
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index


def parse_values(text: str) -> list[float]:
    """``0.3:0.9:0.3`` or ``0.3,0.6,0.9`` as numbers.

    >>> parse_values("0.3:0.9:0.3")
    [0.3, 0.6, 0.9]
    """
    try:
        if ":" not in text:
            return [float(part) for part in text.split(",")]
        first, last, step = (float(part) for part in text.split(":"))
        count = math.floor((last - first) / step + 1e-9) + 1
        if step <= 0 or not 1 <= count <= 1000:
            raise ValueError
        return [round(first + i * step, 10) for i in range(count)]
    except (ValueError, ArithmeticError):
        raise RankwellError(f"{text!r} is neither FIRST:LAST:STEP nor a list of numbers separated by commas") from None


def tune_bm25(
    index: Index,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    measure: str = "RR@10",
    k1: Sequence[float],
    b: Sequence[float],
    folds: int = 5,
    seed: int = 0,
    threads: int = 1,
) -> Tuned[BM25]:
    """Search the judged queries at every point of the grid; the default k1 and b are always among them."""
    parsed = parse_measure(measure)
    judged = [query for query in queries if query.qid in qrels]
    if not judged:
        raise RankwellError("none of the queries is judged in the qrels")
    settings = list(dict.fromkeys([*(BM25(*point) for point in product(k1, b)), BM25()]))
    wanted = Qrels({query.qid: qrels[query.qid] for query in judged})
    depth = min(1000, parsed.cutoff) if isinstance(parsed.cutoff, int) else 1000
    check_folds(len(judged), folds)
    rows = []
    for bm25 in track(settings, "tuning", unit="settings"):
        run = index.search(judged, bm25, k=depth, threads=threads)
        rows.append(evaluate(wanted, run, [parsed]).values[0])
    return Tuned.choose(str(parsed), settings, list(wanted), np.stack(rows), folds=folds, seed=seed)


def grid_table(tuned: Tuned[BM25]) -> str:
    """The figures as text, k1 down and b across, with those of the best and the default values."""
    table = tuned.table("k1 (down) and b (across)", lambda bm25: bm25.k1, lambda bm25: bm25.b, _options)
    if BM25() in tuned.settings:
        table += f"\ndefault: {_options(BM25())}, {tuned.means[tuned.settings.index(BM25())]:.4f}"
    return table


def _options(bm25: BM25) -> str:
    return f"--k1 {bm25.k1:g} --b {bm25.b:g}"


def as_point(bm25: BM25) -> dict[str, Any]:
    """k1 and b for a JSON file."""
    return {"k1": bm25.k1, "b": bm25.b}
