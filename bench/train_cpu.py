"""Training on a CPU beside sentence-transformers: the same MiniLM, lists and loss, in turns in one run.

    PYTHONPATH=src python bench/train_cpu.py [DATA] [--steps 10] [--rounds 2] [--out train_cpu.json]

Both take lists of one relevant and fifteen other passages of a data set (the bundled sample), four lists a step, and
learn by the cross entropy of the list's softmax, which for one relevant passage is ListNet's. Counted are the steps
after the first two; data is read, tokenised by ours and drawn before. The peer needs ``pip install datasets``.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from harness import ROOT, make_parser
from rankwell import sample
from rankwell.models.checkpoints.names import find_model
from rankwell.models.devices import is_fast_in_bf16
from rankwell.training import run as running
from rankwell.training.data.candidates import Selection, TrainingCandidates
from rankwell.training.data.prepare import prepare
from rankwell.training.data.sampling import Plan, draw
from rankwell.training.loop import loop
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import read_recipe
from train_gpu import train_cross_encoder

RECIPE = ROOT / "recipes" / "listwise.yaml"
BATCH, WARM, NEGATIVES = 4, 2, 15


class Clock:
    """Counts the pairs of the steps after the first ones."""

    def __init__(self, pairs: int):
        self.pairs, self.steps, self.began = pairs, 0, 0.0

    def step(self) -> None:
        """A step is done."""
        self.steps += 1
        if self.steps == WARM:
            self.began = time.perf_counter()

    @property
    def rate(self) -> float:
        """Pairs a second."""
        return (self.steps - WARM) * self.pairs / (time.perf_counter() - self.began)


def recipe_of(data: str, steps: int, precision: str) -> Recipe:
    settings = ["stages.pointwise=off", "stages.blend=off", f"data={data}", f"stages.listwise.max_steps={steps}"]
    settings += [
        f"stages.listwise.batch={BATCH}",
        "stages.listwise.best=last",
        f"stages.listwise.negatives={NEGATIVES}",
        f"stages.listwise.precision={precision}",
    ]
    return read_recipe(RECIPE, settings)


def training_rows(recipe: Recipe, pool: Path, count: int) -> list[dict[str, Any]]:
    """So many lists that our sampler draws, as the peer takes them."""
    data = prepare(recipe, pool)
    train, store = data.train, data.collection.store
    selection = Selection(recipe.data.relevance, depth=recipe.first_stage.depth)
    candidates = TrainingCandidates.of(train.queries, train.qrels, train.run, store, selection)
    drawn = draw(candidates, Plan(1, NEGATIVES), recipe.seed, 0)
    queries = {query.qid: query.text for query in train.queries}
    return [
        {
            "query": queries[candidates.qids[drawn.queries[row]]],
            "docs": store.texts(candidates.names(drawn.documents[row])),
            "labels": drawn.labels[row].tolist(),
        }
        for row in range(min(count, len(drawn)))
    ]


def ours(recipe: Recipe, pool: Path, pairs: int) -> float:
    """Pairs a second of our listwise stage."""
    clock, step = Clock(pairs), loop._Run._step

    def timed(run: Any, number: int) -> None:
        step(run, number)
        clock.step()
        if number + 1 == run.steps:
            rates.append(clock.rate)

    rates: list[float] = []
    loop._Run._step = timed  # type: ignore[assignment, method-assign]
    running.measured_run = lambda *given: None  # how well it ranks is not the question here
    try:
        with tempfile.TemporaryDirectory(dir=pool) as out:
            running.run_recipe(recipe, Path(out) / "out", device="cpu")
    finally:
        loop._Run._step = step  # type: ignore[method-assign]
    return rates[0]


def peer(recipe: Recipe, rows: list[dict[str, Any]], steps: int, bf16: bool, pairs: int) -> float:
    """Pairs a second of CrossEncoderTrainer."""
    clock = Clock(pairs)
    torch.manual_seed(1)
    settings = {"max_steps": steps, "per_device_train_batch_size": BATCH, "learning_rate": 5e-5}
    settings |= {"bf16": bf16, "use_cpu": True}
    start, length = find_model(recipe.model.start), recipe.model.max_length
    train_cross_encoder(start, rows, lambda step: clock.step(), settings, max_length=length)
    return clock.rate


def main() -> None:
    """Run all systems in turns and print the best of each."""
    parser = make_parser(__doc__)
    parser.add_argument("data", nargs="?", default=str(sample.FOLDER), help="a data set's folder; the bundled sample")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        pool = Path(folder)
        recipes = {name: recipe_of(options.data, options.steps, name) for name in ("fp32", "bf16")}
        rows, pairs = training_rows(recipes["fp32"], pool, BATCH * options.steps), BATCH * (1 + NEGATIVES)
        for _ in range(options.rounds):
            for name, recipe in recipes.items():
                found.setdefault(f"rankwell, {name}", []).append(ours(recipe, pool, pairs))
                bf16 = name == "bf16"
                found.setdefault(f"CrossEncoder, {name}", []).append(peer(recipe, rows, options.steps, bf16, pairs))
                print({system: [round(rate, 1) for rate in rates] for system, rates in found.items()}, flush=True)
    best = {system: max(rates) for system, rates in found.items()}
    record = {
        "pairs a second": {system: round(rate, 1) for system, rate in best.items()},
        "ratio, fp32": round(best["rankwell, fp32"] / best["CrossEncoder, fp32"], 2),
        "ratio, bf16": round(best["rankwell, bf16"] / best["CrossEncoder, bf16"], 2),
        "bf16 is the default here": is_fast_in_bf16(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }
    print(json.dumps(record, indent=2))
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
