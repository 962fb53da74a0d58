"""Kill fits at random moments of each phase, rerun them to the end, and print what happened as lines of JSON.

    python kill_fits.py DATA ENCODER FOLDER KILLS SEED

The phases of a fit are reading the data, each step above BM25, and saving. The first line is that of a fit nobody
killed, the second of one whose disk was full three times, at files of growing size, the others of fits that were
killed: once in each phase, until all kills are done. Each fit runs in a forked process, so that importing torch, which
takes longer than a fit of a toy, is done once.
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
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from rankwell.core.errors import RankwellError
from rankwell.corpus.datasets import open_dataset
from rankwell.rank.system import System, is_system
from rankwell.training.fit.fit import fit
from rankwell.training.fit.steps import all_steps
from rankwell.training.fit.task import FitTask
from rankwell.training.stage import stage_kinds

FULL_AT = (500, 4_000, 60_000)
READING, SAVING, DONE = "reading", "saving", "done"
BEGUN = "  … "


def forked(work: Callable[[], object]) -> int:
    """The exit status of a process that does the work."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(work), 0)[1])


def fork(work: Callable[[], object]) -> int:
    """Start a process that does the work."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


class Phases:
    """The phase that a fit is in, by the lines it says, which its process writes into a file."""

    def __init__(self, path: Path, data: str):
        steps = all_steps(FitTask(data, path))
        self.path, self.titles = path, list(dict.fromkeys(step.title for step in steps))

    @property
    def names(self) -> list[str]:
        """All phases in order."""
        return [READING, *self.titles, SAVING]

    def say(self, line: str) -> None:
        """Append a line with the time."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{time.monotonic()} {line}\n")

    def now(self) -> str:
        """The phase, or between which steps the fit is."""
        return self.history()[-1][1]

    def history(self) -> list[tuple[float, str]]:
        """When each phase began."""
        phases = [(0.0, READING)]
        for line in self.path.read_text(encoding="utf-8").splitlines():
            moment, _, said = line.partition(" ")
            if said.startswith(BEGUN):
                phases.append((float(moment), said.removeprefix(BEGUN)))
            elif said.startswith(("  ✓ ", "  · ")):
                phases.append((float(moment), SAVING if self.titles[-1] in said else "between steps"))
            elif not said:
                phases.append((float(moment), DONE))
        return phases

    def run(self, work: Callable[[], object]) -> int:
        """Start a process whose lines are followed."""
        self.path.write_text("", encoding="utf-8")
        return fork(work)

    def kill_in(self, phase: str, seconds: float, work: Callable[[], object]) -> str | None:
        """Kill a fit ``seconds`` after a phase begins. Returns the phase it was in; None if it was done before."""
        pid, end = self.run(work), None
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                assert status == 0
                return None
            if end is None and self.now() == phase:
                end = time.monotonic() + seconds
            if end is not None and time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return self.now()
            time.sleep(0.002)


def fit_on_full_disk(work: Callable[[], object], limit: int, message: Path) -> None:
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
    steps = [
        {"step": step["step"], "kept": step.get("kept"), "judged": step.get("judged")} for step in system.card["steps"]
    ]
    found = {qid: [ranking.docids, ranking.scores.tolist()] for qid, ranking in sorted(run.items())}
    facts = {
        "system": system.describe(),
        "steps": steps,
        "run": found,
        "files without checksums": system.check().without,
        "beside": sorted(path.name for path in folder.parent.iterdir()),
    }
    out.write_text(json.dumps(facts), encoding="utf-8")


def main() -> None:
    """Fit, kill and print."""
    data, encoder, place, kills, seed = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
    FitTask.shipped = encoder
    stage_kinds()  # imported once, too
    chance = random.Random(seed)
    facts_path = place / "facts.json"

    def facts_of(folder: Path) -> dict[str, Any]:
        assert forked(lambda: describe(folder, data, facts_path)) == 0
        facts: dict[str, Any] = json.loads(facts_path.read_text(encoding="utf-8"))
        shutil.rmtree(folder.parent)
        return facts

    def fit_into(folder: Path, say: Callable[[str], None] = lambda line: None) -> Callable[[], object]:
        return lambda: fit(data, folder, device="cpu", minutes=60, say=say)

    folder = place / "whole" / "system"
    folder.parent.mkdir(parents=True)
    phases = Phases(place / "said", data)
    begin = time.monotonic()
    assert os.waitpid(phases.run(fit_into(folder, phases.say)), 0)[1] == 0
    moments = phases.history()
    assert moments[-1][1] == DONE
    ends = [moment for moment, _ in moments[1:]]
    lasted = {phase: end - max(begin, moment) for (moment, phase), end in zip(moments, ends, strict=False)}
    names = [name for name in phases.names if name in lasted]  # a step may be needless
    print(json.dumps({"kills": [], "facts": facts_of(folder)}), flush=True)
    folder = place / "full" / "system"
    folder.parent.mkdir(parents=True)
    messages = []
    for limit in FULL_AT:
        assert forked(lambda limit=limit: fit_on_full_disk(fit_into(folder), limit, place / "message")) == 0  # type: ignore[misc]
        messages.append((place / "message").read_text(encoding="utf-8"))
    assert forked(fit_into(folder)) == 0
    print(json.dumps({"messages": messages, "facts": facts_of(folder)}), flush=True)
    # The same number in each phase; of the rest, and of few, those in the phases that write most.
    wanted = Counter(phase for phase, _ in zip(cycle(reversed(names)), range(kills), strict=False))
    while +wanted:
        folder = place / "killed" / "system"
        folder.parent.mkdir(parents=True)
        killed: list[str] = []
        for phase in names:
            if wanted[phase] <= 0:
                continue
            moment = phases.kill_in(phase, chance.uniform(0, lasted[phase]), fit_into(folder, phases.say))
            if moment in (None, DONE):
                break
            killed.append(moment)
            wanted[moment if moment in wanted else phase] -= 1
        if not is_system(folder) or folder.with_name("system.work").exists():
            assert forked(fit_into(folder)) == 0
        print(json.dumps({"kills": killed, "facts": facts_of(folder)}), flush=True)


if __name__ == "__main__":
    main()
