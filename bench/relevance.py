"""Relevance: whether the probability of an answer is right, and what a least one leaves out, beside other thresholds.

    python bench/relevance.py measure --out docs/results/relevance.json
    python bench/relevance.py measure --model rankwell-mini --sets wiki
    python bench/relevance.py tables docs/results

Systems that nothing was fitted to (BM25 and the shipped bi-encoder, or its candidates re-ranked by --model) search for
the dev queries of each data set, among the documents that answer them and others at random. A list without its relevant
documents is that of a query without an answer. Relevance is fitted to 100, 300 or 1,000 queries and measured on the
others, in ten random divisions; every threshold keeps 95 % of the right first answers of the queries it is taken from.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness import DATA, Table, clock_and_cpu, machine, make_parser, write_json
from rankwell import Index, System
from rankwell.corpus.datasets import open_dataset
from rankwell.rank.calibration import KEPT, Judged, calibrate, fit, judged_lists, try_out
from rankwell.rank.defaults import UNFITTED
from rankwell.rank.first_stage import Scope

SETS = {"insuranceqa": ("valid", 12_000), "medquad": ("dev", 6_000), "wiki": ("questions.dev", 20_000)}
MOST, LISTED, DIVISIONS, SAMPLES, TIMED = 2000, 30, 10, 1000, 100
SIZES = (100, 300, 1000)


def open_system(name: str, work: Path, model: str | None) -> tuple[System, Any, Any]:
    """The system, the queries and their judgments."""
    split, size = SETS[name]
    data = open_dataset(DATA / name)
    qrels = data.qrels(split)
    queries = [query for query in data.queries(split) if any(grade > 0 for grade in qrels[query.qid].values())]
    random.Random(0).shuffle(queries)
    queries, folder = queries[:MOST], work / name
    if not (folder / "index.json").exists():
        documents = list(data.documents())
        gold = {docid for query in queries for docid, grade in qrels[query.qid].items() if grade > 0}
        others = [document.docid for document in documents if document.docid not in gold]
        random.Random(0).shuffle(others)
        wanted = gold | set(others[: max(0, size - len(gold))])
        Index.build([document for document in documents if document.docid in wanted], folder)
    system = System.of_index(folder, hybrid=UNFITTED.share, ranker=model, depth=10 if model else 100)
    return system, queries, qrels


def auroc(positive: np.ndarray, negative: np.ndarray) -> float:
    """The chance that a positive value is above a negative one; equal ones count half."""
    ordered = np.sort(negative)
    below, upto = (np.searchsorted(ordered, positive, side).mean() for side in ("left", "right"))
    return float((below + upto) / 2 / len(negative))


def with_interval(lists: list[Judged], rated: Sequence[Any], without: Sequence[Any]) -> list[float]:
    """The AUROC of right first answers against all others, and its 95 % bootstrap interval over queries."""
    right = np.array([judged.relevant[0] for judged in lists])
    first, none = (np.array([some[0] if len(some) else 0.0 for some in both]) for both in (rated, without))

    def of(rows: np.ndarray) -> float:
        return auroc(first[rows][right[rows]], np.concatenate([first[rows][~right[rows]], none[rows]]))

    generator, everything = np.random.default_rng(0), np.arange(len(lists))
    drawn = [of(generator.choice(everything, len(lists))) for _ in range(SAMPLES)]
    return [of(everything), *map(float, np.quantile(drawn, [0.025, 0.975]))]


def floor_of(values: Any, train: list[Judged], test: list[Judged]) -> tuple[float, float, float]:
    """The threshold that keeps most of the right first answers of some queries; what it keeps and silences of others.

    ``values`` makes one number of a list, as scripts that drop answers by a score do.
    """
    threshold = np.quantile([values(own.values) for own in train if own.relevant[0]], 1 - KEPT)
    kept = np.mean([values(own.values) >= threshold for own in test if own.relevant[0]])
    silent = [not len(left := own.unanswered().values) or values(left) < threshold for own in test]
    return float(threshold), float(kept), float(np.mean(silent))


def measure(options: argparse.Namespace) -> None:
    """Measure everything and write it down."""
    lists, found = dict[str, list[Judged]](), dict[str, Any]()
    for name in options.sets:
        system, queries, qrels = open_system(name, options.work, options.model)
        names = system.signals
        signals = system.find(queries, LISTED, Scope(signals=names), 1).signals
        lists[name] = judged_lists(signals, {query.qid: qrels[query.qid] for query in queries})
        found[name] = {"documents": len(system.index), "queries": len(lists[name])}
        found[name] |= {"right first": float(np.mean([own.relevant[0] for own in lists[name]]))}
        print(name, found[name], flush=True)
        plain, rates = Scope(), Scope(signals=names)
        times: dict[Scope, list[float]] = {plain: [], rates: []}
        for query in queries[:TIMED]:
            for scope, spent in times.items():  # in turn, as the machine may be busy
                answer = lambda: system.answers(system.find([query], 10, scope, 1), query.qid)  # noqa: B023, E731
                spent.append(1000 * clock_and_cpu(answer)[1])
        found[name]["CPU milliseconds, without and with"] = [round(median(spent), 2) for spent in times.values()]
    first, gap = (lambda values: values[0, -1]), (lambda values: values[0, -1] - values[min(1, len(values) - 1), -1])
    others: dict[str, Callable[[Any], float]]
    others = {"score": first, "gap": gap} if options.model is None else {"model score": first, "gap": gap}
    if options.model is None:
        others["similarity"] = lambda values: values[0, names.index("similarity")]
    for name, own in lists.items():
        for size in SIZES:
            rows = list[dict[str, float]]()
            for division in range(DIVISIONS):
                order = np.random.default_rng(division).permutation(len(own)).tolist()
                train, test = [own[k] for k in order[:size]], [own[k] for k in order[size:]]
                made = calibrate(names, train, found[name]["documents"])
                assert made is not None
                trial, row = try_out(made[0], test), dict[str, Any]()
                row["error"], row["threshold"] = trial.error, made[0].threshold
                row["kept"], row["silent"] = trial.at(row["threshold"])
                anything = np.array([made[0].rate(each.values)[:10].max() for each in test])
                row["silent, 95 % of all queries"] = trial.at(float(np.quantile(anything, 1 - KEPT)))[1]
                for other, values in others.items():
                    _, row[f"kept by {other}"], row[f"silent by {other}"] = floor_of(values, train, test)
                rows.append(row)
            mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
            found[name][f"{size} queries"] = {**mean, "error, worst": max(row["error"] for row in rows)}
        assert made is not None
        rate = made[0].rate
        rated = [rate(each.values) for each in test]
        without = [rate(each.unanswered().values) if not each.relevant.all() else np.zeros(0) for each in test]
        found[name]["auroc"] = with_interval(test, rated, without)
        for signal, values in others.items():
            of_lists = (
                [[values(each.values)] for each in test],
                [[values(left)] if len(left := each.unanswered().values) else [] for each in test],
            )
            found[name][f"auroc by {signal}"] = with_interval(test, *of_lists)
        found[name]["from elsewhere"] = {
            other: moved(names, its[:1000], own, others) for other, its in lists.items() if other != name
        }
        found[name]["signals"] = {" + ".join(some): ablated(names, some, own) for some in subsets(names)}
    write_json(options.out, {"machine": machine("numpy", "torch"), "model": options.model, "sets": found})


def moved(names: Any, train: list[Judged], test: list[Judged], others: Any) -> dict[str, list[float]]:
    """What thresholds of another data set keep and silence here, and how wrong its probabilities are."""
    if (made := calibrate(names, train, 0)) is None:
        raise SystemExit("too few queries")
    trial = try_out(made[0], test)
    floors = {name: list(floor_of(values, train, test)[1:]) for name, values in others.items()}
    return {"relevance": list(trial.at(made[0].threshold)), "error": [trial.error], **floors}


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All signals, all but one, and each alone."""
    return [names, *(tuple(n for n in names if n != left) for left in names), *((name,) for name in names)]


def ablated(names: tuple[str, ...], some: tuple[str, ...], lists: list[Judged]) -> list[float]:
    """The AUROC and the part of queries without an answer that return nothing, with some of the signals."""
    columns = [names.index(name) for name in some]
    cut = [Judged(judged.values[:, columns], judged.relevant) for judged in lists]
    train, test = cut[: len(cut) // 2], cut[len(cut) // 2 :]
    trial, made = try_out(fit(some, train), test), calibrate(some, train, 0)
    assert made is not None
    right = trial.first_relevant
    return [auroc(trial.first[right], trial.first[~right]), *trial.at(made[0].threshold)]


def tables(folder: Path) -> None:
    """Print the tables of the page."""
    sets = json.loads((folder / "relevance.json").read_text(encoding="utf-8"))["sets"]
    kinds = ("score", "gap", "similarity")
    table = Table("return nothing", "judged", "error", "relevance", *kinds, "AUROC of relevance")
    for name, own in sets.items():
        for size in SIZES:
            row = own[f"{size} queries"]
            cells = [f"{100 * row[kind]:.0f} %" for kind in ("silent", *(f"silent by {kind}" for kind in kinds))]
            interval = "{:.3f} [{:.3f}, {:.3f}]".format(*own["auroc"]) if size == SIZES[-1] else ""
            table.row(name, f"{size:,}", f"{row['error']:.3f}", *cells, interval)
    print()
    table = Table("threshold of", "used on", "relevance", *kinds, labels=2)
    for name, own in sets.items():
        for other, row in own["from elsewhere"].items():
            both = [[f"{100 * value:.0f} %" for value in row[kind]] for kind in ("relevance", *kinds)]
            table.row(other, name, *(" / ".join(some) for some in both))


if __name__ == "__main__":
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tables", help="print the tables of the kept figures").add_argument("folder", type=Path)
    measuring = commands.add_parser("measure", help="measure")
    measuring.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    measuring.add_argument("--model", help="a re-ranker of the best ten")
    measuring.add_argument("--work", type=Path, default=Path("/tmp/rankwell-relevance"))
    measuring.add_argument("--out", type=Path)
    options = parser.parse_args()
    tables(options.folder) if options.command == "tables" else measure(options)
