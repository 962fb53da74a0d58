"""One training of docs/fitting.md: a fitted first stage, rankers on its candidates, and figures on dev.

    python bench/fit_runs.py insuranceqa --train train --dev valid --k1 0.9 --b 0.9 --arm fit --seed 1 --out runs/fit-1

Training queries set aside (600) choose checkpoints and shares, the dev queries choose nothing. ``result.json`` has the
figures of every stage, ``STAGE.csv.gz`` the values of each dev query, and ``scores.npz`` what first stage and listwise
ranker score the candidates, to try blends with.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import write_json
from papers.recipes import Source
from papers.runs import set_aside
from rankwell.corpus.records import Run
from rankwell.evaluation.evaluate import Evaluation, evaluate
from rankwell.models.checkpoints.names import BACKBONE
from rankwell.training.data.prepare import Split, open_split
from rankwell.training.first_stage import search_split
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe, parse_setting, read_yaml
from rankwell.training.run import measured_run, run_recipe
from rankwell.training.stage import FinishedStage

RECIPES = Path(__file__).parents[1] / "recipes"
MEASURES = ("RR@10", "nDCG@10", "R@100")
ASIDE = 600
ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "encoder": ("fit", {"pointwise": None, "listwise": None, "blend": None}),
    "fit": ("fit", {}),
    "listwise": ("fit", {"pointwise": None}),
    "drbert": ("drbert", {}),
    "marked": ("markedbert", {}),
    "mono": ("monobert", {}),
    "random negatives": ("fit", {"encoder": {"negatives": 2}, "pointwise": None, "listwise": None, "blend": None}),
    "filtered negatives": (
        "fit",
        {"filter": {"margin": 0.5}, "encoder": {"negatives": 2}, "pointwise": None, "listwise": None, "blend": None},
    ),
    "negatives judged by the ranker": (
        "fit",
        {
            "blend": None,
            "then": {
                "filter": {"teachers": ["ranker"], "margin": 0.5},
                "again": {"kind": "encoder", "encoder": "first_stage", "negatives": 3, "depth": 50},
            },
        },
    ),
}
"""The recipe of each arm and its changes; every arm begins with the stage ``encoder`` of recipes/fit.yaml.

A stage that is None is left out, ``then`` has stages that follow.
"""
SMALL = {"epochs": 5, "batch": 256, "learning_rate": 1e-4}
"""The bi-encoder's settings, unless ``--large`` asks for those of the recipe."""


def arm_recipe(
    arm: str,
    data: Path,
    source: Source,
    start: str,
    seed: int,
    queries: int | None = None,
    *,
    large: bool = False,
    settings: Sequence[str] = (),
) -> Recipe:
    """The recipe of an arm, trained on ``fit`` and chosen on ``choice``; ``settings`` are values for ``--set``."""
    name, changes = ARMS[arm]
    tree, fit = read_yaml(RECIPES / f"{name}.yaml"), read_yaml(RECIPES / "fit.yaml")
    stages: dict[str, Any] = {}
    if "filter" in changes:
        stages["filter"] = {**changes["filter"], "teachers": [start]}
    stages["encoder"] = {**fit["stages"]["encoder"], **({} if large else SMALL), **(changes.get("encoder") or {})}
    stages |= {stage: options for stage, options in tree["stages"].items() if stage != "encoder"}
    stages = {stage: options for stage, options in stages.items() if changes.get(stage, {}) is not None}
    stages |= changes.get("then", {})
    if "again" in stages:
        stages["again"] = {**stages["encoder"], **stages["again"]}
    first: dict[str, Any] = {"k1": source.k1, "b": source.b, "depth": 100}
    if "negatives" in arm:
        first |= {"hybrid": 0.7, "encoder": start}
    whole = {
        "name": arm,
        "seed": seed,
        "data": {"folder": str(data), "train": "fit", "dev": "choice", "train_queries": queries},
        "first_stage": first,
        "model": {**tree["model"], "start": start},
        "evaluate": {"measures": list(MEASURES), "depth": 100},
        "stages": stages,
    }
    return build_recipe(whole, Path.cwd() / "recipe.yaml", [parse_setting(setting) for setting in settings])


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
            if done.stage.kind == "listwise":
                write_scores(out / "scores.npz", {"dev": (split, run), "choice": (done.work.data.dev, done.run)})
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
    learned = next((d.result.first_stage for d in reversed(work.done) if d.result.first_stage), None)
    depth = work.recipe.first_stage.depth
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


def write_scores(path: Path, ranked: Mapping[str, tuple[Split, Run]]) -> None:
    """The candidates of each query: ``first`` and ``model`` are scores, NaN if missing, ``relevant`` judgments."""
    arrays: dict[str, Any] = {}
    for name, (split, model) in ranked.items():
        shape = (len(split.qrels), max(map(len, split.run.values())))
        first, scores = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float16)
        relevant = np.zeros(shape, np.bool_)
        for row, (qid, grades) in enumerate(sorted(split.qrels.items())):
            score_of = dict(model[qid]) if qid in model else {}
            for column, (docid, score) in enumerate(split.run.get(qid, ())):
                first[row, column], scores[row, column] = score, score_of.get(docid, np.nan)
                relevant[row, column] = grades.get(docid, 0) > 0
        arrays |= {f"{name}.first": first, f"{name}.model": scores, f"{name}.relevant": relevant}
    np.savez_compressed(path, **arrays)


def main() -> None:
    """Train one arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data")
    parser.add_argument("--train", default="train", help="split to train on")
    parser.add_argument("--dev", default="dev", help="split to report")
    parser.add_argument("--k1", type=float, default=0.9)
    parser.add_argument("--b", type=float, default=0.4)
    parser.add_argument("--arm", choices=list(ARMS), default="fit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--aside", type=int, default=ASIDE, help="training queries set aside")
    parser.add_argument("--start", default=BACKBONE, help="checkpoint to start from")
    parser.add_argument("--large", action="store_true", help="the bi-encoder's batch and epochs of recipes/fit.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the recipe")
    parser.add_argument("--train-queries", type=int, help="train on the first so many queries")
    parser.add_argument("--pool", type=Path, help="where arms share data and stages; default: beside --out")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device")
    options = parser.parse_args()
    source = Source(options.data, options.train, options.dev, options.k1, options.b, options.aside)
    pool = options.pool or options.out.parent / "pool"
    data = set_aside(source, pool / f"{options.data.name}-{options.train}")
    recipe = arm_recipe(
        options.arm,
        data,
        source,
        options.start,
        options.seed,
        options.train_queries,
        large=options.large,
        settings=options.set,
    )
    for stage, figures in train_arm(recipe, options.out, pool, options.device)["dev"].items():
        print(f"{stage:>16}  " + "  ".join(f"{name} {value:.4f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
