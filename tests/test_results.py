"""The results pages say what the stored results give."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "attention-rules.md"
RESULTS = ROOT / "docs" / "results" / "attention-rules"
PAPERS = ROOT / "docs" / "results" / "papers"
FIT = ROOT / "docs" / "results" / "fit"


def tables_of(text: str) -> list[list[str]]:
    """The Markdown tables of a text, each as its lines."""
    return [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


def printed_tables(folder: Path, script: str = "papers.py") -> list[list[str]]:
    command = [sys.executable, str(ROOT / "bench" / script), "tables", str(folder)]
    return tables_of(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def printed() -> list[list[str]]:
    return printed_tables(RESULTS)


def test_the_tables_of_the_page_are_those_of_the_files(printed: list[list[str]]) -> None:
    assert tables_of(PAGE.read_text(encoding="utf-8")) == printed


def test_the_tables_of_the_papers_page_are_those_of_the_files() -> None:
    assert tables_of((ROOT / "docs" / "papers.md").read_text(encoding="utf-8")) == printed_tables(PAPERS)


def test_the_tables_of_fitted_pipelines_are_those_of_the_files() -> None:
    _, heading, results = (ROOT / "docs" / "fitting.md").read_text(encoding="utf-8").partition("\n## Results\n")
    assert heading
    assert tables_of(results) == printed_tables(FIT, "fit_tables.py")


def test_arms_are_joined_by_seed(tmp_path: Path) -> None:
    for seed in (1, 2):
        folder = tmp_path / "runs" / f"fit.medquad.s{seed}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({"stages": {}}))
        with gzip.open(folder / "blend.csv.gz", "wt", encoding="utf-8") as file:
            file.write(f"qid,RR@10,nDCG@10,R@100\nq1,{1 / seed},0,1\nq2,0,0,1\n")
    command = [sys.executable, str(ROOT / "bench" / "fit_tables.py"), "collect", "runs", "out"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with gzip.open(tmp_path / "out" / "medquad.csv.gz", "rt", encoding="utf-8", newline="") as file:
        header, first, _ = csv.reader(file)
    assert first[header.index("fit blend/seed 1/RR@10")] == "1.0"
    assert first[header.index("fit blend/seed 2/RR@10")] == "0.5"


def test_a_changed_file_changes_a_table(printed: list[list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(RESULTS, folder)
    path = folder / "rules.medquad.RR10.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    column = header.index("minilm/strm/seed 1")
    for row in rows[:50]:
        row[column] = "0"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    assert printed_tables(folder) != printed


def test_collecting_arms_gives_a_column_for_each_seed(tmp_path: Path) -> None:
    for seed in (1, 2):
        arm = tmp_path / f"row-{seed}"
        arm.mkdir()
        recipe = {"data": {"folder": "/somewhere/data"}, "seed": seed}
        stages = {"first stage": {}, "denoise": {"figures": {"noise": 3, "options": {}}}}
        told = {"study": "table1", "data": "small", "row": "drbert", "seed": seed}
        result = {"arm": told, "recipe": recipe, "stages": stages, "drops": [{"threshold": 0.9}]}
        (arm / "result.json").write_text(json.dumps(result), encoding="utf-8")
        names = [f"{prefix}{name}" for prefix in ("BM25 ", "") for name in ("RR@10", "nDCG@10", "AP")]
        with gzip.open(arm / "dev.csv.gz", "wt", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(
                [["qid", "words", "split word", *names], ["q1", 4, 0, *[0.5] * 6], ["q2", 3, 1, *[seed] * 6]]
            )
    command = [sys.executable, str(ROOT / "bench" / "papers.py"), "collect", "row-1", "row-2", "--out", "results"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with gzip.open(tmp_path / "results" / "table1.small.RR10.csv.gz", "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == [
            "qid,words,split word,BM25,drbert/seed 1,drbert/seed 2",
            "q1,4,0,0.5,0.5,0.5",
            "q2,3,1,1,1,2",
        ]
    (row,) = json.loads((tmp_path / "results" / "runs.json").read_text(encoding="utf-8"))["table1"]
    assert row["recipe"]["data"] == {"folder": "data"}
    assert row["seeds"]["2"] == {"stages": {"denoise": {"noise": 3}}, "drops": [{"threshold": 0.9}]}


def test_rare_words_are_kept_as_numbers_alone(tmp_path: Path) -> None:
    names = [f"{model} {name}" for model in ("a b", "c") for name in ("right score", "misleading rank")]
    with (tmp_path / "cases.csv").open("w", encoding="utf-8", newline="") as file:
        header = ["qid", "word", "look_alike", "right", "misleading", *names]
        csv.writer(file).writerows([header, ["q1", "bogue", "bogus", "d1", "d2", 1.5, 2, -1, 30]])
    command = [sys.executable, str(ROOT / "bench" / "papers.py"), "collect-rare-words", "."]
    subprocess.run([*command, "--name", "mine", "--out", "."], cwd=tmp_path, check=True)
    with gzip.open(tmp_path / "rare-words.mine.csv.gz", "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == [
            "qid,full right score,full misleading rank,STRM right score,STRM misleading rank",
            "q1,1.5,2,-1,30",
        ]


def test_the_figures_named_in_the_first_paragraph_are_in_the_summary(printed: list[list[str]]) -> None:
    claim = " ".join(PAGE.read_text(encoding="utf-8").split("\n\n")[1].split())
    lower, after_holm = re.findall(r"\d+ of 12 comparisons|(?<=, )\d+ of them", claim)
    assert f"| RR@10 | queries | {lower.split()[0]} of 12 |" in printed[0][2]
    assert printed[0][2].endswith(f"| {after_holm.split()[0]} of 12 |")


@pytest.mark.parametrize("folder", [RESULTS, PAPERS, FIT], ids=lambda folder: folder.name)
def test_the_files_are_small_and_hold_no_text(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) < 800_000
    for path in folder.glob("*.csv.gz"):
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            _, *rows = csv.reader(file)
        words = {
            cell for row in rows for cell in row if re.search(r"[a-z]{3}", cell) and not re.fullmatch(r"\S+\d", cell)
        }
        assert words <= {"look-alike", "unlike", "neither"}, path.name
