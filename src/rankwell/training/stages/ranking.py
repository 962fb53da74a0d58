"""Stages that learn to rank: pointwise, noise reduction, listwise, duo."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Qrels, Ranking, Run
from rankwell.evaluation.notation import parse_measures
from rankwell.inputs.stored import TokenSource
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.bi_encoder import is_cross_encoder
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.folders import add_markers, load_checkpoint, save_checkpoint
from rankwell.models.encoder import CrossEncoder
from rankwell.models.heads import start_listwise_head
from rankwell.rank.duo import DuoOptions as DuoRanking
from rankwell.rank.duo import rerank_duo
from rankwell.rank.ranker import Ranker
from rankwell.training.data.candidates import Candidates, Numbering, Selection
from rankwell.training.data.denoising import Denoising, cross_fit, denoise, read_candidates, write_candidates
from rankwell.training.data.lists import Lists, TrainingSet
from rankwell.training.data.sampling import Plan, draw, draw_duo
from rankwell.training.guard import CollapseGuard
from rankwell.training.loop import Outcome, train
from rankwell.training.losses import Loss, make_loss
from rankwell.training.options import (
    DenoiseOptions,
    DevOptions,
    DuoOptions,
    ListOptions,
    ListwiseOptions,
    PointwiseOptions,
)
from rankwell.training.results import measure_of, rerank_dev
from rankwell.training.stage import Done, Produced, Work
from rankwell.training.stages.text import loop_options, outcome_figures
from rankwell.training.tasks.ranking import RankingTask
from rankwell.training.validation import Validation


@dataclass(frozen=True, eq=False)
class _Ranker:
    """A ranker in the making."""

    model: CrossEncoder
    tokenizer: Tokenizer
    config: RankerConfig

    def save(self, folder: Path) -> None:
        save_checkpoint(folder, self.model, self.tokenizer, self.config)

    def task(self, data: TrainingSet, lists: Callable[[int], Lists], loss: Loss, max_pairs: int | None) -> RankingTask:
        """Learning from these lists, laid out as the ranker reads them."""
        return RankingTask(
            data,
            lists,
            loss,
            self.config.template.build(),
            self.tokenizer.special,
            segments=self.model.encoder.config.type_vocab_size,
            max_pairs=max_pairs,
        )


def load_ranker(work: Work, start: Path | None = None) -> _Ranker:
    """The checkpoint to start from as a ranker of the recipe's inputs; a head it does not have is new."""
    with warnings.catch_warnings():
        # That a new head is untrained is what the stage is there to change.
        warnings.filterwarnings("ignore", message=".*a new one is used, untrained")
        model, tokenizer, config = load_checkpoint(start or work.model, seed=work.seed, **work.changes)
    if config.template.markers:
        add_markers(model, tokenizer)
    return _Ranker(model, tokenizer, config.model_copy(update={"history": work.history, "figures": {}}))


def load_one_score(work: Work, head: str) -> _Ranker:
    """The same, with a head of one score; of two logits, ``pointwise`` starts it as their difference."""
    ranker = load_ranker(work)
    if ranker.config.head != "two_logits":
        return ranker
    start_listwise_head(ranker.model, "difference" if head == "pointwise" else "normal", seed=work.seed)
    return replace(ranker, config=ranker.config.changed({"head": "score"}))


def ranker_tokens(work: Work, ranker: _Ranker) -> TokenSource:
    """The collection as the ranker's token ids."""
    return work.data.tokens(ranker.tokenizer, stems=ranker.config.template.markers)


def list_plan(options: ListOptions) -> Plan:
    """How a stage draws its lists."""
    return Plan(options.positives, options.negatives, options.weighting, options.per, options.labels)


def training_candidates(work: Work, documents: Numbering, *, skip: int = 0, depth: int | None = None) -> Candidates:
    """What an earlier stage kept, or else what the first stage found."""
    split, level = work.data.train, work.recipe.data.relevance
    if work.candidates is not None:
        selection = Selection(level=level, skip=skip, depth=depth)
        return read_candidates(work.candidates, split.queries, split.qrels, documents, selection)
    selection = Selection(level=level, skip=skip, depth=depth or work.recipe.first_stage.depth)
    judgments = f"the judgments of the split {split.name!r}"
    return Candidates.of(split.queries, split.qrels, split.run, documents, selection, judgments=judgments)


def _train_ranker(
    work: Work,
    options: ListOptions,
    folder: Path,
    ranker: _Ranker,
    candidates: Candidates,
    documents: TokenSource,
    lists: Callable[[int], Lists],
    validation: Validation | None,
    description: str,
) -> Outcome:
    loss = make_loss(options.loss, **options.loss_options)
    data = TrainingSet.of(
        work.data.train.queries, candidates, documents, ranker.tokenizer, stems=ranker.config.template.markers
    )
    if all(field.name != "type" for field in ranker.config.template.build().fields):
        data = replace(data, types=None)
    task = ranker.task(data, lists, loss, options.max_pairs_in_memory)
    first = lists(0)
    guard = CollapseGuard(loss.chance(torch.from_numpy(first.labels)))
    return train(
        ranker.model,
        task,
        loop_options(work, options),
        folder,
        save=ranker.save,
        rule=ranker.config.attention,
        validate=validation,
        guard=guard,
        description=description,
    )


def ranking_validation(
    work: Work, options: DevOptions, ranker: _Ranker, *, run: Run | None = None, duo: DuoRanking | None = None
) -> Validation | None:
    """What measures a stage while it trains; None where its last checkpoint is kept."""
    if options.best == "last":
        return None
    measure = measure_of(work.recipe, options.best)
    dev = work.data.dev
    queries = dev.queries[: options.dev_queries]
    asked = {query.qid for query in queries}
    qrels = Qrels({qid: dev.qrels[qid] for qid in asked if qid in dev.qrels})
    chosen = run or dev.run
    kept = Run({qid: ranking for qid, ranking in chosen.items() if qid in asked}, name=chosen.name)
    depth = work.recipe.evaluate.depth
    return Validation(
        kept, queries, qrels, work.data.index, ranker.tokenizer, ranker.config, measure, depth=depth, duo=duo
    )


def check_lists(work: Work, options: ListOptions) -> None:
    """Loss, measure and candidates before any work: a misspelt loss must not show after hours of pre-training."""
    make_loss(options.loss, **options.loss_options)
    if options.best != "last":
        parse_measures([options.best])
    if work.candidates is None:
        training_candidates(work, work.data.collection.store, skip=options.skip, depth=options.depth)


def check_pointwise(work: Work, options: PointwiseOptions) -> None:
    """The same, and that there are two logits."""
    if work.recipe.model.similarity:
        raise RankwellError("stages.pointwise: a model with a similarity has one score, not two logits; leave it out")
    check_lists(work, options)


def check_duo(work: Work, options: DuoOptions) -> None:
    """The same, and that three texts are read as one."""
    if work.recipe.model.similarity or work.recipe.model.apart:
        raise RankwellError("stages.duo: documents are read together; leave similarity and apart out")
    check_ranker(work, "duo", "pointwise")
    if options.skip or options.depth is not None:
        raise RankwellError("stages.duo compares the first documents of the ranker before it: `compare` says how many")
    if options.labels != "relevance":
        raise RankwellError(f"stages.duo.labels is {options.labels}, but pairs are labelled by relevance; leave it out")
    check_lists(work, options)


def check_ranker(work: Work, kind: str, *trained: str) -> None:
    """A stage that goes on from a ranker needs one: of a stage before it, or to start from."""
    kinds = [stage.kind for stage in work.recipe.stages]
    if not set(trained) & set(kinds[: kinds.index(kind)]) and not is_cross_encoder(work.model):
        raise RankwellError(f"stages.{kind} needs a ranker: a stage before it ({', '.join(trained)}), or model.start")


def _fit(work: Work, options: ListOptions, folder: Path, ranker: _Ranker, description: str) -> Produced:
    documents = ranker_tokens(work, ranker)
    candidates = training_candidates(work, documents, skip=options.skip, depth=options.depth)
    plan = list_plan(options)
    lists = partial(draw, candidates, plan, work.seed)
    validation = ranking_validation(work, options, ranker)
    outcome = _train_ranker(
        work, options, folder, ranker, candidates, documents, lambda epoch: lists(epoch), validation, description
    )
    return Produced(folder / "model", figures=outcome_figures(outcome))


def pointwise(work: Work, options: PointwiseOptions, folder: Path) -> Produced:
    """Each document on its own: two logits and cross entropy."""
    return _fit(work, options, folder, load_ranker(work), "pointwise")


def listwise(work: Work, options: ListwiseOptions, folder: Path) -> Produced:
    """One score, and a loss over whole lists."""
    return _fit(work, options, folder, load_one_score(work, options.head), "listwise")


def _probabilities(work: Work, model: Path, candidates: Candidates) -> NDArray[np.float32]:
    """p(relevant) of each candidate by a trained ranker."""
    ranker = Ranker.from_pretrained(model, engine=_engine(work))
    begins = candidates.ends - candidates.lengths
    docids = candidates.names(candidates.documents)
    spans = list(zip(candidates.qids, begins.tolist(), candidates.ends.tolist(), strict=True))
    # Any score will do: what counts is which documents there are.
    run = Run({qid: Ranking.of(docids[b:e], np.zeros(e - b, np.float32)) for qid, b, e in spans})
    most = int(candidates.lengths.max())
    scored = ranker.rerank(run, work.data.train.queries, work.data.index, depth=most, activation="probability")
    p = np.empty(len(candidates), np.float32)
    for qid, begin, end in spans:
        found = dict(scored[qid])
        p[begin:end] = [found[docid] for docid in docids[begin:end]]
    return p


def _engine(work: Work) -> dict[str, Any]:
    return {} if work.device is None else {"device": work.device}


def denoise_stage(work: Work, options: DenoiseOptions, folder: Path) -> Produced:
    """Drop the candidates that are probably relevant though nobody judged them; leaves an audit."""
    judge = _judge(work).produced.model
    assert judge is not None
    documents = ranker_tokens(work, load_ranker(work, judge))
    candidates = training_candidates(work, documents)
    if options.cross_fit:
        fold = _Folds(work, folder, documents)
        p = cross_fit(candidates, options.cross_fit, work.seed, fold)
    else:
        p = _probabilities(work, judge, candidates)
    limits = Denoising(options.threshold, options.most, options.keep_below, options.hardest, options.keep_one)
    kept, audit = denoise(candidates, p, limits)
    if audit.doubted:
        warnings.warn(
            f"noise reduction drops nothing: {audit.doubted:.1%} of the unjudged candidates have p above "
            f"{options.threshold:g}, and so many are hard negatives rather than relevant (stages.denoise.most is "
            f"{options.most:g}). Train the pointwise stage longer, raise the threshold, or leave denoise out",
            stacklevel=2,
        )
    audit.write(folder, work.data.train.queries, work.data.index)
    write_candidates(kept, folder / "candidates.run.gz")
    return Produced(candidates=folder / "candidates.run.gz", figures=audit.figures())


def _judge(work: Work) -> Done:
    """The pointwise stage whose model says what is noise."""
    return next(done for done in reversed(work.done) if done.stage.kind == "pointwise")


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
            ranker = load_ranker(self._work, done.start)
            plan = list_plan(options)
            lists = partial(draw, others, plan, self._work.seed)
            _train_ranker(
                self._work,
                options,
                folder,
                ranker,
                others,
                self._documents,
                lambda epoch: lists(epoch),
                None,
                f"fold {self._number}",
            )
        return _probabilities(self._work, folder / "model", held_out)


def check_denoise(work: Work, options: DenoiseOptions) -> None:
    """Something must have learned to judge before."""
    kinds = [stage.kind for stage in work.recipe.stages]
    before = kinds[: kinds.index("denoise")]
    if "pointwise" not in before:
        raise RankwellError("stages.denoise needs a pointwise stage before it, whose model judges the candidates")


def duo(work: Work, options: DuoOptions, folder: Path) -> Produced:
    """Which of two documents is better, for the best of the ranker before it."""
    train_run = _kept_run(folder / "mono.train.run.gz", lambda: _rerank_train(work).head(options.compare))
    dev_run = _kept_run(folder / _mono_run(work), lambda: rerank_dev(work, Produced(work.model)))
    model, tokenizer, config = load_checkpoint(work.model, seed=work.seed)
    if config.head == "score":
        raise RankwellError("stages.duo starts from a ranker of two logits; put it after a pointwise stage")
    template = {"name": "duo", "max_length": options.max_length, "markers": False}
    config = config.changed({"template": template}).model_copy(update={"history": work.history, "figures": {}})
    ranker = _Ranker(model, tokenizer, config)
    documents = work.data.tokens(tokenizer)
    split = work.data.train
    selection = Selection(level=work.recipe.data.relevance, depth=options.compare)
    candidates = Candidates.of(split.queries, split.qrels, train_run, documents, selection)
    plan = list_plan(options)
    lists = partial(draw_duo, candidates, plan, work.seed)
    pairs = DuoRanking(options.compare, options.aggregate)
    validation = ranking_validation(work, options, ranker, run=dev_run, duo=pairs)
    outcome = _train_ranker(
        work, options, folder, ranker, candidates, documents, lambda epoch: lists(epoch), validation, "duo"
    )
    return Produced(folder / "model", figures=outcome_figures(outcome))


def _mono_run(work: Work) -> str:
    return f"mono-{work.data.dev.digest}.run.gz"


def _rerank_train(work: Work) -> Run:
    split = work.data.train
    return Ranker.from_pretrained(work.model, engine=_engine(work)).rerank(split.run, split.queries, work.data.index)


def _kept_run(path: Path, make: Callable[[], Run]) -> Run:
    if not path.exists():
        write_run(make(), path)
    return read_run(path)


def measure_duo(work: Work, produced: Produced) -> Run:
    """The dev candidates as the ranker before it orders them, the best then compared two by two."""
    assert produced.model is not None
    options = next(stage.options for stage in work.recipe.stages if stage.kind == "duo")
    assert isinstance(options, DuoOptions)
    ranker = Ranker.from_pretrained(produced.model, engine=_engine(work))
    run = _kept_run(produced.model.parent / _mono_run(work), lambda: rerank_dev(work, Produced(work.model)))
    pairs = DuoRanking(options.compare, options.aggregate)
    return rerank_duo(ranker, run, work.data.dev.queries, work.data.index, pairs)
