"""Documents by BM25 and by their windows together: β·S_doc + (1−β)·Σ w_i S_i over the best windows S_1 ≥ S_2 ≥ …

The scores of windows are there already (``window_scores.py``), so hundreds of settings are tried in the
time of one more look at the documents. :func:`tune_documents` chooses among them by cross-validation over queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.corpus.records import Qrels, Ranking, Run
from rankwell.evaluation.cross_validation import CrossValidation, cross_validate
from rankwell.evaluation.judged import JudgedRanking, judge
from rankwell.evaluation.notation import Measure
from rankwell.inputs.windows import parse_aggregate
from rankwell.rank.documents.window_scores import WindowScores
from rankwell.rank.fusion import NORMALISATIONS

Table = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DocumentFusion:
    """One way to join them; the defaults are those of CCNU at TREC 2019, but for the normalisation."""

    beta: float = 0.9
    aggregate: str = "top3"
    normalise: str = "min-max"

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise RankwellError(f"β is {self.beta:g}, expected a number from 0 to 1")
        parse_aggregate(self.aggregate), NORMALISATIONS[self.normalise]

    def __str__(self) -> str:
        return f"β={self.beta:g} {self.aggregate} {self.normalise}"


def weight_grid(n: int, step: float = 0.1) -> tuple[str, ...]:
    """All weights of the ``n`` best windows that are multiples of ``step`` and sum to 1, the first above 0.

    >>> weight_grid(2, 0.25)
    ('top2:0.25,0.75', 'top2:0.5,0.5', 'top2:0.75,0.25', 'top2:1,0')
    """
    parts = round(1 / step)
    if n < 1 or not 1 <= parts <= 100 or abs(parts * step - 1) > 1e-9:
        raise RankwellError(f"weights of {n} windows by {step:g}: expected one or more, and a step that divides 1")
    return tuple(
        f"top{n}:" + ",".join(f"{share / parts:g}" for share in (*shares, parts - sum(shares)))
        for shares in product(range(parts + 1), repeat=n - 1)
        if sum(shares) <= parts and (shares or (parts,))[0] > 0
    )


def settings_of(
    betas: Iterable[float], aggregates: Iterable[str], normalise: str = "min-max"
) -> tuple[DocumentFusion, ...]:
    """Every β with every aggregate."""
    return tuple(DocumentFusion(beta, how, normalise) for how, beta in product(dict.fromkeys(aggregates), betas))


class DocumentTable:
    """A first stage's run and the scores of windows, query by query (Q) and document by document (D).

    A query's documents stand in descending order of their ids: where a stable sort finds equal scores, THE order
    (:mod:`rankwell.corpus.records`) comes out.
    """

    def __init__(self, first: Run, windows: WindowScores):
        self.windows = windows
        self.qids = tuple(windows.docids)
        lengths = np.array([len(own) for own in windows.docids.values()], np.int64)
        if not len(windows) or not lengths.min():
            raise RankwellError("there are no scores of windows to join with a run")
        self._row = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(len(self._row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        self._column = np.empty(len(place), np.int64)
        self._shape = (len(lengths), int(lengths.max()))
        self.docids: list[tuple[str, ...]] = []
        scores = np.empty(len(place), np.float32)
        begin = 0
        for qid, own in windows.docids.items():
            end, given = begin + len(own), dict(first[qid]) if qid in first else {}
            if lost := next((docid for docid in own if docid not in given), None):
                raise RankwellError(f"document {lost!r} has scores of windows for query {qid!r}, but is not in the run")
            order = sorted(range(len(own)), key=own.__getitem__, reverse=True)
            self._column[np.arange(begin, end)[order]] = np.arange(len(own))
            self.docids.append(tuple(own[i] for i in order))
            scores[begin:end] = [given[docid] for docid in own]
            begin = end
        self.first = self._spread(scores)

    def _spread(self, scores: NDArray[np.float32]) -> Table:
        """Scores of pairs as (Q, D), NaN where a query has no more documents."""
        table = np.full(self._shape, np.nan)
        table[self._row, self._column] = scores
        return table

    def fused(self, fusion: DocumentFusion) -> NDArray[np.float32]:
        """The joined scores (Q, D)."""
        normal = NORMALISATIONS[fusion.normalise]
        documents, windows = normal(self.first), normal(self._spread(self.windows.aggregate(fusion.aggregate)))
        return (fusion.beta * documents + round(1 - fusion.beta, 12) * windows).astype(np.float32)

    def run(self, fusions: Sequence[DocumentFusion], *, name: str = "documents") -> Run:
        """The run under one setting, or under one for each query."""
        chosen = list(fusions) if len(fusions) > 1 else [*fusions] * len(self.qids)
        tables = {fusion: self.fused(fusion) for fusion in dict.fromkeys(chosen)}
        rankings = {}
        for row, (qid, docids, fusion) in enumerate(zip(self.qids, self.docids, chosen, strict=True)):
            rankings[qid] = Ranking.of(docids, tables[fusion][row, : len(docids)])
        return Run(rankings, name=name)

    def judged(self, qrels: Qrels) -> list[JudgedRanking]:
        """The judgments of each query's documents, as they stand here."""
        return [judge(docids, qrels.get(qid, {})) for qid, docids in zip(self.qids, self.docids, strict=True)]


@dataclass(frozen=True, eq=False)
class DocumentTuning:
    """The settings tried, their figures ``values (settings, queries)``, and what cross-validation chose."""

    measure: str
    qids: tuple[str, ...]
    settings: tuple[DocumentFusion, ...]
    values: Table
    found: CrossValidation
    table: DocumentTable

    @property
    def best(self) -> DocumentFusion:
        """The setting to use from now on."""
        return self.settings[self.found.best]

    @cached_property
    def held_out(self) -> Run:
        """Each query ranked under the setting that was chosen without it: the run whose figures are to be quoted."""
        setting_of = dict(zip(self.qids, self.found.settings.tolist(), strict=True))
        # A query that is not judged belongs to no fold.
        chosen = [self.settings[setting_of.get(qid, self.found.best)] for qid in self.table.qids]
        return self.table.run(chosen, name="held-out")

    def rows(self, aggregate: str) -> tuple[NDArray[np.float64], Table]:
        """The β tried with one aggregate, ascending, and their figures (β, queries)."""
        found = sorted((one.beta, i) for i, one in enumerate(self.settings) if one.aggregate == aggregate)
        return np.array([beta for beta, _ in found]), self.values[[i for _, i in found]]


def tune_documents(
    first: Run,
    windows: WindowScores,
    qrels: Qrels,
    measure: Measure,
    settings: Sequence[DocumentFusion],
    *,
    folds: int = 5,
    seed: int = 0,
) -> DocumentTuning:
    """Choose the setting that ranks best on judged queries; those without candidates count 0 under all of them."""
    table = DocumentTable(first, windows)
    qids = tuple(qrels)
    row_of = {qid: row for row, qid in enumerate(table.qids)}
    places = [(column, row_of[qid]) for column, qid in enumerate(qids) if qid in row_of]
    if not places:
        raise RankwellError("none of the queries with scores of windows is judged in the qrels")
    judged, value_of = table.judged(qrels), measure.function()
    depth = measure.cutoff if isinstance(measure.cutoff, int) else None
    values = np.zeros((len(settings), len(qids)))
    for figures, fusion in zip(values, track(settings, "tuning", unit="settings"), strict=True):
        order = np.argsort(-table.fused(fusion), axis=1, kind="stable")
        for column, row in places:
            grades = judged[row].grades
            ranked = grades[order[row, : len(grades)][:depth]]
            figures[column] = value_of(JudgedRanking(ranked, judged[row].judged))
    found = cross_validate(values, folds=folds, seed=seed)
    return DocumentTuning(str(measure), qids, tuple(settings), values, found, table)
