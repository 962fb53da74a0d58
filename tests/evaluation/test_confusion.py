"""Accuracy and confusion, by hand."""

from __future__ import annotations

import pytest

from rankwell.evaluation.breakdowns import Confusion

TRUTH = ["cat", "cat", "dog", "dog", "dog", "owl"]
FOUND = ["cat", "dog", "dog", "dog", None, "owl"]


def test_figures_by_hand() -> None:
    confusion = Confusion.of(TRUTH, FOUND, ["dog", "cat", "eel"])
    assert confusion.labels == ("dog", "cat", "owl", "none")
    assert (confusion.accuracy, confusion.total) == (4 / 6, 6)
    assert confusion.recall("dog") == 2 / 3
    assert confusion.recall("eel") == 0.0
    assert confusion.as_dict()["confusion"] == {
        "dog": {"dog": 2, "none": 1},
        "cat": {"cat": 1, "dog": 1},
        "owl": {"owl": 1},
    }


def test_the_table() -> None:
    assert str(Confusion.of(TRUTH, FOUND, ["dog", "cat"])).splitlines() == [
        "accuracy 0.6667 (6 texts)",
        "true \\ found  dog  cat  owl  none  recall",
        "dog             2    0    0     1   0.667",
        "cat             1    1    0     0   0.500",
        "owl             0    0    1     0   1.000",
    ]


def test_nothing_is_no_error_but_unequal_numbers_are() -> None:
    assert Confusion.of([], []).accuracy == 0.0
    with pytest.raises(ValueError, match="zip"):
        Confusion.of(["a"], [])
