"""Trainings of docs/fitting.md: a fitted first stage and rankers on its candidates; and the page's tables.

    python bench/fit.py run insuranceqa --train train --dev valid --k1 0.9 --b 0.9 --arm fit --seed 1 --out runs/fit-1
    python bench/fit.py collect runs docs/results/fit
    python bench/fit.py tables docs/results/fit

Training queries set aside (600) choose checkpoints and shares, the dev queries choose nothing. ``result.json`` has the
figures of every stage, ``STAGE.csv.gz`` the values of each dev query.

``runs`` has a folder ARM.DATA.sSEED for each training; what was collected before stays. ``DATA.csv.gz`` has a row for
each dev query and a column for each stage, seed and measure.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import MINILM, ROOT, make_parser, write_json
from rankwell.core.arrays import Values
from rankwell.core.files import atomic_folder
from rankwell.corpus.datasets import FolderDataset
from rankwell.corpus.formats import write_qrels, write_queries, write_types
from rankwell.corpus.records import Qrels, Query, Run
from rankwell.evaluation.evaluate import Evaluation, evaluate
from rankwell.evaluation.significance import bootstrap_interval, paired_t_test
from rankwell.training.data.prepare import Split, open_split
from rankwell.training.first_stage import search_split
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe, parse_setting, read_yaml
from rankwell.training.run import measured_run, run_recipe
from rankwell.training.stage import FinishedStage

MEASURES = ("RR@10", "nDCG@10", "R@100")
ARMS = {"fit": "fit", "drbert": "drbert", "marked": "markedbert", "mono": "monobert"}
"""The recipe of each arm; every arm begins with the stage ``encoder`` of recipes/fit.yaml."""
SMALL = {"epochs": 5, "batch": 256, "learning_rate": 1e-4}
"""The bi-encoder's settings, unless ``--large`` asks for those of the recipe."""
DATA = {"insuranceqa": "InsuranceQA", "medquad": "MedQuAD", "questions": "wiki questions", "headings": "wiki headings"}
ROWS = {
    "small unfitted": "BM25",
    "small encoder": "fitted first stage, batch 256",
    "mono pointwise": "— monoBERT on its candidates",
    "marked pointwise": "— MarkedBERT",
    "drbert listwise": "— recipe drbert",
    "small listwise": "— listwise, from MiniLM",
    "small blend": "— the same, blended with the first stage",
    "fit encoder": "fitted first stage, batch 1,024",
    "drbert-large listwise": "— recipe drbert",
    "fit listwise": "— listwise, from the fitted bi-encoder",
    "fit blend": "— the same, blended with the first stage",
    "short blend": "— the same, blended, windows of 180 tokens",
}
STEPS = (
    ("fit encoder", "small unfitted", "first stage, batch 1,024, over BM25"),
    ("fit encoder", "small encoder", "first stage, batch 1,024, over batch 256"),
    ("fit blend", "fit encoder", "blended re-ranker over its first stage"),
    ("fit blend", "small blend", "blended re-ranker over the one from MiniLM on batch 256"),
    ("small encoder", "small unfitted", "first stage, batch 256, over BM25"),
)
FITS = {
    "gpu-10-seed-*": "a GPU, `--minutes 10`",
    "gpu-10-aside-seed-*": "a GPU, `--minutes 10`, reported on training queries",
    "gpu-20-base": "a GPU, `--minutes 20 --try all-mpnet-base-v2`",
    "cpu-15": "two CPU cores, `--minutes 15`",
}
"""The files of the fits in each table, a file for each seed."""
STEP_TITLES = {
    "bm25": "BM25",
    "hybrid": "BM25 and a bi-encoder",
    "hybrid all-mpnet-base-v2": "BM25 and all-mpnet-base-v2",
    "tuned": "tuned settings",
    "adapter": "an adapter on its vectors",
    "words": "word vectors",
    "encoder": "a fitted bi-encoder",
    "words again": "its word vectors",
    "taught": "a small bi-encoder, taught by it",
    "texts": "words of the best documents",
    "shipped": "the shipped re-ranker",
    "rerank": "a trained re-ranker",
}
PEERS = ("sentence-transformers", "rankwell", "sentence-transformers, cached", "rankwell, cached")
COLUMNS = {"fit": "small", "encoder": "small", "final": "fit", "try-b1024-e10": "first large"}
"""Arms whose columns have another name."""


CHOICE_SEED = 20261116


# Training


@dataclass(frozen=True)
class Source:
    """A data set, the splits to train on and to report, and how BM25 finds its candidates."""

    folder: Path
    train: str
    dev: str
    k1: float
    b: float
    aside: int


def set_aside(source: Source, out: Path) -> Path:
    """A data set with three splits: ``fit``, ``choice`` (training queries set aside) and ``dev``; made once."""
    if out.exists():
        return out
    data = FolderDataset(source.folder)
    judged, dev = data.qrels(source.train), data.qrels(source.dev)
    queries = [query for query in data.queries(source.train) if query.qid in judged]
    order = np.random.default_rng(CHOICE_SEED).permutation(len(queries)).tolist()
    aside = set(order[: source.aside])
    splits: dict[str, tuple[list[Query], Qrels]] = {
        "fit": ([query for i, query in enumerate(queries) if i not in aside], judged),
        "choice": ([query for i, query in enumerate(queries) if i in aside], judged),
        "dev": ([query for query in data.queries(source.dev) if query.qid in dev], dev),
    }
    types = {**data.types(source.train), **data.types(source.dev)} if data.has("types") else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        os.symlink(data.collection_path.resolve(), folder / data.collection_path.name)
        for name, (some, qrels) in splits.items():
            write_queries(some, folder / f"queries.{name}.tsv")
            write_qrels(Qrels({query.qid: qrels[query.qid] for query in some}), folder / f"qrels.{name}.txt")
            if labels := {query.qid: types[query.qid] for query in some if query.qid in types}:
                write_types(labels, folder / f"types.{name}.tsv")
    return out


def arm_recipe(data: Path, source: Source, options: argparse.Namespace) -> Recipe:
    """The recipe of an arm, trained on ``fit`` and chosen on ``choice``."""
    recipes = ROOT / "recipes"
    tree, fit = read_yaml(recipes / f"{ARMS[options.arm]}.yaml"), read_yaml(recipes / "fit.yaml")
    encoder = {**fit["stages"]["encoder"], **({} if options.large else SMALL)}
    whole = {
        "name": options.arm,
        "seed": options.seed,
        "data": {"folder": str(data), "train": "fit", "dev": "choice"},
        "first_stage": {"k1": source.k1, "b": source.b, "depth": 100},
        "model": {**tree["model"], "start": options.start},
        "evaluate": {"measures": list(MEASURES), "depth": 100},
        "stages": {"encoder": encoder, **{name: own for name, own in tree["stages"].items() if name != "encoder"}},
    }
    return build_recipe(whole, Path.cwd() / "recipe.yaml", [parse_setting(setting) for setting in options.set])


def train_arm(recipe: Recipe, out: Path, pool: Path, device: str | None) -> dict[str, Any]:
    """Train, then measure every stage on dev; writes ``result.json`` and the values of each query."""
    begin = time.monotonic()
    trained = run_recipe(recipe, out, pool=pool, device=device, say=print)
    seconds = time.monotonic() - begin
    recipe = trained.work.recipe
    base = open_split(recipe, trained.work.data.collection, "dev", pool, device=device)
    stages: dict[str, Any] = {}
    for done in trained.work.done:
        record: dict[str, Any] = {"figures": done.result.figures}
        if done.run is not None:
            split, run = dev_run(done, base)
            found = evaluate(split.qrels, run.head(100), list(MEASURES))
            record["dev"] = dict(found.mean)
            write_values(out / f"{done.stage.name}.csv.gz", found)
        stages[done.stage.name] = record
    unfitted = evaluate(base.qrels, base.run, list(MEASURES))
    write_values(out / "unfitted.csv.gz", unfitted)
    result = {
        "recipe": recipe.as_dict(),
        "seconds": round(seconds, 1),
        "choice": trained.table.data["rows"],
        "dev": {"unfitted": dict(unfitted.mean), **{name: r["dev"] for name, r in stages.items() if "dev" in r}},
        "stages": stages,
    }
    write_json(out / "result.json", result)
    return result


def dev_run(done: FinishedStage, base: Split) -> tuple[Split, Run]:
    """Dev and a stage's run of it, with candidates of the first stage that was fitted before it, if one was."""
    work = done.work
    learned, depth = work.first_stage, work.recipe.first_stage.depth
    split = base if learned is None else search_split(base, learned, depth, work.device)
    there = replace(work, prepared=replace(work.data, dev=split))
    run = measured_run(there, done.stage, done.folder)
    assert run is not None
    return split, run


def write_values(path: Path, found: Evaluation) -> None:
    """The values of each query."""
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["qid", *MEASURES])
        for column, qid in enumerate(found.qids):
            table.writerow([qid, *(f"{found.per_query[name][column]:.6g}" for name in MEASURES)])


# Tables


def collect(runs: Path, out: Path) -> None:
    """Join the results of arms, and add them to those of ``out``."""
    values = {path.name.removesuffix(".csv.gz"): read_columns(path) for path in out.glob("*.csv.gz")}
    for folder in sorted(path for path in runs.iterdir() if (path / "result.json").is_file()):
        arm, data, seed = folder.name.split(".")
        for path in folder.glob("*.csv.gz"):
            stage = path.name.split(".")[0]
            for measure, column in read_columns(path).items():
                name = f"{COLUMNS.get(arm, arm)} {stage}/{seed.replace('s', 'seed ')}/{measure}"
                values.setdefault(data, {})[name] = column
    out.mkdir(parents=True, exist_ok=True)
    for data, columns in values.items():
        if not columns:
            continue
        qids = list(next(iter(columns.values())))
        with gzip.open(out / f"{data}.csv.gz", "wt", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["qid", *columns])
            table.writerows([qid, *(column[qid] for column in columns.values())] for qid in qids)


def read_columns(path: Path, delimiter: str = ",") -> dict[str, dict[str, str]]:
    """The columns of a file, by query."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter=delimiter)
    return {name: {row[0]: row[place] for row in rows} for place, name in enumerate(header) if place}


def read_values(path: Path, delimiter: str = ",") -> dict[str, Values]:
    """The same as numbers."""
    return {name: np.array(list(map(float, own.values()))) for name, own in read_columns(path, delimiter).items()}


def seeds_of(values: dict[str, Values], row: str, measure: str) -> list[Values]:
    """The columns of a row, one for each seed; BM25 has the same in all."""
    found = [column for name, column in sorted(values.items()) if name.startswith(f"{row}/") and name.endswith(measure)]
    return found[:1] if row.endswith("unfitted") else found


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    print("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")


def figure(columns: list[Values]) -> str:
    """The mean over seeds, with their standard deviation."""
    if not columns:
        return ""
    means = [float(column.mean()) for column in columns]
    spread = f" ± {np.std(means, ddof=1):.3f}" if len(means) > 1 else ""
    return f"{np.mean(means):.3f}{spread}"


def p_value(ours: Values, theirs: Values) -> str:
    """The p-value of a paired t-test, for readers."""
    p = paired_t_test(ours, theirs)
    return "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0")


def difference(ours: Values, theirs: Values) -> str:
    """A difference of means and its p-value."""
    p = p_value(ours, theirs)
    return f"{(ours - theirs).mean():+.3f} (p {p if p.startswith('<') else f'= {p}'})"


def tables(folder: Path) -> None:
    """Print all tables."""
    read = {data: read_values(folder / f"{data}.csv.gz") for data in DATA}
    first = [data for data in DATA if data != "headings"]
    header = ["", *(f"{DATA[data]} {measure}" for data in first for measure in ("RR@10", "R@100"))]
    print_table(
        header,
        [
            [name, *(figure(seeds_of(read[data], row, measure)) for data in first for measure in ("RR@10", "R@100"))]
            for row, name in ROWS.items()
        ],
    )
    rows = []
    for data in DATA:
        for ours, theirs, step in STEPS:
            pair = [seeds_of(read[data], row, "RR@10") for row in (ours, theirs)]
            if not all(pair) or (ours == "small encoder" and data != "headings"):
                continue
            left, right = (np.mean(columns, axis=0) for columns in pair)
            low, high = bootstrap_interval(left, right)
            interval = f"{low:+.3f} to {high:+.3f}"
            rows.append([DATA[data], step, f"{(left - right).mean():+.3f}", interval, p_value(left, right)])
    print_table(["data", "RR@10 of", "difference", "95 %", "p"], rows)
    headings = read["headings"]
    print_table(
        ["wiki headings", *MEASURES],
        [
            [ROWS[row], *(figure(seeds_of(headings, row, measure)) for measure in MEASURES)]
            for row in ("small unfitted", "small encoder")
        ],
    )
    for setting, name in FITS.items():
        found = {data: sorted(folder.glob(f"fit-{setting}.{data}.tsv.gz")) for data in first}
        fits = {data: [read_values(path, "\t") for path in paths] for data, paths in found.items() if paths}
        print_fits({DATA[data]: seeds for data, seeds in fits.items()}, name)
    print_peers(folder)


def print_fits(fits: Mapping[str, Sequence[Mapping[str, Values]]], name: str) -> None:
    """The steps that ``rankwell fit`` kept on each data set, from the values per query in the folders it made.

    Means over the seeds that kept a step, and its gain over the step that each of them had kept before.
    """
    rows = []
    for step, title in STEP_TITLES.items():
        cells = [kept_step(seeds, step) for seeds in fits.values()]
        if any(cells):
            rows.append([title, *cells])
    last = [[list(steps.values())[-1] for steps in seeds] for seeds in fits.values()]
    if any(len(seeds) > 1 for seeds in last):
        rows.append(["the system", *map(figure, last)])
    print_table([f"`rankwell fit` on {name}", *fits], rows)


def kept_step(seeds: Sequence[Mapping[str, Values]], name: str) -> str:
    """A step's figure and gain, and how many of the seeds kept it where not all did."""
    kept = [steps for steps in seeds if name in steps]
    if not kept:
        return ""
    own = np.mean([steps[name] for steps in kept], axis=0)
    before = [list(steps)[: list(steps).index(name)] for steps in kept]
    text = f"{own.mean():.3f}"
    if all(before):
        text += f", {difference(own, np.mean([steps[b[-1]] for steps, b in zip(kept, before, strict=True)], axis=0))}"
    return text if len(kept) == len(seeds) else f"{text}, {len(kept)} of {len(seeds)}"


def print_peers(folder: Path) -> None:
    """Training beside sentence-transformers, and what the difference between the two is worth."""
    peers = json.loads((folder / "peers.json").read_text(encoding="utf-8"))
    values = read_values(folder / "peers.csv.gz")
    rows = []
    for name in PEERS:
        own, rival = (system.replace(", ", "-") for system in (name, name.replace("rankwell", PEERS[0])))
        rates = (peers["pairs"] * peers["epochs"] / peers[name]["seconds"], peers[name]["pairs per second"])
        cells = []
        for how in ("alone", "hybrid"):
            ours, theirs = values[f"{own}/{how}/RR@10"], values[f"{rival}/{how}/RR@10"]
            cells.append(f"{ours.mean():.3f}" + (f", {difference(ours, theirs)}" if own != rival else ""))
        rows.append([name, f"{peers[name]['seconds']:.1f}", *(f"{rate:,.0f}" for rate in rates), *cells])
    print_table(["system", "seconds", "pairs/s", "with tokenising", "RR@10 alone", "hybrid"], rows)


def main() -> None:
    """Train one arm, collect results or print tables."""
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train one arm")
    run.add_argument("data", type=Path, help="folder of the data")
    run.add_argument("--train", default="train", help="split to train on")
    run.add_argument("--dev", default="dev", help="split to report")
    run.add_argument("--k1", type=float, default=0.9)
    run.add_argument("--b", type=float, default=0.4)
    run.add_argument("--arm", choices=list(ARMS), default="fit")
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--aside", type=int, default=600, help="training queries set aside")
    run.add_argument("--start", default=MINILM, help="checkpoint to start from")
    run.add_argument("--large", action="store_true", help="the bi-encoder's batch and epochs of recipes/fit.yaml")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the recipe")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--device")
    collecting = commands.add_parser("collect", help="join the results of arms")
    collecting.add_argument("runs", type=Path)
    collecting.add_argument("out", type=Path)
    commands.add_parser("tables", help="print the tables").add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "collect":
        collect(options.runs, options.out)
    elif options.command == "tables":
        tables(options.folder)
    else:
        source = Source(options.data, options.train, options.dev, options.k1, options.b, options.aside)
        pool = options.out.parent / "pool"
        recipe = arm_recipe(set_aside(source, pool / f"{options.data.name}-{options.train}"), source, options)
        for stage, figures in train_arm(recipe, options.out, pool, options.device)["dev"].items():
            print(f"{stage:>16}  " + "  ".join(f"{name} {value:.4f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
