"""CCNU's passage ranker: SDNet over a frozen BERT on part of a data set, alone and interpolated with BM25."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import write_json
from paper_recipes import Source
from paper_runs import write_values
from rankwell.corpus.records import Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.models.checkpoints.names import BACKBONE
from rankwell.papers.ccnu.ranker import SdnetRanker
from rankwell.papers.ccnu.stored_features import open_features
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.tuning import fusion_grid, tune_fusion
from rankwell.training.data.prepare import Split, open_split
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import Trained, run_recipe

MEASURES = ("AP", "nDCG", "P@10")
"""Those of CCNU's tables."""


@dataclass(frozen=True)
class Network:
    """What differs between trainings of the network."""

    signals: str
    tagger: str | None
    vectors: str | None
    layers: int | None
    hidden: int
    max_words: int
    dropout: float
    negatives: int
    steps: int

    @property
    def name(self) -> str:
        """The name of its row."""
        tags = "tags" if self.tagger else "no tags"
        layers = "all layers" if self.layers is None else f"{self.layers} layers"
        return f"{self.signals}, {tags}, {layers}, dropout {self.dropout:g}, negatives {self.negatives}"


def sdnet_recipe(
    data: Path, source: Source, network: Network, seed: int, *, choice: int, depth: int, train_depth: int
) -> Recipe:
    """The paper's settings but for the model's size, the passages' length and the number of steps."""
    stage = {
        "signals": network.signals,
        "tagger": network.tagger,
        "vectors": network.vectors,
        "layers": network.layers,
        "epochs": 1000,
        "max_steps": network.steps,
        "save_every": 100_000,
        "best": "last",
        "batch": 32 // network.negatives,
        "negatives": network.negatives,
        "learning_rate": 1e-3,
        "loss": "hinge",
        "dropout": network.dropout,
        "top": 10,
        "max_words": network.max_words,
        "hidden": network.hidden,
        "depth": train_depth,
    }
    tree = {
        "name": "sdnet",
        "seed": seed,
        "data": {"folder": str(data), "train": "fit", "dev": "choice", "dev_queries": choice},
        "first_stage": {"k1": source.k1, "b": source.b, "k2": source.k2, "depth": 100},
        "model": {"start": BACKBONE, "max_query": 32},
        "evaluate": {"measures": list(MEASURES), "depth": depth},
        "stages": {"sdnet": stage},
    }
    return build_recipe(tree, Path.cwd() / "recipe.yaml")


def train_sdnet(recipe: Recipe, arm: Mapping[str, Any], queries: int, out: Path, pool: Path) -> None:
    """Train, choose BM25's share on the queries set aside, and write the values of the first ``queries`` dev queries.

    ``out/S`` has the network alone, ``out/both`` the sum.
    """
    trained = run_recipe(recipe, out, pool=pool, say=print)
    assert trained.model is not None
    assert trained.last is not None
    assert trained.last.run is not None
    ranker, depth = SdnetRanker.from_pretrained(trained.model), recipe.evaluate.depth
    split = open_split(recipe, trained.work.data.collection, "dev", pool, limit=queries)
    chosen = trained.work.data.dev
    settings = [fusion for fusion in fusion_grid() if isinstance(fusion, Shares)]
    parts = {"first": chosen.run.head(depth), "model": trained.last.run}
    tuning = tune_fusion(parts, chosen.qrels, settings, measure=MEASURES[0])
    first = split.run.head(depth)
    alone = _rerank(trained, ranker, split)
    runs = {"S": alone, "both": fuse({"first": first, "model": alone}, tuning.best)}
    bm25 = evaluate(split.qrels, first, MEASURES)
    for name, run in runs.items():
        found = evaluate(split.qrels, run, MEASURES)
        row = {**arm, "row": f"{arm['row']}/{name}", "measures": MEASURES}
        stages = {"sdnet": {"figures": trained.work.done[-1].result.figures}}
        result = {"arm": row, "recipe": recipe.as_dict(), "stages": stages, "shares": str(tuning.best)}
        write_values(out / name, split.queries, ranker.encoder.vocabulary.tokenizer, bm25, found)
        write_json(out / name / "result.json", result | {"dev": dict(found.mean)})
        print(name, {measure: round(value, 4) for measure, value in found.mean.items()}, tuning.best)
    print("BM25", {measure: round(value, 4) for measure, value in bm25.mean.items()})


def _rerank(trained: Trained, ranker: SdnetRanker, split: Split) -> Run:
    recipe, store = trained.work.recipe, trained.work.data.collection.store
    head = split.run.head(recipe.evaluate.depth)
    numbers = store.numbers(list({docid for ranking in head.values() for docid in ranking.docids}))
    rows = np.asarray(numbers, np.int64)
    max_words = ranker.model.config.max_words
    passages = open_features(store, ranker.encoder, rows, max_words=max_words, tagger=ranker.tagger)
    return ranker.rerank(split.run, split.queries, passages=passages, depth=recipe.evaluate.depth)
