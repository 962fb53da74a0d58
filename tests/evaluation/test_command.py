"""``rankwell evaluate`` from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from rankwell.cli.evaluate import evaluate
from rankwell.core.errors import RankwellError


def call(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command()(evaluate)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    queries = [f"q{i}" for i in range(10)]
    (tmp_path / "qrels.txt").write_text("".join(f"{q} 0 good 2\n{q} 0 fair 1\n" for q in queries))
    for name, docids in {"first.run": ("good", "fair"), "second.run": ("bad", "fair")}.items():
        lines = [f"{q} Q0 {docid} {i + 1} {9 - i} tag\n" for q in queries for i, docid in enumerate(docids)]
        (tmp_path / name).write_text("".join(lines))
    return tmp_path


def test_a_run_that_is_named_twice_is_shown_once_and_said_to_be(folder: Path) -> None:
    run = folder / "second.run"
    alone, twice = call(folder / "qrels.txt", run), call(folder / "qrels.txt", run, run)
    assert twice.stdout == alone.stdout
    assert f"warning: {run} was given 2 times; it is shown once\n" in twice.stderr
    compared = call(folder / "qrels.txt", run, folder / "first.run", "--baseline", run)
    assert "times" not in compared.stderr


def test_a_level_that_no_document_reaches_is_a_warning(folder: Path) -> None:
    result = call(folder / "qrels.txt", folder / "first.run", "--measures", "AP", "--rel", "5")
    assert "warning: first.run: 10 judged queries without a document of grade 5 or higher (rel=5)" in result.stderr


def test_one_run(folder: Path) -> None:
    result = call(folder / "qrels.txt", folder / "second.run", "--measures", "RR@2 P(rel=2)@1")
    assert result.exit_code == 0
    assert result.stdout == "measure      value\nRR@2        0.5000\nP(rel=2)@1  0.0000\nsecond.run: 10 queries\n"
    assert result.stderr == ""


def test_json(folder: Path) -> None:
    result = call(folder / "qrels.txt", folder / "first.run", "--measures", "RR@2", "--json")
    assert json.loads(result.stdout) == {"run": "first.run", "queries": 10, "mean": {"RR@2": 1.0}}


def test_the_relevance_level_of_all_measures(folder: Path) -> None:
    result = call(folder / "qrels.txt", folder / "second.run", "--measures", "RR@2 nDCG@2", "--rel", "2", "--json")
    assert json.loads(result.stdout)["mean"].keys() == {"RR(rel=2)@2", "nDCG@2"}


def test_several_runs_are_compared_with_the_first(folder: Path) -> None:
    result = call(folder / "qrels.txt", folder / "first.run", folder / "second.run", "--measures", "RR@2")
    assert result.stdout.splitlines()[2] == "second.run  0.5000*"
    assert "differs from first.run at p < 0.05: paired t-test" in result.stdout


@pytest.mark.parametrize("runs", [["first.run"], ["first.run", "second.run"]])
def test_the_baseline_may_be_one_of_the_runs_or_another(folder: Path, runs: list[str]) -> None:
    paths = [folder / name for name in runs]
    options = ["--baseline", folder / "second.run", "--measures", "RR@2", "--test", "wilcoxon", "--json"]
    figures = json.loads(call(folder / "qrels.txt", *paths, *options).stdout)
    assert figures["baseline"] == "second.run"
    assert figures["test"] == "wilcoxon"
    assert [contrast["run"] for contrast in figures["contrasts"]] == ["first.run"]


def test_files_of_one_name_are_told_apart(folder: Path) -> None:
    (folder / "other").mkdir()
    twin = folder / "other" / "first.run"
    twin.write_text((folder / "second.run").read_text())
    figures = json.loads(call(folder / "qrels.txt", folder / "first.run", twin, "--json").stdout)
    assert list(figures["mean"]) == [str(folder / "first.run"), str(twin)]


def test_values_of_queries_go_to_a_file(folder: Path) -> None:
    out = folder / "queries.csv"
    options = ["--measures", "RR@2", "--per-query", "--format", "csv", "--out", out]
    result = call(folder / "qrels.txt", folder / "second.run", *options)
    assert result.stdout == ""
    lines = out.read_text().splitlines()
    assert lines[:2] == ["run,query,RR@2", "second.run,q0,0.5"]
    assert len(lines) == 12


def test_averaging_over_queries_with_results(folder: Path) -> None:
    with (folder / "qrels.txt").open("a") as file:
        file.write("lost 0 good 1\n")
    arguments = [folder / "qrels.txt", folder / "first.run", "--measures", "RR@2", "--json"]
    result = call(*arguments)
    assert json.loads(result.stdout)["mean"]["RR@2"] == pytest.approx(10 / 11)
    assert result.stderr == "warning: first.run: 1 judged query without results, counted as 0 (lost)\n"
    assert json.loads(call(*arguments, "--average", "both").stdout)["mean"]["RR@2"] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--measures", "RP@10"], "no measure is called 'RP'"),
        (["--measures", "P"], "P needs a cut-off"),
    ],
)
def test_a_mistake_stops_before_anything_is_written(folder: Path, options: list[str], message: str) -> None:
    out = folder / "out.txt"
    result = call(folder / "qrels.txt", folder / "first.run", *options, "--out", out)
    assert isinstance(result.exception, RankwellError)
    assert str(result.exception).startswith(message)
    assert not out.exists()


def test_a_run_for_other_queries_is_an_error_that_names_it(folder: Path) -> None:
    (folder / "stray.run").write_text("7 Q0 good 1 1.0 tag\n")
    result = call(folder / "qrels.txt", folder / "stray.run")
    assert isinstance(result.exception, RankwellError)
    assert "the run 'stray.run': the run and the judgments have no query in common" in str(result.exception)
