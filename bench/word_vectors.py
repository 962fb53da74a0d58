"""Word vectors: what they gain over hybrid search and beside a cross-encoder, what their codes lose, what they cost.

    python bench/word_vectors.py DATA --dev valid --encoder rankwell-mini --ranker rankwell-mini --out insuranceqa.json

Candidates are the 100 best of BM25 and the bi-encoder. All weights are chosen by cross-validation: each query is ranked
with the weights that are best on the other four fifths. ``exact`` compares all numbers of all word vectors, ``words``
what an index stores. Several encoders are several trainings (seeds). --documents cuts the collection to the judged
documents, the best of BM25 and others at random. The figures go to --out, those of every query to a .tsv beside it.
Times are CPU seconds on a CPU, because the other work of a machine counts little then, else seconds.
"""

from __future__ import annotations

import csv
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import Table, machine, make_parser
from rankwell import Index, Ranker
from rankwell.corpus.datasets import Dataset, open_dataset
from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run
from rankwell.corpus.store import DocumentStore
from rankwell.evaluation.tuning import Tuned
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.rank.dense import DenseRanker, search_both
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.passage_vectors import PassageVectors, PassageWords
from rankwell.rank.ranker import open_ranker
from rankwell.rank.tuning import share_grid, tune_fusion
from rankwell.rank.word_ranker import WordRanker

DEPTH, FEW, MEASURE = 100, 10, "RR@10"
TIMED_DOCUMENTS, TIMED_QUERIES, BLOCK = 512, 10, 1024


def sample(data: Dataset, split: str, number: int) -> tuple[list[Query], Qrels]:
    """Some judged queries of a split."""
    qrels = data.qrels(split)
    queries = [query for query in data.queries(split) if query.qid in qrels]
    random.Random(0).shuffle(queries)
    return queries[:number], Qrels({query.qid: qrels[query.qid] for query in queries[:number]})


def cut(data: Dataset, queries: list[Query], qrels: Qrels, number: int | None, work: Path) -> list[Document]:
    """The documents to search."""
    documents = list(data.documents())
    if number is None or number >= len(documents):
        return documents
    wanted = {docid for grades in qrels.values() for docid in grades}
    found = Index.build(documents, work / "all").search(queries, k=DEPTH)
    for rank in range(DEPTH):
        if len(wanted) < 0.85 * number:
            wanted |= {docid for ranking in found.values() for docid in ranking.docids[rank : rank + 1]}
    rest = [document for document in documents if document.docid not in wanted]
    more = {document.docid for document in random.Random(0).sample(rest, max(0, number - len(wanted)))}
    return [document for document in documents if document.docid in wanted | more]


def exact_words(encoder: BiEncoder, run: Run, queries: list[Query], index: Index) -> Run:
    """The run that stored words give, computed from all numbers of their vectors."""
    texts = {query.qid: query.text for query in queries}
    docids = sorted({docid for ranking in run.values() for docid in ranking.docids})
    stored: dict[str, np.ndarray] = {}
    for begin in range(0, len(docids), BLOCK):
        some, words = docids[begin : begin + BLOCK], list[Vectors]()
        encoder.encode_documents(index.texts(some), words)
        stored |= {docid: vectors.astype(np.float16) for docid, vectors in zip(some, words, strict=True)}
    rankings = {}
    asked = encoder.encode_query_words([texts[qid] for qid in run])
    for (qid, ranking), query in zip(run.items(), asked, strict=True):
        vectors = [stored[docid] for docid in ranking.docids]
        words_of_all = torch.from_numpy(np.concatenate(vectors)).to(encoder.device).float()
        products = (words_of_all @ torch.from_numpy(query).to(encoder.device).T).cpu().numpy()
        begins = np.cumsum([0, *map(len, vectors[:-1])])
        rankings[qid] = Ranking.of(ranking.docids, np.maximum.reduceat(products, begins).mean(axis=1))
    return Run(rankings)


def seconds(encoder: BiEncoder, work: Callable[[], object]) -> float:
    """The time that something takes."""
    clock = time.process_time if encoder.device.type == "cpu" else time.perf_counter
    begin = clock()
    work()
    return clock() - begin


def encoding_times(documents: list[Document], encoder: BiEncoder) -> dict[str, float]:
    """The time to compute vectors alone, and with word vectors; the best of three."""
    times: dict[str, list[float]] = {"vectors": [], "with words": []}
    for turn in range(4):
        for name, kind in (("vectors", PassageVectors), ("with words", PassageWords)):
            with tempfile.TemporaryDirectory() as folder:
                store = DocumentStore.build(documents[: TIMED_DOCUMENTS if turn else 32], Path(folder) / "store")
                times[name].append(seconds(encoder, partial(kind.open, store, encoder)))
    return {name: round(min(values[1:]), 3) for name, values in times.items()}  # the first compiled the kernels


def only(run: Run, top: Run) -> Run:
    """A run's scores of the documents of another."""
    scores = {qid: dict(zip(ranking.docids, ranking.scores, strict=True)) for qid, ranking in run.items()}
    return Run(
        {qid: Ranking.of(ranking.docids, [scores[qid][d] for d in ranking.docids]) for qid, ranking in top.items()}
    )


def measure(options: Any, data: Dataset, name: str, work: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """All figures of one encoder, and every query's measure under each system."""
    queries, judged = sample(data, options.dev, options.queries)
    encoder = BiEncoder.from_pretrained(name, device=options.device)
    documents = cut(data, queries, judged, options.documents, work)
    index, dense = Index.build(documents, work / "index"), DenseRanker(encoder)
    begin = time.perf_counter()
    for store in index.documents.stores:
        dense.words(store)
    built = time.perf_counter() - begin
    both = search_both(index, dense, queries, k=DEPTH)

    def tune(runs: dict[str, Run]) -> Tuned[Shares]:
        return tune_fusion(runs, judged, share_grid(list(runs)), measure=MEASURE)

    hybrid = tune(both)
    first = fuse(both, hybrid.setting_for, depth=DEPTH)
    words, exact = dense.compare_words(first, queries, index), exact_words(encoder, first, queries, index)
    tuned = {
        "first stage": hybrid,
        "words": tune({"model": words, "first": first}),
        "exact": tune({"model": exact, "first": first}),
    }
    some = queries[:TIMED_QUERIES]
    few = Run({query.qid: first[query.qid] for query in some if query.qid in first})
    dense.search(some, index, DEPTH)
    times = {
        "first stage": seconds(encoder, lambda: search_both(index, dense, some)),
        "words": seconds(encoder, lambda: dense.compare_words(few, some, index)),
    }
    if options.ranker:
        ranker = Ranker(options.ranker, device=options.device, precision="auto")
        scored = ranker.rerank(first, queries, index, depth=DEPTH)
        by_words = fuse({"model": words, "first": first}, tuned["words"].setting_for)
        for title, order in (("cross-encoder of 10", first), ("words, then cross-encoder of 10", by_words)):
            top = order.head(FEW)
            tuned[title] = tune({"model": only(scored, top), "first": top})
        tuned["cross-encoder of 100"] = tune({"model": scored, "first": first})
        tuned["all, of 100"] = tune({"model": scored, "similarity": words, "first": first})
        for depth in (FEW, DEPTH):
            times[f"cross-encoder of {depth}"] = seconds(encoder, partial(ranker.rerank, few, some, index, depth=depth))
    values = {title: one.held_out for title, one in tuned.items()}
    # The share of the words that is chosen differs by chance; over these all, chance counts less.
    usual = [row for row, shares in enumerate(tuned["words"].settings) if 0.2 <= shares.model <= 0.8]
    lost = (tuned["words"].values - tuned["exact"].values)[usual].mean(axis=0)
    pairs = [(words[qid], exact[qid]) for qid in words if len(words[qid]) > 1]
    figures = {
        "encoder": name,
        "precision": encoder.precision,
        "documents": len(index),
        "queries": len(judged),
        MEASURE: {title: round(float(figure.mean()), 4) for title, figure in values.items()},
        "gain over the first stage": {
            title: interval(figure - values["first stage"])
            for title, figure in values.items()
            if title != "first stage"
        },
        "words minus exact": {
            "as chosen": interval(values["words"] - values["exact"]),
            "shares .2 to .8": interval(lost),
        },
        "correlation with exact": round(float(np.mean([correlation(*pair) for pair in pairs])), 4),
        "share of the bi-encoder": [shares.similarity for shares in hybrid.fold_settings],
        "weight of the words": [shares.model for shares in tuned["words"].fold_settings],
        "ms per query": {title: round(1000 * value / len(some), 2) for title, value in times.items()},
        "bytes per document": round(sum(path.stat().st_size for path in work.rglob("shard*.words")) / len(index)),
        "words per document": round(float(np.mean([len(encoder.name_words(d.text)) for d in documents[:200]])), 1),
        "seconds to encode all": round(built, 1),
    }
    assert all(one.qids == hybrid.qids for one in tuned.values())
    return figures, {"qid": np.array(hybrid.qids), **values}


def correlation(left: Ranking, right: Ranking) -> float:
    """Of two scores of the same documents."""
    other = dict(zip(right.docids, right.scores, strict=True))
    return float(np.corrcoef(left.scores, [other[docid] for docid in left.docids])[0, 1])


def interval(differences: np.ndarray) -> list[float]:
    """The mean and 1.96 standard errors."""
    error = 1.96 * differences.std(ddof=1) / np.sqrt(len(differences))
    return [round(float(differences.mean()), 4), round(float(error), 4)]


def lines(number: int, values: dict[str, np.ndarray]) -> Iterator[str]:
    """Every query's figures as lines of a table."""
    for row in zip(*values.values(), strict=True):
        yield "\t".join([str(number), str(row[0]), *(f"{value:.4f}" for value in row[1:])])


def beside_pylate(options: Any, data: Dataset, work: Path) -> dict[str, Any]:
    """Times, memory and scores of PyLate and of rankwell, which re-rank BM25's candidates with one checkpoint."""
    from pylate import models, rank

    queries, judged = sample(data, options.dev, options.queries)
    index = Index.build(cut(data, queries, judged, options.documents, work), work / "index")
    run = index.search(queries, k=DEPTH)
    docids = [list(run[query.qid].docids) for query in queries]
    used = sorted({docid for some in docids for docid in some})
    texts = [query.text for query in queries]
    theirs, ours = models.ColBERT(options.late, device="cpu"), open_ranker(options.late, device="cpu", words=True)
    fp32: Any = open_ranker(options.late, device="cpu", precision="fp32", words=True)
    assert isinstance(ours, WordRanker)
    encoder, times, found = ours.dense.encoder, dict[str, float](), dict[str, Any]()

    def timed(name: str, work: Callable[[], Any]) -> None:
        times[name] = round(1000 * seconds(encoder, lambda: found.update({name: work()})) / len(queries), 1)

    vectors = dict(zip(used, theirs.encode(index.texts(used), is_query=False), strict=True))
    given = [[vectors[docid] for docid in some] for some in docids]
    for _ in range(2):  # the first time compiles and loads
        timed("PyLate, queries", lambda: theirs.encode(texts, is_query=True))
        timed("PyLate, rank.rerank", lambda: rank.rerank(docids, found["PyLate, queries"], given, device="cpu"))
    few = DocumentStore.build([Document(d, t) for d, t in zip(used, index.texts(used), strict=True)], work / "few")
    ours.dense.words(few)
    for _ in range(2):
        timed("rankwell, queries", lambda: encoder.encode_query_words(texts))
        timed("rankwell, queries and stored words", lambda: ours.rerank(run, queries, few))
    timed("rankwell, texts in fp32", lambda: fp32.rerank(run, queries, index))
    expected = {
        query.qid: {row["id"]: row["score"] for row in rows}
        for query, rows in zip(queries, found["PyLate, rank.rerank"], strict=True)
    }
    scores = {
        name: [
            (expected[qid][docid], score)
            for qid, ranking in found[name].items()
            for docid, score in zip(ranking.docids, ranking.scores, strict=True)
        ]
        for name in ("rankwell, texts in fp32", "rankwell, queries and stored words")
    }
    return {
        "checkpoint": Path(options.late).name,
        "queries": len(queries),
        "documents": len(used),
        "CPU ms per query": times,
        "bytes per document": {
            "PyLate": round(sum(vector.nbytes for vector in vectors.values()) / len(used)),
            "rankwell": round(sum(path.stat().st_size for path in work.rglob("shard*.words")) / len(used)),
        },
        "largest difference of scores": {name: max(abs(a - b) for a, b in pairs) for name, pairs in scores.items()},
        "mean score": float(np.mean([score for score, _ in scores["rankwell, texts in fp32"]])),
        "correlation with PyLate's, all pairs": {
            name: float(np.corrcoef(np.array(pairs).T)[0, 1]) for name, pairs in scores.items()
        },
        "machine": machine("pylate", "fast-plaid", "torch"),
    }


def print_tables(folder: Path) -> None:
    """The tables of docs/retrieve.md, from what was measured; several trainings are averaged."""
    found = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "trainings" in record:
            with path.with_suffix(".tsv").open(encoding="utf-8") as file:
                rows = list(csv.DictReader(file, delimiter="\t"))
            values = {name: np.array([float(row[name]) for row in rows]) for name in list(rows[0])[2:]}
            found.append((record["title"], record["trainings"], values))
    systems = list(dict.fromkeys(name for _, _, values in found for name in values))
    table = Table(MEASURE, "documents", "queries", *systems, "gain of words", "words − exact")
    for title, trainings, values in found:
        means = [f"{values[name].mean():.3f}"[1:] if name in values else "" for name in systems]
        differences = [interval(values["words"] - values[name]) for name in ("first stage", "exact")]
        shown = [f"{mean:+.3f} ± {error:.3f}".replace("0.", ".").replace("-", "−") for mean, error in differences]
        queries = len(values["words"]) // len(trainings)
        table.row(title, f"{trainings[0]['documents']:,}", f"{queries:,}", *means, *shown)


def main() -> None:
    """Measure, and write what was measured."""
    parser = make_parser(__doc__)
    parser.add_argument("data", help="A data set; or `tables`, to print the page's from the results in FOLDER.")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--title", help="Its name in the table.")
    parser.add_argument("--dev", default="dev", help="The split of the queries.")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--encoder", nargs="+", default=["rankwell-mini"])
    parser.add_argument("--ranker", help="A cross-encoder to compare with.")
    parser.add_argument("--late", help="A late-interaction checkpoint: instead, compare with PyLate, on a CPU.")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=Path("word_vectors.json"))
    options = parser.parse_args()
    if options.data == "tables":
        print_tables(options.folder)
        return
    data, figures, table = open_dataset(options.data), list[dict[str, Any]](), list[str]()
    if options.late:
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(beside_pylate(options, data, Path(folder)), indent=1, default=float)
        options.out.write_text(text + "\n", encoding="utf-8")
        print(text)
        return
    for number, name in zip(count(1), options.encoder, strict=False):
        with tempfile.TemporaryDirectory() as folder:
            documents = list(data.documents())[:TIMED_DOCUMENTS]
            found, values = measure(options, data, name, Path(folder))
            found["seconds to encode 512"] = encoding_times(
                documents, BiEncoder.from_pretrained(name, device=options.device)
            )
        figures.append(found)
        table = table or ["\t".join(["training", *values])]
        table += lines(number, values)
        title = options.title or f"{Path(options.data).name}, {options.dev}"
        record = {"title": title, "machine": machine("torch", "numba")}
        options.out.write_text(json.dumps(record | {"trainings": figures}, indent=1) + "\n", encoding="utf-8")
        options.out.with_suffix(".tsv").write_text("\n".join(table) + "\n", encoding="utf-8")
        print(json.dumps(found, indent=1), flush=True)


if __name__ == "__main__":
    main()
