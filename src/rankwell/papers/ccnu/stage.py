"""``sdnet``: a small network over the features of a frozen encoder (CCNU's SDNet).

A stage ``tune`` after it interpolates its score S with BM25: α·BM25 + (1−α)·S.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rankwell.core.arrays import Rows
from rankwell.core.errors import RankwellError
from rankwell.core.manifest import digest
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import Measure
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model, find_vectors
from rankwell.papers.ccnu.network import Sdnet, SdnetConfig, load_sdnet, new_sdnet, save_sdnet
from rankwell.papers.ccnu.options import SdnetOptions
from rankwell.papers.ccnu.ranker import SdnetRanker
from rankwell.papers.ccnu.stored_features import PassageFeatures, StoredFeatures, open_features, store_features
from rankwell.papers.ccnu.word_features import (
    FeatureEncoder,
    FeatureSource,
    PairMaker,
    WordTable,
    WordVectors,
    open_vectors,
)
from rankwell.papers.ccnu.words import Tagger, open_tagger
from rankwell.training.data.sampling import Lists, draw
from rankwell.training.loop.loop import CollapseGuard, train
from rankwell.training.loop.losses import Loss, make_loss
from rankwell.training.loop.task import ListTask, Step, StepParts
from rankwell.training.recipe import RecipeStage
from rankwell.training.recipe_results import measure_of
from rankwell.training.stage import PARTS, STAGES, StageKind, StageResult, Work, process_number
from rankwell.training.stages.shared import check_lists, dev_queries, training_candidates


class SdnetTask(ListTask):
    """Lists of a query and passages, scored from the frozen encoder's features. The budget of a step counts words."""

    def __init__(
        self,
        queries: FeatureSource,
        passages: FeatureSource,
        table: WordTable,
        draw: Callable[[int], Lists],
        loss: Loss,
    ):
        super().__init__(draw, loss)
        self._queries, self._passages, self._table = queries, passages, table

    def pairs(self, lists: Lists, step: Step) -> StepParts:
        """See :class:`~rankwell.training.loop.task.ListTask`."""
        passages = lists.documents.reshape(-1)
        queries = np.repeat(lists.queries, lists.documents.shape[1])
        make = PairMaker(self._queries, self._passages, self._table, step.device)

        def score(model: nn.Module, chunk: slice) -> Tensor:
            scores: Tensor = model(*make(queries[chunk], passages[chunk]))
            return scores

        # An empty passage still takes one place.
        return StepParts(np.maximum(1, self._passages.lengths(passages)), score)


def _config(
    work: Work,
    options: SdnetOptions,
    encoder: FeatureEncoder,
    table: WordTable,
    vectors: WordVectors | None,
    tagger: Tagger | None,
) -> SdnetConfig:
    start = work.recipe.model.start
    is_name = not Path(start).exists() and find_model(start) == work.model
    return SdnetConfig(
        encoder=start if is_name else str(work.model.resolve()),
        encoder_digest=encoder.digest,
        vectors=_absolute(options.vectors),
        vectors_digest=None if vectors is None else vectors.digest,
        tagger=options.tagger,
        tagger_version=None if tagger is None else tagger.version,
        tag_counts=(0, 0) if tagger is None else (len(tagger.parts_of_speech), len(tagger.entities)),
        width=encoder.width,
        layers=encoder.layers,
        vector_size=table.size,
        hidden=options.hidden,
        attention=2 * options.hidden,
        signals=options.signals,
        top=options.top,
        dropout=options.dropout,
        max_words=options.max_words,
        max_query_words=work.recipe.model.max_query,
        history=work.history,
    )


def _absolute(vectors: str | None) -> str | None:
    """The absolute path of a file; a name within a package stays as it is."""
    return vectors if vectors is None or ":" in vectors else str(Path(vectors).resolve())


def check(work: Work, stage: RecipeStage[SdnetOptions]) -> None:
    """Raise for whatever would fail after the features are computed."""
    options = stage.options
    check_lists(work, stage)
    if any(later.kind != "tune" for later in work.recipe.stages[stage.number :]):
        raise RankwellError(
            f"{stage.path} must be the last stage that trains: an SDNet is not a checkpoint that others can start from"
        )
    known = describe(work.model).encoder_config().num_hidden_layers + 1
    if options.layers is not None and options.layers > known:
        raise RankwellError(
            f"{stage.path}.layers is {options.layers}, but the encoder has {known}, embeddings included"
        )
    if options.vectors is not None:
        open_vectors(find_vectors(options.vectors))
    _tagger(options)


def run(work: Work, stage: RecipeStage[SdnetOptions], folder: Path) -> StageResult:
    """Compute features, train the network and measure it."""
    options = stage.options
    encoder = FeatureEncoder.from_pretrained(work.model, layers=options.layers, device=work.device)
    vectors = None if options.vectors is None else open_vectors(find_vectors(options.vectors))
    table = WordTable(encoder.vocabulary, vectors or encoder.encoder, encoder.device)
    tagger = _tagger(options)
    store = work.data.collection.store
    # The document store numbers the candidates, as it does the features.
    candidates = training_candidates(work, options)
    begin, rows = time.monotonic(), np.concatenate([candidates.documents, _dev_numbers(work)])
    passages = open_features(store, encoder, rows, max_words=options.max_words, shard_size=options.shard, tagger=tagger)
    feature_seconds = time.monotonic() - begin
    queries = _training_queries(work, encoder, candidates.qids, folder)
    lists = partial(draw, candidates, options.plan(), work.seed)
    loss = make_loss(options.loss, **options.loss_options)
    task = SdnetTask(queries, passages, table, lists, loss)
    model = new_sdnet(_config(work, options, encoder, table, vectors, tagger), work.seed)
    make_ranker = partial(SdnetRanker, encoder=encoder, table=table, tagger=tagger)
    guard = CollapseGuard(loss.chance(torch.from_numpy(lists(0).labels)))
    validate = _validation(work, options, make_ranker, encoder, passages)
    how = {**work.computing, "validate": validate, "guard": guard}
    outcome = train(model, task, options, folder, save=partial(save_sdnet, model=model), description="SDNet", **how)
    if process_number() > 0:
        return StageResult(folder / "model")
    figures = outcome.figures() | {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "passages with features": len(passages.features),
        "bytes of features per passage": round(passages.features.bytes_per_text),
        "feature seconds": round(feature_seconds, 1),
        "truncated passages": passages.features.truncated,
    }
    ranked = _rerank_dev(work, make_ranker(load_sdnet(folder / "model")), passages)
    write_run(ranked, folder / _dev_run(work))
    return StageResult(folder / "model", figures=figures)


def _tagger(options: SdnetOptions) -> Tagger | None:
    return None if options.tagger is None else open_tagger(options.tagger)


def _dev_numbers(work: Work) -> Rows:
    """The numbers of the dev queries' candidates."""
    head = work.data.dev.run.head(work.recipe.evaluate.depth)
    docids = list(dict.fromkeys(docid for ranking in head.values() for docid in ranking.docids))
    return work.data.collection.store.numbers(docids)


def _training_queries(work: Work, encoder: FeatureEncoder, qids: tuple[str, ...], folder: Path) -> StoredFeatures:
    by_id = {query.qid: query.text for query in work.data.train.queries}
    texts = [by_id[qid] for qid in qids]
    return store_features(
        encoder,
        lambda numbers: [texts[number] for number in numbers.tolist()],
        len(texts),
        folder / "queries",
        name=digest(texts),
        max_words=work.recipe.model.max_query,
        shard_size=1024,
    )


def _measure(work: Work, options: SdnetOptions) -> Measure:
    return measure_of(work.recipe, "RR@10" if options.best == "last" else options.best)


def _validation(
    work: Work,
    options: SdnetOptions,
    make_ranker: Callable[[Sdnet], SdnetRanker],
    encoder: FeatureEncoder,
    passages: PassageFeatures,
) -> Callable[[nn.Module], Mapping[str, float]] | None:
    """A function that re-ranks some dev queries from stored features and evaluates the result."""
    if options.best == "last":
        return None
    queries, qrels, run = dev_queries(work, options)
    features = encoder.read([query.text for query in queries], work.recipe.model.max_query)

    def validate(model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Sdnet)
        depth = work.recipe.evaluate.depth
        reranked = make_ranker(model).rerank(run, queries, passages=passages, query_features=features, depth=depth)
        return dict(evaluate(qrels, reranked, [_measure(work, options)]).mean)

    return validate


def _dev_run(work: Work) -> str:
    return f"sdnet-{digest([work.data.dev.digest, work.recipe.evaluate.depth])}.run.gz"


def _rerank_dev(work: Work, ranker: SdnetRanker, passages: PassageFeatures) -> Run:
    dev = work.data.dev
    return ranker.rerank(dev.run, dev.queries, passages=passages, depth=work.recipe.evaluate.depth)


def measure(work: Work, stage: RecipeStage[SdnetOptions], folder: Path) -> Run:
    """The dev candidates by the network alone."""
    path = folder / _dev_run(work)
    if path.exists():
        return read_run(path)
    ranker = SdnetRanker.from_pretrained(folder / "model", device=work.device)
    most, shard = ranker.model.config.max_words, stage.options.shard
    store = work.data.collection.store
    passages = open_features(
        store, ranker.encoder, _dev_numbers(work), max_words=most, shard_size=shard, tagger=ranker.tagger
    )
    return _rerank_dev(work, ranker, passages)


STAGES.register("sdnet")(StageKind(SdnetOptions, run, check, measure, reads=PARTS))
