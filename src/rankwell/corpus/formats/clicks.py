"""Clicks as judgments: documents that are clicked more often than others at their positions are relevant.

Users click on what is shown first, so a pair of query and document is judged by its clicks over the clicks expected at
its positions (COEC): the sum of its impressions at each position, times the mean click-through rate there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rankwell.core.errors import InputError
from rankwell.corpus.formats.lines import FilePath
from rankwell.corpus.formats.pairs import open_pairs, whole
from rankwell.corpus.records import Qrels

FIELDS = {
    "position": ("position", "rank", "pos"),
    "impressions": ("impressions", "impression", "views", "shown"),
    "clicks": ("clicks", "clicked", "click"),
}
LEAST_IMPRESSIONS = 10
"""Pairs that were shown less often are not judged."""
PRIOR = 2.0
"""Added to the clicks of each pair and to the expected ones, so that a single click shows little."""
LEAST_RATIO = 1.25
"""Clicks over expected clicks from which on a document is relevant; from twice as many on, its grade is 2."""


def read_clicks(path: FilePath) -> tuple[Qrels, str]:
    """Judgments from clicks, and a line that says how many pairs were used.

    A row has a query, a document, a position, and either impressions and clicks, or whether it was clicked.
    """
    opened = open_pairs(path, "clicks", FIELDS)
    if isinstance(opened, tuple):
        header = "query_id,doc_id,position,impressions,clicks"
        raise InputError(path, next(opened[1])[0], f"no header, expected one such as {header}")
    shown: dict[tuple[str, str], Counter[int]] = {}
    clicked: Counter[tuple[str, str]] = Counter()
    views, clicks = Counter[int](), Counter[int]()
    for number, qid, docid, values in opened:
        for name in ("position", "clicks"):
            if name not in values:
                raise InputError(path, number, f"clicks: no field for the {name}; found {', '.join(values)}")
        counts = {name: whole(path, number, name, value) for name, value in values.items()}
        position, times = counts["position"], counts.get("impressions", 1)
        if position < 1 or not 0 <= counts["clicks"] <= times:
            problem = f"position {position}, {counts['clicks']} clicks on {times} impressions"
            raise InputError(path, number, f"{problem}; expected positions from 1, and no more clicks than impressions")
        shown.setdefault((qid, docid), Counter())[position] += times
        clicked[qid, docid] += counts["clicks"]
        views[position] += times
        clicks[position] += counts["clicks"]
    rates = {position: clicks[position] / count for position, count in views.items() if count}
    grades: dict[str, dict[str, int]] = {}
    for (qid, docid), at in shown.items():
        if at.total() >= LEAST_IMPRESSIONS:
            grades.setdefault(qid, {})[docid] = _grade(clicked[qid, docid], at, rates)
    used = sum(map(len, grades.values()))
    dropped = f"{len(shown) - used:,} dropped (fewer than {LEAST_IMPRESSIONS} impressions)"
    return Qrels(grades), f"clicks on {len(shown):,} pairs of query and document: {used:,} used, {dropped}"


def _grade(clicks: int, shown: Mapping[int, int], rates: Mapping[int, float]) -> int:
    expected = sum(times * rates[position] for position, times in shown.items())
    ratio = (clicks + PRIOR) / (expected + PRIOR)
    return (ratio >= LEAST_RATIO) + (ratio >= 2 * LEAST_RATIO)
