"""Candidates: for each training query the documents it may be trained on, and what is known of each.

They are made from judgments and a run. Relevant documents are those judged so, with or without those that the run
missed; non-relevant ones are what the run found and nobody judged relevant. All columns are flat arrays, so that
millions of candidates are built, sampled and filtered without a loop over them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows, Scores, positions
from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import write_run
from rankwell.corpus.formats.lines import FilePath
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Qrels, Query, Ranking, Run
from rankwell.corpus.store import DocumentStore

UNJUDGED = -1
MANY_MISSED = 0.05
"""The share of relevant documents outside the run from which ``found_only: auto`` leaves them out."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TrainingCandidates:
    """Each query's candidates end to end: what the run found in its order, then the relevant ones it missed.

    ==============  ================  =================================================================================
    ``qids``        Q                 the queries
    ``ends``        (Q,) int64        where each query's candidates end
    ``documents``   (C,) int64        document numbers
    ``grades``      (C,) int32        the grade, or :data:`UNJUDGED`
    ``scores``      (C,) float32      the first stage's score; NaN where it missed the document
    ``docids``                        the ids of the collection's documents, by number
    ==============  ================  =================================================================================
    """

    qids: tuple[str, ...]
    ends: Rows
    documents: Rows
    grades: NDArray[np.int32]
    scores: Scores
    docids: Lexicon
    level: int = 1

    @classmethod
    def of(
        cls,
        queries: Sequence[Query],
        qrels: Qrels,
        run: Run,
        documents: DocumentStore,
        *,
        level: int = 1,
        depth: int | None = 100,
        found_only: bool | Literal["auto"] = False,
        judgments: str = "the qrels",
    ) -> TrainingCandidates:
        """Candidates of the judged ``queries``, in their order; ``judgments`` is what errors call the qrels.

        ``level`` is the lowest grade that counts as relevant. Negatives are the run's documents up to rank ``depth``
        (None: all of them). Relevant documents that the run missed are added unless ``found_only``; with ``auto``,
        unless they are more than :data:`MANY_MISSED` of the relevant ones, which a warning counts.

        A judged or ranked document that ``documents`` does not know is an error. Queries that cannot be trained on (no
        text, no candidates, no relevant document, no other) are left out, with a warning that counts them; where none
        remains, that is an error.
        """
        with_text = {query.qid for query in queries if query.text.strip()}
        order = dict.fromkeys(query.qid for query in queries)
        qids = [qid for qid in order if qid in qrels and qid in with_text and qid in run]
        left_out = {
            "without text": [qid for qid in qrels if qid not in with_text],
            "without candidates": [qid for qid in qrels if qid in with_text and qid not in run],
        }
        if not qids:
            _refuse_empty(left_out, len(qrels), judgments)
        judged = _Pairs.of({qid: qrels[qid] for qid in qids}, documents)
        ranked = _Pairs.of({qid: run[qid].docids for qid in qids}, documents)
        grades = judged.look_up(ranked, np.fromiter(chain.from_iterable(qrels[q].values() for q in qids), np.int32))
        scores = np.concatenate([run[qid].scores for qid in qids])
        whole = _assemble(qids, judged, ranked, *grades, scores, documents.docids, level)
        whole = whole.where(_selected(whole, depth, found_only))
        bad = {
            "without a relevant document": whole.per_query(whole.relevant) == 0,
            "without a non-relevant candidate": whole.per_query(~whole.relevant) == 0,
        }
        keep = np.ones(len(qids), np.bool_)
        for reason, rows in bad.items():
            left_out[reason] = [qids[row] for row in np.flatnonzero(rows & keep)]
            keep &= ~rows
        if not keep.any():
            _refuse_empty(left_out, len(qrels), judgments)
        for reason, missing in left_out.items():
            if missing:
                share = f"{len(missing):,} of {len(qrels):,} queries of {judgments}"
                warnings.warn(f"{share} are {reason} and left out, such as {missing[0]!r}", stacklevel=2)
        return whole.take(np.flatnonzero(keep))

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def lengths(self) -> Rows:
        """How many candidates each query has."""
        return np.diff(self.ends, prepend=0)

    @property
    def rows(self) -> Rows:
        """The query of each candidate, as its place in ``qids``."""
        return np.repeat(np.arange(len(self.qids)), self.lengths)

    @property
    def relevant(self) -> Mask:
        """Which candidates were judged relevant."""
        relevant: Mask = self.grades >= self.level
        return relevant

    @property
    def missed(self) -> Mask:
        """Which relevant ones the run missed."""
        missed: Mask = self.relevant & np.isnan(self.scores)
        return missed

    @property
    def unjudged(self) -> Mask:
        """Which candidates nobody judged."""
        unjudged: Mask = self.grades == UNJUDGED
        return unjudged

    def per_query(self, mask: Mask) -> Rows:
        """How many of each query's candidates ``mask`` holds for."""
        counts = np.concatenate([[0], np.cumsum(mask)])[np.concatenate([[0], self.ends])]
        per_query: Rows = np.diff(counts)
        return per_query

    def where(self, mask: Mask) -> TrainingCandidates:
        """The same queries with only these of their candidates."""
        return replace(
            self,
            ends=np.cumsum(self.per_query(mask)),
            documents=self.documents[mask],
            grades=self.grades[mask],
            scores=self.scores[mask],
        )

    def take(self, rows: Rows) -> TrainingCandidates:
        """Some of the queries, each once, in the order of this set."""
        taken = np.zeros(len(self.qids), np.bool_)
        taken[rows] = True
        fewer = self.where(np.repeat(taken, self.lengths))
        qids = tuple(qid for qid, keep in zip(self.qids, taken.tolist(), strict=True) if keep)
        return replace(fewer, qids=qids, ends=fewer.ends[taken])


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs of query row and document number."""

    rows: Rows
    documents: Rows

    @classmethod
    def of(cls, by_query: Mapping[str, Sequence[str] | Mapping[str, int]], documents: DocumentStore) -> _Pairs:
        docids = list(chain.from_iterable(by_query.values()))
        rows = np.repeat(np.arange(len(by_query)), np.fromiter(map(len, by_query.values()), np.int64, len(by_query)))
        return cls(rows, documents.numbers(docids).astype(np.int64))

    def places(self, wanted: _Pairs) -> Rows:
        """Where each wanted pair is among these, -1 where it is not."""
        width = 1 + max(int(self.documents.max(initial=0)), int(wanted.documents.max(initial=0)))
        keys, sought = self.rows * width + self.documents, wanted.rows * width + wanted.documents
        if not len(keys):
            return np.full(len(sought), -1)
        order = np.argsort(keys, kind="stable")
        nearest = order[np.minimum(np.searchsorted(keys, sought, sorter=order), len(keys) - 1)]
        return np.where(keys[nearest] == sought, nearest, -1)

    def look_up(self, ranked: _Pairs, grades: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32], Mask]:
        """The grades of ranked pairs, all grades, and which of these judged pairs are not ranked.

        A grade below 0 says that a document was pooled but not judged.
        """
        grades = np.where(grades < 0, UNJUDGED, grades).astype(np.int32)
        places = self.places(ranked)
        missed = np.ones(len(grades), np.bool_)
        missed[places[places >= 0]] = False
        return np.append(grades, np.int32(UNJUDGED))[places], grades, missed


def _assemble(
    qids: Sequence[str],
    judged: _Pairs,
    ranked: _Pairs,
    ranked_grades: NDArray[np.int32],
    grades: NDArray[np.int32],
    missed: Mask,
    scores: Scores,
    docids: Lexicon,
    level: int,
) -> TrainingCandidates:
    """All ranked documents, and all judged ones that are not ranked."""
    rows = np.concatenate([ranked.rows, judged.rows[missed]])
    order = np.argsort(rows, kind="stable")
    return TrainingCandidates(
        tuple(qids),
        np.cumsum(np.bincount(rows, minlength=len(qids))),
        np.concatenate([ranked.documents, judged.documents[missed]])[order],
        np.concatenate([ranked_grades, grades[missed]])[order],
        np.concatenate([scores, np.full(int(missed.sum()), np.nan, np.float32)])[order],
        docids,
        level,
    )


def _selected(candidates: TrainingCandidates, depth: int | None, found_only: bool | Literal["auto"]) -> Mask:
    """Which candidates are taken; relevant ones at any rank."""
    ranks, found = positions(candidates.lengths), ~np.isnan(candidates.scores)
    taken = found & (ranks < (len(candidates) if depth is None else depth))
    if found_only == "auto":
        found_only = _misses_many(candidates)
    return taken | (candidates.relevant & (found | (not found_only)))


def _misses_many(candidates: TrainingCandidates) -> bool:
    """Whether so many relevant documents are outside the run that a ranker would learn to recognise them by that.

    Examples that bring their own negatives are no such case: none of their relevant documents was found by a search.
    """
    relevant, missed = int(candidates.relevant.sum()), int(candidates.missed.sum())
    if not MANY_MISSED * relevant < missed < relevant:
        return False
    warnings.warn(
        f"{missed:,} of {relevant:,} relevant documents are not among the candidates and are left out of training; "
        "`found_only: false` trains on them, too (see docs/recipes.md#training-data)",
        stacklevel=2,
    )
    return True


def _refuse_empty(left_out: Mapping[str, Sequence[str]], queries: int, judgments: str) -> None:
    reasons = [f"{len(qids):,} are {reason} (such as {qids[0]!r})" for reason, qids in left_out.items() if qids]
    why = "; ".join(reasons) or "there are no such queries"
    raise RankwellError(f"{judgments}: none of the {queries:,} queries can be trained on: {why}")


def write_candidates(candidates: TrainingCandidates, path: FilePath) -> None:
    """Write candidates as a run with the first stage's scores, from which ``TrainingCandidates.of`` makes them again.

    Relevant documents that the first stage missed are left out: the judgments bring them back.
    """
    rankings: dict[str, Ranking] = {}
    begins = (candidates.ends - candidates.lengths).tolist()
    ranked = ~np.isnan(candidates.scores)
    for qid, begin, end in zip(candidates.qids, begins, candidates.ends.tolist(), strict=True):
        rows = begin + np.flatnonzero(ranked[begin:end])
        rankings[qid] = Ranking(tuple(candidates.docids.strings(candidates.documents[rows])), candidates.scores[rows])
    write_run(Run(rankings, name="candidates"), path)
