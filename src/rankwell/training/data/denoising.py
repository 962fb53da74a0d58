"""Noise reduction: unjudged candidates that a trained model takes for relevant are no negatives to learn from.

Given p(relevant) of every candidate, DR-BERT drops the unjudged ones above a threshold; RocketQA keeps only those below
a low one; hard-negative mining keeps the n that look most relevant of what is left. What was judged is never called
noise. An audit says what happened to each candidate and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.jsonfile import write_json
from rankwell.core.progress import track
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.formats.lines import FilePath, write_lines
from rankwell.corpus.records import Qrels, Query, Ranking, Run
from rankwell.rank.texts import Texts
from rankwell.training.data.candidates import Candidates, Mask, Numbering, Selection
from rankwell.training.data.sampling import split_folds

Probabilities = NDArray[np.float32]
EVERY = Selection(depth=None)

# What became of a candidate, as numbers and in words. From FIRST_DROPPED on it was dropped.
RELEVANT, NON_RELEVANT, CLEAN, DOUBTED, LAST, NOISE, EASY, ALONE = range(8)
REASONS = (
    "judged relevant",
    "judged non-relevant",
    "p within the limit",
    "p above the limit, as that of too many",
    "the query's last negative",
    "p above the limit",
    "not among the hardest",
    "its query has no negative left",
)
FIRST_DROPPED = NOISE
AUDIT_COLUMNS = ("qid", "docid", "p", "verdict", "reason", "query", "document")
_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class Denoising:
    """What is dropped.

    ``threshold``     unjudged candidates with a higher p(relevant) are noise (DR-BERT)
    ``most``          where a larger share of the unjudged candidates is above the threshold, none is noise: so many
                      are not relevant, and whoever takes them for it took hard negatives
    ``keep_below``    where given, unjudged candidates are kept only with a lower p, in place of the threshold
                      (RocketQA: 0.1), however many are dropped
    ``hardest``       where given, only so many negatives of each query are kept, those with the highest p
    ``keep_one``      a query that would lose all its negatives keeps the one with the lowest p; otherwise the query
                      itself is left out
    """

    threshold: float = 0.9
    most: float = 0.02
    keep_below: float | None = None
    hardest: int | None = None
    keep_one: bool = True

    def __post_init__(self) -> None:
        for name in ("threshold", "most", "keep_below"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise RankwellError(f"{name} is {value}, expected a number between 0 and 1")
        if self.hardest is not None and self.hardest < 1:
            raise RankwellError(f"hardest is {self.hardest}, expected 1 or more negatives of a query")


@dataclass(frozen=True, eq=False)
class Audit:
    """What became of each candidate: ``p`` and ``reasons`` (places in :data:`REASONS`) have a row for each."""

    options: Denoising
    candidates: Candidates
    p: Probabilities
    reasons: NDArray[np.int8]

    @property
    def dropped(self) -> Mask:
        """Which candidates were dropped, for whatever reason."""
        dropped: Mask = self.reasons >= FIRST_DROPPED
        return dropped

    @property
    def noise(self) -> Mask:
        """Which candidates were dropped as noise."""
        noise: Mask = self.reasons == NOISE
        return noise

    @property
    def rate(self) -> float:
        """The share of the unjudged candidates that are noise."""
        return _share(self.noise, self.candidates.unjudged)

    @property
    def doubted(self) -> float:
        """The share that was above the threshold and, being too large, was dropped by nobody."""
        return _share(self.reasons == DOUBTED, self.candidates.unjudged)

    def figures(self) -> dict[str, Any]:
        """The numbers of the audit, as JSON holds them."""
        candidates = self.candidates
        noise = candidates.per_query(self.noise)
        last, alone = (int((candidates.per_query(self.reasons == reason) > 0).sum()) for reason in (LAST, ALONE))
        counts = np.bincount(self.reasons, minlength=len(REASONS)).tolist()
        quantiles = {
            kind: dict(zip(("10%", "50%", "90%"), np.quantile(self.p[mask], (0.1, 0.5, 0.9)).tolist(), strict=True))
            for kind, mask in (("judged relevant", candidates.relevant), ("unjudged", candidates.unjudged))
            if mask.any()
        }
        return {
            "options": asdict(self.options),
            "queries": len(candidates.qids),
            "candidates": len(candidates),
            "unjudged": int(candidates.unjudged.sum()),
            "noise": int(self.noise.sum()),
            "noise rate": self.rate,
            "doubted rate": self.doubted,
            "kept": int((~self.dropped).sum()),
            "reasons": dict(zip(REASONS, counts, strict=True)),
            "queries with noise": int((noise > 0).sum()),
            "noise a query": {"mean": float(noise.mean()), "most": int(noise.max())},
            "queries that keep one negative": last,
            "queries left out": alone,
            "p quantiles": quantiles,
        }

    def write(self, folder: Path, queries: Sequence[Query], texts: Texts, *, most: int | None = 3) -> None:
        """Write ``audit.tsv.gz``, a line for each candidate, and ``audit.json``, the figures.

        What was dropped comes first, then what was kept; within each the highest p first. Of the many unjudged
        candidates within the limit only each query's ``most`` likely ones are listed (None: all); all are counted.
        """
        write_json(folder / "audit.json", self.figures())
        by_id = {query.qid: query.text for query in queries}
        write_lines(folder / "audit.tsv.gz", "audited candidates", self._lines(by_id, texts, most))

    def _listed(self, most: int | None) -> NDArray[np.int64]:
        """The candidates that are written, in the order they are written."""
        listed = np.ones(len(self.p), np.bool_)
        if most is not None:
            within = np.flatnonzero(np.isin(self.reasons, (CLEAN, EASY)))
            listed[within[_place_in_query(self.candidates, within, -self.p) >= most]] = False
        order = np.lexsort((-self.p, ~self.dropped))
        return order[listed[order]]

    def _lines(self, queries: Mapping[str, str], texts: Texts, most: int | None) -> Iterator[str]:
        yield "\t".join(AUDIT_COLUMNS) + "\n"
        rows = self.candidates.rows
        order = self._listed(most)
        for begin in track(range(0, len(order), _ROWS_AT_A_TIME), "writing the audit", unit="batches"):
            some = order[begin : begin + _ROWS_AT_A_TIME]
            docids = self.candidates.names(self.candidates.documents[some])
            qids = [self.candidates.qids[row] for row in rows[some]]
            columns = zip(qids, docids, self.p[some], self.reasons[some].tolist(), texts.texts(docids), strict=True)
            for qid, docid, p, reason, text in columns:
                verdict = "dropped" if reason >= FIRST_DROPPED else "kept"
                query, document = _cell(queries.get(qid, "")), _cell(text)
                yield f"{qid}\t{docid}\t{p:.6f}\t{verdict}\t{REASONS[reason]}\t{query}\t{document}\n"


def denoise(
    candidates: Candidates, p: NDArray[np.floating], options: Denoising | None = None
) -> tuple[Candidates, Audit]:
    """What is left of ``candidates`` given p(relevant) of each, and the audit."""
    options = options or Denoising()
    p = _probabilities(candidates, p)
    relevant, unjudged = candidates.relevant, candidates.unjudged
    reasons = np.select([relevant, ~unjudged], [RELEVANT, NON_RELEVANT], CLEAN).astype(np.int8)
    noisy = p > options.threshold if options.keep_below is None else p >= options.keep_below
    too_many = options.keep_below is None and _share(unjudged & noisy, unjudged) > options.most
    reasons[unjudged & noisy] = DOUBTED if too_many else NOISE
    if options.hardest is not None:
        left = np.flatnonzero(~relevant & (reasons < FIRST_DROPPED))
        reasons[left[_place_in_query(candidates, left, -p) >= options.hardest]] = EASY
    negatives = ~relevant & (reasons < FIRST_DROPPED)
    empty = candidates.per_query(negatives) == 0
    of_empty = np.repeat(empty, candidates.lengths)
    if options.keep_one:
        left = np.flatnonzero(of_empty & ~relevant)
        reasons[left[_place_in_query(candidates, left, p) == 0]] = LAST
    elif empty.all():
        raise RankwellError("noise reduction leaves no query with a negative; raise its threshold")
    else:
        reasons[of_empty & relevant] = ALONE
    audit = Audit(options, candidates, p, reasons)
    kept = candidates.where(~audit.dropped)
    return (kept if options.keep_one else kept.take(np.flatnonzero(~empty))), audit


def cross_fit(
    candidates: Candidates, folds: int, seed: int, score: Callable[[Candidates, Candidates], NDArray[np.floating]]
) -> Probabilities:
    """p(relevant) of every candidate from a model that did not see its query.

    ``score(others, fold)`` trains on the candidates of the other folds and gives p of each candidate of this one.
    """
    fold_of = split_folds(candidates, folds, seed)
    p = np.empty(len(candidates), np.float32)
    for fold in range(folds):
        held_out = candidates.take(np.flatnonzero(fold_of == fold))
        found = score(candidates.take(np.flatnonzero(fold_of != fold)), held_out)
        p[np.repeat(fold_of == fold, candidates.lengths)] = _probabilities(held_out, found)
    return p


def write_candidates(candidates: Candidates, path: FilePath) -> None:
    """Write candidates as a run with the first stage's scores.

    Relevant documents the first stage missed are not in it: the judgments bring them back. Judged negatives it missed
    follow below what it found.
    """
    rankings: dict[str, Ranking] = {}
    begins = (candidates.ends - candidates.lengths).tolist()
    wanted = ~(candidates.relevant & np.isnan(candidates.scores))
    for qid, begin, end in zip(candidates.qids, begins, candidates.ends.tolist(), strict=True):
        own = begin + np.flatnonzero(wanted[begin:end])
        scores = candidates.scores[own]
        missed = np.isnan(scores)
        if missed.any():
            lowest = float(np.nanmin(scores)) if not missed.all() else 0.0
            scores[missed] = lowest - np.arange(1, 1 + int(missed.sum())) * max(1.0, abs(lowest))
        rankings[qid] = Ranking(tuple(candidates.names(candidates.documents[own])), scores)
    write_run(Run(rankings, name="candidates"), path)


def read_candidates(
    path: FilePath, queries: Sequence[Query], qrels: Qrels, documents: Numbering, selection: Selection = EVERY
) -> Candidates:
    """Candidates that :func:`write_candidates` wrote, with the judgments they were made from."""
    return Candidates.of(queries, qrels, read_run(path), documents, selection)


def _probabilities(candidates: Candidates, p: NDArray[np.floating]) -> Probabilities:
    if p.shape != (len(candidates),):
        raise ValueError(f"{p.shape} probabilities for {len(candidates)} candidates")
    wrong = ~((p >= 0) & (p <= 1))
    if wrong.any():
        worst = int(wrong.argmax())
        pair = candidates.name_pair(worst)
        raise RankwellError(f"p(relevant) of {pair} is {p[worst]:g}, expected a probability between 0 and 1")
    return p.astype(np.float32)


def _share(some: Mask, of: Mask) -> float:
    return int(some.sum()) / max(1, int(of.sum()))


def _place_in_query(candidates: Candidates, some: NDArray[np.int64], key: NDArray[np.floating]) -> NDArray[np.int64]:
    """The place of each of ``some`` candidates among those of its query, by ``key`` ascending; equal ones by rank."""
    rows = candidates.rows[some]
    order = np.lexsort((key[some], rows))
    sizes = np.bincount(rows, minlength=len(candidates.qids))
    places = np.empty(len(some), np.int64)
    places[order] = np.arange(len(some)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


def _cell(text: str) -> str:
    """``text`` on one line of a tsv file, as characters UTF-8 can hold."""
    return " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")
