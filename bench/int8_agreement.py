"""RR@10 of cross-encoders in fp32 and in int8, on the same candidates of many queries.

    python bench/int8_agreement.py measure FOLDER --models rankwell-mini --queries 2000 --exact-device cuda
    python bench/int8_agreement.py tables docs/results/int8

Queries are drawn at random (seed 0), candidates are BM25's. A query without a relevant candidate counts 0 in both.
Data sets take turns, so that a run that is stopped early has measured them alike; started again, it goes on. ``error``
in the files is a query's largest error, in standard deviations of its scores, less a shift that all have in common.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from harness import DATA, Table, make_parser
from rankwell import Index, Ranker
from rankwell.corpus.datasets import open_dataset

SPLITS = {"insuranceqa": "valid", "medquad": "dev"}
FIELDS = ("qid", "fp32", "int8", "exact", "error")
AT_ONCE = 20


def measure(options: argparse.Namespace) -> None:
    """Measure all models on all data sets, some queries at a time in turn."""
    options.folder.mkdir(parents=True, exist_ok=True)
    for turn, _ in enumerate(
        zip_longest(*(compare(data, model, options) for data in SPLITS for model in options.models))
    ):
        print(f"{AT_ONCE * (turn + 1)} queries each", flush=True)


def compare(data: str, model: str, options: argparse.Namespace) -> Iterator[None]:
    """Append the figures of one model on one data set to its file."""
    path = options.folder / f"{data}.{Path(model).name}.csv"
    if not path.exists():
        path.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    done = {row["qid"] for row in read_rows(path)}
    dataset, split = open_dataset(DATA / data), SPLITS[data]
    stored = options.folder / f"index-{data}"
    index = Index.open(stored) if stored.exists() else Index.build(dataset.documents(), stored)
    judged, queries = dataset.qrels(split), dataset.queries(split)
    shape: dict[str, Any] = {"windows": None, "max_length": options.max_length}
    exact = Ranker(model, device=options.exact_device, precision="fp32", **shape)
    fast = Ranker(model, device="cpu", precision="int8", **shape)
    drawn = [queries[number] for number in np.random.RandomState(0).permutation(len(queries))[: options.queries]]
    waiting = [query for query in drawn if query.qid not in done]
    for first in range(0, len(waiting), AT_ONCE):
        part = waiting[first : first + AT_ONCE]
        run = index.search(part, k=options.depth)
        docids = {query.qid: list(run[query.qid].docids) for query in part}
        relevant = {
            qid: np.array([judged.get(qid, {}).get(docid, 0) > 0 for docid in found], bool)
            for qid, found in docids.items()
        }
        pairs = [
            (query.text, index.text(docid))
            for query in part
            if relevant[query.qid].any()
            for docid in docids[query.qid]
        ]
        scores = (
            np.array([ranker.predict(pairs) for ranker in (exact, fast)], np.float64) if pairs else np.zeros((2, 0))
        )
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            for query in part:
                hits = relevant[query.qid]
                if not hits.any():
                    writer.writerow((query.qid, 0.0, 0.0, 0, 0.0))
                    continue
                mine, scores = scores[:, : len(hits)], scores[:, len(hits) :]
                errors = mine[1] - mine[0]
                error = np.abs(errors - np.median(errors)).max() / max(mine[0].std(), 1e-9)
                writer.writerow((query.qid, *(reciprocal_rank(row, hits) for row in mine), len(hits), round(error, 4)))
        yield


def reciprocal_rank(scores: Any, relevant: Any) -> float:
    """RR@10; equal scores keep the candidates' order."""
    hits = relevant[np.argsort(-scores, kind="stable")[:10]]
    return 1 / (int(hits.argmax()) + 1) if hits.any() else 0.0


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def tables(folder: Path) -> None:
    """Print the table of some files."""
    columns = ("difference", "standard error", "better / worse", "largest error")
    table = Table("data, model", "queries", "RR@10 fp32", "int8", *columns)
    for path in sorted(folder.glob("*.csv")):
        data, _, model = path.stem.partition(".")
        rows = read_rows(path)
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
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="+", default=["rankwell-mini"])
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--depth", type=int, default=30)
    parser.add_argument("--max-length", type=int, default=180)
    parser.add_argument("--exact-device", default="cpu", help="where fp32 is computed")
    options = parser.parse_args()
    if options.task == "measure":
        measure(options)
    else:
        tables(options.folder)


if __name__ == "__main__":
    main()
