"""Fits of the tests, and a rung that is always kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankwell import sample
from rankwell.corpus.records import Run
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.retrieve.bm25 import BM25
from rankwell.training.fit.fit import fit
from rankwell.training.fit.rungs import FitTask, Rung


def fitted(out: Path, encoder: Path, data: Path = sample.FOLDER, **options: Any) -> tuple[System, str]:
    """A system and what was said while it was fitted."""
    lines: list[str] = []
    system = fit(
        str(data),
        out,
        encoder=str(encoder),
        say=lines.append,
        **{"start": str(encoder), "device": "cpu", "minutes": 30, **options},
    )
    return system, "\n".join(lines)


def rungs(system: System) -> dict[str, dict[str, Any]]:
    return {rung["rung"]: rung for rung in system.card["rungs"]}


def perfect(task: FitTask, below: Rung) -> Rung:
    """A system whose run of the judged queries has the relevant documents alone."""
    relevant = {qid: {d: 1.0 for d, grade in own.items() if grade > 0} for qid, own in task.parts.judged.qrels.items()}
    return Rung(System(FirstStage(task.index, BM25(k1=1.2, b=0.7))), Run.from_scores(relevant), {})
