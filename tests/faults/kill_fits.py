"""Kill fits at random moments, rerun them to the end, and print for each fit what happened as a line of JSON.

    python kill_fits.py DATA ENCODER FOLDER KILLS SEED

The first line is that of a fit nobody killed, the second of one whose disk was full three times, at files of growing
size. Each fit runs in a forked process, so that importing torch, which takes longer than a fit of a toy, is done once.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankwell.core.errors import RankwellError
from rankwell.corpus.datasets import open_dataset
from rankwell.rank.system import System
from rankwell.training.fit.fit import fit
from rankwell.training.stage import stage_kinds

FULL_AT = (500, 4_000, 60_000)


def forked(work: Callable[[], None], seconds: float | None = None) -> int | None:
    """The exit status of a process that does the work; None if it was killed after ``seconds``."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, 0 if end is None else os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.002)


def fit_on_full_disk(work: Callable[[], None], limit: int, message: Path) -> None:
    """Write what a user is told when no file may grow beyond ``limit`` bytes, as on a full disk."""
    message.write_text("nothing went wrong", encoding="utf-8")
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        work()
    except RankwellError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        message.write_text(str(error), encoding="utf-8")


def describe(folder: Path, data: str, out: Path) -> None:
    """Write what a system is and finds, and what its folder holds."""
    system = System.open(folder, device="cpu")
    run = system.search(open_dataset(data).queries("dev"), 20)
    rungs = [
        {"rung": rung["rung"], "kept": rung.get("kept"), "choose": rung.get("choose")} for rung in system.card["rungs"]
    ]
    found = {qid: [ranking.docids, ranking.scores.tolist()] for qid, ranking in sorted(run.items())}
    facts = {
        "system": system.describe(),
        "rungs": rungs,
        "run": found,
        "problems": list(system.check()),
        "beside": sorted(path.name for path in folder.parent.iterdir()),
    }
    out.write_text(json.dumps(facts), encoding="utf-8")


def main() -> None:
    """Fit, kill and print."""
    data, encoder, place, kills, seed = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
    stage_kinds()  # imported once, too
    chance = random.Random(seed)
    facts_path = place / "facts.json"

    def facts_of(folder: Path) -> dict[str, Any]:
        assert forked(lambda: describe(folder, data, facts_path)) == 0
        facts: dict[str, Any] = json.loads(facts_path.read_text(encoding="utf-8"))
        shutil.rmtree(folder.parent)
        return facts

    def fit_into(folder: Path) -> Callable[[], None]:
        return lambda: (fit(data, folder, encoder=encoder, start=encoder, device="cpu", minutes=60), None)[1]

    folder = place / "whole" / "system"
    folder.parent.mkdir(parents=True)
    begin = time.monotonic()
    assert forked(fit_into(folder)) == 0
    seconds = time.monotonic() - begin
    print(json.dumps({"kills": [], "facts": facts_of(folder)}), flush=True)
    folder = place / "full" / "system"
    folder.parent.mkdir(parents=True)
    messages = []
    for limit in FULL_AT:
        assert forked(lambda limit=limit: fit_on_full_disk(fit_into(folder), limit, place / "message")) == 0  # type: ignore[misc]
        messages.append((place / "message").read_text(encoding="utf-8"))
    assert forked(fit_into(folder)) == 0
    print(json.dumps({"messages": messages, "facts": facts_of(folder)}), flush=True)
    done = 0
    while done < kills:
        folder = place / "killed" / "system"
        folder.parent.mkdir(parents=True)
        moments: list[int] = []
        while True:
            longest = seconds / 4 if done < kills else None
            status = forked(fit_into(folder), None if longest is None else chance.uniform(0, longest))
            if status is not None:
                assert status == 0
                break
            done += 1
            moments.append(len(list(folder.with_name("system.work").glob("rungs/*"))))
        print(json.dumps({"kills": moments, "facts": facts_of(folder)}), flush=True)


if __name__ == "__main__":
    main()
