"""The stage that learns a first stage: DeepCT's term weights, an index of them, and BM25 tuned to it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import MissingExtraError
from rankwell.core.shards import Shards
from rankwell.corpus.records import Query, Run
from rankwell.enrich.term_weights import TermWeigher, WeightOptions
from rankwell.enrich.weighing import model_digest, read_shards, tf_counts, weigh_collection, weigh_texts
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.heads import load_token_weights, save_token_weights
from rankwell.plots.terms import WeighedText, draw_frequencies, draw_terms, write_terms_page
from rankwell.retrieve.index import Index
from rankwell.training.loop import train
from rankwell.training.options import DeepctOptions
from rankwell.training.stage import Produced, Work
from rankwell.training.stage_store import process_number
from rankwell.training.stages.first import INDEX, hold_out, search_tuned, tune_first_stage
from rankwell.training.stages.text import loop_options, outcome_figures
from rankwell.training.tasks.term_recall import TermRecall, TermWeightTask

SHOWN = 20


def term_recall(work: Work, queries: tuple[Query, ...], tokenizer: Tokenizer) -> TermRecall:
    """The targets that these training queries give the passages relevant to them."""
    split, level = work.data.train, work.recipe.data.relevance
    pairs = [
        (row, docid)
        for row, query in enumerate(queries)
        for docid, grade in split.qrels.get(query.qid, {}).items()
        if grade >= level
    ]
    rows = np.array([row for row, _ in pairs], np.int64)
    documents = work.data.collection.store.numbers([docid for _, docid in pairs]).astype(np.int64)
    return TermRecall.of(tokenizer.encode([query.text for query in queries], stems=True), rows, documents)


def deepct(work: Work, options: DeepctOptions, folder: Path) -> Produced:
    """Train, weigh every passage, index the weights, tune BM25; leaves all of it as a first stage."""
    model, tokenizer = load_token_weights(work.model, seed=work.seed)
    held = hold_out(work.data.train.queries, options.tune_queries, work.seed)
    recall = term_recall(work, held.train, tokenizer)
    task = TermWeightTask(
        work.data.tokens(tokenizer, stems=True),
        recall,
        tokenizer.special,
        max_length=options.max_length,
        segments=model.encoder.config.type_vocab_size,
    )
    outcome = train(
        model,
        task,
        loop_options(work, options),
        folder,
        save=lambda target: save_token_weights(target, model, tokenizer, options.max_length),
        description="term weights",
    )
    device = str(next(model.parameters()).device)
    weigher = TermWeigher.from_pretrained(folder / "model", max_length=options.max_length, device=device)
    chosen = WeightOptions(options.scaling, options.scale)
    begin = time.monotonic()
    store = work.data.collection.store
    todo = len(Shards(folder / "weights", len(store), options.shard).pending())
    shards = weigh_collection(
        store, weigher, chosen, folder / "weights", model=model_digest(folder / "model"), shard_size=options.shard
    )
    seconds = time.monotonic() - begin
    if process_number() > 0:
        return Produced()
    figures = {**outcome_figures(outcome), "passages with queries": len(recall), "max_length": options.max_length}
    if todo == len(shards):
        figures["passages weighed per second"] = round(len(store) / max(seconds, 1e-9), 1)
    counts = tf_counts(shards)
    figures |= tune_first_stage(work, _index(work, folder, shards), held.tune, options, folder)
    figures["terms of a passage"] = round(float(counts.sum() / len(store)), 2)
    figures["mean term frequency"] = round(float(np.arange(len(counts)) @ counts / max(1, counts.sum())), 2)
    _show(work, held.tune, weigher, chosen, folder, counts)
    return Produced(first_stage=folder, figures=figures)


def _index(work: Work, folder: Path, shards: Shards) -> Index:
    if (folder / INDEX / "index.json").exists():
        return Index.open(folder / INDEX)
    # Without texts: the collection's own index has them.
    return Index.build(iter(work.data.collection.store), folder / INDEX, weights=read_shards(shards), store=False)


def _show(
    work: Work,
    queries: tuple[Query, ...],
    weigher: TermWeigher,
    options: WeightOptions,
    folder: Path,
    counts: NDArray[np.int64],
) -> None:
    """A page, and pictures where they can be drawn, of passages that queries nobody learned from ask for."""
    qrels, level = work.data.train.qrels, work.recipe.data.relevance
    asked: dict[str, list[str]] = {}
    for query in queries:
        for docid, grade in qrels[query.qid].items():
            if grade >= level and (docid in asked or len(asked) < SHOWN):
                asked.setdefault(docid, []).append(query.text)
    texts = work.data.collection.store.texts(list(asked))
    passages = [
        WeighedText(docid, text, weights, tuple(asked[docid]))
        for docid, text, weights in zip(asked, texts, weigh_texts(weigher, texts, options), strict=True)
    ]
    write_terms_page(passages, folder / "terms.html", counts={"DeepCT": counts})
    with suppress(MissingExtraError):
        draw_frequencies({"DeepCT": counts}, folder / "tf.png")
        if passages:
            draw_terms(passages[0], folder / "terms.png")


def measure_deepct(work: Work, produced: Produced) -> Run:
    """The dev queries on the weighted index."""
    assert produced.first_stage is not None
    return search_tuned(produced.first_stage, work.data.dev, work.recipe.first_stage.depth)
