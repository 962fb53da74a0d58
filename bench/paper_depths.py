"""First stages, and how a ranker's figures depend on the number of candidates it re-ranks (Nogueira and Cho)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness import write_json
from paper_collect import FIRST_STAGE, RANKER, write_table
from paper_recipes import Source
from paper_runs import write_values
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.datasets import FolderDataset
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.names import SHIPPED
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index
from rankwell.training.data.prepare import find_types, open_collection
from rankwell.training.stage_store import FINISHED

DEPTHS = (10, 20, 50, 100, 200, 500, 1000)
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Up to which share of a query's terms a passage contains."""
MEASURES = ("RR@10", "AP", "nDCG", "P@10", "R@100", "R@1000")


def measure_first_stage(source: Source, index: Path | None, row: str, out: Path, pool: Path) -> None:
    """Write the values of the first 1,000 documents, beside BM25's on counted terms (k1 and b, without k2).

    ``index`` is another index of the same documents, such as one of DeepCT's weights or doc2query's queries. If it is
    in the folder of the stage that made it, the figures of that stage are kept, too.
    """
    collection = open_collection(str(source.folder), pool)
    queries, qrels = _judged(source)
    stages = {}
    if index is not None and (record := index.parent / FINISHED).exists():
        stages[row] = {"figures": json.loads(record.read_text(encoding="utf-8"))["produced"]["figures"]}
    searched = collection.index if index is None else Index.open(index)
    plain = collection.index.search(queries, k=1000, bm25=BM25(0.9, 0.4))
    run = searched.search(queries, k=1000, bm25=BM25(source.k1, source.b, source.k2))
    first, found = (evaluate(qrels, each, MEASURES) for each in (plain, run))
    write_values(out, queries, Tokenizer.open(SHIPPED), first, found)  # BERT's vocabulary, as MiniLM's
    # The Wikipedia data have two sets of queries, questions.dev and headings.dev.
    data = source.dev.partition(".")[0] if "." in source.dev else source.folder.name
    arm = {"study": "first-stage", "data": data, "row": row, "seed": 1, "measures": MEASURES}
    recipe = {"first_stage": {"k1": source.k1, "b": source.b, "k2": source.k2}}
    write_json(out / "result.json", {"arm": arm, "recipe": recipe, "stages": stages, "dev": dict(found.mean)})
    print(row, {name: round(value, 4) for name, value in found.mean.items()})


def measure_depths(source: Source, index: Path | None, ranker: Ranker, count: int, out: Path, pool: Path) -> None:
    """Write RR@10, AP and recall of ``count`` dev queries, drawn at random, for each number of candidates.

    ``index`` finds the candidates, as in :func:`measure_first_stage`.
    """
    collection = open_collection(str(source.folder), pool)
    queries, qrels = _judged(source)
    picked = np.sort(np.random.default_rng(1).permutation(len(queries))[:count]).tolist()
    queries = [queries[k] for k in picked]
    if ranker.takes_types:
        types = find_types("auto", collection.dataset, source.dev, queries, pool)
        queries = [Query(query.qid, query.text, types.get(query.qid)) for query in queries]
    searched = collection.index if index is None else Index.open(index)
    first = searched.search(queries, k=max(DEPTHS), bm25=BM25(source.k1, source.b, source.k2))
    begin = time.process_time()
    scored = ranker.rerank(first, queries, collection.index, depth=max(DEPTHS))
    print(f"{time.process_time() - begin:.0f} s of CPU for {sum(map(len, first.values())):,} pairs")
    judged = type(qrels)({query.qid: qrels[query.qid] for query in queries})
    columns: dict[str, list[str]] = {"qid": [query.qid for query in queries]}
    for name, run in ((FIRST_STAGE, first), (RANKER, scored)):
        for depth in DEPTHS:
            recall = f"R@{depth}"
            found = evaluate(judged, _restricted(run, first, depth), ["RR@10", "AP", recall])
            for measure in ("RR@10", "AP", *([recall] if run is first else [])):
                by_qid = dict(zip(found.qids, found.per_query[measure].tolist(), strict=True))
                label = f"{name} {'R' if measure == recall else measure} at {depth}"
                columns[label] = [f"{by_qid[qid]:.5g}" for qid in columns["qid"]]
    write_table(out, [list(columns), *zip(*columns.values(), strict=True)])


def count_overlap(source: Source, out: Path, pool: Path) -> None:
    """Write how many passages contain which share of a training query's terms.

    Passages are relevant ones that BM25 found among its first 100, relevant ones that it missed, and its other finds.
    Also, how many passages are relevant to a training query, and how many dev queries have one of these.
    """
    collection, analyzer = open_collection(str(source.folder), pool), Analyzer.english()
    queries, qrels = _judged(source, source.train)
    run = collection.index.search(queries, k=100, bm25=BM25(source.k1, source.b, source.k2))
    documents = list(collection.dataset.documents())
    terms = analyzer.terms_batch([document.text for document in documents])
    terms_of = {document.docid: set(some) for document, some in zip(documents, terms, strict=True)}
    counts = {kind: [0] * len(SHARES) for kind in ("found", "missed", "other")}
    trained_on: set[str] = set()
    for query, asked in zip(queries, analyzer.terms_batch([query.text for query in queries]), strict=True):
        candidates = set(run[query.qid].docids) if query.qid in run else set()
        relevant = {docid for docid, grade in qrels[query.qid].items() if grade >= 1}
        trained_on |= relevant
        for docid in relevant | candidates if asked else ():
            kind = "other" if docid not in relevant else "found" if docid in candidates else "missed"
            share = len(terms_of[docid] & set(asked)) / len(set(asked))
            counts[kind][int(np.searchsorted(SHARES, share))] += 1
    dev, judged = _judged(source)
    known = sum(any(grade >= 1 and docid in trained_on for docid, grade in judged[query.qid].items()) for query in dev)
    record: dict[str, Any] = {"data": source.folder.name, "queries": len(queries), "shares": SHARES, **counts}
    record |= {"passages": len(documents), "passages relevant to a training query": len(trained_on)}
    write_json(out, record | {"dev queries": len(dev), "dev queries with such a relevant passage": known})


def _judged(source: Source, split: str | None = None) -> tuple[list[Query], Any]:
    data, split = FolderDataset(source.folder), split or source.dev
    qrels = data.qrels(split)
    return [query for query in data.queries(split) if query.qid in qrels], qrels


def _restricted(run: Run, first: Run, depth: int) -> Run:
    """The run without documents below the first stage's first ``depth``."""
    rankings = {}
    for qid, ranking in first.items():
        scores = dict(run[qid])
        docids = list(ranking.docids[:depth])
        rankings[qid] = Ranking.of(docids, np.array([scores[docid] for docid in docids], np.float32))
    return Run(rankings)
