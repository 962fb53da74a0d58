"""What a fit works on: the data, the time, and how fast this machine is; and the recipes it trains with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.datasets import Dataset
from rankwell.corpus.formats import write_run
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Run
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import DEFAULT, find_model
from rankwell.models.devices import Computing, chosen_device
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.passage_vectors import PassageVectors, PassageWords
from rankwell.rank.rankers import open_encoder
from rankwell.retrieve.bm25_tuning import other_analyzers
from rankwell.retrieve.index import Index
from rankwell.training.data.prepare import open_collection
from rankwell.training.fit.headings import Kind
from rankwell.training.fit.speed import TIMED_STEPS, TIMING, Speed
from rankwell.training.fit.split import (
    CHOOSE,
    FIT,
    LEAST_TO_FIT,
    Part,
    Parts,
    divide,
    engine_run,
    open_data,
    write_parts,
)
from rankwell.training.loop.log import read_metrics
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import Trained, run_recipe
from rankwell.training.stage_options.first_stages import EncoderOptions

K = 100
"""Documents per query in the runs that are measured."""
TITLE_WEIGHTS = (3.0,)
"""Weights of titles to try."""
LONG = 150
"""From this mean number of words on, a re-ranker is trained on texts of its model's whole length."""

POINTWISE: Mapping[str, Any] = {"epochs": 1, "batch": 32, "negatives": 1, "learning_rate": 1e-4, "best": "last"}
LISTWISE: Mapping[str, Any] = {
    "epochs": 2,
    "batch": 16,
    "negatives": 15,
    "learning_rate": 5e-5,
    "head": "pointwise",
    "running_mean": 0.999,
    "best": "last",
}
"""How a re-ranker is trained: as in recipes/fit.yaml."""
LEAST_STEPS, LEAST_BATCH, CPU_EPOCHS = 20, 128, 3.0
"""The steps that a bi-encoder needs, in smaller batches if there is no other way, and its epochs on a CPU."""
WIDTH = 384
"""The width for which the learning rate was chosen; wider encoders train at a lower one."""


@dataclass(eq=False)
class FitTask:
    """What to fit, how long it may take, and the data, which is read when it is first needed."""

    shipped: ClassVar[str] = DEFAULT
    """The bi-encoder to begin with."""
    data: str
    out: Path
    minutes: float = 20.0
    device: str | None = None
    seed: int = 1
    measure: str = "RR@10"
    train_split: str | None = None
    report_split: str | None = None
    queries_from: Kind | None = None
    runs: tuple[str, ...] = ()
    """What the user's engine returned, as ``SPLIT=FILE``; by default the runs of the data set."""
    columns: Columns | None = None
    """The fields of the collection that are named."""
    tries: tuple[str, ...] = ()
    """Models to try beside the shipped one."""
    previous: Path | None = None
    """The system to continue from."""
    log: Path | None = None
    """The log of a service whose clicks are fitted to."""

    @property
    def work(self) -> Path:
        """``OUT.work``, the folder for unfinished work."""
        return self.out.absolute().with_name(f"{self.out.name}.work")

    @cached_property
    def dataset(self) -> Dataset:
        """Documents and judged queries."""
        dataset = open_data(self.data)
        dataset.columns = self.columns
        return dataset

    @cached_property
    def parts(self) -> Parts:
        """The judged queries."""
        return divide(self.dataset, train=self.train_split, report=self.report_split, seed=self.seed)

    @cached_property
    def index(self) -> Index:
        """The documents, which are written to the work folder with the queries to fit and to choose."""
        write_parts(self.dataset, self.parts, self.work / "parts")
        return open_collection(str(self.work / "parts"), self.work, self.columns).index

    @cached_property
    def analyzers(self) -> list[Analyzer]:
        """What to try instead of the index's analyser."""
        return other_analyzers(self.index, TITLE_WEIGHTS)

    @cached_property
    def engine(self) -> Run | None:
        """What the user's engine returned for all queries; None if that is not known."""
        return engine_run(self.runs, self.dataset, self.parts, self.index)

    @cached_property
    def speed(self) -> Speed:
        """How fast models are here, measured in a part of the time."""
        return Speed(self.index, self.parts, self.device, 60 * self.minutes * TIMING)

    def trained_a_second(self, start: str) -> float:
        """How many pairs a second a re-ranker from a start is trained on here, by a few steps."""
        return self.speed.once(("training", start), lambda: self._time_training(start))

    def unencoded(self, index: Index, encoder: str, kind: type[PassageVectors | PassageWords] = PassageVectors) -> int:
        """How many documents of an index have no vectors, or no word vectors, yet."""
        opened = open_encoder(encoder, Computing(self.device))
        return sum(len(store) for store in index.documents.stores if not kind.is_complete(store, opened))

    def _time_training(self, start: str) -> float:
        steps, batch = TIMED_STEPS["cuda" if chosen_device(self.device).type == "cuda" else "cpu"]
        options = {**LISTWISE, "max_steps": steps, "batch": batch, "head": "new"}
        trained = self.train("timing", FirstStage(self.index), {"listwise": options}, start, steps * batch, measured=1)
        # The first steps on a GPU, and saving, take longer than all others.
        logged = [row for row in read_metrics(trained.work.done[-1].folder) if "lists_per_s" in row]
        return float(logged[-1]["lists_per_s"]) * (1 + int(LISTWISE["negatives"]))

    def tuning(self, part: Part) -> dict[str, Any]:
        """How settings are chosen on a part of the queries."""
        return {"measure": self.measure, "folds": min(5, len(part)), "seed": self.seed}

    @property
    def threads(self) -> int:
        """All cores."""
        return os.cpu_count() or 1

    @property
    def reported(self) -> int:
        """The number of queries of the report on a system of which only settings are fitted."""
        return len(self.parts.reported(len(self.parts.judged)))

    def train(
        self,
        name: str,
        first: FirstStage,
        stages: Mapping[str, Any],
        start: str,
        sample: int | None = None,
        *,
        fold: str = "",
        measured: int | None = None,
        candidates: Mapping[str, Run] | None = None,
    ) -> Trained:
        """Run a recipe on the queries to fit, or the first ``sample``; what it finished before is not run again.

        It is measured on the queries to choose, or the first ``measured``. Both are those of a ``fold``, which is named
        by what the recipe's name ends in. ``candidates`` are runs of the queries to choose (``dev_run``) or to fit
        (``train_run``), to use instead of searching.
        """
        name += fold
        searched: dict[str, Any] = {"k1": first.bm25.k1, "b": first.bm25.b, "depth": K}
        for option, run in (candidates or {}).items():
            write_run(run, path := self.work / f"{name}.{option}.gz")
            searched[option] = str(path)
        if first.share:
            searched |= {"hybrid": first.share, "encoder": str(first.encoder)}
        data = {"folder": str(self.work / "parts"), "train": f"{FIT}{fold}", "dev": f"{CHOOSE}{fold}"}
        tree = {
            "name": name,
            "seed": self.seed,
            "data": {**data, "train_queries": sample, "dev_queries": measured},
            "first_stage": searched,
            "model": {"start": start, "adapt": True, **self._reading(start)},
            "evaluate": {"measures": [self.measure], "depth": K},
            "stages": dict(stages),
        }
        recipe, pool = build_recipe(tree, self.work / f"{name}.yaml"), first.index.folder.parents[1]
        return run_recipe(recipe, self.work / "recipes" / name, pool=pool, device=self.device)

    def _reading(self, start: str) -> dict[str, Any]:
        """How a trained re-ranker reads: short texts whole, long ones as far as its model goes, without windows."""
        if self.speed.mean_words < LONG:
            return {}
        positions = describe(find_model(start)).dimensions().max_position_embeddings
        return {"max_length": min(512, positions), "long_documents": "cut"}


def schedule(fit: Part, encoder: str, device: str | None) -> dict[str, Any]:
    """Epochs, batch and rate of a bi-encoder: many documents in a batch, unless that leaves too few steps.

    On a CPU, comparing checkpoints would take about as long as training.
    """
    usual, cuda = EncoderOptions(), chosen_device(device).type == "cuda"
    epochs = usual.epochs if cuda else CPU_EPOCHS
    batch = max(LEAST_BATCH, min(usual.batch, int(epochs * fit.pairs) // LEAST_STEPS))
    checkpoint = describe(find_model(encoder))
    width = checkpoint.dimensions().hidden_size if checkpoint.settings else WIDTH  # a chain's encoder is further down
    rate = usual.learning_rate * min(1, WIDTH / width) ** 2
    last = {} if cuda else {"best": "last", "tune_queries": LEAST_TO_FIT}
    return {"epochs": epochs, "batch": batch, "learning_rate": rate, **last}
