"""Word vectors: what they gain over hybrid search, what their codes lose, and what both cost.

    python bench/word_vectors.py DATA --dev valid --queries 700 --documents 7000

The first stage's share and the weight of the words are chosen on queries of the training split. ``exact`` compares all
numbers of all word vectors, ``codes`` what an index stores. With --documents, the collection is cut to the judged
documents, the best of BM25 and others at random. Times are CPU seconds of this process; the other work of the machine
counts little.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from harness import machine, make_parser
from rankwell import Index
from rankwell.corpus.datasets import Dataset, open_dataset
from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run
from rankwell.corpus.store import DocumentStore
from rankwell.evaluation.compare import compare
from rankwell.evaluation.evaluate import evaluate
from rankwell.models import bi_encoder
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.dense import DenseRanker, search_both
from rankwell.rank.fusion import fuse
from rankwell.rank.passage_vectors import PassageVectors, PassageWords
from rankwell.rank.tuning import share_grid, tune_fusion

DEPTH, MEASURE = 100, "RR@10"


def sample(data: Dataset, split: str, count: int) -> tuple[list[Query], Qrels]:
    """Some judged queries of a split."""
    qrels = data.qrels(split)
    queries = [query for query in data.queries(split) if query.qid in qrels]
    random.Random(0).shuffle(queries)
    return queries[:count], Qrels({query.qid: qrels[query.qid] for query in queries[:count]})


def cut(data: Dataset, parts: list[tuple[list[Query], Qrels]], count: int | None, work: Path) -> list[Document]:
    """The documents to search."""
    documents = list(data.documents())
    if count is None or count >= len(documents):
        return documents
    wanted = {docid for _, qrels in parts for grades in qrels.values() for docid in grades}
    index = Index.build(documents, work / "all")
    for ranks in range(1, DEPTH):
        if len(wanted) < 0.85 * count:
            found = [index.search(queries, k=ranks) for queries, _ in parts]
            wanted |= {docid for run in found for ranking in run.values() for docid in ranking.docids[ranks - 1 :]}
    rest = [document for document in documents if document.docid not in wanted]
    more = {document.docid for document in random.Random(0).sample(rest, max(0, count - len(wanted)))}
    return [document for document in documents if document.docid in wanted | more]


def exact_words(encoder: BiEncoder, run: Run, queries: list[Query], index: Index) -> Run:
    """The run that stored words give, computed from all numbers of their vectors."""
    bi_encoder.WORD_WIDTH = encoder.encoder.config.hidden_size
    vars(encoder).pop("_word_rotation", None)
    texts = {query.qid: query.text for query in queries}
    docids = sorted({docid for ranking in run.values() for docid in ranking.docids})
    words: list[np.ndarray] = []
    encoder.encode_documents(index.texts(docids), words)
    stored = {docid: vectors.astype(np.float16) for docid, vectors in zip(docids, words, strict=True)}
    rankings = {}
    for (qid, ranking), query in zip(run.items(), encoder.encode_query_words([texts[qid] for qid in run]), strict=True):
        scores = [(stored[docid].astype(np.float32) @ query.T).max(axis=0).mean() for docid in ranking.docids]
        rankings[qid] = Ranking.of(ranking.docids, scores)
    return Run(rankings)


def cpu_seconds(documents: list[Document], encoder: BiEncoder, kind: type[PassageVectors | PassageWords]) -> float:
    """The time to compute vectors, without that of tokenising."""
    with tempfile.TemporaryDirectory() as folder:
        store = DocumentStore.build(documents, Path(folder) / "store")
        begin = time.process_time()
        kind.open(store, encoder)
        return time.process_time() - begin


def main() -> None:
    """Measure and print a JSON object."""
    parser = make_parser(__doc__)
    parser.add_argument("data")
    parser.add_argument("--train", default="train")
    parser.add_argument("--dev", default="dev")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--encoder", default="rankwell-mini")
    parser.add_argument("--cost-only", action="store_true", help="Measure times alone.")
    options = parser.parse_args()
    data, encoder = open_dataset(options.data), BiEncoder.from_pretrained(options.encoder)
    parts = [sample(data, options.train, 300), sample(data, options.dev, options.queries)]
    with tempfile.TemporaryDirectory() as folder:
        documents = cut(data, parts, options.documents, Path(folder))
        timed = documents[:512]
        cpu_seconds(timed[:32], encoder, PassageWords)  # compiles the kernels
        seconds: dict[str, list[float]] = {"PassageVectors": [], "PassageWords": []}
        for _ in range(3):
            for kind in (PassageVectors, PassageWords):
                seconds[kind.__name__].append(cpu_seconds(timed, encoder, kind))
        best = {name: min(values) for name, values in seconds.items()}
        figures: dict[str, object] = {"machine": machine(), "CPU seconds of 512 documents": best}
        if not options.cost_only:
            figures |= quality(documents, parts, encoder, Path(folder))
    print(json.dumps(figures, indent=2))


def quality(
    documents: list[Document], parts: list[tuple[list[Query], Qrels]], encoder: BiEncoder, work: Path
) -> dict[str, object]:
    """The measure of hybrid search, with exact words and with codes, and the time of a comparison."""
    index, dense = Index.build(documents, work / "index"), DenseRanker(encoder)
    for store in index.documents.stores:
        dense.words(store)
    (train, known), (dev, judged) = parts
    runs = {name: search_both(index, dense, queries) for name, queries in (("train", train), ("dev", dev))}
    share = tune_fusion(runs["train"], known, share_grid(list(runs["train"])), measure=MEASURE).best
    first = {name: fuse(both, share, depth=DEPTH) for name, both in runs.items()}
    begin = time.process_time()
    codes = {"dev": dense.compare_words(first["dev"], dev, index)}
    milliseconds = 1000 * (time.process_time() - begin) / len(dev)
    codes["train"] = dense.compare_words(first["train"], train, index)
    exact = {
        name: exact_words(encoder, first[name], queries, index) for name, queries in (("train", train), ("dev", dev))
    }
    compared, weights = {"first stage": first["dev"]}, {}
    for name, words in (("exact", exact), ("codes", codes)):
        fused = {"model": words["train"], "first": first["train"]}
        weight = tune_fusion(fused, known, share_grid(list(fused)), measure=MEASURE).best
        compared[name] = fuse({"model": words["dev"], "first": first["dev"]}, weight)
        weights[name] = weight.model
    contrasts = compare(judged, compared, MEASURE, baseline="first stage").contrasts
    return {
        "documents": len(index),
        "queries": len(dev),
        "share": share.similarity,
        "weights": weights,
        MEASURE: {name: evaluate(judged, run, [MEASURE]).mean[MEASURE] for name, run in compared.items()},
        "gain": {contrast.run: [contrast.difference, *contrast.interval] for contrast in contrasts},
        "CPU ms a query, its encoding included": milliseconds,
        "bytes a document": sum(path.stat().st_size for path in work.rglob("shard*.words")) / len(index),
    }


if __name__ == "__main__":
    main()
