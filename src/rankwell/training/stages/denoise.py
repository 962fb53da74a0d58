"""``denoise``: which candidates are relevant though nobody judged them? Leaves candidates, and an audit (DR-BERT)."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Ranking, Run
from rankwell.inputs.stored import TokenSource
from rankwell.rank.ranker import Ranker
from rankwell.training.data.candidates import Candidates
from rankwell.training.data.denoising import Denoising, cross_fit, denoise, write_candidates
from rankwell.training.data.sampling import draw
from rankwell.training.options import Options
from rankwell.training.recipe import Stage
from rankwell.training.stage import STAGES, TRAINING, FinishedStage, StageKind, StageResult, Work
from rankwell.training.stages.pointwise import PointwiseOptions
from rankwell.training.stages.shared import load_ranker, ranker_tokens, train_ranker, training_candidates


class DenoiseOptions(Options):
    """`denoise`: drops candidates that are probably relevant though nobody judged them."""

    threshold: float = Field(
        default=0.9, ge=0, le=1, description="Unjudged candidates with p(relevant) above it are dropped."
    )
    most: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="Where a larger share of the unjudged candidates is above it, none is dropped; 1: no limit.",
    )
    keep_below: float | None = Field(
        default=None, ge=0, le=1, description="Keep negatives only below this p(relevant), as RocketQA does with 0.1."
    )
    hardest: int | None = Field(
        default=None, ge=1, description="Keep only so many negatives a query, the likeliest ones."
    )
    cross_fit: int = Field(
        default=0,
        ge=0,
        description="Score each of so many folds with a model trained on the others; 0: with the one model.",
    )
    keep_one: bool = Field(
        default=True, description="A query keeps its least likely negative when all would be dropped."
    )


def check(work: Work, stage: Stage[DenoiseOptions]) -> None:
    """Raise unless a stage before it learns to judge documents."""
    if all(earlier.kind != "pointwise" for earlier in work.recipe.before(stage)):
        raise RankwellError(f"{stage.path} needs a pointwise stage before it, whose model judges the candidates")


def run(work: Work, stage: Stage[DenoiseOptions], folder: Path) -> StageResult:
    """Drop the unjudged candidates that are probably relevant, and write an audit."""
    options, judge = stage.options, _judge(work).folder / "model"
    documents = ranker_tokens(work, load_ranker(work, judge))
    candidates = training_candidates(work, documents)
    if options.cross_fit:
        p = cross_fit(candidates, options.cross_fit, work.seed, _Folds(work, folder, documents))
    else:
        p = _probabilities(work, judge, candidates)
    limits = Denoising(options.threshold, options.most, options.keep_below, options.hardest, options.keep_one)
    remaining, audit = denoise(candidates, p, limits)
    if audit.doubted:
        warnings.warn(
            f"noise reduction drops nothing: {audit.doubted:.1%} of the unjudged candidates have p above "
            f"{options.threshold:g}, and so many are hard negatives rather than relevant ({stage.path}.most is "
            f"{options.most:g}). Train the pointwise stage longer, raise the threshold, or leave denoise out",
            stacklevel=2,
        )
    audit.write(folder, work.data.train.queries, work.data.index)
    write_candidates(remaining, folder / "candidates.run.gz")
    return StageResult(candidates=folder / "candidates.run.gz", figures=audit.figures())


def _judge(work: Work) -> FinishedStage:
    """The last pointwise stage, whose model tells noise from negatives."""
    return next(done for done in reversed(work.done) if done.stage.kind == "pointwise")


def _probabilities(work: Work, model: Path, candidates: Candidates) -> NDArray[np.float32]:
    """p(relevant) of each candidate by a trained ranker."""
    ranker = Ranker.from_pretrained(model, engine=work.engine)
    begins = candidates.ends - candidates.lengths
    docids = candidates.names(candidates.documents)
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


class _Folds:
    """Trains a pointwise ranker on all folds but one, as the pointwise stage did, and scores that one."""

    def __init__(self, work: Work, folder: Path, documents: TokenSource):
        self._work, self._folder, self._documents = work, folder, documents
        self._number = 0

    def __call__(self, others: Candidates, held_out: Candidates) -> NDArray[np.float32]:
        done = _judge(self._work)
        assert isinstance(done.stage.options, PointwiseOptions)
        options = done.stage.options.model_copy(update={"best": "last"})
        folder = self._folder / f"fold-{self._number}"
        self._number += 1
        if not (folder / "model").is_dir():
            ranker = load_ranker(self._work, done.work.model)
            lists = partial(draw, others, options.plan(), self._work.seed)
            name = f"fold {self._number}"
            train_ranker(self._work, options, folder, ranker, others, self._documents, lists, None, name)
        return _probabilities(self._work, folder / "model", held_out)


STAGES.register("denoise")(StageKind(DenoiseOptions, run, check, reads=TRAINING - {"dev"}))
