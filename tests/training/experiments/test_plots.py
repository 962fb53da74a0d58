"""Pictures of experiments say what the tables say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.evaluation.evaluate import Evaluation
from rankwell.evaluation.notation import parse_measures
from rankwell.training.experiments import tables as plots
from rankwell.training.experiments.tables import compare_variants

QIDS = tuple(f"q{i}" for i in range(40))


def evaluation(name: str, seed: int, mean: float) -> Evaluation:
    noise = np.random.default_rng(seed).normal(0, 0.02, len(QIDS))
    return Evaluation(name, QIDS, parse_measures("RR@10"), (mean + noise)[None])


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The axes of a table with a baseline, a better, a worse and an equal variant."""
    pytest.importorskip("matplotlib")
    kept: list[Any] = []
    make = plots.new_picture
    monkeypatch.setattr(plots, "new_picture", lambda *given: kept.append(make(*given)) or kept[-1])
    means = {"base": 0.5, "better": 0.7, "worse": 0.3, "equal": 0.5}
    measured = {
        name: [evaluation(name, 10 * place + seed, mean) for seed in range(3)]
        for place, (name, mean) in enumerate(means.items())
    }
    plots.draw_table(compare_variants(measured, list(means), "base", "t", {}), measured, tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
    return kept[0][1]


def test_a_table_is_drawn_in_its_order_from_the_top(drawn: Any) -> None:
    assert [label.get_text() for label in drawn.get_yticklabels()] == ["base", "better", "worse", "equal"]
    bottom, top = drawn.get_ylim()
    assert bottom > top
    figures = [float(text.get_text()) for text in drawn.texts]
    assert figures == pytest.approx([0.5, 0.7, 0.3, 0.5], abs=0.01)


def test_only_differences_that_are_more_than_chance_have_a_colour(drawn: Any) -> None:
    dots = [line for line in drawn.lines if line.get_marker() == "o"]
    assert [line.get_color() for line in dots] == ["black", plots.BETTER, plots.WORSE, plots.ALIKE]


def test_each_seed_has_a_tick(drawn: Any) -> None:
    ticks = [line for line in drawn.lines if line.get_marker() == "|"]
    assert [len(line.get_xdata()) for line in ticks] == [3, 3, 3, 3]
    assert "ticks: seeds" in drawn.get_xlabel()
