"""``duo``: which of two documents is better? Leaves a second ranker, for the best documents of the first (duoBERT)."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from rankwell.core.checksums import write_checksums
from rankwell.core.errors import RankwellError
from rankwell.core.manifest import write_json
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Run
from rankwell.models.checkpoints.folders import load_checkpoint
from rankwell.papers.duobert.options import DuoOptions
from rankwell.papers.duobert.ranker import COMPARISON, DuoRanker
from rankwell.rank.ranker import Ranker
from rankwell.training.data.candidates import TrainingCandidates
from rankwell.training.data.sampling import Lists, Plan, draw
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, StageKind, StageResult, Work, write_once
from rankwell.training.stages.shared import (
    RankerInTraining,
    check_lists,
    check_ranker,
    ranking_validation,
    rerank_dev,
    train_ranker,
)


def draw_pairs(candidates: TrainingCandidates, plan: Plan, seed: int, epoch: int) -> Lists:
    """Pairs of documents for duoBERT: each positive with each negative of :func:`draw`'s lists, both ways.

    Of the 2·N⁺·N⁻ columns the first half compares a positive with a negative (label 1), the second the same pairs
    turned round (label 0).
    """
    if plan.labels != "relevance":
        raise RankwellError(f"pairs of documents are labelled by relevance, not by {plan.labels}")
    lists = draw(candidates, plan, seed, epoch)
    documents = lists.documents
    positives = np.repeat(documents[:, : plan.positives], plan.negatives, axis=1)
    negatives = np.tile(documents[:, plan.positives :], (1, plan.positives))
    labels = np.repeat(np.array([[1, 0]], np.float32), positives.shape[1], axis=1)
    return Lists(
        lists.queries,
        np.concatenate([positives, negatives], axis=1),
        np.repeat(labels, len(documents), axis=0),
        np.concatenate([negatives, positives], axis=1),
    )


def check(work: Work, stage: RecipeStage[DuoOptions]) -> None:
    """Check the lists, and that there is a ranker before it that reads query and documents together."""
    options = stage.options
    if work.recipe.model.similarity or work.recipe.model.apart:
        raise RankwellError(f"{stage.path}: documents are read together; leave similarity and apart out")
    check_ranker(work, stage, "pointwise")
    if options.depth is not None:
        raise RankwellError(
            f"{stage.path} compares the first documents of the ranker before it: `compare` says how many"
        )
    if options.labels != "relevance":
        raise RankwellError(
            f"{stage.path}.labels is {options.labels}, but pairs are labelled by relevance; leave it out"
        )
    check_lists(work, stage)


def run(work: Work, stage: RecipeStage[DuoOptions], folder: Path) -> StageResult:
    """Train on pairs of the best documents of the ranker before it."""
    options, split = stage.options, work.data.train
    model, tokenizer, config = load_checkpoint(work.model, new_head=True, seed=work.seed)
    if config.head == "score":
        raise RankwellError(f"{stage.path} starts from a ranker of two logits; put it after a pointwise stage")

    def write_train() -> None:
        ranker = Ranker.from_pretrained(_mono_model(work), engine=work.engine)
        ranked = ranker.rerank(split.run, split.queries, work.data.index).head(options.compare)
        write_run(ranked, folder / "mono.train.run.gz")

    train_run = read_run(write_once(folder / "mono.train.run.gz", write_train))
    template = {"name": "duo", "max_length": options.max_length, "markers": False}
    config = config.changed({"template": template}).model_copy(update={"history": work.history, "figures": {}})
    ranker = RankerInTraining(model, tokenizer, config)
    documents = work.data.tokens(tokenizer)
    level, store = work.recipe.data.relevance, work.data.collection.store
    candidates = TrainingCandidates.of(
        split.queries, split.qrels, train_run, store, level=level, depth=options.compare, found_only=options.found_only
    )
    lists = partial(draw_pairs, candidates, options.plan(), work.seed)
    mono = _mono_run(work, folder)
    validation = ranking_validation(
        work, options, ranker, run=mono, wrap=lambda trained: DuoRanker(trained, options.comparison())
    )
    outcome = train_ranker(work, options, folder, ranker, candidates.qids, documents, lists, validation, "duo")
    write_json(folder / "model" / COMPARISON, asdict(options.comparison()))
    write_checksums(folder / "model")
    return StageResult(folder / "model", figures=outcome.figures())


def _mono_model(work: Work) -> Path:
    """The ranker whose best documents are compared: the last one before this stage that reads single documents."""
    for done in reversed(work.done):
        if done.stage.kind == "duo" and done.result.model == work.model:
            return _mono_model(done.work)
    return work.model


def _mono_run(work: Work, folder: Path) -> Run:
    """The dev candidates by that ranker."""
    path = folder / f"mono-{work.data.dev.digest}.run.gz"
    return read_run(write_once(path, lambda: write_run(rerank_dev(work, _mono_model(work)), path)))


def measure(work: Work, stage: RecipeStage[DuoOptions], folder: Path) -> Run:
    """The dev candidates as the ranker before it orders them, the best then compared two by two."""
    ranker = Ranker.from_pretrained(folder / "model", engine=work.engine)
    candidates, dev = _mono_run(work, folder), work.data.dev
    return DuoRanker(ranker, stage.options.comparison()).rerank(candidates, dev.queries, work.data.index)


STAGES.register("duo")(StageKind(DuoOptions, run, check, measure))
