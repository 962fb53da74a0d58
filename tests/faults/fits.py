"""Fits that are killed, or whose disk is full, and are rerun to the end; prints what became of each as a line of JSON.

    python -m tests.faults.fits DATA ENCODER RANKER FOLDER KILLS

The first line is that of a fit without a fault. Kills lie evenly over its operations on the disk; between two
of them the files stay the same. Each fit runs in a forked process, so that importing torch, which takes
longer than a fit of a toy, is done once.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.faults.disk import KILL, Disk

from rankwell.core.errors import RankwellError
from rankwell.corpus.datasets import open_dataset
from rankwell.models import devices
from rankwell.rank.system import System, is_system
from rankwell.training.fit import climb, steps
from rankwell.training.fit.fit import fit
from rankwell.training.fit.task import FitTask
from rankwell.training.stage import stage_kinds

FULL_AT = (500, 4_000, 60_000)


def describe(folder: Path, data: Path) -> dict[str, Any]:
    """What a system is and finds, and what its folder and the one around it hold."""
    system = System.open(folder, device="cpu")
    run = system.search(open_dataset(data).queries("dev"), 20)
    return {
        "system": system.describe(),
        "steps": [[step.get(key) for key in ("step", "kept", "judged")] for step in system.card["steps"]],
        "run": {qid: [list(ranking.docids), ranking.scores.tolist()] for qid, ranking in sorted(run.items())},
        "files without checksums": system.check().without,
        "beside": sorted(path.name for path in folder.parent.iterdir()),
    }


def forked(work: Callable[[], Any]) -> tuple[int, Any]:
    """The exit status of a process that does the work, and what the work gave, by way of JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, json.dumps(work()).encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        text = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), json.loads(text or "null")


def main(data: Path, encoder: str, ranker: str, place: Path, kills: int) -> None:
    """Fit with each fault, and print."""
    FitTask.shipped, steps.DEFAULT, climb.TIMED_QUERIES = encoder, ranker, 3
    os.fsync, devices.CPU_INFO = os.fstat, Path(os.devnull)  # no power is lost; the same on every processor
    stage_kinds()  # imported once, too
    folder = place / "system"

    def run_fit(at: int | None = None) -> int:
        with Disk(place, at, KILL) as disk:
            fit(str(data), folder, device="cpu", minutes=60)
        return disk.operations

    def run_on_full_disk(limit: int) -> str:
        """What a user is told when no file may grow beyond ``limit`` bytes."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            fit(str(data), folder, device="cpu", minutes=60)
        except RankwellError as error:
            return str(error)
        return "nothing went wrong"

    def finish(**line: Any) -> None:
        """Rerun the fit to its end and print what it is."""
        shutil.rmtree(place.with_name(f"{place.name}-spare"), ignore_errors=True)
        if not is_system(folder) or folder.with_name("system.work").exists():
            assert forked(run_fit)[0] == 0
            shutil.rmtree(place.with_name(f"{place.name}-spare"))
        status, facts = forked(lambda: describe(folder, data))
        assert status == 0
        print(json.dumps({**line, "facts": facts}), flush=True)
        shutil.rmtree(place)
        place.mkdir()

    place.mkdir()
    status, operations = forked(run_fit)
    assert status == 0
    finish(operations=operations)
    messages = [forked(lambda limit=limit: run_on_full_disk(limit))[1] for limit in FULL_AT]  # type: ignore[misc]
    finish(messages=messages)
    for number in np.linspace(1, operations, kills).astype(int).tolist():
        status, _ = forked(lambda number=number: run_fit(number))  # type: ignore[misc]
        assert status == -signal.SIGKILL
        finish(killed_at=number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], Path(sys.argv[4]), int(sys.argv[5]))
