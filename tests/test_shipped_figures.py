"""The row of README's table without training is that of the stored results, to which later systems are added."""

from __future__ import annotations

import csv
import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from tests.test_results import ROOT

ZERO_SHOT = ROOT / "docs" / "results" / "zero-shot"


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


def test_the_row_of_the_readme_without_training_is_that_of_the_files() -> None:
    values = means(ZERO_SHOT / "insuranceqa.csv.gz")
    figures = (short(values[f"hybrid search 0.7 rankwell-mini/{measure}"]) for measure in ("RR@10", "R@100"))
    assert f"nothing trained | {' | '.join(figures)} |" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_values_of_systems_measured_later_are_added(tmp_path: Path) -> None:
    data = tmp_path / "data" / "med"
    data.mkdir(parents=True)
    (data / "collection.tsv").write_text("d1\tthe cat sleeps on a mat\nd2\ta dog barks\n")
    (data / "queries.test.tsv").write_text("q2\tbarking dog\nq1\tsleepy cat on mats\n")
    (data / "qrels.test.txt").write_text("q1 0 d1 1\nq2 0 d1 1\n")
    command = [sys.executable, str(ROOT / "bench" / "zero_shot.py"), "measure", "--hybrid"]
    command += ["--sets", "med", "--work", "work", "--out", "out"]
    environment = os.environ | {"RANKWELL_DATA": "data"}
    for _ in range(2):
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    with gzip.open(tmp_path / "out" / "med.csv.gz", "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == ["qid,BM25/RR@10,BM25/nDCG@10,BM25/R@100", "q2,0,0,0", "q1,1,1,1"]
    refused = subprocess.run(
        [*command, "--queries", "1"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert "its queries are not those measured now" in refused.stderr
