"""Finished steps, which an interrupted fit reads instead of making them again: names, writing and reading."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError
from rankwell.core.files import atomic_folder
from rankwell.core.manifest import digest, read_object, write_json
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Run
from rankwell.models.devices import Computing
from rankwell.rank.system import System
from rankwell.training.fit.results import Bests, Result, Step
from rankwell.training.fit.task import FitTask

RECORD = "step.json"
FIGURES = ("stages", "count", "engine", "start", "milliseconds", "seconds", "estimated", "doubling", "folds")


def key_of(step: Step, bests: Bests | None) -> str:
    """Names a result by its step and all that this stands on."""
    below = None if bests is None else bests.below(step).key
    return f"{re.sub(r'[^.0-9A-Za-z_]+', '-', step.name)}-{digest([step.name, below])[:12]}"


def folder_of(task: FitTask, key: str) -> Path:
    """Where a finished step is."""
    return task.work / "steps" / key


def write(task: FitTask, result: Result) -> None:
    """Write a result and its runs."""
    with atomic_folder(folder_of(task, result.key)) as temporary:
        result.system.first_stage.save(temporary)
        for name, run in (("judged", result.run), ("report", result.report)):
            if run:
                write_run(Run(run, name=name), temporary / f"{name}.run.gz")
        figures = {name: getattr(result, name) for name in FIGURES}
        write_json(temporary / RECORD, {"system": result.system.settings(temporary), **figures})


def read(task: FitTask, step: Step, key: str) -> Result | None:
    """The result of a step; None if it is not finished."""
    folder = folder_of(task, key)
    if not folder.exists():
        return None
    try:
        record: dict[str, Any] = read_object(folder / RECORD)
        system = System.from_settings(record["system"], folder, Computing(task.device))
        figures = {name: record[name] for name in FIGURES}
        runs = {
            name: read_run(path) if (path := folder / f"{name}.run.gz").exists() else None
            for name in ("judged", "report")
        }
        return Result(system, runs["judged"] or Run(), step=step, key=key, report=runs["report"], **figures)
    except (FileNotFoundError, KeyError, TypeError):
        raise InputError(folder, None, "not a finished step; remove it to make it again") from None
