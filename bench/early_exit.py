"""Early exit over candidates: what is lost, and how much is scored, when re-ranking stops before the end of the list.

    python bench/early_exit.py SCORES.npz [SCORES.npz …]

A file holds, for the queries ``choice`` and ``dev``, the scores of first stage and model and which candidates are
relevant: ``dev.first``, ``dev.model`` and ``dev.relevant``, (queries, candidates) each, in the first stage's order.
Scores are standardised and summed with the share of the model that is best on ``choice``. Two rules are compared: the
first N candidates, and going on in steps of 10 from 20 while a candidate whose model score lies REACH standard
deviations above the mean could still enter the top ten.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness import Table, make_parser

FIRST, STEP, TOP = 20, 10, 10
DEPTHS, REACHES = (20, 30, 50), (1.0, 1.5, 2.0)


def standardised(scores: Any) -> Any:
    """Each row with mean 0 and variance 1."""
    return (scores - scores.mean(axis=-1, keepdims=True)) / np.maximum(scores.std(axis=-1, keepdims=True), 1e-9)


def reciprocal_rank(scores: Any, relevant: Any) -> float:
    """RR@10 of one query."""
    hits = relevant[np.argsort(-scores, kind="stable")[:TOP]]
    return 1 / (int(hits.argmax()) + 1) if hits.any() else 0.0


def cut(first: Any, model: Any, relevant: Any, share: float, depth: int) -> float:
    """RR@10 if ``depth`` candidates are scored."""
    return reciprocal_rank(share * standardised(model[:depth]) + (1 - share) * first[:depth], relevant[:depth])


def exit_early(first: Any, model: Any, relevant: Any, share: float, reach: float) -> tuple[float, int]:
    """RR@10 and the number of candidates scored by the second rule."""
    depth = FIRST
    while depth < len(first):
        blended = share * standardised(model[:depth]) + (1 - share) * first[:depth]
        if share * reach + (1 - share) * first[depth] < np.partition(blended, -TOP)[-TOP]:
            break
        depth += STEP
    return cut(first, model, relevant, share, depth), depth


def main() -> None:
    """Print a row for each file."""
    parser = make_parser(__doc__)
    parser.add_argument("scores", type=Path, nargs="+")
    options = parser.parse_args()
    rules = [*(f"first {depth}" for depth in DEPTHS), *(f"reach {reach:g} (scored)" for reach in REACHES)]
    table = Table("scores", "share", "RR@10", *rules)
    for path in options.scores:
        data = np.load(path)
        parts: dict[str, list[Any]] = {
            part: [
                standardised(data[f"{part}.first"].astype(np.float64)),
                data[f"{part}.model"].astype(np.float64),
                data[f"{part}.relevant"],
            ]
            for part in ("choice", "dev")
        }

        def mean(part: str, share: float, depth: int, parts: Any = parts) -> float:
            return float(np.mean([cut(f, m, r, share, depth) for f, m, r in zip(*parts[part], strict=True)]))

        whole = parts["dev"][0].shape[1]
        share = max(np.linspace(0, 1, 11).tolist(), key=lambda share: mean("choice", share, whole))
        full = mean("dev", share, whole)
        cells = [f"{mean('dev', share, depth) - full:+.4f}" for depth in DEPTHS]
        for reach in REACHES:
            values = [exit_early(f, m, r, share, reach) for f, m, r in zip(*parts["dev"], strict=True)]
            loss, scored = np.mean(values, axis=0) - (full, 0)
            cells.append(f"{loss:+.4f} ({scored:.0f})")
        table.row(path.stem, f"{share:.1f}", f"{full:.4f}", *cells)


if __name__ == "__main__":
    main()
