"""Of several processes, one writes and the others wait."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from rankwell.training.stage import write_once


def test_the_first_process_writes_once(tmp_path: Path) -> None:
    path, calls = tmp_path / "file", []

    def write() -> None:
        calls.append(1)
        path.write_text("made")

    assert write_once(path, write) == write_once(path, write) == path
    assert calls == [1]


def test_the_others_wait_and_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    path = tmp_path / "file"

    def first_process() -> None:
        time.sleep(0.3)
        path.write_text("made")

    thread = threading.Thread(target=first_process)
    thread.start()
    write_once(path, lambda: pytest.fail("another process than the first wrote"))
    assert path.read_text() == "made"
    thread.join()
