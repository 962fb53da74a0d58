"""Clicks as judgments: documents that are clicked as often as relevant ones are at their positions.

Users click on what is shown first. So a click is taken for two events, the position is looked at and the document
attracts (the position-based model), and documents for two kinds, relevant or not, that attract with one probability
each. How often positions are looked at, what the kinds attract, and which document is of which kind are estimated
together, by expectation maximisation: what is clicked on average at a position tells nothing, because a good engine
shows relevant documents first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter

import numpy as np

from rankwell.core.arrays import Rows
from rankwell.core.errors import InputError, excerpt
from rankwell.corpus.formats.lines import FilePath
from rankwell.corpus.formats.pairs import open_pairs, whole
from rankwell.corpus.records import Qrels

Cell = tuple[int, int]
"""Impressions and clicks."""
Shown = tuple[tuple[int, Cell], ...]
"""A pair's impressions and clicks, by position."""
FIELDS = {
    "position": ("position", "rank", "pos"),
    "impressions": ("impressions", "impression", "views", "shown"),
    "clicks": ("clicks", "clicked", "click"),
}
MOST = 10**9
"""The largest position, and impressions, of a row."""
LEAST_IMPRESSIONS = 10
"""Pairs that were shown less often are not judged."""
STARTS = tuple((decay, ratio) for decay in (1.0, 0.5) for ratio in (3.0, 10.0))
"""Where estimates begin: position p is looked at p ** -decay times as often as the first, and relevant documents
attract so many times as often as others. What is the most likely in the end counts."""
ROUNDS, LEAST_RATE = 60, 1e-3
LEAST_CONTRAST = 2.0
"""Relevant documents attract at least so many times as often as others."""


def read_clicks(path: FilePath) -> tuple[Qrels, str]:
    """Judgments from clicks, and a line that says how many pairs were used.

    A row has a query, a document, a position, and either impressions and clicks, or whether it was clicked.
    """
    opened = open_pairs(path, "clicks", FIELDS)
    if isinstance(opened, tuple):
        header = "query_id,doc_id,position,impressions,clicks"
        number, line = next(opened[1])
        raise InputError(path, number, f"{excerpt(line)} is no header with a query and a document, such as {header}")
    shown: dict[tuple[str, str], dict[int, Cell]] = {}
    for number, qid, docid, values in opened:
        for name in ("position", "clicks"):
            if name not in values:
                raise InputError(path, number, f"clicks: no field for the {name}; found {', '.join(values)}")
        counts = {name: whole(path, number, name, value) for name, value in values.items()}
        position, times = counts["position"], counts.get("impressions", 1)
        if not (1 <= position <= MOST and 0 <= counts["clicks"] <= times <= MOST):
            problem = f"position {position}, {counts['clicks']} clicks on {times} impressions; expected positions from "
            raise InputError(path, number, f"{problem}1, no more clicks than impressions, and nothing over {MOST:,}")
        at = shown.setdefault((qid, docid), {})
        seen, clicked = at.get(position, (0, 0))
        at[position] = seen + times, clicked + counts["clicks"]
    if not shown:
        raise InputError(path, None, "is empty, expected clicks")
    return judge_clicks(shown)


def judge_clicks(shown: Mapping[tuple[str, str], Mapping[int, Cell]]) -> tuple[Qrels, str]:
    """Judgments from the impressions and clicks of pairs by position, and a line that says how many were used."""
    grades: dict[str, dict[str, int]] = {}
    for (qid, docid), relevant in zip(shown, _relevance(list(shown.values())), strict=True):
        if sum(times for times, _ in shown[qid, docid].values()) >= LEAST_IMPRESSIONS:
            grades.setdefault(qid, {})[docid] = int(relevant >= 0.5)
    used = sum(map(len, grades.values()))
    dropped = f"{len(shown) - used:,} dropped (fewer than {LEAST_IMPRESSIONS} impressions)"
    return Qrels(grades), f"clicks on {len(shown):,} pairs of query and document: {used:,} used, {dropped}"


def _relevance(pairs: Sequence[Mapping[int, Cell]]) -> list[float]:
    """The probability that each pair is relevant, from its impressions and clicks by position."""
    shown = [tuple(sorted(at.items())) for at in pairs]
    copies = Counter(shown)  # pairs that were shown and clicked alike are alike
    tried = [_estimate(list(copies), np.array(list(copies.values())), *start) for start in STARTS]
    _, best = max(tried, key=itemgetter(0))
    return [best[at] for at in shown]


def _estimate(pairs: Sequence[Shown], copies: Rows, decay: float, ratio: float) -> tuple[float, Mapping[Shown, float]]:
    """The likelihood of what expectation maximisation finds from one start, and the relevance of each pair by it.

    Clicks are taken for Poisson-distributed. A position is looked at no more often than those before it.
    """
    cells = [(pair, place, *cell) for pair, at in enumerate(pairs) for place, cell in at]
    pair, place, impressions, clicked = np.array(cells, np.int64).T
    places, position = np.unique(place, return_inverse=True)
    by_pair, by_place = (partial(np.bincount, own, minlength=int(own.max()) + 1) for own in (pair, position))
    first = np.full(len(pairs), len(places))
    np.minimum.at(first, pair, position)
    by_first = partial(np.bincount, first, minlength=len(places))
    clicks, at_place = by_pair(weights=clicked), by_place(weights=clicked * copies[pair])
    looked, prior = places.astype(np.float64) ** -decay, np.full(len(places), 0.2)
    mean = max(LEAST_RATE, (copies @ clicks) / max(1.0, copies[pair] * impressions @ looked[position]))
    relevant, other, likelihood, relevance = ratio * mean / 2, mean / 2, 0.0, prior
    for _ in range(ROUNDS):
        looks = by_pair(weights=impressions * looked[position])
        kinds = (
            np.log(likely)[first] + clicks * np.log(rate) - looks * rate
            for likely, rate in ((prior, relevant), (1 - prior, other))
        )
        of_relevant, of_other = kinds
        both = np.logaddexp(of_relevant, of_other)
        likelihood = float(copies @ both + copies[pair] * clicked @ np.log(looked[position]))
        relevance = np.exp(of_relevant - both)
        weight, rest = copies * relevance, copies * (1 - relevance)
        other = (rest @ clicks + LEAST_RATE) / (rest @ looks + 1)
        relevant = max((weight @ clicks + 1) / (weight @ looks + 1), LEAST_CONTRAST * other)
        attracts = copies * (relevance * relevant + (1 - relevance) * other)
        expected = np.maximum(by_place(weights=impressions * attracts[pair]), LEAST_RATE)
        looked = np.minimum.accumulate(np.maximum(at_place, 0.5) / expected)
        looked /= looked[0]
        prior = (by_first(weights=weight) + 0.4) / (by_first(weights=copies) + 2)
    return likelihood, dict(zip(pairs, relevance.tolist(), strict=True))
