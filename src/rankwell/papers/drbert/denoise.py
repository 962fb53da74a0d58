"""``denoise``: which candidates are relevant though nobody judged them? Leaves candidates, and an audit.

Given p(relevant) of every candidate, DR-BERT drops the unjudged ones above a threshold. Judged candidates are never
noise. If all negatives of a query are, it keeps the one with the lowest p.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import positions
from rankwell.core.errors import RankwellError
from rankwell.core.manifest import write_json
from rankwell.core.progress import track
from rankwell.corpus.formats.lines import write_lines
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.papers.drbert.options import DenoiseOptions
from rankwell.rank.ranker import Ranker
from rankwell.rank.texts import Texts
from rankwell.training.data.candidates import Mask, TrainingCandidates, write_candidates
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, TRAINING, StageKind, StageResult, Work, write_once
from rankwell.training.stages.shared import training_candidates

Probabilities = NDArray[np.float32]

# What became of a candidate, as numbers and in words. NOISE was dropped, all others were kept.
RELEVANT, NON_RELEVANT, CLEAN, DOUBTED, LAST, NOISE = range(6)
REASONS = (
    "judged relevant",
    "judged non-relevant",
    "p within the limit",
    "p above the limit, as that of too many",
    "the query's last negative",
    "p above the limit",
)
AUDIT_COLUMNS = ("qid", "docid", "p", "verdict", "reason", "query", "document")
_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True, eq=False)
class Audit:
    """What became of each candidate: ``p`` and ``reasons`` (places in :data:`REASONS`) have a row for each."""

    options: DenoiseOptions
    candidates: TrainingCandidates
    p: Probabilities
    reasons: NDArray[np.int8]

    @property
    def noise(self) -> Mask:
        """Which candidates were dropped."""
        noise: Mask = self.reasons == NOISE
        return noise

    @property
    def rate(self) -> float:
        """The share of the unjudged candidates that are noise."""
        return _share(self.noise, self.candidates.unjudged)

    @property
    def doubted(self) -> float:
        """The share of the unjudged candidates above the threshold that stayed because there were too many."""
        return _share(self.reasons == DOUBTED, self.candidates.unjudged)

    def figures(self) -> dict[str, Any]:
        """The numbers of the audit, as JSON holds them."""
        candidates = self.candidates
        noise = candidates.per_query(self.noise)
        counts = np.bincount(self.reasons, minlength=len(REASONS)).tolist()
        quantiles = {
            kind: dict(zip(("10%", "50%", "90%"), np.quantile(self.p[mask], (0.1, 0.5, 0.9)).tolist(), strict=True))
            for kind, mask in (("judged relevant", candidates.relevant), ("unjudged", candidates.unjudged))
            if mask.any()
        }
        return {
            "options": self.options.model_dump(),
            "queries": len(candidates.qids),
            "candidates": len(candidates),
            "unjudged": int(candidates.unjudged.sum()),
            "noise": int(self.noise.sum()),
            "noise rate": self.rate,
            "doubted rate": self.doubted,
            "kept": int((~self.noise).sum()),
            "reasons": dict(zip(REASONS, counts, strict=True)),
            "queries with noise": int((noise > 0).sum()),
            "noise a query": {"mean": float(noise.mean()), "most": int(noise.max())},
            "queries that keep one negative": counts[LAST],
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
            within = np.flatnonzero(self.reasons == CLEAN)
            listed[within[_place_in_query(self.candidates, within, -self.p) >= most]] = False
        order = np.lexsort((-self.p, ~self.noise))
        return order[listed[order]]

    def _lines(self, queries: Mapping[str, str], texts: Texts, most: int | None) -> Iterator[str]:
        yield "\t".join(AUDIT_COLUMNS) + "\n"
        rows = self.candidates.rows
        order = self._listed(most)
        for begin in track(range(0, len(order), _ROWS_AT_A_TIME), "writing the audit", unit="batches"):
            some = order[begin : begin + _ROWS_AT_A_TIME]
            docids = self.candidates.docids.strings(self.candidates.documents[some])
            qids = [self.candidates.qids[row] for row in rows[some]]
            columns = zip(qids, docids, self.p[some], self.reasons[some].tolist(), texts.texts(docids), strict=True)
            for qid, docid, p, reason, text in columns:
                verdict = "dropped" if reason == NOISE else "kept"
                query, document = _cell(queries.get(qid, "")), _cell(text)
                yield f"{qid}\t{docid}\t{p:.6f}\t{verdict}\t{REASONS[reason]}\t{query}\t{document}\n"


def denoise(
    candidates: TrainingCandidates, p: NDArray[np.floating], options: DenoiseOptions | None = None
) -> tuple[TrainingCandidates, Audit]:
    """What is left of ``candidates`` given p(relevant) of each, and the audit."""
    options = options or DenoiseOptions()
    p = _checked(candidates, p)
    relevant, unjudged = candidates.relevant, candidates.unjudged
    reasons = np.select([relevant, ~unjudged], [RELEVANT, NON_RELEVANT], CLEAN).astype(np.int8)
    noisy = unjudged & (p > options.threshold)
    reasons[noisy] = DOUBTED if _share(noisy, unjudged) > options.most else NOISE
    empty = candidates.per_query(~relevant & (reasons != NOISE)) == 0
    left = np.flatnonzero(np.repeat(empty, candidates.lengths) & ~relevant)
    reasons[left[_place_in_query(candidates, left, p) == 0]] = LAST
    audit = Audit(options, candidates, p, reasons)
    return candidates.where(~audit.noise), audit


def _checked(candidates: TrainingCandidates, p: NDArray[np.floating]) -> Probabilities:
    if p.shape != (len(candidates),):
        raise ValueError(f"{p.shape} probabilities for {len(candidates)} candidates")
    wrong = ~((p >= 0) & (p <= 1))
    if wrong.any():
        worst = int(wrong.argmax())
        row = int(np.searchsorted(candidates.ends, worst, side="right"))
        document = candidates.docids.strings(candidates.documents[[worst]])[0]
        pair = f"document {document!r} of query {candidates.qids[row]!r}"
        raise RankwellError(f"p(relevant) of {pair} is {p[worst]:g}, expected a probability between 0 and 1")
    return p.astype(np.float32)


def _share(some: Mask, of: Mask) -> float:
    return int(some.sum()) / max(1, int(of.sum()))


def _place_in_query(
    candidates: TrainingCandidates, some: NDArray[np.int64], key: NDArray[np.floating]
) -> NDArray[np.int64]:
    """The place of each of ``some`` candidates among those of its query, by ``key`` ascending; equal ones by rank."""
    rows = candidates.rows[some]
    order = np.lexsort((key[some], rows))
    sizes = np.bincount(rows, minlength=len(candidates.qids))
    places = np.empty(len(some), np.int64)
    places[order] = positions(sizes)
    return places


def _cell(text: str) -> str:
    """``text`` on one line of a tsv file, as characters UTF-8 can hold."""
    return " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")


def check(work: Work, stage: RecipeStage[DenoiseOptions]) -> None:
    """Raise unless a stage before it learns to judge documents."""
    if all(earlier.kind != "pointwise" for earlier in work.recipe.before(stage)):
        raise RankwellError(f"{stage.path} needs a pointwise stage before it, whose model judges the candidates")


def run(work: Work, stage: RecipeStage[DenoiseOptions], folder: Path) -> StageResult:
    """Drop the unjudged candidates that are probably relevant, and write an audit."""
    options, candidates = stage.options, training_candidates(work)
    judge = next(done for done in reversed(work.done) if done.stage.kind == "pointwise")
    remaining, audit = denoise(candidates, _probabilities(work, judge.folder / "model", candidates), options)
    if audit.doubted:
        warnings.warn(
            f"noise reduction drops nothing: {audit.doubted:.1%} of the unjudged candidates have p above "
            f"{options.threshold:g}, and so many are hard negatives rather than relevant ({stage.path}.most is "
            f"{options.most:g}). Train the pointwise stage longer, raise the threshold, or leave denoise out",
            stacklevel=2,
        )
    path = folder / "candidates.run.gz"

    def write() -> None:
        audit.write(folder, work.data.train.queries, work.data.index)
        write_candidates(remaining, path)

    write_once(path, write)
    return StageResult(candidates=path, figures=audit.figures())


def _probabilities(work: Work, model: Path, candidates: TrainingCandidates) -> NDArray[np.float32]:
    """p(relevant) of each candidate by a trained ranker."""
    ranker = Ranker.from_pretrained(model, engine=work.engine)
    begins = candidates.ends - candidates.lengths
    docids = candidates.docids.strings(candidates.documents)
    spans = list(zip(candidates.qids, begins.tolist(), candidates.ends.tolist(), strict=True))
    # Any score will do: what counts is which documents there are.
    run = Run({qid: Ranking.of(docids[b:e], np.zeros(e - b, np.float32)) for qid, b, e in spans})
    deepest = int(candidates.lengths.max())
    scored = ranker.rerank(run, work.data.train.queries, work.data.index, depth=deepest, activation="probability")
    p = np.empty(len(candidates), np.float32)
    for qid, begin, end in spans:
        scores = dict(scored[qid])
        p[begin:end] = [scores[docid] for docid in docids[begin:end]]
    return p


STAGES.register("denoise")(StageKind(DenoiseOptions, run, check, reads=TRAINING - {"dev"}))
