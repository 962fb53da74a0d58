"""The recipes of docs/papers.md and docs/attention-rules.md: which parts a row has, and how long each is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankwell.models.checkpoints.names import BACKBONE
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe

MEASURES = ("RR@10", "nDCG@10", "AP")
POINTWISE_STEPS, LISTWISE_STEPS = 600, 1100
POINTWISE_ONLY, LISTWISE_ONLY = 2250, 1500
"""Steps of 64 and of 96 pairs: 600 and 1,100 together, 2,250 or 1,500 are 144,000 pairs each."""
POINTWISE_RATE, LISTWISE_RATE = 6e-5, 1e-4
"""What training queries set aside preferred, of 6e-5 and 1.5e-4 for pointwise and of 4e-5, 1e-4 and 2.5e-4."""
CHECKED = 100
"""Queries set aside that each stage is measured on where nothing is chosen by them."""
LEFT_OUT = "left-out.txt"
"""Documents of the articles that dev queries ask about, which pre-training may leave out."""


@dataclass(frozen=True)
class Source:
    """A data set, the splits to train on and to report, and how BM25 finds its candidates."""

    folder: Path
    train: str
    dev: str
    k1: float
    b: float
    aside: int
    most: int | None = None
    """Training queries to use, drawn at random; None: all."""
    k2: float | None = None


@dataclass(frozen=True)
class Row:
    """A ranker of Table 1: DR-BERT without some of its parts, or with others."""

    rule: str = "strm"
    template: str = "typed"
    types: str = "auto"
    """``auto``, ``rules``, ``shuffled``, or ``classifier``: the folder that the command names."""
    pretrain: bool = True
    pointwise: bool = True
    listwise: bool = True
    threshold: float | None = None
    """Of noise reduction; None: without it."""
    found_only: bool = False
    markers: bool = False
    unmarked: str = "stop words"
    mark_unmatched_query: bool = False


OFF = Row(rule="full", template="mono", pretrain=False)
POINTWISE, LISTWISE = replace(OFF, listwise=False), replace(OFF, pointwise=False)
MARKED = replace(POINTWISE, markers=True)
ROWS = {
    "drbert": Row(),
    "no-pretraining": Row(pretrain=False),
    "no-pointwise": Row(pointwise=False),
    "no-types": Row(template="mono"),
    "no-listwise": Row(listwise=False),
    "no-strm": Row(rule="full"),
    "denoised": Row(threshold=0.9),
    "pointwise-only": POINTWISE,
    "listwise-only": LISTWISE,
    "found-only": replace(LISTWISE, found_only=True),
    "marked": MARKED,
    "marked-content": replace(MARKED, unmarked="function words"),
    "marked-unmatched": replace(MARKED, mark_unmatched_query=True),
    "full": OFF,
    "strm": replace(OFF, rule="strm"),
    "exact_match": replace(OFF, rule="exact_match"),
    "typed": replace(OFF, template="typed"),
    "rule-types": replace(OFF, template="typed", types="rules"),
    "classifier-types": replace(OFF, template="typed", types="classifier"),
    "shuffled-types": replace(OFF, template="typed", types="shuffled"),
}


def pretraining_recipe(
    data: Path, start: str, rule: str, steps: int, batch: int, seed: int, leave_out: Path | None = None
) -> Recipe:
    """Pre-training under a rule in every layer; 1 % of the passages are held out."""
    stage = {
        "epochs": 1000,
        "max_steps": steps,
        "batch": batch,
        "learning_rate": 1e-4,
        "warm_up": 0.05,
        "head_scale": 5.0 if start == BACKBONE else 1.0,  # MiniLM's heads are new
        "max_length": 128,
        "held_out": 0.01,
        "leave_out": None if leave_out is None else str(leave_out.resolve()),
    }
    tree = {"name": f"pretrain-{rule}", "seed": seed, "data": {"folder": str(data)}}
    tree |= {"model": {"start": start, "attention": rule, "max_length": 128}, "stages": {"pretrain": stage}}
    return build_recipe(tree, Path.cwd() / "recipe.yaml")


def ranking_recipe(
    name: str,
    data: Path,
    source: Source,
    start: str,
    row: Row,
    stages: Mapping[str, Any],
    seed: int,
    classifier: Path | None = None,
    checked: int | None = None,
) -> Recipe:
    """Training on ``fit``, measured on ``choice`` (its first ``checked`` queries); the model truncates documents and
    has no pooler.
    """
    types = {"shuffled": str(data / "shuffled.{split}.tsv"), "classifier": str(classifier)}.get(row.types, row.types)
    tree = {
        "name": name,
        "seed": seed,
        "data": {"folder": str(data), "train": "fit", "dev": "choice", "dev_queries": checked, "types": types},
        "first_stage": {"k1": source.k1, "b": source.b, "depth": 100},
        "model": {
            "start": start,
            "template": row.template,
            "attention": row.rule,
            "markers": row.markers,
            "unmarked": row.unmarked,
            "mark_unmatched_query": row.mark_unmatched_query,
            "max_length": 180,
            "max_query": 64,
            "pooler": False,
            "long_documents": "cut",
        },
        "evaluate": {"measures": list(MEASURES), "depth": 100},
        "stages": dict(stages),
    }
    return build_recipe(tree, Path.cwd() / "recipe.yaml")


def listwise_stage(rate: float, steps: int, row: Row = LISTWISE) -> dict[str, Any]:
    """Lists of one relevant passage and five others, 16 a step."""
    lists = {"batch": 16, "positives": 1, "negatives": 5, "depth": 100, "found_only": row.found_only}
    head = "pointwise" if row.pointwise else "new"
    return {**lists, **_steps(steps), "learning_rate": rate, "head": head, "best": "last"}


def pointwise_stage(rate: float, steps: int) -> dict[str, Any]:
    """A relevant passage and another, 32 times a step."""
    lists = {"batch": 32, "positives": 1, "negatives": 1, "depth": 100}
    return {**lists, **_steps(steps), "learning_rate": rate, "best": "last"}


def _steps(steps: int) -> dict[str, Any]:
    return {"epochs": 1000, "max_steps": max(1, steps), "save_every": 100_000}


def table1_stages(row: Row, scale: float = 1.0, leave_out: str | None = None) -> dict[str, Any]:
    """The stages of a row of Table 1 at 144,000 pairs, or at a ``scale`` of them to try the script out."""
    stages: dict[str, Any] = {}
    if row.pretrain:
        text = {"batch": 128, "warm_up": 0.1, "max_length": 180, "held_out": 0.01, "leave_out": leave_out}
        stages["pretrain"] = {**_steps(round(600 * scale)), **text, "learning_rate": 5e-5}
    if row.pointwise:
        steps = POINTWISE_STEPS if row.listwise else POINTWISE_ONLY
        stages["pointwise"] = pointwise_stage(POINTWISE_RATE, round(steps * scale))
    if row.threshold is not None:
        stages["denoise"] = {"threshold": row.threshold, "most": 1.0}
    if row.listwise:
        steps = LISTWISE_STEPS if row.pointwise else LISTWISE_ONLY
        stages["listwise"] = listwise_stage(LISTWISE_RATE, round(steps * scale), row)
    return stages
