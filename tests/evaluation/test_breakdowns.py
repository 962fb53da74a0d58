"""Runs compared within groups of queries, with numbers that can be counted on fingers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Query
from rankwell.evaluation.breakdowns import (
    break_down,
    breakdown_table,
    length_groups,
    query_differences,
    type_groups,
    write_analysis,
)
from rankwell.evaluation.compare import Comparison, compare_evaluations
from rankwell.evaluation.evaluate import Evaluation
from rankwell.evaluation.notation import parse_measures
from rankwell.evaluation.significance import holm, paired_t_test

MEASURES = parse_measures(["RR@10"])
QIDS = tuple("abcdef")
BASE = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
OURS = np.array([0.9, 0.9, 0.8, 0.3, 0.5, 0.1])
GROUPS = {"long": frozenset("abc"), "short": frozenset("def"), "none": frozenset("x")}


@pytest.fixture
def comparison() -> Comparison:
    evaluations = {
        name: Evaluation(name, QIDS, MEASURES, values[None]) for name, values in (("base", BASE), ("ours", OURS))
    }
    return compare_evaluations(evaluations, "base")


def test_each_group_has_its_own_means_and_tests(comparison: Comparison) -> None:
    within = break_down(comparison, GROUPS)
    assert list(within) == ["long", "short"]
    assert within["long"].mean["ours"]["RR@10"] == pytest.approx(2.6 / 3)
    assert within["short"].mean["base"]["RR@10"] == pytest.approx(0.5)
    p = [paired_t_test(OURS[:3], BASE[:3]), paired_t_test(OURS[3:], BASE[3:])]
    found = [within[name].by_name["ours", "RR@10"] for name in ("long", "short")]
    assert [one.p for one in found] == pytest.approx(p)
    assert [one.corrected for one in found] == pytest.approx(holm(p))
    assert [(one.wins, one.ties, one.losses) for one in found] == [(3, 0, 0), (0, 1, 2)]


def test_the_table_has_a_row_for_each_run_and_a_column_for_each_group(comparison: Comparison) -> None:
    table = breakdown_table("length", break_down(comparison, GROUPS), MEASURES[0])
    assert table.columns == ("length", "long", "short")
    shown = [tuple(cell.shown for cell in row) for row in table.rows]
    assert shown == [("queries", "3", "3"), ("base", "0.2000", "0.5000"), ("ours", "0.8667", "0.3000")]
    assert [cell.best for cell in table.rows[2]] == [False, True, False]
    assert table.rows[2][1].mark == "*"
    with pytest.raises(RankwellError, match="no query belongs to a group by length"):
        breakdown_table("length", break_down(comparison, {"none": frozenset()}), MEASURES[0])


def test_queries_are_grouped_by_their_words_and_types() -> None:
    queries = [Query("a", "honey"), Query("b", "what is  honey"), Query("c", "a b c d"), Query("d", "a b c d e f")]
    assert length_groups(queries, longest=4) == {
        "1": frozenset("a"),
        "3": frozenset("b"),
        "4+": frozenset("cd"),
    }
    assert type_groups({"a": "person", "b": "entity", "c": "person"}) == {
        "entity": frozenset("b"),
        "person": frozenset("ac"),
    }


def test_differences_are_sorted(comparison: Comparison) -> None:
    found = query_differences(comparison, "ours", MEASURES[0])
    assert [qid for qid, _ in found] == ["a", "b", "c", "e", "d", "f"]
    assert [gap for _, gap in found] == pytest.approx([0.8, 0.7, 0.5, 0.0, -0.1, -0.5])


def test_an_analysis_is_written(comparison: Comparison, tmp_path: Path) -> None:
    tables = write_analysis(comparison, {"length": GROUPS}, tmp_path / "out")
    assert len(tables) == 3
    assert "| queries | 3 | 3 |" in (tmp_path / "out" / "analysis.md").read_text()
    lines = (tmp_path / "out" / "differences.ours.tsv").read_text().splitlines()
    assert lines == ["a\t0.8", "b\t0.7", "c\t0.5", "e\t0", "d\t-0.1", "f\t-0.5"]
