"""Fine-tuning a bi-encoder beside sentence-transformers: the same pairs, batches, steps and rates.

    python bench/encoder_training.py insuranceqa --dev valid --k1 0.9 --b 0.9 --device cuda --out runs/peers
    python bench/encoder_training.py insuranceqa --dev valid --k1 0.9 --b 0.9 --queries 3000 --batch 64 --steps 60 \\
        --max-length 128 --cached 16 --workers 0 --out runs/peers-cpu        # small enough for a CPU

Each system trains on in-batch negatives with a scale of 20, plainly and with its gradient cache (sentence-transformers:
``MultipleNegativesRankingLoss`` and its cached form). Prints pairs per second and CPU seconds, with tokenising, and the
figures of the trained bi-encoders on dev, alone and in hybrid search with shares tuned on training queries set
aside. Without the package ``datasets`` its trainer cannot run; a plain loop then trains its model with its losses.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fit_runs import ASIDE, MEASURES, arm_recipe, write_values
from harness import write_json
from paper_recipes import Source
from paper_runs import made_once, set_aside
from rankwell.corpus.datasets import FolderDataset
from rankwell.corpus.formats import write_documents
from rankwell.evaluation.evaluate import evaluate
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.names import BACKBONE, find_model
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.hybrid import tune_hybrid
from rankwell.retrieve.bm25 import BM25
from rankwell.training.data.prepare import Prepared, open_split, prepare
from rankwell.training.first_stage import hold_out
from rankwell.training.recipe import Recipe
from rankwell.training.run import run_recipe
from rankwell.training.stages import pairs as pair_stages

Pairs = list[tuple[str, str]]
CORPUS = "corpus.jsonl"


@dataclass(frozen=True)
class Training:
    """A trained bi-encoder, and how long its training took, of which this process computed ``cpu`` seconds."""

    model: Path
    seconds: float
    cpu: float


def train_rankwell(recipe: Recipe, pool: Path, out: Path, device: str | None) -> Training:
    """Train the stage ``encoder``."""
    # A pool of its own with common data: what a gradient cache changes is not part of a stage's key.
    (own := pool / out.name).mkdir(parents=True, exist_ok=True)
    if not (own / "data").exists():
        (own / "data").symlink_to((pool / "data").resolve())
    with cpu_time(pair_stages, "train") as clock:  # a stage also prepares data, searches and tunes
        trained = run_recipe(recipe, out, pool=own, device=device)
    done = trained.work.done[0]
    return Training(done.folder / "model", float(done.result.figures["training seconds"]), sum(clock))


@contextmanager
def cpu_time(module: Any, name: str) -> Iterator[list[float]]:
    """The CPU seconds of each call of a module's function."""
    clock: list[float] = []
    function = getattr(module, name)

    def clocked(*arguments: Any, **options: Any) -> Any:
        begin = time.process_time()
        try:
            return function(*arguments, **options)
        finally:
            clock.append(time.process_time() - begin)

    setattr(module, name, clocked)
    try:
        yield clock
    finally:
        setattr(module, name, function)


def train_peer(start: Path, pairs: Pairs, options: argparse.Namespace, cached: int | None, out: Path) -> Training:
    """Train with sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    known: Any = import_module("sentence_transformers.losses")
    model = SentenceTransformer(str(start), device=options.device)
    if options.max_length is not None:
        model.max_seq_length = options.max_length
    if cached is None:
        loss = known.MultipleNegativesRankingLoss(model, scale=20.0)
    else:
        loss = known.CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=cached)
    run = _run_trainer if find_spec("datasets") is not None else _run_loop
    begin = time.process_time()
    seconds = run(model, loss, pairs, options, out)
    cpu = time.process_time() - begin
    model.save(str(out / "model"))
    return Training(out / "model", seconds, cpu)


def _run_trainer(model: Any, loss: Any, pairs: Pairs, options: argparse.Namespace, out: Path) -> float:
    """Its own trainer; returns the seconds that it reports, which contain tokenising."""
    import pyarrow
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    rows = {"anchor": [query for query, _ in pairs], "positive": [document for _, document in pairs]}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out / "trainer"),
        per_device_train_batch_size=options.batch,
        num_train_epochs=options.epochs,
        learning_rate=1e-4,
        max_steps=steps_of(pairs, options),
        warmup_steps=math.ceil(0.1 * steps_of(pairs, options)),
        weight_decay=0.01,
        bf16=options.device == "cuda",
        dataloader_num_workers=options.workers,
        seed=options.seed,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    # With a fingerprint of its own: some versions of pyarrow and dill cannot pickle a table to compute one.
    data = Dataset(InMemoryTable(pyarrow.table(rows)), fingerprint="pairs")
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)
    return float(trainer.train().metrics["train_runtime"])


def steps_of(pairs: Pairs, options: argparse.Namespace) -> int:
    """The optimiser steps of a training."""
    steps: int = options.epochs * math.ceil(len(pairs) / options.batch)
    return steps if options.steps is None else min(steps, options.steps)


def _run_loop(model: Any, loss: Any, pairs: Pairs, options: argparse.Namespace, out: Path) -> float:
    """The trainer's work: batches tokenised by worker processes, bf16, AdamW, a linear schedule."""
    begin = time.perf_counter()
    tokenize = getattr(model, "preprocess", None) or model.tokenize

    def collate(rows: Pairs) -> list[dict[str, Any]]:
        return [tokenize([row[side] for row in rows]) for side in (0, 1)]

    generator = torch.Generator().manual_seed(options.seed)
    loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
        pairs,  # type: ignore[arg-type]
        batch_size=options.batch,
        shuffle=True,
        generator=generator,
        num_workers=options.workers,
        collate_fn=collate,
        pin_memory=options.device == "cuda",
        persistent_workers=options.workers > 0,
    )
    decays = [p for name, p in model.named_parameters() if not ("bias" in name or "LayerNorm" in name)]
    others = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    groups = [{"params": decays, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=1e-4, fused=options.device == "cuda")
    steps = steps_of(pairs, options)
    warm = math.ceil(0.1 * steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
    )
    model.train()
    for batch in islice((batch for _ in range(options.epochs) for batch in loader), steps):
        placed = [
            {name: v.to(options.device, non_blocking=True) if hasattr(v, "to") else v for name, v in side.items()}
            for side in batch
        ]
        with torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda"):
            value = loss(placed, None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    if options.device == "cuda":
        torch.cuda.synchronize()
    model.eval()
    return time.perf_counter() - begin


def measure(
    system: str, model: Path, prepared: Prepared, recipe: Recipe, pool: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """The bi-encoder on dev, alone and in hybrid search; writes the values of each query."""
    seed, device = options.seed, options.device
    _, aside = hold_out(prepared.train.queries, 500, seed)
    index, bm25 = prepared.index, BM25(recipe.first_stage.k1, recipe.first_stage.b)
    first = FirstStage(index, bm25, model, 1.0, device=device)
    tuned = tune_hybrid(index, first.dense, aside, prepared.train.qrels, bm25, seed=seed, threads=4)
    dev = open_split(recipe, prepared.collection, "dev", pool, device=device)
    figures: dict[str, Any] = {"share": tuned.best.similarity}
    for name, share in (("alone", 1.0), ("hybrid", tuned.best.similarity)):
        run = replace(first, share=share).search(dev.queries, 100, threads=4)
        found = evaluate(dev.qrels, run, list(MEASURES))
        write_values(options.out / f"{system.replace(', ', '-')}.{name}.csv.gz", found)
        figures[name] = dict(found.mean)
    return figures


def pairs_of(prepared: Prepared, seed: int) -> Pairs:
    """The pairs that the stage ``encoder`` trains on."""
    queries, _ = hold_out(prepared.train.queries, 500, seed)
    wanted = [
        (query.text, docid)
        for query in queries
        for docid, grade in prepared.train.qrels[query.qid].items()
        if grade >= 1
    ]
    texts = prepared.collection.store.texts([docid for _, docid in wanted])
    return [(query, text) for (query, _), text in zip(wanted, texts, strict=True)]


def judged_documents(data: Path, splits: Sequence[str]) -> Path:
    """The same data set with only the documents that judgments of these splits name; made once."""
    out = data.with_name(f"{data.name}-{'-'.join(splits)}")
    if not out.exists():
        whole = FolderDataset(data)
        names = {docid for split in splits for grades in whole.qrels(split).values() for docid in grades}
        with made_once(out) as folder:
            write_documents((document for document in whole.documents() if document.docid in names), folder / CORPUS)
            for path in (*data.glob("queries.*"), *data.glob("qrels.*")):
                shutil.copy(path, folder)
    return out


def systems(
    options: argparse.Namespace, recipe: Callable[[dict[str, Any]], Recipe], pool: Path, pairs: Pairs
) -> Iterator[tuple[str, Callable[[Path], Training]]]:
    """Name and training of each system."""
    start, few = find_model(options.start), options.cached
    plain = {"epochs": options.epochs, "batch": options.batch, "max_steps": options.steps, "best": "last"}
    plain["max_length"] = options.max_length
    runs: dict[str, dict[str, Any]] = {"rankwell": plain, "rankwell, cached": {**plain, "max_texts_in_memory": 2 * few}}
    for name, changes in runs.items():
        yield name, lambda out, own=changes: train_rankwell(recipe(own), pool, out, options.device)  # type: ignore[misc]
    for name, cached in (("sentence-transformers", None), ("sentence-transformers, cached", few)):
        yield name, lambda out, own=cached: train_peer(start, pairs, options, own, out)  # type: ignore[misc]


def main() -> None:
    """Train and measure all systems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data")
    parser.add_argument("--train", default="train", help="split to train on")
    parser.add_argument("--dev", default="dev", help="split to report")
    parser.add_argument("--k1", type=float, default=0.9)
    parser.add_argument("--b", type=float, default=0.4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="optimiser steps at most")
    parser.add_argument("--max-length", type=int, help="maximum length of a text in tokens")
    parser.add_argument("--queries", type=int, help="train on so many queries, and search judged documents only")
    parser.add_argument("--speed", action="store_true", help="train only; the bi-encoders are not measured")
    parser.add_argument("--cached", type=int, default=64, help="pairs in memory at a time, for the cached systems")
    parser.add_argument("--workers", type=int, default=4, help="the peer's processes that tokenise")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--aside", type=int, default=ASIDE, help="training queries set aside")
    parser.add_argument("--start", default=BACKBONE)
    parser.add_argument("--only", help="name of the one system to train")
    parser.add_argument("--warm-up", type=int, default=0, help="steps of each system before the timed ones")
    parser.add_argument("--pool", type=Path)
    parser.add_argument("--trained", type=Path, help="file to make when all are trained and the machine may be shared")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    source = Source(options.data, options.train, options.dev, options.k1, options.b, options.aside, options.queries)
    pool = options.pool or options.out / "pool"
    small = "" if options.queries is None else f"-{options.queries}"
    data = set_aside(source, pool / f"{options.data.name}-{options.train}{small}")
    if options.queries is not None:
        data = judged_documents(data, ["fit", "choice"] if options.speed else ["fit", "choice", "dev"])

    def recipe(changes: dict[str, Any]) -> Recipe:
        whole = arm_recipe("encoder", data, source, options.start, options.seed)
        stage = whole.stages[0]
        changed = stage.options.model_copy(update=changes)
        return whole.model_copy(update={"stages": (type(stage)(stage.name, stage.kind, changed, stage.number),)})

    prepared = prepare(recipe({}), pool)
    pairs = pairs_of(prepared, options.seed)
    begin, cpu = time.perf_counter(), time.process_time()
    tokenizer = Tokenizer.open(find_model(options.start))
    documents = prepared.collection.store
    tokenizer.encode(documents.texts_at(np.arange(len(documents))))
    tokenising = Training(data, time.perf_counter() - begin, time.process_time() - cpu)
    trained = min(len(pairs) * options.epochs, steps_of(pairs, options) * options.batch)
    results: dict[str, Any] = {"pairs": len(pairs), "epochs": options.epochs, "trained pairs": trained}
    results |= {"tokenising seconds": tokenising.seconds, "tokenising CPU seconds": tokenising.cpu}
    results |= {"trainer": find_spec("datasets") is not None, "load at the start": os.getloadavg()}
    models: dict[str, Path] = {}
    if options.warm_up:
        short = argparse.Namespace(**{**vars(options), "steps": options.warm_up, "out": options.out / "warm-up"})
        for name, train in systems(short, recipe, pool, pairs):
            if options.only in (None, name) and "cached" not in name:  # those compile nothing else
                (out := short.out / f"{name}-first").mkdir(parents=True, exist_ok=True)
                train(out)
    for name, train in systems(options, recipe, pool, pairs):
        if options.only not in (None, name):
            continue
        out = options.out / name.replace(", ", "-")
        out.mkdir(parents=True, exist_ok=True)
        done = train(out)
        models[name] = done.model
        ours = name.startswith("rankwell")
        speed = trained / (done.seconds + (tokenising.seconds if ours else 0))
        cpu = done.cpu + (tokenising.cpu if ours else 0)
        results[name] = {"seconds": done.seconds, "pairs per second": speed, "CPU seconds with tokenising": cpu}
        print(f"{name:>30} {done.seconds:8.1f} s {speed:9,.1f} pairs/s {cpu:8.1f} s CPU", flush=True)
        write_json(options.out / "peers.json", results)
    if options.trained is not None:
        options.trained.touch()
    for name, model in {} if options.speed else models.items():
        results[name] |= measure(name, model, prepared, recipe({}), pool, options)
        print(f"{name:>30}", results[name], flush=True)
        write_json(options.out / "peers.json", results)


if __name__ == "__main__":
    main()
