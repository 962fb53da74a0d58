"""The stage that learns a first stage: DeepCT's term weights, an index of them, and BM25 tuned to it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.shards import Shards
from rankwell.corpus.formats import write_run
from rankwell.corpus.records import Qrels, Query, Run
from rankwell.enrich.term_weights import TermWeigher, WeightOptions
from rankwell.enrich.weighing import model_digest, read_shards, tf_counts, weigh_collection
from rankwell.evaluation.notation import parse_measure
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.heads import load_token_weights, save_token_weights
from rankwell.retrieve.index import Index
from rankwell.retrieve.tune import DEFAULT, parse_values, tune_bm25
from rankwell.training.loop import train
from rankwell.training.options import DeepctOptions
from rankwell.training.prepare import Split
from rankwell.training.stage import Produced, Work
from rankwell.training.stage_store import process_number
from rankwell.training.term_recall import TermRecall, TermWeightTask
from rankwell.training.text_stages import loop_options, outcome_figures

TUNING = "bm25.json"


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The training queries, but for some that are kept to tune BM25 with."""

    train: tuple[Query, ...]
    tune: tuple[Query, ...]


def hold_out(queries: tuple[Query, ...], count: int, seed: int) -> HeldOut:
    """Set ``count`` queries aside, though never more than a fifth of all.

    The weights of a passage are fitted to its training queries; k1 and b tuned to those would suit no others.
    """
    count = min(count, len(queries) // 5)
    chosen = np.zeros(len(queries), np.bool_)
    chosen[np.random.default_rng([seed, len(queries)]).permutation(len(queries))[:count]] = True
    return HeldOut(
        tuple(query for query, held in zip(queries, chosen, strict=True) if not held),
        tuple(query for query, held in zip(queries, chosen, strict=True) if held),
    )


def check_deepct(work: Work, options: DeepctOptions) -> None:
    """The grid of BM25 must be one, and there must be queries to tune with."""
    parse_measure(options.measure)
    for text in (options.k1, options.b):
        parse_values(text)
    if not hold_out(work.data.train.queries, options.tune_queries, work.seed).tune:
        raise RankwellError(f"stages.deepct sets queries aside to tune BM25; {work.data.train.name!r} has too few")


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
    """Train, weigh every passage, index the weights, tune BM25; leaves all of it, and candidates of train."""
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
    figures |= _index_and_tune(work, options, folder, shards, held.tune)
    write_run(_search(folder, work.data.train, work.recipe.first_stage.depth), folder / "candidates.run.gz")
    return Produced(candidates=folder / "candidates.run.gz", figures=figures)


def _index_and_tune(
    work: Work, options: DeepctOptions, folder: Path, shards: Shards, queries: tuple[Query, ...]
) -> dict[str, Any]:
    target = folder / "index"
    if (target / "index.json").exists():
        index = Index.open(target)
    else:
        index = Index.build(iter(work.data.collection.store), target, weights=read_shards(shards))
    qrels = work.data.train.qrels
    level = work.recipe.data.relevance
    tuning = tune_bm25(
        index,
        queries,
        Qrels({query.qid: qrels[query.qid] for query in queries}),
        measure=str(parse_measure(options.measure, rel=level if level != 1 else None)),
        k1=parse_values(options.k1),
        b=parse_values(options.b),
        seed=work.seed,
        threads=os.cpu_count() or 1,
    )
    tuning.write(folder / TUNING)
    k1, b = tuning.best
    means = dict(zip(tuning.settings, tuning.values.mean(axis=1).tolist(), strict=True))
    counts = tf_counts(shards)
    return {
        "k1": k1,
        "b": b,
        f"{tuning.measure} of {len(queries)} queries set aside, tuned": means[tuning.best],
        f"{tuning.measure} of {len(queries)} queries set aside, k1={DEFAULT[0]} b={DEFAULT[1]}": means[DEFAULT],
        "terms of a passage": round(float(counts.sum() / len(index)), 2),
        "mean term frequency": round(_mean(counts), 2),
    }


def _mean(counts: NDArray[np.int64]) -> float:
    return float(np.arange(len(counts)) @ counts / max(1, counts.sum()))


def _search(folder: Path, split: Split, depth: int) -> Run:
    """The split's queries on the weighted index, with the k1 and b it was tuned to."""
    try:
        best = json.loads((folder / TUNING).read_text(encoding="utf-8"))["best"]
        k1, b = float(best["k1"]), float(best["b"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(folder / TUNING, None, "not the k1 and b of a weighted index") from None
    found = Index.open(folder / "index").search(
        split.queries, k=depth, k1=k1, b=b, threads=os.cpu_count() or 1, name="deepct"
    )
    if not found:
        raise RankwellError(f"the weighted index finds no document for any query of the split {split.name!r}")
    return found


def measure_deepct(work: Work, produced: Produced) -> Run:
    """The dev queries on the weighted index."""
    assert produced.candidates is not None
    return _search(produced.candidates.parent, work.data.dev, work.recipe.first_stage.depth)
