"""Whatever happens to a build, the old index goes on working and the next build cleans up."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Ranking
from rankwell.retrieve.index import Index

OLD = [Document(f"old{i}", f"bees number {i} make honey {'and wax' * (i % 3)}") for i in range(40)]
NEW = [Document(f"new{i}", f"wasps number {i} make no honey {'but paper' * (i % 3)}") for i in range(50)]
QUERY = "honey wax paper 7"


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
