"""Tuning BM25's k1 and b on development queries: a grid, each point searched once, chosen by cross-validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.jsonfile import write_json
from rankwell.core.progress import track
from rankwell.corpus.records import Qrels, Query
from rankwell.evaluation.cross_validation import CrossValidation, check_folds, cross_validate
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import parse_measure
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

DEFAULT = (0.9, 0.4)


@dataclass(frozen=True, eq=False)
class Tuning:
    """The grid's settings ``(k1, b)``, their figures for each query, and what cross-validation chose."""

    measure: str
    settings: tuple[tuple[float, float], ...]
    values: NDArray[np.float64]
    found: CrossValidation

    @property
    def best(self) -> tuple[float, float]:
        """The k1 and b to use from now on."""
        return self.settings[self.found.best]

    def table(self) -> str:
        """The grid as text, k1 down and b across, and the figures to quote."""
        means = dict(zip(self.settings, self.values.mean(axis=1).tolist(), strict=True))
        k1s, bs = sorted({k1 for k1, _ in self.settings}), sorted({b for _, b in self.settings})
        lines = [f"{self.measure} by k1 (down) and b (across)", "", " k1 \\ b" + "".join(f"{b:>8g}" for b in bs)]
        for k1 in k1s:
            # The default's row and column hold nothing else where they are not of the grid.
            cells = [
                f"{means[k1, b]:.4f}{'*' if (k1, b) == self.best else ' '}" if (k1, b) in means else "" for b in bs
            ]
            lines.append((f"{k1:>7g}" + "".join(f"{cell:>8}" for cell in cells)).rstrip())
        k1, b = self.best
        lines += [
            "",
            f"best on all {self.values.shape[1]:,} queries   --k1 {k1:g} --b {b:g}   {means[self.best]:.4f}",
            f"cross-validated, {len(self.found.chosen)} folds         {self.found.mean:.4f}",
        ]
        if DEFAULT in means:
            lines.append(f"default --k1 {DEFAULT[0]:g} --b {DEFAULT[1]:g}             {means[DEFAULT]:.4f}")
        return "\n".join(lines)

    def write(self, path: Path, **more: Any) -> None:
        """Write the grid and the choice as JSON, and whatever ``more`` was tuned after them."""
        means = self.values.mean(axis=1).tolist()
        grid = [{"k1": k1, "b": b, "mean": mean} for (k1, b), mean in zip(self.settings, means, strict=True)]
        chosen = [dict(zip(("k1", "b"), self.settings[i], strict=True)) for i in self.found.chosen]
        best = dict(zip(("k1", "b"), self.best, strict=True))
        figures = {"measure": self.measure, "best": best, "cross_validated": self.found.mean}
        write_json(path, {**figures, "folds": chosen, "grid": grid, **more})


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
        raise RankwellError(f"{text!r} is neither FIRST:LAST:STEP nor a list of numbers with commas") from None


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
) -> Tuning:
    """Search the judged queries at every point of the grid; the default k1 and b are always among them."""
    parsed = parse_measure(measure)
    judged = [query for query in queries if query.qid in qrels]
    if not judged:
        raise RankwellError("none of the queries is judged in the qrels")
    settings = tuple(dict.fromkeys([*product(k1, b), DEFAULT]))
    wanted = Qrels({query.qid: qrels[query.qid] for query in judged})
    depth = min(1000, parsed.cutoff) if isinstance(parsed.cutoff, int) else 1000
    for setting in settings:
        BM25(*setting)  # one that is none is an error now, not at its turn
    check_folds(len(judged), folds)
    rows = []
    for setting in track(settings, "tuning", unit="settings"):
        run = index.search(judged, k=depth, k1=setting[0], b=setting[1], threads=threads)
        rows.append(evaluate(wanted, run, [parsed]).values[0])
    values = np.stack(rows)
    return Tuning(str(parsed), settings, values, cross_validate(values, folds=folds, seed=seed))
