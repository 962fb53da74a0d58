"""The collapse guard speaks when it should, once, and only then."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest

from rankwell.core.errors import RankwellError
from rankwell.training.loop.loop import CollapseGuard

LN6 = math.log(6)


def watch(guard: CollapseGuard, *logs: dict[str, float], every: int = 10) -> list[str]:
    """What the guard says of a run of 1000 steps that is logged every so many."""
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, means in enumerate(logs, start=1):
            said += guard.check(number * every, 1000, means)
    assert [str(warning.message) for warning in caught] == said
    assert all(warning.category is UserWarning for warning in caught)
    return said


def test_a_loss_that_stays_at_chance_is_said_once() -> None:
    said = watch(CollapseGuard(LN6), *[{"loss": LN6 * 1.005, "spread": 0.5}] * 80)
    assert len(said) == 1
    # The first 200 steps are not judged; three logs after them are.
    assert said[0].startswith("step 230: the loss is 1.8007, that of a model that scores all documents alike (1.7918)")
    assert "\n" not in said[0]


def test_scores_that_no_longer_differ_are_said_once() -> None:
    said = watch(CollapseGuard(LN6), *[{"loss": 1.0, "spread": 2.0}] * 40, *[{"loss": 1.0, "spread": 0.03}] * 40)
    assert len(said) == 1
    assert said[0].startswith("step 430: the scores of a list hardly differ (deviation 0.03, once 2)")


def test_a_run_that_falls_back_to_chance_is_not_told_again() -> None:
    stuck, free = [{"loss": LN6, "spread": 0.5}] * 25, [{"loss": 1.0, "spread": 0.5}] * 5
    assert len(watch(CollapseGuard(LN6), *stuck, *free, *stuck)) == 1


def test_each_cause_has_its_own_warning() -> None:
    said = watch(CollapseGuard(LN6), *[{"loss": LN6, "spread": 1e-5}] * 80)
    assert ["that of a model" in text for text in said] == [True, False]


@pytest.mark.parametrize(
    "logs",
    [
        # A loss that falls, and scores that spread.
        [{"loss": LN6 * 0.98**number, "spread": 0.1 * number} for number in range(1, 81)],
        # At chance while the model warms up.
        [{"loss": LN6, "spread": 1e-5}] * 20 + [{"loss": 1.2, "spread": 0.5}] * 60,
        # At chance now and then, but never three times in a row.
        [{"loss": loss, "spread": 0.5} for loss in (LN6, LN6, 1.5) * 25],
        # Worse than chance is not chance.
        [{"loss": LN6 * 1.02, "spread": 0.5}] * 80,
        # Lists of one document have no spread.
        [{"loss": 0.4, "spread": 0.0}] * 80,
        # Tasks without lists say nothing of it.
        [{"loss": 0.4}] * 80,
    ],
)
def test_other_runs_hear_nothing(logs: list[dict[str, float]]) -> None:
    assert watch(CollapseGuard(LN6), *logs) == []


def test_without_a_chance_level_only_the_spread_is_watched() -> None:
    said = watch(CollapseGuard(), *[{"loss": LN6, "spread": 1e-5}] * 80)
    assert len(said) == 1
    assert "hardly differ" in said[0]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_ends_the_run(broken: float) -> None:
    guard: Any = CollapseGuard()
    with pytest.raises(RankwellError) as caught:
        guard.check(7, 1000, {"loss": broken, "spread": 0.5}, "out/last-00000005")
    text = str(caught.value)
    assert text.startswith(f"step 7: the loss is {broken};")
    assert "the last checkpoint is out/last-00000005" in text
    assert "\n" not in text
    with pytest.raises(RankwellError, match="step 7: the spread of the scores is nan"):
        guard.check(7, 1000, {"loss": 1.0, "spread": math.nan})
