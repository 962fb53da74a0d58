"""Fits of the tests, with a tiny model in the place of the shipped one, and a step that is always kept."""

from __future__ import annotations

import json
import shutil
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from rankwell import sample
from rankwell.corpus.records import Run
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.retrieve.bm25 import BM25
from rankwell.training.fit import climb, plans, steps
from rankwell.training.fit.fit import fit
from rankwell.training.fit.results import Plan, Result, Step
from rankwell.training.fit.task import FitTask


def fitted(
    out: Path, encoder: Path, data: Path = sample.FOLDER, *, ranker: Path | None = None, **options: Any
) -> tuple[System, str]:
    """A system and what was said while it was fitted, with ``encoder`` and ``ranker`` as the shipped models."""
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitTask, "shipped", str(encoder))
        for module in (plans, steps):
            patch.setattr(module, "DEPTHS", (5, 10))  # re-ranking is what takes longest
        patch.setattr(climb, "TIMED_QUERIES", 3)  # for the milliseconds a query
        if ranker is not None:
            patch.setattr(steps, "DEFAULT", str(ranker))
        system = fit(str(data), out, say=lines.append, **{"device": "cpu", "minutes": 30, **options})
    return system, "\n".join(lines)


def results(system: System) -> dict[str, dict[str, Any]]:
    return {result["step"]: result for result in system.card["steps"]}


def named(name: str) -> Step:
    """A step of a fit."""
    return next(step for step in steps.all_steps(FitTask(str(sample.FOLDER), Path("out"))) if step.name == name)


def perfect(task: FitTask, below: Result, plan: Plan) -> Result:
    """A system whose run of the judged queries has the relevant documents alone."""
    relevant = {qid: {d: 1.0 for d, grade in own.items() if grade > 0} for qid, own in task.parts.judged.qrels.items()}
    return Result(System(FirstStage(task.index, BM25(k1=1.2, b=0.7))), Run.from_scores(relevant))


def write_titles(folder: Path, count: int = 40) -> Path:
    """Documents, each the answer to a query that has the words of its title; another's text has them twice."""
    words = ["bees", "wasps", "tea", "milk", "honey", "wax", "hive", "queen", "comb", "swarm", "drone", "pollen"]
    pairs = list(permutations(words, 2))[:count]
    folder.mkdir()
    others = pairs[1:] + pairs[:1]
    documents = [
        {"id": f"d{n}", "title": f"{a} {b}", "text": f"{c} {d} {c} {d}"}
        for n, ((a, b), (c, d)) in enumerate(zip(pairs, others, strict=True))
    ]
    (folder / "collection.jsonl").write_text("\n".join(map(json.dumps, documents)))
    queries = "".join(f"q{n}\tcalls {a} {b}\n" for n, (a, b) in enumerate(pairs))
    (folder / "queries.train.tsv").write_text(queries)
    (folder / "qrels.train.txt").write_text("".join(f"q{n} 0 d{n} 1\n" for n in range(len(pairs))))
    return folder


def take(folder: Path, queries: int, *splits: str) -> Path:
    """The bundled sample with fewer queries, and no other splits."""
    folder.mkdir()
    shutil.copy(sample.FOLDER / "collection.tsv", folder)
    for split in splits:
        lines = (sample.FOLDER / f"queries.{split}.tsv").read_text().splitlines(keepends=True)
        (folder / f"queries.{split}.tsv").write_text("".join(lines[:queries]))
        shutil.copy(sample.FOLDER / f"qrels.{split}.txt", folder)
    return folder
