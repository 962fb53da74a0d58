"""The training log: ``metrics.jsonl``, one object a line.

A line of training has a ``learning_rate``, a line without one holds validation figures. What is logged of a step
should be written before the state that training resumes from, since :class:`TrainingLog` keeps what is at or before it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError
from rankwell.core.files import atomic_text, disk_errors, open_binary

METRICS = "metrics.jsonl"
Row = dict[str, Any]


class TrainingLog:
    """Appends to the log of a training folder, after ``step``: lines of later steps and incomplete ones are dropped.

    Every line is handed to the system at once, so a kill loses none. A line also gets ``seconds``, the time spent so
    far over all runs. A number that is not finite becomes null.
    """

    def __init__(self, folder: str | Path, step: float = math.inf):
        self.path = Path(folder) / METRICS
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        exists = self.path.exists()
        rows = [row for row in read_metrics(folder) if row["step"] <= step] if exists else []
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if not exists or self.path.read_text(encoding="utf-8", errors="replace") != text:
            with atomic_text(self.path) as file:
                file.write(text)
        self._before = max((float(row.get("seconds") or 0.0) for row in rows), default=0.0)
        self._began = time.monotonic()
        with disk_errors(self.path):
            self._file = self.path.open("ab", buffering=0)

    def write(self, step: int, values: Mapping[str, float | str | None]) -> None:
        """Append one line; ``step`` counts the optimiser steps done."""
        row: Row = {"step": step, **values}
        row.setdefault("seconds", round(self._before + time.monotonic() - self._began, 3))
        broken = {name: None for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
        data = json.dumps(row | broken, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with disk_errors(self.path):
            while data:  # nothing stays in a buffer, which closing would try to write again
                data = data[self._file.write(data) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(folder: str | Path) -> list[Row]:
    """The rows of a training folder's log, without a last line that a kill cut short."""
    path = Path(folder) / METRICS
    with open_binary(path) as file:
        lines = file.read().split(b"\n")
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            row = json.loads(line)
        except ValueError:
            if number == len(lines):
                break
            raise InputError(path, number, "not JSON") from None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise InputError(path, number, "not a line of a training log (an object with a whole number `step`)")
        rows.append(row)
    return rows
