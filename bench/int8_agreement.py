"""RR@10 of cross-encoders in fp32 and in int8, on the same candidates of many queries.

    python bench/int8_agreement.py measure OUT --models rankwell-mini FOLDER --queries 300 --depth 50
    python bench/int8_agreement.py tables docs/results/int8

Queries are drawn at random (seed 0), and models and data sets take turns, so that a run that is stopped early has
measured all of them alike; started again, it goes on. Candidates are BM25's. A query without a relevant candidate
counts 0 in both. All candidates are scored in int8, but in fp32 only those that could be ranked on the other side of
the best relevant one: whose score in int8 lies within MARGIN standard deviations of its score. ``error`` in the files
is the largest error found there, relative to the same deviation; two candidates' errors would have to differ by MARGIN
to change a figure unnoticed.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import DATA, Table, make_parser
from rankwell import Index, Ranker
from rankwell.corpus.datasets import open_dataset

SPLITS = {"insuranceqa": "valid", "medquad": "dev"}
MARGIN, TOP = 0.3, 10
FIELDS = ("qid", "fp32", "int8", "exact", "error")


def reciprocal_rank(scores: Any, relevant: Any) -> float:
    """RR@10; equal scores keep the candidates' order."""
    hits = relevant[np.argsort(-scores, kind="stable")[:TOP]]
    return 1 / (int(hits.argmax()) + 1) if hits.any() else 0.0


def compare(rankers: dict[str, Ranker], pairs: list[tuple[str, str]], relevant: Any) -> dict[str, Any]:
    """The figures of one query."""
    row: dict[str, Any] = {"fp32": 0.0, "int8": 0.0, "exact": 0, "error": 0.0}
    if not relevant.any():
        return row
    fast = np.asarray(rankers["int8"].predict(pairs), np.float64)
    row["int8"] = reciprocal_rank(fast, relevant)
    best, spread = fast[relevant].max(), max(fast.std(), 1e-9)
    near = np.flatnonzero(np.abs(fast - best) <= MARGIN * spread)
    if (fast > best + MARGIN * spread).sum() >= TOP:
        return row
    mixed = fast.copy()
    if len(near) > 1:
        exact = np.asarray(rankers["fp32"].predict([pairs[i] for i in near]), np.float64)
        errors = exact - fast[near]
        # A shift that all scores have in common does not change their order.
        row["exact"], row["error"] = len(near), round(float(np.abs(errors - np.median(errors)).max() / spread), 4)
        mixed[near] = exact - np.median(errors)
    row["fp32"] = reciprocal_rank(mixed, relevant)
    return row


def measure_cell(data: str, model: str, out: Path, options: Any) -> Iterator[None]:
    """Measure one model on one data set, a query at a time."""
    dataset, split = open_dataset(DATA / data), SPLITS[data]
    folder = options.work / f"index-{data}"
    index = Index.open(folder) if folder.exists() else Index.build(dataset.documents(), folder)
    judged, queries = dataset.qrels(split), dataset.queries(split)
    order = np.random.RandomState(0).permutation(len(queries))[: options.queries]
    path = out / f"{data}.{Path(model).name}.csv"
    done = {row["qid"] for row in read(path)}
    rankers = {
        name: Ranker(model, device="cpu", precision=name, windows=None, max_length=options.max_length)
        for name in ("fp32", "int8")
    }
    for number in order:
        query = queries[number]
        if query.qid in done:
            continue
        docids = index.search([query], k=options.depth)[query.qid].docids
        relevant = np.array([judged.get(query.qid, {}).get(docid, 0) > 0 for docid in docids], bool)
        row = compare(rankers, [(query.text, index.text(docid)) for docid in docids], relevant)
        is_new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow({"qid": query.qid, **row})
        yield


def measure(options: Any) -> None:
    """Measure all models on all data sets, in turns."""
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.process_time()
    cells = [measure_cell(data, model, options.out, options) for data in options.data_sets for model in options.models]
    for turn, _ in enumerate(zip_longest(*cells)):
        if turn % 20 == 19:
            print(f"{turn + 1} queries each, {time.process_time() - begin:.0f} CPU s", flush=True)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def tables(folder: Path) -> None:
    """Print the table of some files."""
    table = Table(
        "data, model",
        "queries",
        "RR@10 fp32",
        "int8",
        "difference",
        "standard error",
        "better / worse",
        "largest error",
    )
    for path in sorted(folder.glob("*.csv")):
        data, _, model = path.stem.partition(".")
        rows = read(path)
        exact, fast = (np.array([float(row[name]) for row in rows]) for name in ("fp32", "int8"))
        change = fast - exact
        table.row(
            f"`{data}` {SPLITS[data]}, {model}",
            len(rows),
            _short(exact.mean()),
            _short(fast.mean()),
            f"{change.mean():+.4f}".replace("0.", ".").replace("-", "−"),
            _short(change.std(ddof=1) / len(rows) ** 0.5),
            f"{int((change > 0).sum())} / {int((change < 0).sum())}",
            f"{max(float(row['error']) for row in rows):.2f}",
        )


def _short(value: float) -> str:
    return f"{value:.4f}".removeprefix("0")


def main() -> None:
    """Measure, or print the table of what was measured."""
    parser = make_parser(__doc__)
    parser.add_argument("task", choices=["measure", "tables"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--work", type=Path, help="folder of the indexes; default: OUT")
    parser.add_argument("--models", nargs="+", default=["rankwell-mini"])
    parser.add_argument("--data-sets", nargs="+", default=list(SPLITS), choices=SPLITS)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--depth", type=int, default=50)
    parser.add_argument("--max-length", type=int, default=180)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    options.work = options.work or options.out
    if options.task == "measure":
        measure(options)
    else:
        tables(options.out)


if __name__ == "__main__":
    main()
