"""Relevance: the probability that an answer is relevant, which says the same for every query.

Scores do not: those of BM25 grow with the query, and fused ones are standardised within it. The probability is made of
what can be compared, and is computed from the answers alone:

    words        the share of the query's words that the document has, rare ones counting more (by idf)
    similarity   of the vectors of query and document, if the system has a bi-encoder
    model        the re-ranker's own score, if there is one; then neither similarity nor the final score
    score        the final score, above the mean of the first ten

A logistic regression of these, of how far similarity or model are above the first ten's, and of the rank, is followed
by a monotone curve. Both are fitted by :mod:`rankwell.rank.calibration`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwell.core.arrays import Scores, Values
from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Query, Run
from rankwell.retrieve.bm25 import DEFAULT_BM25
from rankwell.retrieve.index import Index
from rankwell.retrieve.spelling import document_frequencies

if TYPE_CHECKING:
    from rankwell.rank.dense import EncodedQueries
    from rankwell.rank.first_stage import Finder

COMPARED = 10
"""A document is compared with the first so many of its list."""
MOST_LEVELS = 1000
STALE = 0.25
"""If the number of documents has changed by more than this part, the probabilities are doubtful."""
SIGNALS = ("words", "similarity", "model", "score")


@dataclass(frozen=True, eq=False)
class Signals:
    """What tells whether the documents of a list are relevant: ``values`` (N, S), in the order of the list."""

    docids: Sequence[str]
    values: Values


@dataclass(frozen=True)
class Calibration:
    """How signals become a probability, and what was measured where it was fitted.

    ``weights`` are those of the regression, the intercept first; ``levels`` are points of the curve, none for the
    regression's own. At ``threshold``, ``kept`` of the right first answers stay and ``silent`` of the queries without
    an answer return nothing; ``error`` is the mean gap between the probability and the share that is relevant.
    """

    signals: tuple[str, ...]
    weights: tuple[float, ...]
    levels: tuple[tuple[float, float], ...] = ()
    queries: int = 0
    documents: int = 0
    threshold: float = 0.0
    kept: float = 0.0
    silent: float = 0.0
    error: float = 0.0

    def __post_init__(self) -> None:
        count = features(self.signals, np.zeros((1, len(self.signals)))).shape[1]
        numbers = [*self.weights, *(number for level in self.levels for number in level)]
        known = set(self.signals) <= set(SIGNALS) and len(self.weights) == count + 1 and np.isfinite(numbers).all()
        rising = all(a <= b and 0 <= p <= q <= 1 for (a, p), (b, q) in pairwise(self.levels))
        if not known or not rising or len(self.levels) > MOST_LEVELS:
            raise ValueError("not a calibration")

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Calibration:
        """The calibration that was saved as a JSON object. Raises TypeError or ValueError for any other."""
        levels = tuple((float(x), float(y)) for x, y in record["levels"][: MOST_LEVELS + 1])
        figures: dict[str, Any] = {name: float(record[name]) for name in ("threshold", "kept", "silent", "error")}
        figures |= {name: int(record[name]) for name in ("queries", "documents")}
        return cls(tuple(record["signals"]), tuple(map(float, record["weights"])), levels, **figures)

    def rate(self, values: Values) -> Scores:
        """The probability of each document of a list."""
        linear: Values = features(self.signals, values) @ np.array(self.weights[1:]) + self.weights[0]
        points, heights = [x for x, _ in self.levels], [y for _, y in self.levels]
        likely = np.interp(linear, points, heights) if self.levels else logistic(linear)
        return likely.astype(np.float32)

    def stale(self, documents: int) -> str | None:
        """Why the probabilities are doubtful for an index of so many documents; None if they are not."""
        if abs(documents - self.documents) <= STALE * self.documents:
            return None
        return f"relevance was measured on {self.documents:,} documents, and there are {documents:,}; fit again"

    def __str__(self) -> str:
        right = f"{self.kept:.0%} of the queries that are answered right keep their answer"
        silent = f"{self.silent:.0%} of those without an answer return nothing"
        return f"At a relevance of {self.threshold:g}, {right}, and {silent}".replace("%", " %")


@dataclass(frozen=True, eq=False)
class Found:
    """What a search finds: the run and, if they were asked for, the signals and relevance of its documents.

    Documents that were dropped for too little relevance are in ``relevance``, too.
    """

    run: Run
    signals: Mapping[str, Signals] = field(default_factory=dict)
    relevance: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def rated(self, calibration: Calibration | None) -> Found:
        """The same with the relevance that a calibration makes of the signals."""
        if calibration is None:
            return self
        rated = {
            qid: dict(zip(own.docids, calibration.rate(own.values).tolist(), strict=True))
            for qid, own in self.signals.items()
        }
        return replace(self, relevance=rated)

    def least(self, relevance: float, k: int) -> Found:
        """The first ``k`` documents of each query, without those of less relevance."""
        run = self.run.head(k)
        if relevance > 0:
            kept = {qid: own.select(partial(self._fits, qid, relevance)) for qid, own in run.items()}
            run = Run({qid: own for qid, own in kept.items() if len(own)}, name=run.name)
        return replace(self, run=run)

    def _fits(self, qid: str, relevance: float, docid: str) -> bool:
        return self.relevance[qid][docid] >= relevance


def nothing_fits(rated: Mapping[str, float]) -> str:
    """Why no answer is returned although documents were found."""
    best = max(rated.values())
    return f"nothing fits: the relevance of the {len(rated):,} documents found is {best:.2f} at most"


def signals_of(
    names: Sequence[str],
    finder: Finder,
    run: Run,
    queries: Sequence[Query],
    encoded: EncodedQueries | None = None,
    scored: Run | None = None,
) -> dict[str, Signals]:
    """The signals of all documents of a run; ``scored`` are the re-ranker's own scores.

    Documents that it did not read have the lowest score of those that it read.
    """
    index = finder.texts
    if not isinstance(index, Index) or not index.has_texts:
        raise RankwellError("relevance needs the index of the system, with its texts")
    asked = {query.qid: query.text for query in queries}
    deep = max(map(len, run.values()), default=1)
    other = finder.dense.rerank(run, queries, index, depth=deep, encoded=encoded) if "similarity" in names else scored
    found = dict[str, Signals]()
    for qid, ranking in run.items():
        docids, columns = ranking.docids, {"score": ranking.scores.astype(np.float64)}
        columns["words"] = word_shares(index, asked[qid], index.texts(docids))
        if other is not None:
            known = dict(other[qid])
            least = min(known.values())
            columns["similarity"] = columns["model"] = np.array([known.get(docid, least) for docid in docids])
        found[qid] = Signals(docids, np.stack([columns[name] for name in names], axis=1))
    return found


def word_shares(index: Index, query: str, texts: Sequence[str]) -> Values:
    """For each text the share of the query's words that it has, each counting as much as its idf."""
    terms = sorted(set(index.analyzer.terms(query)))
    weights = DEFAULT_BM25.idf(len(index), document_frequencies(index.segments, terms))
    has = [list(map(set(words).__contains__, terms)) for words in index.analyzer.terms_batch(texts)]
    shares: Values = np.array(has, np.float64).reshape(len(texts), -1) @ weights / max(float(weights.sum()), 1e-9)
    return shares


def features(names: Sequence[str], values: Values) -> Values:
    """What the regression reads (N, F): signals as they are, above the mean of the first ten, and the rank."""
    above = values - values[:COMPARED].mean(axis=0)
    own = [values[:, place] for place, name in enumerate(names) if name != "score"]
    own += [above[:, place] for place, name in enumerate(names) if name != "words"]
    return np.stack([*own, np.log(np.arange(1, len(values) + 1))], axis=1)


def logistic(values: Values) -> Values:
    """From any number to 0 … 1."""
    scaled: Values = 1 / (1 + np.exp(-np.clip(values, -50, 50)))
    return scaled
