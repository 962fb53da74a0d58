"""Word vectors: what they gain over hybrid search and beside a cross-encoder, what their codes lose, what they cost.

    python bench/word_vectors.py DATA --train train --dev valid --work work/insuranceqa --out insuranceqa.json
    python bench/word_vectors.py DATA --train train --dev valid --system SYSTEM … --work work/fitted --out fitted.json
    python bench/word_vectors.py DATA --dev dev --run run.bm25.txt --work work/msmarco --out msmarco.json
    python bench/word_vectors.py DATA --index-time --documents 3000 --out index-time.json

Candidates are the 100 best of BM25 and the bi-encoder, or those of --run. All weights are chosen on --train-queries
queries of --train; without it by cross-validation, which ranks each query with the weights that are best on the other
four fifths. ``exact words`` compares all numbers of all word vectors, ``words`` what an index stores. Several encoders,
or systems that `rankwell fit` wrote, are several trainings (seeds). The figures go to --out, those of every query to a
.csv.gz beside it, the index and its vectors to --work: another split of the same data set uses them again, and
interrupted work is resumed. All numbers of the word vectors lie there, too, 90 KB for a document of 114 words.

Times are measured in a process of their own, for single queries (the median) and for all at once: on two CPU cores and,
if there is one, on a GPU.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness import Table, clock_and_cpu, machine, make_parser, memory, read_columns, write_columns, write_json
from rankwell import Index, Ranker, System
from rankwell.core.arrays import Rows
from rankwell.corpus.datasets import Dataset, open_dataset
from rankwell.corpus.formats import read_run, write_documents
from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import BiEncoder, Vectors, WordCode
from rankwell.rank.dense import DenseRanker, search_both
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.passage_vectors import PassageVectors, PassageWords
from rankwell.rank.tuning import share_grid, tune_fusion

DEPTH, FEW, MEASURE = 100, 10, "RR@10"
TIMED_DOCUMENTS = 256


def sample(data: Dataset, split: str, number: int) -> tuple[list[Query], Qrels]:
    """Some judged queries of a split."""
    qrels = data.qrels(split)
    queries = [query for query in data.queries(split) if query.qid in qrels]
    random.Random(0).shuffle(queries)
    return queries[:number], Qrels({query.qid: qrels[query.qid] for query in queries[:number]})


def cut(data: Dataset, queries: list[Query], qrels: Qrels, number: int | None) -> list[Document]:
    """The documents to search; with a number the judged ones, the best of BM25 and others at random."""
    documents = list(data.documents())
    if number is None or number >= len(documents):
        return documents
    wanted = {docid for grades in qrels.values() for docid in grades}
    with tempfile.TemporaryDirectory() as folder:
        found = Index.build(documents, Path(folder) / "all").search(queries, k=DEPTH)
        for docids in zip_longest(*(ranking.docids for ranking in found.values())):
            if len(wanted) < 0.85 * number:
                wanted |= {docid for docid in docids if docid is not None}
    rest = [document for document in documents if document.docid not in wanted]
    more = {document.docid for document in random.Random(0).sample(rest, max(0, number - len(wanted)))}
    return [document for document in documents if document.docid in wanted | more]


class KeepingEncoder(BiEncoder):
    """A bi-encoder that also writes all numbers of documents' word vectors to a folder, in 16 bits."""

    kept: Path | None = None

    def encode_tokens(
        self, source: StoredTokens, numbers: Rows, words: list[Any] | None = None, code: WordCode | None = None
    ) -> Vectors:
        """See the base class. A file begins with the first of the documents' numbers."""
        tokens, lengths = list[np.ndarray](), list[np.ndarray]()

        def keep(vectors: Tensor, passages: Tensor, owners: Tensor) -> Tensor:
            tokens.append(vectors.half().cpu().numpy())
            lengths.append(torch.bincount(owners, minlength=len(passages)).cpu().numpy())
            assert code is not None
            return code(vectors, passages, owners)

        if self.kept is None or words is None:
            return super().encode_tokens(source, numbers, words, code)
        encoded = super().encode_tokens(source, numbers, words, keep)
        self.kept.mkdir(parents=True, exist_ok=True)
        np.savez(self.kept / f"{numbers[0]:09}.npz", numbers=numbers, lengths=np.concatenate(lengths))
        np.save(self.kept / f"{numbers[0]:09}.npy", np.concatenate(tokens))
        return encoded


class ExactWords:
    """The word vectors that a :class:`KeepingEncoder` has written."""

    def __init__(self, folder: Path, documents: int):
        self.place_of: dict[int, tuple[np.ndarray, int, int]] = {}
        for path in sorted(folder.glob("*.npz")):
            tokens, owned = np.load(path.with_suffix(".npy"), mmap_mode="r"), np.load(path)
            ends = np.cumsum(owned["lengths"])
            begins = ends - owned["lengths"]
            places = zip(owned["numbers"].tolist(), begins.tolist(), ends.tolist(), strict=True)
            self.place_of |= {number: (tokens, begin, end) for number, begin, end in places}
        if len(self.place_of) != documents:
            raise SystemExit(f"{folder}: {len(self.place_of)} of {documents} documents; use a new --work or --no-exact")

    def compare(self, dense: DenseRanker, run: Run, queries: list[Query], index: Index) -> Run:
        """The run that stored words give, computed in fp32 from all numbers of the vectors."""
        rankings, encoded = dict[str, Ranking](), dense.encode(queries, words=True)
        for (qid, ranking), asked in zip(run.items(), encoded.of(run).words, strict=True):
            some = [self.place_of[number] for number in index.documents.numbers(ranking.docids).tolist()]
            joined = np.concatenate([tokens[begin:end] for tokens, begin, end in some]).astype(np.float32)
            begins = np.cumsum([0, *(end - begin for _, begin, end in some)])[:-1]
            best = np.maximum.reduceat(joined @ asked.T, begins, axis=0)
            rankings[qid] = Ranking.of(ranking.docids, best.sum(axis=1))
        return Run(rankings)


def of_queries(run: Run, qrels: Qrels) -> Run:
    """The part of a run that is judged."""
    return Run({qid: ranking for qid, ranking in run.items() if qid in qrels})


def only(run: Run, top: Run) -> Run:
    """A run's scores of the documents of another."""
    scores = {qid: dict(zip(ranking.docids, ranking.scores, strict=True)) for qid, ranking in run.items()}
    return Run(
        {qid: Ranking.of(ranking.docids, [scores[qid][d] for d in ranking.docids]) for qid, ranking in top.items()}
    )


class Choices:
    """Chooses weights on some queries and keeps the figures of others under them."""

    def __init__(self, train: Qrels | None, dev: Qrels):
        self.train, self.dev = train, dev
        self.figures: dict[str, np.ndarray] = {}
        self.cross_validated: dict[str, np.ndarray] = {}
        self.grids: dict[str, np.ndarray] = {}
        self.weights: dict[str, list[str]] = {}

    def choose(self, title: str, runs: dict[str, Run], grid: tuple[Shares, ...] | None = None) -> Run:
        """The fused run."""
        grid = grid or share_grid(list(runs))

        def tuned(judged: Qrels) -> Any:
            some = {name: of_queries(run, judged) for name, run in runs.items()}
            return tune_fusion(some, judged, grid, measure=MEASURE)

        dev = tuned(self.dev)
        self.grids[title], self.cross_validated[title] = dev.values, dev.held_out
        if self.train is None:
            self.figures[title], self.weights[title] = dev.held_out, [str(shares) for shares in dev.fold_settings]
            return fuse(runs, dev.setting_for, depth=DEPTH)
        best = tuned(self.train).best
        self.figures[title], self.weights[title] = dev.values[grid.index(best)], [str(best)]
        return fuse(runs, best, depth=DEPTH)


def measure(options: Any, data: Dataset, name: str, work: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """All figures of one encoder, and every query's measure under each system."""
    begin = time.perf_counter()
    seconds: dict[str, float] = {}

    def done(step: str) -> None:
        nonlocal begin
        seconds[step], begin = round(time.perf_counter() - begin, 1), time.perf_counter()
        print(f"{step}: {seconds[step]} s, {memory():,.0f} MB", file=sys.stderr, flush=True)

    asked, judged = sample(data, options.dev, options.queries)
    learned, train = sample(data, options.train, options.train_queries) if options.train else ([], None)
    queries = learned + asked
    encoder = KeepingEncoder.from_pretrained(name, device=options.device)
    assert isinstance(encoder, KeepingEncoder)
    if options.exact:
        encoder.kept = work / f"exact-{encoder.exact_name}"
    if not (work / "index").is_dir():
        relevant = Qrels({**(train or {}), **judged})
        Index.build(cut(data, queries, relevant, options.documents), work / "index")
    index, dense = Index.open(work / "index"), DenseRanker(encoder)
    done("index")
    for store in index.documents.stores:
        dense.words(store)
    done("vectors and word vectors")
    if options.run:
        run = Run({query.qid: ranking for query in queries if (ranking := options.run.get(query.qid)) is not None})
        both = {"first": run, "similarity": dense.rerank(run, queries, index)}
    else:
        both = search_both(index, dense, queries, k=DEPTH)
    done("search")
    choices = Choices(train, judged)
    choices.choose("BM25", both, (Shares(first=1, normalise="z-score"),))
    first = choices.choose("hybrid", both)
    words = dense.compare_words(first, queries, index)
    done("words")
    by_words = choices.choose("words", {"model": words, "first": first})
    exact = None
    if encoder.kept is not None:
        exact = ExactWords(encoder.kept, len(index)).compare(dense, first, queries, index)
        done("exact words")
        choices.choose("exact words", {"model": exact, "first": first})
    ranker = Ranker(options.ranker, device=options.device, precision="auto")
    scored = ranker.rerank(first, queries, index, depth=DEPTH)
    done("cross-encoder")
    for title, order in (("cross-encoder of 10", first), ("words, then cross-encoder of 10", by_words)):
        top = order.head(FEW)
        choices.choose(title, {"model": only(scored, top), "first": top})
    choices.choose("cross-encoder of 100", {"model": scored, "first": first})
    choices.choose("all, of 100", {"model": scored, "similarity": words, "first": first})
    done("weights")
    values = choices.figures
    grid = share_grid(["model", "first"])
    stored = [path for path in (work / "index").rglob("*.cosine-signs") if encoder.exact_name in str(path)]
    tokens = [len(encoder.name_words(document.text)) for document, _ in zip(data.documents(), range(200), strict=False)]
    record: dict[str, Any] = {
        "encoder": Path(name).name,
        "ranker": Path(options.ranker).name,
        "precision": encoder.precision,
        "documents": len(index),
        "queries": len(judged),
        "weights chosen on": f"{len(train)} queries of {options.train}" if train else "the other four fifths",
        MEASURE: {title: round(float(figures.mean()), 4) for title, figures in values.items()},
        "gain over hybrid": {
            title: interval(figures - values["hybrid"]) for title, figures in values.items() if title != "hybrid"
        },
        "words by weight": {
            f"{shares.model:g}": round(float(row.mean()), 4)
            for shares, row in zip(grid, choices.grids["words"], strict=True)
        },
        "weights": choices.weights,
        "bytes per document": round(sum(path.stat().st_size for path in stored) / len(index)),
        "words per document": round(float(np.mean(tokens)), 1),
        "seconds": seconds,
        "peak memory in MB": memory(),
    }
    if exact is not None:
        # Which weight is chosen differs by chance; over the usual ones, chance counts less.
        usual = [row for row, shares in enumerate(grid) if 0.2 <= shares.model <= 0.8]
        lost = (choices.grids["words"] - choices.grids["exact words"])[usual].mean(axis=0)
        pairs = [(words[qid], exact[qid]) for qid in judged if qid in words and len(words[qid]) > 1]
        record["words minus exact"] = {
            "as chosen": interval(values["words"] - values["exact words"]),
            "weights .2 to .8": interval(lost),
        }
        record["correlation with exact"] = round(float(np.mean([correlation(*pair) for pair in pairs])), 4)
    columns = {"qid": list(judged)} | {title: [f"{v:.4f}" for v in figures] for title, figures in values.items()}
    if train:
        columns |= {
            f"{title}, cross-validated": [f"{v:.4f}" for v in figures]
            for title, figures in choices.cross_validated.items()
            if title not in ("BM25", "hybrid")
        }
    if options.times:
        devices = ["cpu", "cuda"] if encoder.device.type == "cuda" else ["cpu"]
        texts = [query.text for query in asked[: options.times]]
        record["ms per query"] = {device: in_process(device, name, options.ranker, work, texts) for device in devices}
    return record, columns


def correlation(left: Ranking, right: Ranking) -> float:
    """Of two scores of the same documents."""
    other = dict(zip(right.docids, right.scores, strict=True))
    return float(np.corrcoef(left.scores, [other[docid] for docid in left.docids])[0, 1])


def interval(differences: np.ndarray) -> list[float]:
    """The mean and 1.96 standard errors."""
    error = 1.96 * differences.std(ddof=1) / np.sqrt(len(differences))
    return [round(float(differences.mean()), 4), round(float(error), 4)]


# Times


def in_process(device: str, encoder: str, ranker: str, work: Path, queries: list[str]) -> dict[str, Any]:
    """What :func:`times` returns in another process, which has two cores if the device is the CPU."""
    job = {"device": device, "encoder": encoder, "ranker": ranker, "work": str(work), "queries": queries}
    # Every second one, because neighbours are often the two threads of one core.
    cores = sorted(os.sched_getaffinity(0))
    two = cores[:4:2] if len(cores) > 2 else cores
    threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
    on_cpu = device == "cpu"
    told = subprocess.run(
        [sys.executable, __file__, "times"],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | (threads if on_cpu else {}),
        preexec_fn=partial(os.sched_setaffinity, 0, two) if on_cpu else None,
    )
    result: dict[str, Any] = json.loads(told.stdout)
    return result


def times(job: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds for a query of each system, from the text to ten answers."""
    index, device = Index.open(Path(job["work"]) / "index"), job["device"]
    queries, on_cpu = [Query(str(number), text) for number, text in enumerate(job["queries"])], device == "cpu"
    hybrid: Any = {"encoder": job["encoder"], "hybrid": 0.5, "device": device}
    shares = Shares.beside_model(first=0.5, normalise="z-score")
    ranked: Any = {"ranker": job["ranker"], "shares": shares}
    systems = {
        "BM25": System.of_index(index),
        "hybrid": System.of_index(index, **hybrid),
        "words": System.of_index(index, words=0.5, **hybrid),
        "cross-encoder of 10": System.of_index(index, depth=FEW, **hybrid, **ranked),
        "words, then cross-encoder of 10": System.of_index(index, words=0.5, depth=FEW, **hybrid, **ranked),
        "cross-encoder of 100": System.of_index(index, depth=DEPTH, **hybrid, **ranked),
        "all, of 100": System.of_index(index, words=0.5, depth=DEPTH, **hybrid, **ranked),
    }
    dense = systems["words"].first_stage.dense
    found = systems["hybrid"].search(queries, DEPTH)

    def compare_all(query: Query) -> None:
        dense.compare_texts(query.text, index.texts(found[query.qid].docids))

    def median(work: Callable[[Query], object], some: list[Query]) -> float:
        for query in some[:2]:
            work(query)  # compiles and loads
        lasted = []
        for query in some:
            begin = time.perf_counter()
            work(query)
            lasted.append(time.perf_counter() - begin)
        return round(1000 * float(np.median(lasted)), 2)

    def words_alone(query: Query) -> object:
        return dense.compare_words(top[query.qid], [query], index, read)

    alone, together = dict[str, float](), dict[str, float]()
    for title, system in systems.items():
        slow = on_cpu and title.endswith("100")
        some = queries[: max(3, len(queries) // 5)] if slow else queries
        alone[title] = median(lambda query, system=system: system.search([query], FEW), some)  # type: ignore[misc]
        if not slow:
            begin = time.perf_counter()
            system.search(queries, FEW)
            together[title] = round(1000 * (time.perf_counter() - begin) / len(queries), 2)
    top = {query.qid: Run({query.qid: found[query.qid]}) for query in queries}
    read = dense.encode(queries, words=True)  # as a search does in the pass it needs anyway
    alone["words alone"] = median(words_alone, queries)
    _, cpu = clock_and_cpu(lambda: [words_alone(query) for query in queries])
    alone["words alone, CPU time"] = round(1000 * cpu / len(queries), 2)
    alone["exact words alone"] = median(compare_all, queries[:3] if on_cpu else queries)
    begin = time.perf_counter()
    dense.compare_words(found, queries, index, read)
    together["words alone"] = round(1000 * (time.perf_counter() - begin) / len(queries), 2)
    texts = [Document(str(number), text) for number, text in enumerate(index.texts(index_ids(index, TIMED_DOCUMENTS)))]
    encoding: dict[str, list[float]] = {"vectors": [], "with words": []}
    for turn in range(3):
        for name, kind in (("vectors", PassageVectors), ("with words", PassageWords)):
            with tempfile.TemporaryDirectory() as folder:
                store = DocumentStore.build(texts[: len(texts) if turn else 32], Path(folder) / "store")
                begin = time.perf_counter()
                kind.open(store, dense.encoder)
                encoding[name].append(round(time.perf_counter() - begin, 3))
    return {
        "precision": dense.encoder.precision,
        "cores": len(os.sched_getaffinity(0)),
        "single": alone,
        "all at once": together,
        f"seconds to encode {len(texts)} documents": {name: min(values[1:]) for name, values in encoding.items()},
    }


def index_ids(index: Index, most: int | None = None) -> list[str]:
    """The ids of all documents, or of some."""
    numbers = np.linspace(0, len(index) - 1, min(most or len(index), len(index))).astype(np.int64)
    return index.documents.docids(numbers)


# Index time


def index_times(options: Any, data: Dataset, work: Path) -> dict[str, Any]:
    """CPU seconds of `rankwell index` with vectors, and with vectors and words, in turns."""
    documents = [document for document, _ in zip(data.documents(), range(options.documents or 3000), strict=False)]
    few, all_of_them = work / "few.tsv", work / "all.tsv"
    write_documents(documents[:20], few)
    write_documents(documents, all_of_them)

    def index(collection: Path, *more: str) -> float:
        def used() -> float:
            children = resource.getrusage(resource.RUSAGE_CHILDREN)
            return children.ru_utime + children.ru_stime

        begin = used()
        how = ["--encoder", options.encoder[0], *more]
        command = ["-m", "rankwell", "index", str(collection), "--out", str(work / "timed"), "--overwrite", *how]
        shutil.rmtree(work / "timed", ignore_errors=True)
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        return round(used() - begin, 2)

    seconds: dict[str, list[float]] = {"vectors": [], "vectors and words": []}
    index(few, "--words")  # compiles
    for _ in range(3):
        seconds["vectors"].append(index(all_of_them))
        seconds["vectors and words"].append(index(all_of_them, "--words"))
    totals = {name: sum(values) for name, values in seconds.items()}
    return {
        "documents": len(documents),
        "CPU seconds": seconds,
        "ratio": round(totals["vectors and words"] / totals["vectors"], 3),
        "machine": machine("torch", "numba"),
    }


def print_tables(folder: Path) -> None:
    """The tables of docs/retrieve.md, from what was measured; several trainings are averaged."""
    found = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "trainings" in record:
            columns = read_columns(path.with_suffix(".csv.gz"))
            values = {
                name: np.array(cells, np.float64)
                for name, cells in columns.items()
                if name not in ("training", "qid") and not name.endswith(", cross-validated")
            }
            found.append((record["title"], record["trainings"], values))
    systems = list(dict.fromkeys(name for _, _, values in found for name in values))
    table = Table(MEASURE, "documents", "queries", *systems, "gain of words", "words − exact")
    for title, trainings, values in found:
        means = [f"{values[name].mean():.3f}"[1:] if name in values else "" for name in systems]
        shown = []
        for name in ("hybrid", "exact words"):
            mean, error = interval(values["words"] - values[name]) if name in values else (np.nan, np.nan)
            shown.append(f"{mean:+.3f} ± {error:.3f}".replace("0.", ".").replace("-", "−") if name in values else "")
        queries = len(values["words"]) // len(trainings)
        table.row(title, f"{trainings[0]['documents']:,}", f"{queries:,}", *means, *shown)


def main() -> None:
    """Measure, and write what was measured."""
    parser = make_parser(__doc__)
    parser.add_argument("data", help="A data set; or `tables`, to print the page's from the results in FOLDER.")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--title", help="Its name in the table.")
    parser.add_argument("--dev", default="dev", help="The split of the queries that are reported.")
    parser.add_argument("--train", help="The split of the queries on which weights are chosen.")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--train-queries", type=int, default=1000)
    parser.add_argument("--documents", type=int, help="Cut the collection to so many documents.")
    parser.add_argument("--run", type=Path, help="The candidates, instead of those of a search.")
    parser.add_argument("--encoder", nargs="+", default=["rankwell-mini"])
    parser.add_argument("--system", nargs="+", type=Path, help="Systems whose bi-encoders are the encoders.")
    parser.add_argument("--ranker", default="rankwell-mini", help="The cross-encoder.")
    parser.add_argument("--index-time", action="store_true", help="Instead, measure what words add to indexing.")
    parser.add_argument("--no-exact", dest="exact", action="store_false", help="Do not keep and compare exact words.")
    parser.add_argument("--device", help="Of everything but the times.")
    parser.add_argument("--times", type=int, default=20, help="Queries whose time is taken; 0 takes none.")
    parser.add_argument("--work", type=Path, help="A folder that keeps index and vectors.")
    parser.add_argument("--out", type=Path, default=Path("word_vectors.json"))
    options = parser.parse_args()
    if options.data == "tables":
        print_tables(options.folder)
        return
    if options.data == "times":
        print(json.dumps(times(json.load(sys.stdin))))
        return
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        data = open_dataset(options.data)
        if options.index_time:
            write_json(options.out, index_times(options, data, work))
            return
        options.run = read_run(options.run) if options.run else None
        encoders = [str(system / "encoder") for system in options.system or ()] or options.encoder
        title = options.title or f"{Path(options.data).name}, {options.dev}"
        record: dict[str, Any] = {"title": title, "machine": machine("torch", "numba"), "trainings": []}
        if torch.cuda.is_available():
            record["machine"]["gpu"] = torch.cuda.get_device_name()
        table: dict[str, list[str]] = {}
        for number, name in zip(count(1), encoders, strict=False):
            figures, columns = measure(options, data, name, work)
            record["trainings"].append(figures)
            columns = {"training": [str(number)] * len(columns["qid"])} | columns
            table = {name: table.get(name, []) + cells for name, cells in columns.items()}
            write_json(options.out, record)
            write_columns(options.out.with_suffix(".csv.gz"), table)
            print(json.dumps(figures, indent=1), flush=True)


if __name__ == "__main__":
    main()
