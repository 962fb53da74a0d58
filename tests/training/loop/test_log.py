"""The training log survives kills, resumes exactly, reads back and draws."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankwell.core.errors import InputError
from rankwell.training.loop.log import METRICS, TrainingLog, read_metrics


def train_row(step: int, loss: float = 1.0) -> dict[str, float | str | None]:
    return {"epoch": step / 10, "learning_rate": 1e-5, "loss": loss, "seconds": float(step)}


def write_log(folder: Path, steps: int) -> list[dict[str, Any]]:
    log = TrainingLog(folder)
    for step in range(1, steps + 1):
        log.write(step, train_row(step, 1 / step))
        if step % 2 == 0:
            log.write(step, {"RR@10": step / 100, "seconds": float(step)})
    log.close()
    return read_metrics(folder)


class TestWriting:
    def test_a_line_is_on_disk_as_soon_as_it_is_written(self, tmp_path: Path) -> None:
        log = TrainingLog(tmp_path / "new" / "run")
        log.write(3, {"loss": 0.1 + 0.2, "learning_rate": 1e-7})
        (line,) = (tmp_path / "new" / "run" / METRICS).read_text().splitlines()
        row = json.loads(line)
        assert (row["step"], row["loss"], row["learning_rate"]) == (3, 0.1 + 0.2, 1e-7)
        assert 0 <= row["seconds"] < 60

    def test_a_number_that_is_not_finite_is_null(self, tmp_path: Path) -> None:
        log = TrainingLog(tmp_path)
        log.write(1, {"gradient_norm": float("inf"), "loss": float("nan"), "warning": "näher"})
        text = (tmp_path / METRICS).read_text(encoding="utf-8")
        assert '"gradient_norm": null, "loss": null, "warning": "näher"' in text

    def test_a_kill_loses_no_written_line(self, tmp_path: Path) -> None:
        program = f"""
import os, signal
from rankwell.training.loop.log import TrainingLog
log = TrainingLog({str(tmp_path)!r})
for step in range(1, 6):
    log.write(step, {{"loss": 1.0}})
os.kill(os.getpid(), signal.SIGKILL)
"""
        done = subprocess.run([sys.executable, "-c", program], check=False, env={**os.environ})
        assert done.returncode == -signal.SIGKILL
        assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
    @pytest.mark.parametrize("limit", [0, 200])
    def test_a_full_disk_is_one_line(self, tmp_path: Path, limit: int) -> None:
        program = f"""
import resource, signal
from rankwell.core.errors import RankwellError
from rankwell.training.loop.log import TrainingLog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = TrainingLog({str(tmp_path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    for step in range(1, 100):
        log.write(step, {{"loss": 1.0}})
except RankwellError as error:
    print(error)
"""
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        assert done.stderr == ""
        assert done.stdout.count("\n") == 1
        assert done.stdout.startswith(f"cannot write {tmp_path}")
        assert all(row["loss"] == 1.0 for row in read_metrics(tmp_path))


class TestResuming:
    def test_later_lines_are_dropped_and_the_rest_stays_to_the_byte(self, tmp_path: Path) -> None:
        write_log(tmp_path, 10)
        lines = (tmp_path / METRICS).read_bytes().splitlines(keepends=True)
        log = TrainingLog(tmp_path, 6)
        assert (tmp_path / METRICS).read_bytes() == b"".join(lines[:9])
        log.write(7, train_row(7, 1 / 7))
        log.close()
        assert (tmp_path / METRICS).read_bytes() == b"".join(lines[:10])

    def test_from_the_beginning_nothing_is_kept(self, tmp_path: Path) -> None:
        write_log(tmp_path, 4)
        TrainingLog(tmp_path, 0).close()
        assert read_metrics(tmp_path) == []

    @pytest.mark.parametrize("resumes", [True, False])
    def test_a_torn_last_line_is_dropped_wherever_it_was_torn(self, tmp_path: Path, resumes: bool) -> None:
        rows = write_log(tmp_path, 3)
        whole = (tmp_path / METRICS).read_bytes()
        last = len(whole.splitlines(keepends=True)[-1])
        for cut in range(1, last + 1):
            (tmp_path / METRICS).write_bytes(whole[:-cut])
            # Without its line end alone, the line is complete.
            kept = rows if cut == 1 else rows[:-1]
            assert read_metrics(tmp_path) == kept
            log = TrainingLog(tmp_path, 3) if resumes else TrainingLog(tmp_path)
            log.write(4, train_row(4))
            log.close()
            assert read_metrics(tmp_path) == [*kept, {"step": 4, **train_row(4)}]

    def test_a_torn_character_is_a_torn_line(self, tmp_path: Path) -> None:
        (tmp_path / METRICS).write_bytes(b'{"step": 1, "loss": 2.0}\n{"step": 2, "note": "\xc3')
        assert read_metrics(tmp_path) == [{"step": 1, "loss": 2.0}]
        TrainingLog(tmp_path).close()
        assert (tmp_path / METRICS).read_bytes() == b'{"step": 1, "loss": 2.0}\n'

    def test_seconds_go_on(self, tmp_path: Path) -> None:
        write_log(tmp_path, 100)
        log = TrainingLog(tmp_path, 50)
        log.write(51, {"loss": 1.0})
        assert 50 <= read_metrics(tmp_path)[-1]["seconds"] < 60

    def test_no_other_file_is_left(self, tmp_path: Path) -> None:
        write_log(tmp_path, 4)
        TrainingLog(tmp_path, 2).close()
        assert [path.name for path in tmp_path.iterdir()] == [METRICS]


class TestReading:
    def test_training_and_validation_are_told_apart(self, tmp_path: Path) -> None:
        rows = write_log(tmp_path, 4)
        assert ["learning_rate" in row for row in rows] == [True, True, False, True, True, False]

    @pytest.mark.parametrize("line", ["{step: 1}", "[1]", '{"loss": 1.0}', '{"step": "1"}'])
    def test_a_broken_line_is_named(self, tmp_path: Path, line: str) -> None:
        (tmp_path / METRICS).write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
        with pytest.raises(InputError) as caught:
            read_metrics(tmp_path)
        assert caught.value.line == 2

    def test_a_folder_without_a_log(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=f"{METRICS}: no such file"):
            read_metrics(tmp_path)
