"""Quality beside sentence-transformers: the same backbone, training queries, lists, number of pairs and dev candidates.

    PYTHONPATH=src python bench/peers.py DATA --out peers --seeds 1,2,3
    PYTHONPATH=src python bench/peers.py --smoke --out peers-smoke        # any machine: does it run?

Ours is recipes/listwise.yaml: pointwise, then listwise; and the same blended with the untrained checkpoint's similarity
and BM25. The peers are CrossEncoderTrainer with BinaryCrossEntropyLoss (positives weighted by the number of negatives),
ListNetLoss and LambdaLoss, each at all of ``--rates``. They get the lists that our sampler draws, one relevant document
and as many others as ours, drawn afresh each epoch, until they have seen as many pairs as both of our stages together.
All keep their last checkpoint, and all re-rank the same BM25 candidates of the dev queries.

Each system runs in a process of its own; what is finished is not run again. ``--at-once`` runs several together, whose
seconds then say little. Seconds are those of training, without evaluation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from harness import make_parser
from rankwell import sample
from rankwell.core.files import atomic_text
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Run
from rankwell.evaluation.tables import as_text, contrast_table
from rankwell.training.data.candidates import Selection, TrainingCandidates
from rankwell.training.data.prepare import Prepared, prepare
from rankwell.training.data.sampling import Plan, draw
from rankwell.training.experiments.tables import ExperimentTables, compare_variants, file_name
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import read_recipe
from rankwell.training.results import FIRST_STAGE, evaluate_split, measures_of
from rankwell.training.run import run_recipe
from rankwell.training.stage_store import stage_seconds

RECIPE = Path(__file__).parents[1] / "recipes" / "listwise.yaml"
OURS, BLENDED = "rankwell", "rankwell, blended"
LOSSES = ("BCE", "ListNet", "LambdaLoss")
SETTINGS = ("stages.pointwise.best=last", "stages.listwise.best=last")
# The smoke's model is no bi-encoder.
SMOKE = (
    "stages.blend=off",
    "stages.pointwise.max_steps=1",
    "stages.listwise.max_steps=1",
    "stages.listwise.negatives=3",
)
SMOKE_LISTS, SMOKE_RATE = 64, 1e-2
PAIRS_AT_ONCE = 256


def recipe_of(options: argparse.Namespace, seed: int) -> Recipe:
    """Ours; the peers take data, inputs and budget from it."""
    settings = [*SETTINGS, f"data={options.data}", f"seed={seed}", *options.set]
    if options.smoke:
        settings += [*SMOKE, f"model.start={_tiny(options.out / 'tiny')}", "evaluate.depth=10"]
    return read_recipe(RECIPE, settings)


def _tiny(folder: Path) -> Path:
    if not (folder / "config.json").exists():
        from rerank_gpu_models import SHAPES, random_model, save_checkpoint, transformers_model

        save_checkpoint(transformers_model(random_model(SHAPES["smoke"], "cpu"), "cpu"), folder)
    return folder


def train_ours(recipe: Recipe, out: Path) -> dict[str, tuple[Run, float]]:
    """Our runs of the dev queries and the seconds of training, before and after blending."""
    trained = run_recipe(recipe, out / "ours" / f"seed-{recipe.seed}", pool=out, resume=True, say=print)
    assert trained.last is not None
    assert trained.last.run is not None
    folders = {done.stage.kind: done.result.model.parent for done in trained.work.done if done.result.model}
    seconds = sum(stage_seconds(folder) for kind, folder in folders.items() if kind != "blend")
    found = {OURS: (read_run(trained.work.dev_run_path(folders["listwise"])), seconds)}
    if "blend" in folders:
        found[BLENDED] = trained.last.run, seconds
    return found


# The peers


def training_rows(recipe: Recipe, data: Prepared, smoke: bool) -> tuple[list[dict[str, Any]], int]:
    """Queries with their documents and labels, as many pairs as our two stages see; and the negatives of each."""
    by_name = {stage.name: stage.options.model_dump() for stage in recipe.stages}
    point, lists_of = by_name["pointwise"], by_name["listwise"]
    train, store = data.train, data.collection.store
    candidates = TrainingCandidates.of(
        train.queries, train.qrels, train.run, store, Selection(recipe.data.relevance, depth=recipe.first_stage.depth)
    )
    plan = Plan(1, lists_of["negatives"])
    size = 1 + plan.negatives
    first = draw(candidates, plan, recipe.seed, 0)
    pairs = len(first) * (point["epochs"] * (1 + point["negatives"]) + lists_of["epochs"] * size)
    texts = {query.qid: query.text for query in train.queries}
    rows: list[dict[str, Any]] = []
    for epoch in range(-(-int(pairs) // (len(first) * size))):
        drawn = draw(candidates, plan, recipe.seed, epoch)
        for query, documents, labels in zip(drawn.queries, drawn.documents, drawn.labels, strict=True):
            names = candidates.names(documents)
            rows.append({"query": texts[candidates.qids[query]], "docs": names, "labels": labels.tolist()})
    rows = rows[: SMOKE_LISTS if smoke else int(pairs) // size]
    used = sorted({name for row in rows for name in row["docs"]})
    contents = dict(zip(used, store.texts(used), strict=True))
    return [{**row, "docs": [contents[name] for name in row["docs"]]} for row in rows], plan.negatives


def train_peer(loss: str, rate: float, recipe: Recipe, data: Prepared, smoke: bool) -> tuple[Run, float]:
    """The peer's run of the dev queries and the seconds of training."""
    import torch

    from train_gpu_peer import provide_datasets

    provide_datasets()
    from datasets import Dataset  # type: ignore[import-not-found,unused-ignore]
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
        losses,
    )

    from rankwell.models.checkpoints.names import find_model

    class Trainer(CrossEncoderTrainer):
        def add_model_card_callback(self, *_: Any, **__: Any) -> None:
            """No card: it describes the data set at length, which is no part of training."""

    gpu = torch.cuda.is_available()
    rows, negatives = training_rows(recipe, data, smoke)
    torch.manual_seed(recipe.seed)
    start = str(find_model(recipe.model.start))
    model = CrossEncoder(start, num_labels=1, max_length=recipe.model.max_length, device="cuda" if gpu else "cpu")
    batch = 16
    if loss == "BCE":
        rows = [
            {"query": row["query"], "docs": text, "label": label}
            for row in rows
            for text, label in zip(row["docs"], row["labels"], strict=True)
        ]
        batch = 64
        chosen: Any = losses.BinaryCrossEntropyLoss(model, pos_weight=torch.tensor(float(negatives)))
    else:
        make = losses.ListNetLoss if loss == "ListNet" else losses.LambdaLoss
        chosen = make(model, mini_batch_size=-1)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        arguments = CrossEncoderTrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=rate,
            warmup_steps=0.1,
            seed=recipe.seed,
            bf16=gpu,
            use_cpu=not gpu,
            logging_strategy="no",
            save_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows), loss=chosen).train()
    seconds = time.perf_counter() - begin
    return rerank_with_peer(model, recipe, data, gpu), seconds


def rerank_with_peer(model: Any, recipe: Recipe, data: Prepared, gpu: bool) -> Run:
    """The dev candidates by a CrossEncoder."""
    import torch

    dev, store = data.dev, data.collection.store
    run = dev.run.head(recipe.evaluate.depth)
    texts = {query.qid: query.text for query in dev.queries}
    names = [(qid, docid) for qid, ranking in run.items() for docid in ranking.docids]
    contents = store.texts([docid for _, docid in names])
    pairs = [(texts[qid], text) for (qid, _), text in zip(names, contents, strict=True)]
    with torch.autocast("cuda", torch.bfloat16, enabled=gpu):
        scores = model.predict(pairs, batch_size=PAIRS_AT_ONCE, show_progress_bar=False)
    found: dict[str, dict[str, float]] = {}
    for (qid, docid), score in zip(names, np.asarray(scores, np.float32).tolist(), strict=True):
        found.setdefault(qid, {})[docid] = score
    return Run.from_scores(found)


# All of them


def systems(options: argparse.Namespace) -> list[str]:
    """What is trained: ours, then each peer's loss at each learning rate."""
    chosen = [loss for loss in options.losses.split(",") if loss]
    return [OURS, *(f"{loss}, {rate:g}" for loss in chosen for rate in map(float, options.rates.split(",")))]


def run_one(options: argparse.Namespace, name: str, seed: int) -> None:
    """Train one system and leave its run and its seconds."""
    recipe = recipe_of(options, seed)
    if name == OURS:
        found = train_ours(recipe, options.out)
    else:
        loss, rate = name.split(", ")
        found = {name: train_peer(loss, float(rate), recipe, prepare(recipe, options.out), options.smoke)}
    for system, (run, seconds) in reversed(found.items()):  # the one that is asked for comes last: then all is there
        path = run_path(options.out, system, seed)
        with atomic_text(path.with_suffix("").with_suffix(".json")) as file:
            json.dump({"system": system, "seed": seed, "seconds": round(seconds, 2)}, file)
        write_run(run, path)


def run_path(out: Path, name: str, seed: int) -> Path:
    """Where a system's run of the dev queries is kept."""
    return out / "runs" / f"{file_name(name)}-{seed}.run.gz"


def run_all(options: argparse.Namespace, arguments: Sequence[str]) -> Iterator[str]:
    """Run what is not there yet, each in its own process; a line for each that is done."""

    def work(name: str, seed: int) -> str:
        if run_path(options.out, name, seed).exists():
            return f"{name}, seed {seed}: done before"
        command = [sys.executable, __file__, *arguments, "--only", name, "--seed", str(seed)]
        log = run_path(options.out, name, seed).with_suffix("").with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as file:
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        return f"{name}, seed {seed}: " + (f"failed with {code}, see {log}" if code else "done")

    units = [(name, int(seed)) for seed in options.seeds.split(",") for name in systems(options)]
    if options.smoke:  # most of its time would go into starting processes
        for name, seed in units:
            run_one(options, name, seed)
            yield f"{name}, seed {seed}: done"
        return
    with ThreadPoolExecutor(options.at_once) as pool:
        for future in as_completed([pool.submit(work, name, seed) for name, seed in units]):
            yield future.result()


def table(options: argparse.Namespace) -> str:
    """Figures of what is there, against ours, and the seconds."""
    recipe = recipe_of(options, 1)
    data, measures, depth = prepare(recipe, options.out), measures_of(recipe), recipe.evaluate.depth
    measured = {FIRST_STAGE: [evaluate_split(data.dev, data.dev.run, measures, depth)]}
    lines = []
    for name in (BLENDED, *systems(options)):
        paths = [run_path(options.out, name, int(seed)) for seed in options.seeds.split(",")]
        found = [path for path in paths if path.exists()]
        if found:
            measured[name] = [evaluate_split(data.dev, read_run(path), measures, depth) for path in found]
            seconds = [json.loads(path.with_suffix("").with_suffix(".json").read_text())["seconds"] for path in found]
            lines.append(f"{name}: {np.mean(seconds):,.1f} s of training")
    if OURS not in measured:
        return f"{OURS} has no figures; see {options.out / 'runs'}"
    compared = compare_variants(measured, list(measured), OURS, "t", {})
    parts = [
        as_text(ExperimentTables({"dev": compared}, {}).table("dev")),
        as_text(contrast_table(compared.comparison)),
    ]
    return "\n\n".join([*parts, "\n".join(lines)])


def main() -> None:
    """Run all systems and print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("data", nargs="?", default=str(sample.FOLDER), help="a data set's folder; the bundled sample")
    parser.add_argument("--out", type=Path, default=Path("peers"))
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--losses", default=",".join(LOSSES))
    parser.add_argument("--rates", default="2e-5,1e-4", help="learning rates of the peers")
    parser.add_argument("--set", action="append", default=[], help="changes our recipe, and with it the peers' data")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="a tiny model and few pairs, to see that all systems run")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        # A few steps of a random model must show in its ranking, or the smoke would not see that nothing is trained.
        options.rates = str(SMOKE_RATE)
    if options.only:
        run_one(options, options.only, options.seed)
        return
    prepare(recipe_of(options, 1), options.out)  # what all of them read
    for line in run_all(options, sys.argv[1:]):
        print(line, flush=True)
    with atomic_text(options.out / "table.txt") as file:
        file.write(table(options) + "\n")
    print((options.out / "table.txt").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
