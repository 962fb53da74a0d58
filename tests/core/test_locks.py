"""Locks on folders."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rankwell.core.errors import RankwellError
from rankwell.core.locks import lock


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
