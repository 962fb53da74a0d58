"""Logs and systems of the tests of refits; as a program, refits that are killed and run again.

    python -m tests.training.fit.refits FOLDER ENCODER KILLS

Kills lie evenly over the operations on the disk of a refit. After each, the system is the old or the new one, whole;
the refit is run again to its end. A line of JSON says what became of each.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from tests.faults.disk import KILL, Disk
from tests.faults.fits import forked
from tests.training.fit.fitting import write_titles

from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.records import Query
from rankwell.corpus.searches import DAY
from rankwell.models import devices
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.retrieve.index import Index
from rankwell.training.fit import climb
from rankwell.training.fit.fit import fit
from rankwell.training.fit.refit import NotBetterError
from rankwell.training.fit.task import FitTask

QUERIES, WEEKS, TIMES = 80, 3, 12


def write_log(folder: Path, system: System, queries: list[Query], weeks: int = WEEKS, times: int = TIMES) -> Path:
    """Every query is asked so many times a week; d7 is what q7 asks for, and is clicked every second time."""
    folder.mkdir()
    numbers, today = count(), time.time() // DAY * DAY
    for week in range(weeks):
        files = dict[str, list[str]]()
        for query in queries:
            docids = [answer.docid for answer in system.search(query.text, k=10)]
            for turn in range(times):
                when = today - DAY * (7 * week + 1 + turn % 7) + 3600 + next(numbers) / 1000
                stamp, query_id = datetime.fromtimestamp(when, UTC).isoformat(), f"s{next(numbers)}"
                own = {"from": 0, "candidates": len(docids), "special": False}
                record = {"query_id": query_id, "user_query": query.text, "timestamp": stamp}
                record |= {"query_response_hit_ids": docids, "query_attributes": own}  # type: ignore[dict-item]
                files.setdefault(f"queries-{stamp[:10]}", []).append(json.dumps(record))
                if turn % 2 and (wanted := f"d{query.qid[1:]}") in docids:
                    event = {"action_name": "click", "query_id": query_id, "timestamp": stamp}
                    event |= {"event_attributes": {"object": {"object_id": wanted}}}  # type: ignore[dict-item]
                    files.setdefault(f"events-{stamp[:10]}", []).append(json.dumps(event))
        for name, lines in files.items():
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def make_all(folder: Path, **options: int) -> tuple[Path, Path, Path]:
    """Documents without judgments, a system that does not know that titles say what they are about, and its log."""
    data = write_titles(folder / "data", QUERIES)
    queries = open_dataset(data).queries("train")
    for name in ("queries.train.tsv", "qrels.train.txt"):
        (data / name).unlink()
    index = Index.build(open_dataset(data).documents(), folder / "index")
    (folder / "place").mkdir()
    system = System(FirstStage(index)).save(folder / "place" / "system")
    return data, folder / "place" / "system", write_log(folder / "log", system, queries, **options)


@contextmanager
def quick_steps(encoder: Path) -> Iterator[None]:
    """Fits try the weight of titles alone."""
    every = climb.all_steps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitTask, "shipped", str(encoder))
        patch.setattr(climb, "all_steps", lambda task: [step for step in every(task) if step.name == "analyser"])
        yield


def answers(folder: Path) -> list[str]:
    """What a system finds, after all its files were checked."""
    system = System.open(folder, device="cpu")
    system.check()
    return [answer.docid for answer in system.search("calls wasps tea", k=3)]


def main(folder: Path, encoder: Path, kills: int) -> None:
    """Refit with each kill, and print."""
    os.fsync, devices.CPU_INFO = os.fstat, Path(os.devnull)  # no power is lost; the same on every processor
    data, system, log = make_all(folder)
    pristine, place = folder / "pristine", system.parent
    shutil.copytree(system, pristine)

    def run(at: int | None = None) -> int:
        with quick_steps(encoder), Disk(place, at, KILL) as disk:
            try:
                fit(str(data), system, previous=system, log=log, device="cpu")
            except NotBetterError:
                return -1
        return disk.operations

    def restore() -> None:
        shutil.rmtree(place)
        place.mkdir()
        shutil.copytree(pristine, system)

    def finish(number: int | None) -> None:
        shutil.rmtree(place.with_name(f"{place.name}-spare"), ignore_errors=True)
        status, left = forked(lambda: answers(system))
        done, operations = forked(run)
        shutil.rmtree(place.with_name(f"{place.name}-spare"), ignore_errors=True)
        beside = sorted(path.name for path in place.iterdir())
        last = forked(lambda: answers(system))[1]
        line = {"killed_at": number, "whole": status == 0, "left": left, "run again": [done, operations]}
        print(json.dumps({**line, "last": last, "beside": beside}), flush=True)
        restore()

    status, operations = forked(run)
    assert status == 0
    print(json.dumps({"operations": operations, "old": forked(lambda: answers(pristine))[1], "new": answers(system)}))
    restore()
    for number in np.linspace(1, operations, kills).astype(int).tolist():
        forked(lambda number=number: run(number))  # type: ignore[misc]
        finish(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
