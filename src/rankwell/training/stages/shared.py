"""What several stage kinds share: the options of list stages; loading, training and measuring a ranker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Qrels, Query, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import parse_measures
from rankwell.inputs.reader import Reader
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.folders import add_markers, load_checkpoint, save_checkpoint
from rankwell.models.checkpoints.names import find_model
from rankwell.models.foreign import PairModel
from rankwell.models.new_heads import start_listwise_head
from rankwell.rank.engines.torch_engine import TorchEngine
from rankwell.rank.ranker import Ranker
from rankwell.rank.rankers import Reranker
from rankwell.training.data.candidates import TrainingCandidates
from rankwell.training.data.sampling import Lists, TrainingSet, draw
from rankwell.training.first_stage import find_encoder
from rankwell.training.loop.loop import CollapseGuard, Progress, train
from rankwell.training.loop.losses import Loss, make_loss
from rankwell.training.loop.task import RankingTask
from rankwell.training.options import FIRST_STAGE_ENCODER
from rankwell.training.recipe import RecipeStage
from rankwell.training.recipe_results import measure_of
from rankwell.training.stage import StageResult, Work, stage_kinds
from rankwell.training.stage_options.ranking import DevOptions, ListOptions

Validate = Callable[[nn.Module], Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class RankerInTraining:
    """A ranker while it is trained: its model, tokenizer and record."""

    model: PairModel
    tokenizer: Tokenizer
    config: RankerConfig

    def save(self, folder: Path) -> None:
        """Write the checkpoint."""
        save_checkpoint(folder, self.model, self.tokenizer, self.config)

    def task(self, data: TrainingSet, lists: Callable[[int], Lists], loss: Loss) -> RankingTask:
        """Learning from these lists, laid out as the ranker reads them."""
        reader = Reader(self.tokenizer, self.config.template, None, self.model.encoder.config.type_vocab_size)
        return RankingTask(data, lists, loss, reader)


def load_ranker(work: Work, start: Path | None = None) -> RankerInTraining:
    """The checkpoint to start from as a ranker of the recipe's inputs; a head it does not have is new."""
    model, tokenizer, config = load_checkpoint(start or work.model, new_head=True, seed=work.seed, **work.changes)
    if config.template.markers:
        add_markers(model, tokenizer)
    return RankerInTraining(model, tokenizer, config.model_copy(update={"history": work.history, "figures": {}}))


def load_one_score(work: Work, head: str, start: Path | None = None) -> RankerInTraining:
    """The same, with a head of one score; of two logits, ``pointwise`` starts it as their difference."""
    ranker = load_ranker(work, start)
    if ranker.config.head != "two_logits":
        return ranker
    start_listwise_head(ranker.model, "difference" if head == "pointwise" else "normal", seed=work.seed)
    return replace(ranker, config=ranker.config.changed({"head": "score"}))


def start_of(work: Work, stage: RecipeStage[ListOptions]) -> Path | None:
    """The checkpoint that a stage's option ``start`` names; None: that of the stage before."""
    if stage.options.start == FIRST_STAGE_ENCODER:
        return find_encoder(work, stage, FIRST_STAGE_ENCODER)
    if stage.options.start == "pretrained":
        pretrained = [done.result.model for done in work.done if done.stage.kind == "pretrain"]
        return pretrained[-1] if pretrained else find_model(work.recipe.model.start)
    return None


def ranker_tokens(work: Work, ranker: RankerInTraining) -> StoredTokens:
    """The collection as the ranker's token ids."""
    return work.data.tokens(ranker.tokenizer, stems=ranker.config.template.markers)


def training_candidates(work: Work, options: ListOptions | None = None) -> TrainingCandidates:
    """The candidates that an earlier stage selected, or else the first stage's; those that ``options`` take."""
    split, level, documents = work.data.train, work.recipe.data.relevance, work.data.collection.store
    options = options or ListOptions(found_only=False)
    depth, found_only = options.depth, options.found_only
    if found_only == "auto" and work.data.collection.dataset.negatives(split.name):
        found_only = False  # no search has found the relevant documents of examples that bring their own negatives
    candidates_of = partial(
        TrainingCandidates.of, split.queries, split.qrels, documents=documents, level=level, found_only=found_only
    )
    if work.candidates is not None:
        return candidates_of(read_run(work.candidates), depth=depth)
    judgments = f"the judgments of the split {split.name!r}"
    return candidates_of(split.run, depth=depth or work.recipe.first_stage.depth, judgments=judgments)


def train_ranker(
    work: Work,
    options: ListOptions,
    folder: Path,
    ranker: RankerInTraining,
    qids: Sequence[str],
    documents: StoredTokens,
    lists: Callable[[int], Lists],
    validation: Validate | None,
    description: str,
) -> Progress:
    """Train a ranker on the lists of each epoch, whose queries are numbers of ``qids``."""
    loss = make_loss(options.loss, **options.loss_options)
    template = ranker.config.template
    data = TrainingSet.of(work.data.train.queries, qids, documents, ranker.tokenizer, stems=template.markers)
    if all(field.name != "type" for field in template.fields):
        data = replace(data, types=None)
    task = ranker.task(data, lists, loss)
    guard = CollapseGuard(loss.chance(torch.from_numpy(lists(0).labels)))
    how = {**work.computing, "rule": ranker.config.attention, "validate": validation, "guard": guard}
    return train(ranker.model, task, options, folder, save=ranker.save, description=description, **how)


def dev_queries(work: Work, options: DevOptions, run: Run | None = None) -> tuple[tuple[Query, ...], Qrels, Run]:
    """The dev queries to evaluate on during training, their judgments, and their candidates from ``run`` or dev's."""
    dev, whole = work.data.dev, run or work.data.dev.run
    queries = dev.queries[: options.dev_queries]
    qids = {query.qid for query in queries}
    qrels = Qrels({qid: grades for qid, grades in dev.qrels.items() if qid in qids})
    return queries, qrels, Run({qid: ranking for qid, ranking in whole.items() if qid in qids}, name=whole.name)


def ranking_validation(
    work: Work,
    options: DevOptions,
    ranker: RankerInTraining,
    *,
    run: Run | None = None,
    wrap: Callable[[Ranker], Reranker] | None = None,
) -> Validate | None:
    """A function that re-ranks dev as a user would, while a stage trains; None where its last checkpoint is kept.

    ``wrap`` makes another kind of the ranker.
    """
    if options.best == "last":
        return None
    measure, depth = measure_of(work.recipe, options.best), work.recipe.evaluate.depth
    queries, qrels, candidates = dev_queries(work, options, run)

    def validate(model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, PairModel)
        device = next(model.parameters()).device
        # A copy: an engine turns its model to 16 bits on a GPU, and these weights are still to be trained.
        engine = TorchEngine(deepcopy(model), ranker.config.attention, device=str(device))
        segments = model.encoder.config.type_vocab_size
        reader = Reader(ranker.tokenizer, ranker.config.template, ranker.config.inference_windows, segments)
        pairs = Ranker.from_engine(engine, reader)
        reranker = pairs if wrap is None else wrap(pairs)
        ranked = reranker.rerank(candidates, queries, work.data.index, depth=depth)
        if device.type == "cuda":
            del engine, reranker, pairs
            torch.cuda.empty_cache()
        return dict(evaluate(qrels, ranked, [measure]).mean)

    return validate


def check_lists(work: Work, stage: RecipeStage[ListOptions]) -> None:
    """Check loss, measure and candidates: a misspelt loss must not surface after hours of pre-training."""
    options = stage.options
    make_loss(options.loss, **options.loss_options)
    if options.best != "last":
        parse_measures([options.best])
    start_of(work, stage)
    if work.candidates is None:
        training_candidates(work, options)


def check_ranker(work: Work, stage: RecipeStage[Any], *trained: str) -> None:
    """Raise unless there is a ranker to continue from: an earlier stage of one of the kinds, or ``model.start``.

    Without kinds, any stage that leaves a ranker will do.
    """
    before = {earlier.kind for earlier in work.recipe.before(stage)}
    trained = trained or tuple(kind for kind, found in stage_kinds().items() if found.leaves_ranker)
    if not before & set(trained) and not describe(work.model).scores_pairs:
        raise RankwellError(f"{stage.path} needs a ranker: a stage before it ({', '.join(trained)}), or model.start")


def fit(
    work: Work, stage: RecipeStage[ListOptions], folder: Path, ranker: RankerInTraining, description: str
) -> StageResult:
    """Train a ranker on lists of the training candidates."""
    options, documents = stage.options, ranker_tokens(work, ranker)
    candidates = training_candidates(work, options)
    lists = partial(draw, candidates, options.plan(), work.seed)
    validation = ranking_validation(work, options, ranker)
    outcome = train_ranker(work, options, folder, ranker, candidates.qids, documents, lists, validation, description)
    return StageResult(folder / "model", figures=outcome.figures())


def rerank_dev(work: Work, model: Path) -> Run:
    """The dev candidates in the order of a ranker."""
    ranker = Ranker.from_pretrained(model, engine=work.engine)
    dev, depth = work.data.dev, work.recipe.evaluate.depth
    return ranker.rerank(dev.run, dev.queries, work.data.index, depth=depth)


def measure_ranker(work: Work, stage: RecipeStage[Any], folder: Path) -> Run:
    """The ``measure`` of stages that leave a ranker of pairs."""
    return rerank_dev(work, folder / "model")
