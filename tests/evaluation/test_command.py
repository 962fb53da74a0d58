"""``rankwell evaluate`` from the outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture
def evaluate(rankwell: Call) -> Call:
    """Run ``rankwell evaluate qrels.txt`` beside two runs."""
    queries = [f"q{i}" for i in range(10)]
    Path("qrels.txt").write_text("".join(f"{q} 0 good 2\n{q} 0 fair 1\n" for q in queries))
    for name, docids in {"first.run": ("good", "fair"), "second.run": ("bad", "fair")}.items():
        lines = [f"{q} Q0 {docid} {i + 1} {9 - i} tag\n" for q in queries for i, docid in enumerate(docids)]
        Path(name).write_text("".join(lines))
    return lambda *arguments: rankwell("evaluate", "qrels.txt", *arguments)


def test_a_run_that_is_named_twice_is_shown_once_and_said_to_be(evaluate: Call) -> None:
    alone, twice = evaluate("second.run"), evaluate("second.run", "second.run")
    assert twice.out == alone.out
    assert "warning: second.run was given 2 times; it is shown once\n" in twice.err
    assert "times" not in evaluate("second.run", "first.run", "--baseline", "second.run").err


def test_a_level_that_no_document_reaches_is_a_warning(evaluate: Call) -> None:
    warned = evaluate("first.run", "--measures", "AP", "--rel", "5").err
    assert "warning: first.run: 10 judged queries without a document of grade 5 or higher (rel=5)" in warned


def test_one_run(evaluate: Call) -> None:
    done = evaluate("second.run", "--measures", "RR@2 P(rel=2)@1")
    assert (done.code, done.err) == (0, "")
    assert done.out == "measure      value\nRR@2        0.5000\nP(rel=2)@1  0.0000\nsecond.run: 10 queries\n"


def test_the_relevance_level_of_all_measures(evaluate: Call) -> None:
    done = evaluate("second.run", "--measures", "RR@2 nDCG@2", "--rel", "2", "--json")
    assert json.loads(done.out)["mean"].keys() == {"RR(rel=2)@2", "nDCG@2"}


def test_several_runs_are_compared_with_the_first(evaluate: Call) -> None:
    done = evaluate("first.run", "second.run", "--measures", "RR@2")
    assert done.out.splitlines()[2] == "second.run  0.5000*"
    assert "differs from first.run at p < 0.05: paired t-test" in done.out


@pytest.mark.parametrize("runs", [["first.run"], ["first.run", "second.run"]])
def test_the_baseline_may_be_one_of_the_runs_or_another(evaluate: Call, runs: list[str]) -> None:
    options = ["--baseline", "second.run", "--measures", "RR@2", "--test", "wilcoxon", "--json"]
    figures = json.loads(evaluate(*runs, *options).out)
    assert figures["baseline"] == "second.run"
    assert figures["test"] == "wilcoxon"
    assert [contrast["run"] for contrast in figures["contrasts"]] == ["first.run"]


def test_files_of_one_name_are_told_apart(evaluate: Call) -> None:
    Path("other").mkdir()
    Path("second.run").rename("other/first.run")
    figures = json.loads(evaluate("first.run", "other/first.run", "--json").out)
    assert list(figures["mean"]) == ["first.run", "other/first.run"]


def test_values_of_queries_go_to_a_file(evaluate: Call) -> None:
    done = evaluate("second.run", "--measures", "RR@2", "--per-query", "--format", "csv", "--out", "queries.csv")
    assert done.out == ""
    lines = Path("queries.csv").read_text().splitlines()
    assert lines[:2] == ["run,query,RR@2", "second.run,q0,0.5"]
    assert len(lines) == 12


def test_averaging_over_queries_with_results(evaluate: Call) -> None:
    with Path("qrels.txt").open("a") as file:
        file.write("lost 0 good 1\n")
    arguments = ["first.run", "--measures", "RR@2", "--json"]
    done = evaluate(*arguments)
    assert json.loads(done.out)["mean"]["RR@2"] == pytest.approx(10 / 11)
    assert done.err == "warning: first.run: 1 judged query without results, counted as 0 (lost)\n"
    assert json.loads(evaluate(*arguments, "--average", "both").out)["mean"]["RR@2"] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--measures", "RP@10"], "no measure is called 'RP'"),
        (["--measures", "P"], "P needs a cut-off"),
    ],
)
def test_a_mistake_stops_before_anything_is_written(evaluate: Call, options: list[str], message: str) -> None:
    assert evaluate("first.run", *options, "--out", "out.txt").complaint.startswith(message)
    assert not Path("out.txt").exists()


def test_a_run_for_other_queries_is_an_error_that_names_it(evaluate: Call) -> None:
    Path("stray.run").write_text("7 Q0 good 1 1.0 tag\n")
    problem = "the run 'stray.run': the run and the judgments have no query in common"
    assert problem in evaluate("stray.run").complaint


@pytest.fixture
def golden(rankwell: Call) -> Path:
    """An index, and judgments with the words of queries, one of which finds its document second."""
    rows = {"d1": "bees keep warm", "d2": "honey from bees bees", "d3": "tea and bread"}
    Path("c.tsv").write_text("".join(f"{docid}\t{text}\n" for docid, text in rows.items()))
    assert rankwell("index", "c.tsv", "--out", "index").code == 0
    path = Path("golden.csv")
    path.write_text("query,document,grade\nkeep warm,d1,1\nbees bees,d1,1\ntea,d3,1\n")
    return path


@pytest.mark.parametrize(("floor", "code"), [("RR@10 0.83", 0), ("RR@10 0.84", 1), ("AP 0.1, RR@10 0.84", 1)])
def test_a_floor_decides_the_exit_code(rankwell: Call, golden: Path, floor: str, code: int) -> None:
    done = rankwell("evaluate", golden, "index", "--measures", "RR@10", "--floor", floor)
    assert done.code == code
    assert "RR@10" in done.out
    assert done.err.endswith("index: RR@10 0.8333 is below the floor of 0.84\n") == bool(code)


def test_what_lost_most_is_named_and_the_baseline_needs_no_floor(rankwell: Call, golden: Path) -> None:
    lines = [
        f"{qid} Q0 {docid} 1 1 old\n" for qid, docid in {"bees_bees": "d1", "tea": "d2", "keep_warm": "d1"}.items()
    ]
    Path("old.run").write_text("".join(lines))
    command = ("evaluate", golden, "index", "--baseline", "old.run", "--measures", "RR@10", "--floor", "RR@10 0.9")
    done = rankwell(*command)
    assert done.err.splitlines()[-1] == (
        "index: RR@10 0.8333 is below the floor of 0.9; what lost most against old.run: bees_bees -0.50"
    )


def test_a_system_is_searched_for_the_queries_of_a_file(rankwell: Call, golden: Path) -> None:
    Path("qrels.txt").write_text("1 0 d1 1\n2 0 d3 1\n")
    Path("q.tsv").write_text("1\tkeep warm\n2\ttea\n3\tnobody judged this\n")
    assert (
        "judgments without the words of queries; to search index, use --queries FILE"
        in rankwell("evaluate", "qrels.txt", "index").complaint
    )
    done = rankwell("evaluate", "qrels.txt", "index", "--queries", "q.tsv", "--measures", "RR@10", "--json")
    assert json.loads(done.out) == {"run": "index", "queries": 2, "mean": {"RR@10": 1.0}}


@pytest.mark.parametrize("floor", ["", "RR@10", "0.7", "RR@10 high", "RR@10 0.7 AP"])
def test_a_floor_needs_a_measure_and_a_figure(rankwell: Call, golden: Path, floor: str) -> None:
    problem = rankwell("evaluate", golden, "index", "--floor", floor).complaint
    assert "expected measures with their least figures, as in 'RR@10 0.70'" in problem
