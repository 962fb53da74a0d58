"""Sweeps: the intervals are those of the mean over queries, and a picture comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwell.evaluation.sweep_plots import draw_sweep, mean_interval


def test_the_interval_is_about_two_standard_errors_around_the_mean() -> None:
    values = np.random.default_rng(0).uniform(size=400)
    low, high = mean_interval(values)
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.3 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.3 * error)
    assert mean_interval(np.full(9, 0.25)) == (0.25, 0.25)


def test_a_picture_has_a_line_for_each_way(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    random = np.random.default_rng(1)
    x = np.arange(1.0, 5.0)
    lines = {name: (x, random.uniform(size=(4, 30))) for name in ("max", "mean")}
    draw_sweep(lines, tmp_path / "sweep.png", option="windows", measure="RR@10")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    one = {"max": lines["max"]}
    draw_sweep(one, tmp_path / "one.png", option="windows", measure="RR@10")
    assert (tmp_path / "one.png").read_bytes() != (tmp_path / "sweep.png").read_bytes()
