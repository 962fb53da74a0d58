"""The stage that expands a collection (doc2query): a query writer, its queries for every passage, an index with them.

After a ``deepct`` stage, the queries are added to its term weights: both together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.shards import Shards
from rankwell.corpus.formats import read_weights
from rankwell.corpus.formats.expansions import read_expansions
from rankwell.corpus.records import Query, Run, TermWeights
from rankwell.enrich.expansion import (
    Filtering,
    Judge,
    combine_weights,
    count_expansions,
    expand_store,
    expanded_documents,
)
from rankwell.enrich.weighing import model_digest
from rankwell.models.checkpoints.config import read_encoder_config
from rankwell.models.checkpoints.names import find_model
from rankwell.models.writing.checkpoints import load_writer, save_writer
from rankwell.models.writing.decoding import Writer, Writing
from rankwell.plots.expansions import ExpandedText, write_expansions_page
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.index import Index
from rankwell.training.loop import CPU_BUDGET, train
from rankwell.training.options import DeepctOptions, Doc2queryOptions
from rankwell.training.stage import Produced, Work
from rankwell.training.stage_store import process_number
from rankwell.training.stages.first import INDEX, TuningOptions, check_tuning, hold_out, search_tuned, tune_first_stage
from rankwell.training.stages.text import loop_options, outcome_figures
from rankwell.training.tasks.query_writing import PerplexityOn, QueryPairs, QueryWritingTask, WritingLimits

EXPANSIONS = "expansions.jsonl.gz"
SHOWN = 20


def check_doc2query(work: Work, options: Doc2queryOptions) -> None:
    """Lengths and judge; the rest as in :func:`~rankwell.training.stages.first.check_tuning`."""
    check_tuning(work, options)
    limit = read_encoder_config(work.model).max_position_embeddings
    for name in ("max_length", "max_query"):
        if getattr(options, name) > limit:
            raise RankwellError(
                f"stages.doc2query.{name} is {getattr(options, name)}, but {work.model} has {limit} positions"
            )
    if options.judge is not None and not (find_model(options.judge) / "config.json").is_file():
        raise InputError(options.judge, None, "not a ranker's folder (it has no config.json), expected the judge's")


def doc2query(work: Work, options: Doc2queryOptions, folder: Path) -> Produced:
    """Train, write queries for every passage, index them, tune BM25; leaves all of it as a first stage."""
    held = hold_out(work.data.train.queries, options.tune_queries, work.seed)
    trained, device = _train_writer(work, options, folder, held.train, held.tune)
    begin, store = time.monotonic(), work.data.collection.store
    todo = len(Shards(folder / "shards", len(store), options.shard).pending())
    shards = _expand(work, options, folder, device)
    seconds = time.monotonic() - begin
    if process_number() > 0:
        return Produced()
    shards.join(folder / EXPANSIONS)
    figures = dict(trained)
    if todo == len(shards):
        figures["passages expanded per second"] = round(len(store) / max(seconds, 1e-9), 1)
    figures |= count_expansions(iter(store), folder / EXPANSIONS).as_dict()
    before = _weighted(work)
    grid: TuningOptions = before.options if before else options  # of weighted terms, k1 is another
    figures |= tune_first_stage(work, _index(work, folder, before), held.tune, grid, folder)
    _show(work, held.tune, folder)
    return Produced(first_stage=folder, figures=figures)


def _train_writer(
    work: Work, options: Doc2queryOptions, folder: Path, queries: Sequence[Query], others: Sequence[Query]
) -> tuple[dict[str, Any], str]:
    """Leaves ``folder/model``; returns figures, and the device this process trained on."""
    model, tokenizer, config = load_writer(work.model, seed=work.seed)
    config = config.model_copy(
        update={"max_length": options.max_length, "max_query": options.max_query, "history": work.history}
    )
    tokens, level = work.data.tokens(tokenizer), work.recipe.data.relevance
    limits = WritingLimits(options.max_length, options.max_query)

    def task(asked: Sequence[Query], smoothing: float) -> QueryWritingTask:
        pairs = QueryPairs.of(asked, work.data.train.qrels, tokens, tokenizer, level=level)
        return QueryWritingTask(pairs, tokenizer, limits, smoothing=smoothing)

    learned = task(queries, options.smoothing)
    outcome = train(
        model,
        learned,
        loop_options(work, options),
        folder,
        save=lambda target: save_writer(target, model, tokenizer, config),
        validate=None if options.best == "last" else PerplexityOn(task(others, 0.0), budget=4 * CPU_BUDGET),
        description="query writer",
    )
    figures = {
        **outcome_figures(outcome),
        "pairs": len(learned.pairs),
        "passages cut in training": learned.passages_cut,
    }
    if outcome.best is not None:
        figures["perplexity"] = math.exp(-outcome.best)
    return figures, str(next(model.parameters()).device)


def _expand(work: Work, options: Doc2queryOptions, folder: Path, device: str) -> Shards:
    """Write the queries of all passages; of several processes, each does a share."""
    model, tokenizer, config = load_writer(folder / "model")
    writing = Writing(
        options.n,
        options.method,
        options.top_k,
        options.temperature,
        options.beams,
        max_query=options.max_query,
        seed=work.seed,
    )
    judge: Judge | None = None
    judged_by, filtering = None, Filtering()
    if options.judge is not None:
        place = find_model(options.judge)
        judge, judged_by = judge_of(place, device), model_digest(place)
        filtering = Filtering(threshold=options.threshold)
    return expand_store(
        work.data.collection.store,
        Writer(model, tokenizer, config.max_length, writing, device=device),
        filtering,
        folder / "shards",
        model=model_digest(folder / "model"),
        judge=judge,
        judged_by=judged_by,
        shard_size=options.shard,
    )


def judge_of(ranker: str | Path, device: str | None = None) -> Judge:
    """p(relevant) by a trained ranker."""
    loaded = Ranker.from_pretrained(ranker, engine={} if device is None else {"device": device})

    def judge(pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        return loaded.predict(pairs, activation="probability")

    return judge


@dataclass(frozen=True, eq=False)
class _Weighted:
    """What a ``deepct`` stage before this one left."""

    folder: Path
    options: DeepctOptions

    def weights(self) -> Iterator[TermWeights]:
        return chain.from_iterable(read_weights(path) for path in sorted((self.folder / "weights").glob("shard-*")))


def _weighted(work: Work) -> _Weighted | None:
    for done in reversed(work.done):
        if isinstance(done.stage.options, DeepctOptions) and done.produced.first_stage is not None:
            return _Weighted(done.produced.first_stage, done.stage.options)
    return None


def _index(work: Work, folder: Path, before: _Weighted | None) -> Index:
    """The collection with its expansions, and with the weights a stage before this one gave it."""
    target = folder / INDEX
    if (target / "index.json").exists():
        return Index.open(target)
    # Without texts: the collection's own index has them, and a re-ranker reads those.
    documents, expansions = iter(work.data.collection.store), read_expansions(folder / EXPANSIONS)
    if before is None:
        return Index.build(expanded_documents(documents, expansions), target, store=False)
    scale, root = before.options.scale, before.options.scaling == "root"
    both = combine_weights(before.weights(), expansions, scale=scale, root=root)
    return Index.build(documents, target, weights=both, store=False)


def measure_doc2query(work: Work, produced: Produced) -> Run:
    """The dev queries on the expanded index."""
    assert produced.first_stage is not None
    return search_tuned(produced.first_stage, work.data.dev, work.recipe.first_stage.depth)


def _show(work: Work, queries: Sequence[Query], folder: Path) -> None:
    """A page of passages that queries nobody learned from ask for, with what was written for them."""
    qrels, level = work.data.train.qrels, work.recipe.data.relevance
    asked: dict[str, list[str]] = {}
    for query in queries:
        for docid, grade in qrels[query.qid].items():
            if grade >= level and (docid in asked or len(asked) < SHOWN):
                asked.setdefault(docid, []).append(query.text)
    written = {one.docid: one.queries for one in read_expansions(folder / EXPANSIONS) if one.docid in asked}
    texts = work.data.collection.store.texts(list(asked))
    shown = [
        ExpandedText(docid, text, written[docid], tuple(asked[docid])) for docid, text in zip(asked, texts, strict=True)
    ]
    write_expansions_page(shown, folder / "expansions.html")
