"""Evaluation in Python as one would guess it: dicts and paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell import RankwellError, compare, evaluate

QRELS = {"q1": {"a": 1}, "2": {"b": 2}}
RUN = {"q1": {"x": 2.0, "a": 1.0}, "2": {"b": 0.5}}


@pytest.mark.parametrize(
    ("qrels", "run"),
    [
        (QRELS, RUN),
        ({"q1": {"a": np.int64(1)}, 2: {"b": 2}}, {"q1": {"x": 2, "a": np.float32(1)}, 2: {"b": 1}}),
        (QRELS, {"q1": ["x", "a"], "2": ("b",)}),
    ],
)
def test_dicts(qrels: Any, run: Any) -> None:
    assert evaluate(qrels, run, "RR@10").mean == {"RR@10": 0.75}
    assert compare(qrels, {"one": run, "two": {"q1": ["a"]}}, "RR@10").mean["two"]["RR@10"] == 0.5


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "qrels.txt").write_text("q1 0 a 1\n2 0 b 2\n")
    (tmp_path / "x.run").write_text("q1 Q0 x 1 2 t\nq1 Q0 a 2 1 t\n2 Q0 b 1 1 t\n")
    assert evaluate(tmp_path / "qrels.txt", str(tmp_path / "x.run"), "RR@10").mean == {"RR@10": 0.75}


def test_identical_ids_are_ignored_on_request() -> None:
    run = {"q1": {"q1": 9.0, "a": 1.0}}
    assert evaluate({"q1": {"a": 1}}, run, "RR").mean["RR"] == 0.5
    assert evaluate({"q1": {"a": 1}}, run, "RR", ignore_identical_ids=True).mean["RR"] == 1.0


@pytest.mark.parametrize(
    ("qrels", "run", "problem"),
    [
        (7, RUN, r'qrels: expected a file name or a dict, as in {"q1": {"d1": 1}}, found'),
        ({"q1": {"a": "1"}}, RUN, r"qrels: the grade of 'a' for query 'q1' is .*, expected whole numbers"),
        ({"q1": {"a": 3.5}}, RUN, "expected whole numbers, as in"),
        ({"q1": 1}, RUN, "expected a dict of grades, as in"),
        (QRELS, [RUN], r'run: expected a file name or a dict, as in {"q1": {"d1": 7.5}}'),
        (QRELS, {"q1": "a"}, r"run: query 'q1' has .*, expected scores"),
        (QRELS, {"q1": {"a": "high"}}, r"run: query 'q1' has .*, expected scores"),
        (QRELS, {"q1": {"a": float("nan")}}, "document a has the score NaN"),
    ],
)
def test_wrong_types_are_one_line_that_shows_what_is_right(qrels: Any, run: Any, problem: str) -> None:
    with pytest.raises(RankwellError, match=problem):
        evaluate(qrels, run)
