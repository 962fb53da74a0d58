"""Locks on folders."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from rankwell.core.errors import RankwellError
from rankwell.core.locks import SharedFolder, lock


def test_a_folder_is_created_and_locked_once(tmp_path: Path) -> None:
    with (
        lock(tmp_path / "a" / "b", wait=False),
        pytest.raises(RankwellError, match="another process is working in"),
        lock(tmp_path / "a" / "b", wait=False),
    ):
        pass
    with lock(tmp_path / "a" / "b", wait=False):
        pass


def test_waiting_takes_the_lock_once_it_is_released(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with lock(tmp_path, wait=True):
            order.append("second")

    with lock(tmp_path, wait=True):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RankwellError, match="cannot write"), lock(tmp_path / "file" / "folder", wait=True):
        pass


def test_a_folder_replaced_while_it_is_opened_is_not_taken_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opening = tmp_path / "shared", Path.open
    with SharedFolder.enter(folder, {"model": "old"}):
        pass
    with ExitStack() as others:

        def replace_first(path: Path, *arguments: Any, **options: Any) -> Any:
            if path.name == "members" and folder.exists() and not (tmp_path / "removed").exists():
                folder.rename(tmp_path / "removed")
                others.enter_context(SharedFolder.enter(folder, {"model": "new"}))
            return opening(path, *arguments, **options)

        monkeypatch.setattr(Path, "open", replace_first)
        with pytest.raises(RankwellError, match="with another model"), SharedFolder.enter(folder, {"model": "old"}):
            pass


def test_the_last_of_several_removes_what_they_shared(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    with SharedFolder.enter(folder) as first, SharedFolder.enter(folder) as second:
        assert not first.alone(wait=False)
        assert second.alone(wait=False)
        second.remove()
        assert not folder.exists()
        assert not second.alone(wait=True)  # it may be another's by now
    assert list(tmp_path.iterdir()) == []


def test_a_folder_made_for_work_that_failed_is_removed(tmp_path: Path) -> None:
    def fail(folder: Path, *leavings: str) -> None:
        with suppress(ZeroDivisionError), lock(folder, wait=False):
            for name in leavings:
                (folder / name).touch()
            1 / 0  # noqa: B018

    fail(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    fail(tmp_path / "old")
    assert (tmp_path / "old").exists()
    fail(tmp_path / "half", "part")
    assert (tmp_path / "half" / "part").exists()


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_again(tmp_path: Path) -> None:
    entered = threading.Event()
    order: list[str] = []

    def second() -> None:
        entered.set()
        with lock(tmp_path / "new", wait=True):
            order.append("second")
            assert (tmp_path / "new" / "lock").exists()

    thread = threading.Thread(target=second)
    with suppress(ZeroDivisionError), lock(tmp_path / "new", wait=True):
        thread.start()
        entered.wait()
        thread.join(0.2)
        order.append("first")
        1 / 0  # noqa: B018
    thread.join()
    assert order == ["first", "second"]


def test_without_fcntl_as_on_windows_folders_are_used_without_locks(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["fcntl"] = None
from pathlib import Path
from rankwell.core.locks import SharedFolder, lock
from rankwell.corpus.records import Document
from rankwell.retrieve.index import Index
with lock(Path("a"), wait=False), SharedFolder.enter(Path("b"), {"work": "this"}) as shared:
    assert shared.alone(wait=False)
print(Index.build([Document("d", "bees")], "index").rank("bees").docids)
import rankwell.core.shards, rankwell.serve.server, rankwell.cli.main
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("('d',)\n", "")
