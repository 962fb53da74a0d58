"""Figures of rankwell-mini's page, of the recipes and of the page on query types are those of the stored results."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.test_results import PAPERS, ROOT, figures_of, printed_tables, tables_of

ZERO_SHOT = ROOT / "docs" / "results" / "zero-shot"
MINI = ROOT / "src" / "rankwell" / "shipped" / "rankwell-mini" / "README.md"


def short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def means(path: Path) -> dict[str, float]:
    """The mean of each column of a file, seeds of one row together, without those that were trained again."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    found: dict[str, list[float]] = {}
    for name, column in zip(header, zip(*rows, strict=True), strict=True):
        if name not in ("qid", "words", "split word") and not name.endswith(" repeated"):
            found.setdefault(name.partition("/seed ")[0], []).append(float(np.mean([float(cell) for cell in column])))
    return {name: float(np.mean(values)) for name, values in found.items()}


def test_the_tables_of_rankwell_mini_are_those_of_the_files() -> None:
    pytest.importorskip("torch")
    ranking, hybrid = printed_tables(ZERO_SHOT, "zero_shot.py")
    page = MINI.read_text(encoding="utf-8")
    assert ranking in tables_of(page)
    assert hybrid in tables_of(page)
    assert hybrid in tables_of((ROOT / "docs" / "retrieve.md").read_text(encoding="utf-8"))
    said = figures_of("\n".join(line for line in page.splitlines() if not line.startswith("|")))
    assert said <= figures_of("\n".join([*ranking, *hybrid]))


def test_the_row_of_the_readme_without_training_is_that_of_the_files() -> None:
    values = means(ZERO_SHOT / "insuranceqa.csv.gz")
    figures = (short(values[f"hybrid search 0.7 rankwell-mini/{measure}"]) for measure in ("RR@10", "R@100"))
    assert f"nothing trained | {' | '.join(figures)} |" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("recipe", ["monobert", "markedbert"])
def test_the_figures_of_a_recipe_are_those_of_the_files(recipe: str) -> None:
    text = (ROOT / "recipes" / f"{recipe}.yaml").read_text(encoding="utf-8")
    measured = re.search(r"# Measured.*?docs/papers.md", text, re.DOTALL)
    assert measured
    said = re.findall(r"(?<!\d)\.\d{3}", measured[0])
    files = [means(PAPERS / f"table1.{data}.RR10.csv.gz") for data in ("insuranceqa", "questions", "headings")]
    rows = {"pointwise-only", "marked", "BM25"}
    known = {short(value) for values in files for row, value in values.items() if row in rows}
    assert len(said) > 3
    assert set(said) <= known


def test_the_accuracies_for_query_types_are_those_of_the_file() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    stored = json.loads((PAPERS / "query-types.json").read_text(encoding="utf-8"))
    accuracies = []
    for split in ("train", "test"):
        counts = stored["rules"][split]
        right = sum(row.get(label, 0) for label, row in counts.items())
        accuracies.append(short(right / sum(sum(row.values()) for row in counts.values())))
    assert f"| rules | {' | '.join(accuracies)} |" in page
    accuracy = short(stored["classifier"]["accuracy"])
    assert f"| | **{accuracy}** |" in page
    assert f"accuracy {accuracy} " in (ROOT / "recipes" / "query-types.yaml").read_text(encoding="utf-8")


def test_values_of_systems_measured_later_are_added(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    data = tmp_path / "data" / "med"
    data.mkdir(parents=True)
    (data / "collection.tsv").write_text("d1\tthe cat sleeps on a mat\nd2\ta dog barks\n")
    (data / "queries.test.tsv").write_text("q2\tbarking dog\nq1\tsleepy cat on mats\n")
    (data / "qrels.test.txt").write_text("q1 0 d1 1\nq2 0 d1 1\n")
    command = [sys.executable, str(ROOT / "bench" / "zero_shot.py"), "measure", "--encoder", "", "--data", "data"]
    command += ["--sets", "med", "--work", "work", "--out", "out"]
    for _ in range(2):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    with gzip.open(tmp_path / "out" / "med.csv.gz", "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == ["qid,BM25/RR@10,BM25/nDCG@10,BM25/R@100", "q2,0,0,0", "q1,1,1,1"]
    refused = subprocess.run([*command, "--queries", "1"], cwd=tmp_path, capture_output=True, text=True)
    assert "its queries are not those measured now" in refused.stderr
