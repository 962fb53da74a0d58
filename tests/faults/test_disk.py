"""A disk that fails or loses power at any operation: what was there before, or what should be, and never between.

With all tests, some of the operations are tried; `make test-faults` tries each one.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from tests.faults.disk import Disk, PowerCut

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System, check_folder
from rankwell.retrieve.index import Index

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")

OLD = [Document(f"old{i}", f"bees number {i} make honey {'and wax' * (i % 3)}") for i in range(12)]
NEW = [Document(f"new{i}", f"wasps number {i} make no honey {'but paper' * (i % 3)}") for i in range(9)]
CHANGED = [Document("old3", "wax paper", metadata={"year": 2001}), *NEW[:2]]
TRIED = 12 if "RANKWELL_FAULTS" not in os.environ else 10_000
NAMES = [
    "first build",
    "append",
    "overwrite",
    "add",
    "update",
    "delete",
    "merge",
    "delete and merge",
    "update a system",
]
Work = Callable[[Path], object]


def answers(folder: Path) -> Any:
    """What a search finds, after every file was checked; None if there is nothing."""
    if not (folder / "index.json").exists() and not (folder / "system.json").exists():
        return None
    if (folder / "system.json").exists():
        system = System.open(folder, device="cpu")
        system.check()
        return [(answer.docid, answer.score) for answer in system.search("honey wax paper 7", k=30)]
    index = Index.open(folder)
    check_folder(folder, index)
    return list(index.rank("honey wax paper 7", k=30))


@pytest.fixture
def works(tiny_checkpoint: Path, tiny_bi_encoder: Path, tmp_path: Path) -> dict[str, tuple[Work, Work]]:
    """What is there before, and what is done to it."""
    save_checkpoint(tmp_path / "model", *load_checkpoint(tiny_checkpoint))

    def save(folder: Path) -> object:
        index = Index.build(OLD, folder.with_name(f"{folder.name}-parts"), overwrite=True)
        first = FirstStage(index, encoder=tiny_bi_encoder, share=0.5)
        return System(first, ranker=tmp_path / "model", depth=5).save(folder)

    def several(folder: Path) -> object:
        index = Index.build(OLD, folder)
        index.update(CHANGED)
        return index.delete(["old5"])

    return {
        "first build": (lambda folder: folder.mkdir(), lambda folder: Index.build(OLD, folder)),
        "append": (lambda folder: Index.build(OLD, folder), lambda folder: Index.build(NEW, folder, append=True)),
        "overwrite": (lambda folder: Index.build(OLD, folder), lambda folder: Index.build(NEW, folder, overwrite=True)),
        "update": (lambda folder: Index.build(OLD, folder), lambda folder: Index.open(folder).update(CHANGED)),
        "delete": (lambda folder: Index.build(OLD, folder), lambda folder: Index.open(folder).delete(["old1", "old4"])),
        "merge": (several, lambda folder: Index.open(folder).merge()),
        "delete and merge": (several, lambda folder: Index.open(folder).delete(["old1", "old7", "new1"])),
        "update a system": (save, lambda folder: System.open(folder, device="cpu").update(CHANGED)),
        "add": (save, lambda folder: System.open(folder, device="cpu").add(NEW)),
    }


def tried(operations: int) -> list[int]:
    """The operations to try, the last ones among them: they make the work count."""
    step = max(1, operations // TRIED)
    return sorted({*range(1, operations + 1, step), *range(max(1, operations - 4), operations + 1)})


def prepared(works: tuple[Work, Work], tmp_path: Path) -> tuple[Path, Any, Any, int]:
    """A folder as it is before, what is found in it before and after, and the number of operations."""
    before, work = works
    pristine, changed = tmp_path / "pristine", tmp_path / "changed"
    before(pristine)
    shutil.copytree(pristine, changed)
    with Disk(changed) as disk:
        work(changed)
    return pristine, answers(pristine), answers(changed), disk.operations


@pytest.mark.parametrize("name", NAMES)
def test_after_a_power_cut_there_is_the_old_or_the_new(
    works: dict[str, tuple[Work, Work]], tmp_path: Path, name: str
) -> None:
    pristine, old, new, operations = prepared(works[name], tmp_path)
    assert old != new or name == "merge"
    for number in [*tried(operations), operations + 1]:
        folder = tmp_path / f"cut-{number}"
        shutil.copytree(pristine, folder)
        finished = False
        with Disk(folder, cut=number) as disk:
            works[name][1](folder)
            finished = True
        disk.restart(seed=number)
        found = answers(folder)
        assert found == new if finished else found in (old, new), f"power cut at operation {number}, seed {number}"
        if found != new and name != "add":  # it can be done again
            works[name][1](folder)
            assert answers(folder) == new


@pytest.mark.parametrize("reason", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("name", NAMES)
def test_an_operation_that_fails_is_an_error_and_leaves_the_old_or_the_new(
    works: dict[str, tuple[Work, Work]], tmp_path: Path, name: str, reason: int
) -> None:
    pristine, old, new, operations = prepared(works[name], tmp_path)
    for number in tried(operations):
        folder = tmp_path / f"fail-{number}"
        shutil.copytree(pristine, folder)
        raised = None
        with Disk(folder, fail=(number, reason)):
            try:
                works[name][1](folder)
            except (RankwellError, OSError) as error:
                raised = str(error)
        place = f"operation {number} of {operations}"
        assert raised is None or "\n" not in raised, place
        found = answers(folder)
        assert found == new if raised is None else found in (old, new), place


def test_power_cuts_pass_through_handlers_of_errors() -> None:
    assert not issubclass(PowerCut, Exception)
