"""``rankwell analyse`` as a user meets it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture
def analyse(rankwell: Call) -> Call:
    """Run ``rankwell analyse qrels RUN RUN2 --out out`` beside some small files."""
    Path("qrels").write_text("1 0 a 1\n2 0 b 1\n3 0 a 1\n")
    Path("base.run").write_text("1 Q0 b 1 2 x\n1 Q0 a 2 1 x\n2 Q0 b 1 2 x\n3 Q0 a 1 2 x\n")
    Path("ours.run").write_text("1 Q0 a 1 2 x\n1 Q0 b 2 1 x\n2 Q0 a 1 2 x\n2 Q0 b 2 1 x\n3 Q0 a 1 2 x\n")
    Path("queries.tsv").write_text("1\twho was it\n2\twhere is it\n3\twhere\n")
    return lambda run, other, *options: rankwell("analyse", "qrels", run, other, "--out", "out", *options)


def test_differences_are_told_by_query_length_and_type(analyse: Call) -> None:
    done = analyse("base.run", "ours.run", "--queries", "queries.tsv")
    assert done.code == 0, done.err
    assert Path("out/differences.ours.run.tsv").read_text().splitlines() == ["1\t0.5", "3\t0", "2\t-0.5"]
    lines = [line.split() for line in done.out.splitlines()]
    assert ["length", "1", "3"] in lines
    assert ["type", "location", "person"] in lines
    assert ["ours.run", "0.7500", "1.0000"] in lines  # locations: 1 and 1/2; persons: 1


def test_fields_of_the_queries_can_be_named(analyse: Call) -> None:
    Path("odd.csv").write_text("note,nr,wording\nx,1,who was it\nx,2,where is it\nx,3,where\n")
    usual = analyse("base.run", "ours.run", "--queries", "queries.tsv")
    named = analyse("base.run", "ours.run", "--queries", "odd.csv", "--id", "nr", "--text", "wording")
    assert usual.code == named.code == 0, named.err
    assert usual.out == named.out


@pytest.mark.parametrize("again", ["base.run", "./base.run", "base.run.gz"])
def test_a_run_is_not_compared_with_itself(analyse: Call, again: str) -> None:
    assert "both runs are base.run" in analyse("base.run", again).complaint


def test_runs_of_one_name_are_told_apart_by_their_folders(analyse: Call) -> None:
    for name in ("base", "ours"):
        Path(name).mkdir()
        Path(f"{name}.run").rename(f"{name}/x.run")
    assert "ours/x.run" in analyse("base/x.run", "ours/x.run").out
    expected = {"analysis.md", "differences.ours_x.run.tsv", "differences.ours_x.run.png"}
    assert {path.name for path in Path("out").iterdir()} == expected


def test_a_compressed_run_goes_by_its_name_without_the_suffix(analyse: Call) -> None:
    for name in ("base", "ours"):
        Path(f"{name}.run.gz").write_bytes(gzip.compress(Path(f"{name}.run").read_bytes()))
    assert analyse("base.run.gz", "ours.run.gz").code == 0
    assert Path("out/differences.ours.run.tsv").exists()
