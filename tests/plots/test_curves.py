"""Pictures drawn from plain numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankwell.plots.pictures import draw_differences


def test_differences_are_drawn_with_wins_ties_and_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    figures: list[Any] = []
    plain = figure.Figure.savefig
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *a, **k: (figures.append(self), plain(self, *a, **k)))
    draw_differences([0.8, 0.7, 0.5, 0.0, -0.1], tmp_path / "d.png", title="ours against base", measure="RR@10")
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = figures[0].axes
    assert axes.get_xlabel() == "queries: 3 better, 1 equal, 1 worse"
    assert axes.get_ylabel() == "Δ RR@10"
