"""Faults at any operation on the disk: what was there before, or what should be, and never between.

A row of ``WORKS`` is work on an index or a system; every fault of ``FAULTS`` is injected into each. Work that resumes,
a training and a fit, ends after each as if nothing had happened when it is run again.

With all tests, some of the operations are tried; `make test-faults` tries each one, of a training every other, and some
of a fit. All of a fit: RANKWELL_FAULTS=1000000, in hours, or with RANKWELL_PART=0/16 a sixteenth.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.disk import CUT, KILL, Disk, PowerCut
from tests.faults.fits import describe
from tests.training import toys
from tests.training.conftest import make_model
from tests.training.fit.fitting import fitted
from tests.training.loop.test_loop import make_task, options

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.corpus.records import Document
from rankwell.inputs.templates import Template
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System, check_folder, is_system
from rankwell.retrieve.index import Index
from rankwell.training.loop.loop import train

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")

GIVEN = int(os.environ.get("RANKWELL_FAULTS", "0"))
PART, PARTS = (int(number) for number in os.environ.get("RANKWELL_PART", "0/1").split("/"))
TRIED = 10_000 if GIVEN else 12
KILLS = max(4, GIVEN // 20)

OLD = [Document(f"old{i}", f"bees number {i} make honey {'and wax' * (i % 3)}") for i in range(12)]
NEW = [Document(f"new{i}", f"wasps number {i} make no honey {'but paper' * (i % 3)}") for i in range(9)]
CHANGED = [Document("old3", "wax paper", metadata={"year": 2001}), *NEW[:2]]

Work = Callable[[Path], Any]


def build(folder: Path) -> object:
    return Index.build(OLD, folder)


def build_several(folder: Path) -> object:
    index = Index.build(OLD, folder)
    index.update(CHANGED)
    return index.delete(["old5"])


@pytest.fixture
def save(tiny_checkpoint: Path, tiny_bi_encoder: Path, tmp_path: Path) -> Work:
    save_checkpoint(tmp_path / "model", *load_checkpoint(tiny_checkpoint))

    def save(folder: Path) -> object:
        index = Index.build(OLD, folder.with_name(f"{folder.name}-parts"), overwrite=True)
        first = FirstStage(index, encoder=tiny_bi_encoder, share=0.5)
        return System(first, ranker=tmp_path / "model", depth=5).save(folder)

    return save


WORKS: dict[str, tuple[Work | None, Work]] = {
    "first build": (Path.mkdir, build),
    "append": (build, lambda folder: Index.build(NEW, folder, append=True)),
    "overwrite": (build, lambda folder: Index.build(NEW, folder, overwrite=True)),
    "update": (build, lambda folder: Index.open(folder).update(CHANGED)),
    "delete": (build, lambda folder: Index.open(folder).delete(["old1", "old4"])),
    "merge": (build_several, lambda folder: Index.open(folder).merge()),
    "delete and merge": (build_several, lambda folder: Index.open(folder).delete(["old1", "old7", "new1"])),
    "update a system": (None, lambda folder: System.open(folder, device="cpu").update(CHANGED)),
    "add": (None, lambda folder: System.open(folder, device="cpu").add(NEW)),
}
"""What is there before, None for a system, and what is done to it."""
FAULTS = {"power cut": CUT, "EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "kill": KILL}


def answers(folder: Path) -> Any:
    """What a search finds, after every file was checked; None if there is nothing."""
    if (folder / "system.json").exists():
        system = System.open(folder, device="cpu")
        system.check()
        return [(answer.docid, answer.score) for answer in system.search("honey wax paper 7", k=30)]
    if not (folder / "index.json").exists():
        return None
    index = Index.open(folder)
    check_folder(folder, index)
    return list(index.rank("honey wax paper 7", k=30))


def with_fault(work: Work, folder: Path, number: int, fault: int, place: str) -> bool:
    """Do the work with a fault at an operation, and restart if power was lost. Returns whether the work was done."""
    if fault == KILL:
        child = os.fork()
        if not child:
            with Disk(folder, number, KILL):
                work(folder)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, -signal.SIGKILL), place
        return status == 0
    done, problem = False, ""
    with Disk(folder, number, fault) as disk:
        try:
            work(folder)
            done = True
        except (RankwellError, OSError) as error:
            problem = str(error)
    assert "\n" not in problem, place
    disk.restart(seed=number) if fault == CUT else shutil.rmtree(disk.spare)
    return done


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", WORKS)
def test_a_fault_leaves_the_old_or_the_new(save: Work, tmp_path: Path, name: str, fault: str) -> None:
    before, work = WORKS[name]
    if before is None and fault == "kill":
        pytest.skip("torch may not survive a fork")
    pristine, changed = tmp_path / "pristine", tmp_path / "changed"
    (before or save)(pristine)
    shutil.copytree(pristine, changed)
    with Disk(changed) as disk:
        work(changed)
    old, new, last = answers(pristine), answers(changed), disk.operations
    assert old != new or name == "merge"
    states = []
    # The last operations among them: they make the work count. After all of them, unsynced contents may still be lost.
    for number in sorted({*range(1, last + 1, max(1, last // TRIED)), *range(max(1, last - 4), last + 2)}):
        folder, place = tmp_path / f"fault-{number}", f"{fault} at operation {number} of {last}, seed {number}"
        shutil.copytree(pristine, folder)
        done = with_fault(work, folder, number, FAULTS[fault], place)
        found = answers(folder)
        assert found == new if done else found in (old, new), place
        states.append(found == new)
        if found != new and name != "add":  # it can be done again
            work(folder)
            assert answers(folder) == new, place
        if before is not None:  # the next build removes what this one left
            assert len(Index.build(NEW, folder, overwrite=True)) == len(NEW)
            assert sorted(path.name.split("-")[0] for path in folder.iterdir()) == ["index.json", "lock", "segment"]
    assert states[-1]
    assert fault != "kill" or states == sorted(states)  # once it is the new one it stays so


def run_training(folder: Path) -> Any:
    """Train a tiny model, with a checkpoint after every third step; its weights."""
    from safetensors.torch import load_file, save_file

    model = make_model()

    def save(place: Path) -> None:
        with atomic_folder(place) as fresh:
            save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, fresh / "weights")

    def validate(network: Any) -> dict[str, float]:
        return {"RR@10": float(sum(weights.detach().abs().sum() for weights in network.parameters()))}

    settings = options(epochs=2, save_every=3)
    train(model, make_task(Template(max_length=80)), settings, folder, save=save, device="cpu", validate=validate)
    return {name: tensor.tolist() for name, tensor in load_file(folder / "model" / "weights").items()}


def resume_after_faults(work: Work, tmp_path: Path, points: int) -> None:
    """Power cuts and errors at operations that lie evenly over the work, each rerun to the end."""
    (tmp_path / "whole").mkdir()
    with Disk(tmp_path / "whole") as disk:
        whole = work(tmp_path / "whole")
    operations = sorted({int(number) for number in np.linspace(1, disk.operations, min(points, disk.operations))})
    for turn, number in enumerate(operations[PART::PARTS]):
        folder, fault = tmp_path / "fault", (errno.EIO, CUT, errno.ENOSPC, CUT)[turn % 4]
        folder.mkdir()
        with_fault(work, folder, number, fault, f"operation {number} of {disk.operations}")
        assert work(folder) == whole, f"operation {number} of {disk.operations}"
        shutil.rmtree(folder)
    print(f"\n{len(operations[PART::PARTS])} faults at {disk.operations} operations")


def test_training_resumes_to_the_same_weights(tmp_path: Path) -> None:
    resume_after_faults(run_training, tmp_path, max(4, GIVEN // 5))


@pytest.mark.skipif(not GIVEN, reason="some minutes, for `make test-faults`")
def test_a_fit_resumes_to_the_same_system(tmp_path: Path, tiny_bi_encoder: Path, tiny_checkpoint: Path) -> None:
    data = toys.write_data(tmp_path / "data", queries=110)

    def run_fit(folder: Path) -> Any:
        if not is_system(folder / "system") or (folder / "system.work").exists():
            fitted(folder / "system", tiny_bi_encoder, data, ranker=tiny_checkpoint, minutes=60)
        return describe(folder / "system", data)

    resume_after_faults(run_fit, tmp_path, max(2, GIVEN // 50))


def test_fits_that_are_killed_or_have_a_full_disk_end_as_the_one_that_was_not(
    tmp_path: Path, tiny_bi_encoder: Path, tiny_checkpoint: Path
) -> None:
    data = toys.write_data(tmp_path / "data", queries=110)
    models = tiny_bi_encoder, tiny_checkpoint
    command = [sys.executable, "-m", "tests.faults.fits", data, *models, tmp_path / "fits", str(KILLS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    whole, full, *killed = [json.loads(line) for line in done.stdout.splitlines()]
    assert whole["facts"]["files without checksums"] == 0
    assert whole["facts"]["beside"] == ["system"]
    for message in full["messages"]:
        assert message.startswith("cannot write ")
        assert message.endswith("file too large")
        assert "\n" not in message
    assert len(killed) == KILLS
    for other in (full, *killed):
        assert other["facts"] == whole["facts"], other.get("killed_at")
    print(f"\n{KILLS} kills of fits of {whole['operations']} operations")


def test_a_power_cut_keeps_what_the_log_of_searches_has_flushed(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from rankwell.serve.engine import Metrics
    from rankwell.serve.search_log import LogOptions, SearchLog

    lines = [b'{"query_id": "%d"}\n' % number for number in range(8)]

    def write(folder: Path, flushed: list[bytes]) -> None:
        log = SearchLog(LogOptions(folder), Metrics())
        for pair in (lines[:2], lines[2:4], lines[4:]):
            log._write(folder / "queries-2026-11-19.jsonl", pair)
            flushed += pair

    (tmp_path / "whole").mkdir()
    with Disk(tmp_path / "whole") as disk:
        write(tmp_path / "whole", [])
    lost = 0
    for number in range(1, disk.operations + 1):
        (folder := tmp_path / f"cut-{number}").mkdir()
        flushed: list[bytes] = []
        with Disk(folder, number, CUT) as cut:
            write(folder, flushed)
        cut.restart(seed=number)
        path = folder / "queries-2026-11-19.jsonl"
        found = path.read_bytes() if path.exists() else b""
        assert found[: len(b"".join(flushed))] == b"".join(flushed), number
        lost += len(flushed) < len(lines)
        write(folder, [])  # goes on behind a line that was cut off
        assert path.read_bytes().endswith(b"\n" + b"".join(lines)) or path.read_bytes() == b"".join(lines), number
    assert lost > 3


def test_power_cuts_pass_through_handlers_of_errors() -> None:
    assert not issubclass(PowerCut, Exception)
