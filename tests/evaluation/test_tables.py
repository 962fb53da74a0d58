"""Every way of writing figures."""

from __future__ import annotations

import csv
import io
import json

import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Run
from rankwell.evaluation.compare import Comparison, compare
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.tables import Cell, Table, as_csv, as_latex, as_markdown, as_text, report

TABLE = Table(
    columns=("run", "RR@10", "n"),
    rows=(
        (Cell("a_b|c", "a_b|c"), Cell(0.123456, "0.1235"), Cell(7, "7")),
        (Cell("50%", "50%"), Cell(0.5, "0.5000", "*", best=True), Cell(None, "")),
    ),
    notes=("* better",),
)


def test_text_is_aligned_and_marks_hang_over() -> None:
    assert as_text(TABLE) == "\n".join(
        [
            "run     RR@10   n",
            "a_b|c  0.1235   7",
            "50%    0.5000*",
            "* better",
        ]
    )


def test_markdown_escapes_and_shows_the_best() -> None:
    assert as_markdown(TABLE) == "\n".join(
        [
            "| run | RR@10 | n |",
            "| :-- | --: | --: |",
            r"| a\_b\|c | 0.1235 | 7 |",
            r"| 50% | **0.5000**\* |  |",
            "",
            r"\* better",
        ]
    )


def test_latex_escapes_and_uses_booktabs() -> None:
    assert as_latex(TABLE) == "\n".join(
        [
            r"\begin{tabular}{lrr}",
            r"\toprule",
            r"run & RR@10 & n \\",
            r"\midrule",
            r"a\_b|c & 0.1235 & 7 \\",
            r"50\% & \textbf{0.5000}$^{*}$ &  \\",
            r"\bottomrule",
            r"\end{tabular}",
            "% * better",
        ]
    )
    special = as_latex(Table((r"&%$#_{}~^\<",), ()))
    assert r"\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}\textless{}" in special


def test_csv_holds_exact_values() -> None:
    assert as_csv(TABLE) == "run,RR@10,n\na_b|c,0.123456,7\n50%,0.5,"


QRELS = Qrels({f"q{i}": {"good": 1, "bad": 0} for i in range(30)})
FIRST = Run.from_scores({qid: {"good": 3.0, "bad": 2.0} for qid in QRELS}, name="first")
SECOND = Run.from_scores({qid: {"good": 1.0, "bad": 2.0} for qid in QRELS}, name="second")


@pytest.fixture
def comparison() -> Comparison:
    return compare(QRELS, {"first": FIRST, "second": SECOND}, "RR@10 NumRet")


def test_one_run_is_a_table_of_measures() -> None:
    expected = "measure   value\nRR@10    0.5000\nNumRet       60\nsecond: 30 queries"
    assert report(evaluate(QRELS, SECOND, "RR@10 NumRet")) == expected


def test_a_comparison_marks_what_is_significant(comparison: Comparison) -> None:
    lines = report(comparison).splitlines()
    assert lines[:4] == [
        "run      RR@10   NumRet",
        "first   1.0000       60",
        "second  0.5000*      60",
        "* differs from first at p < 0.05: paired t-test, two-sided, Holm-corrected over 2 comparisons; 30 queries",
    ]
    assert lines[6].split() == [
        *("second", "RR@10", "1.0000", "0.5000", "-0.5000", "-50.0%", "-0.5000", "-0.5000", "0", "0", "30"),
        *("<.0001", "<.0001"),
    ]
    assert lines[-1].startswith("differences from first")


def test_a_comparison_as_csv_has_a_row_for_each_contrast(comparison: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(report(comparison, "csv"))))
    assert [(row["run"], row["measure"]) for row in rows] == [("second", "RR@10"), ("second", "NumRet")]
    assert float(rows[0]["difference"]) == -0.5
    assert float(rows[0]["baseline"]) == 1.0
    assert rows[0]["losses"] == "30"


def test_a_comparison_as_latex_is_the_table_alone(comparison: Comparison) -> None:
    text = report(comparison, "latex")
    assert text.count(r"\begin{tabular}") == 1
    assert r"second & 0.5000$^{*}$ & \textbf{60} \\" in text


def test_a_comparison_as_json_holds_everything(comparison: Comparison) -> None:
    figures = json.loads(report(comparison, "json"))
    assert figures["baseline"] == "first"
    assert figures["queries"] == 30
    assert figures["mean"] == {"first": {"RR@10": 1.0, "NumRet": 60.0}, "second": {"RR@10": 0.5, "NumRet": 60.0}}
    assert figures["contrasts"][0]["losses"] == 30
    assert figures["contrasts"][0]["interval"] == [-0.5, -0.5]


def test_values_of_queries_end_with_the_figure_of_all(comparison: Comparison) -> None:
    rows = list(csv.reader(io.StringIO(report(comparison, "csv", per_query=True))))
    assert rows[0] == ["run", "query", "RR@10", "NumRet"]
    assert rows[1] == ["first", "q0", "1.0", "2.0"]
    assert rows[-1] == ["second", "all", "0.5", "60.0"]
    assert len(rows) == 1 + 2 * 31
    single = json.loads(report(evaluate(QRELS, SECOND, "RR@10"), "json", per_query=True))
    assert single["runs"]["second"]["per_query"]["q29"] == {"RR@10": 0.5}


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(RankwellError, match="no table format is called 'html'"):
        report(evaluate(QRELS, FIRST, "RR"), "html")
