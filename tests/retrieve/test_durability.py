"""Whatever happens to a build, the old index goes on working and the next build cleans up."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwell.cli.main import app
from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Ranking
from rankwell.retrieve.index import Index

OLD = [Document(f"old{i}", f"bees number {i} make honey {'and wax' * (i % 3)}") for i in range(40)]
NEW = [Document(f"new{i}", f"wasps number {i} make no honey {'but paper' * (i % 3)}") for i in range(50)]
QUERY = "honey wax paper 7"
WATCHED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Index.build(OLD, tmp_path / "index")
    return tmp_path / "index"


def hits(folder: Path) -> Ranking:
    return Index.open(folder).rank(QUERY, k=100)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def in_child(action: Callable[[], object]) -> int:
    """Run ``action`` in a forked process and give its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(step: int) -> None:
    """Have this process killed at its n-th dealing with the file system."""
    steps = iter(range(1, step + 1))

    def hook(event: str, _: tuple[object, ...]) -> None:
        if event in WATCHED and next(steps, step) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def steps_of(action: Callable[[], object], log: Path) -> list[str]:
    """What ``action`` does to the file system, as a list of events."""

    def logged() -> None:
        events: list[str] = []
        sys.addaudithook(lambda event, _: events.append(event) if event in WATCHED else None)
        action()
        log.write_text("\n".join(events))

    assert in_child(logged) == 0
    return log.read_text().split("\n")


@pytest.mark.parametrize("option", ["append", "overwrite", "update", "delete"])
def test_killing_a_build_at_any_step_leaves_the_old_index_or_the_new(tmp_path: Path, option: str) -> None:
    def build(name: str) -> Callable[[], object]:
        if option == "delete":
            return lambda: Index.open(tmp_path / name).delete(["old7", "old8"])
        changed = [Document("old7", "wax"), *NEW] if option == "update" else NEW
        return lambda: Index.build(changed, tmp_path / name, **{option: True})

    Index.build(OLD, tmp_path / "model")
    old = hits(tmp_path / "model")
    steps = steps_of(build("model"), tmp_path / "log")
    new = hits(tmp_path / "model")
    assert old != new
    renames = {i for i, event in enumerate(steps, 1) if event == "os.rename"}
    assert len(renames) == 2 + (option == "update")  # the segment, the marks or both, then the description
    seen = []
    for step in sorted({*range(1, len(steps) + 1, 7), *renames, *(i + 1 for i in renames), len(steps) - 1}):
        folder = tmp_path / str(step)
        Index.build(OLD, folder)
        assert in_child(lambda step=step: (die_at(step), build(str(step))())) == -signal.SIGKILL  # type: ignore[misc]
        found = hits(folder)
        assert found in (old, new)
        seen.append(found == new)
        # The next build works, and what the killed one left is gone.
        Index.build([Document("next", "honey")], folder, overwrite=True)
        assert hits(folder).docids == ("next",)
        assert len(files(folder)) == 3
    assert seen == sorted(seen)  # once it is the new one it stays so
    assert set(seen) == {False, True}


def test_killing_the_command_that_merges_at_any_step_changes_nothing(tmp_path: Path) -> None:
    Index.build(OLD, tmp_path / "index")
    Index.build(NEW, tmp_path / "index", append=True)
    Index.open(tmp_path / "index").delete(["old7", "new8"])
    expected = hits(tmp_path / "index")

    def merge(folder: Path) -> None:
        app(["merge", str(folder)], standalone_mode=False)

    shutil.copytree(tmp_path / "index", tmp_path / "model")
    steps = steps_of(lambda: merge(tmp_path / "model"), tmp_path / "log")
    renames = {i for i, event in enumerate(steps, 1) if event == "os.rename"}
    merged = []
    for step in sorted({*range(1, len(steps), 11), *renames, *(i + 1 for i in renames), len(steps) - 1}):
        folder = tmp_path / str(step)
        shutil.copytree(tmp_path / "index", folder)
        assert in_child(lambda folder=folder, step=step: (die_at(step), merge(folder))) == -signal.SIGKILL  # type: ignore[misc]
        assert hits(folder) == expected
        merged.append(len(Index.open(folder).segments) == 1)
        Index.open(folder).merge()
        Index.open(folder).check()
        assert hits(folder) == expected
        assert len(files(folder)) == 3  # the segment, the description and the lock
    assert merged == sorted(merged)
    assert set(merged) == {False, True}


def test_killing_the_first_build_leaves_a_folder_that_can_be_built_into(tmp_path: Path) -> None:
    for step in (5, 30, 60):
        folder = tmp_path / str(step)
        assert in_child(lambda folder=folder, step=step: (die_at(step), Index.build(OLD, folder))) == -signal.SIGKILL  # type: ignore[misc]
        assert len(Index.build(OLD, folder)) == 40
        assert files(folder) == ["index.json", "lock", "segment-0001"]


def test_killing_a_build_at_random_moments_leaves_the_old_index(folder: Path) -> None:
    def slow() -> Iterator[Document]:
        for document in NEW * 1000:
            time.sleep(0.001)
            yield document

    before = hits(folder)
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                Index.build(slow(), folder, overwrite=True)
            finally:
                os._exit(1)
        time.sleep(random.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert hits(folder) == before
    assert len(Index.build(NEW, folder, append=True)) == 90
    assert files(folder) == ["index.json", "lock", "segment-0001", "segment-0002"]


def test_leftovers_of_killed_builds_are_removed_by_the_next(folder: Path) -> None:
    (folder / ".partial-0a1b2c3d-segment-0002" / "runs").mkdir(parents=True)
    (folder / ".partial-0a1b2c3d-segment-0002" / "lengths.npy").write_bytes(b"half")
    (folder / ".partial-99999999-index.json").write_text("{")
    (folder / "segment-0002").mkdir()  # renamed already, but index.json does not name it yet
    (folder / "segment-0002" / "segment.json").write_text("{}")
    before = hits(folder)
    assert hits(folder) == before
    Index.build(NEW, folder, append=True)
    assert files(folder) == ["index.json", "lock", "segment-0001", "segment-0003"]


def test_a_second_build_at_the_same_time_is_told_so(folder: Path) -> None:
    problems = []

    def documents() -> Iterator[Document]:
        yield NEW[0]
        with pytest.raises(RankwellError) as raised:
            Index.build([Document("x", "y")], folder, append=True)
        problems.append(str(raised.value))
        yield from NEW[1:]

    assert len(Index.build(documents(), folder, append=True)) == 90
    assert problems == [f"another process is working in {folder}"]
    assert len(Index.build([Document("x", "y")], folder, append=True)) == 91


def test_an_index_can_be_searched_while_it_is_built_again(folder: Path) -> None:
    before = hits(folder)
    during = []

    def documents() -> Iterator[Document]:
        yield from NEW
        during.append(hits(folder))

    Index.build(documents(), folder, overwrite=True)
    assert during == [before]


@pytest.mark.parametrize("limit", [0, 100, 1000, 16_000])
def test_a_full_disk_is_one_line_and_the_old_index_goes_on_working(folder: Path, tmp_path: Path, limit: int) -> None:
    def build() -> None:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            Index.build(NEW, folder, append=True)
        except RankwellError as error:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            (tmp_path / "message").write_text(str(error))

    before, names = hits(folder), files(folder)
    assert in_child(build) == 0
    message = (tmp_path / "message").read_text()
    assert message.startswith(f"cannot write {folder}")
    assert message.endswith("file too large")
    assert "\n" not in message
    assert (hits(folder), files(folder)) == (before, names)
    assert len(Index.build(NEW, folder, append=True)) == 90


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_may_not_be_written_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RankwellError, match=r"cannot write .*permission denied"):
        Index.build(OLD, tmp_path / "index")
