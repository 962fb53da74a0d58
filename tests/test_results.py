"""The tables generated from the kept results are those of the pages; the scripts that keep results lose none.

``python -m tests.test_results`` prints the tables that are not printed by a benchmark's ``tables``.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from rankwell.corpus.query_types import QUERY_TYPES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAPERS, FIT, X86 = RESULTS / "papers", RESULTS / "fit", RESULTS / "x86"
MINI = "src/rankwell/shipped/rankwell-mini/README.md"
PATHS = {
    "path.json": "27,413 answers, [two quiet Arm cores](results/path.json), int8",
    "x86/path.27k.json": "the same, [two x86 cores](results/x86/path.27k.json), int8",
    "x86/path.241k.json": "241,186 passages, [two Xeon cores](results/x86/path.241k.json), load 10 of 16, bf16",
    "x86/path.1M.json": "a million passages, [two Xeon cores](results/x86/path.1M.json), load 40 of 16, int8",
}
ARM = {
    "sentence-transformers, fp32": "18.0 | 1.00",
    "rankwell, fp32": "21.5 | 1.19",
    "rankwell, int8": "**65.3** | **3.63**",
}
"""Vectors a second on Arm, which have no file."""


def tables_of(text: str) -> list[list[str]]:
    """The Markdown tables of a text, each as its lines."""
    return [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


@cache
def printed_tables(folder: Path, script: str) -> list[list[str]]:
    """The tables that a benchmark makes of its kept files."""
    command = [sys.executable, str(ROOT / "bench" / script), *script_arguments(script, folder)]
    return tables_of(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def script_arguments(script: str, folder: Path) -> list[str]:
    return ["--table", str(folder / "commands.json")] if script == "commands.py" else ["tables", str(folder)]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def query_path() -> list[str]:
    """Where the milliseconds of a query go."""
    lines = ["| | encoding | BM25 | vectors | hybrid search in all | words of 100 add | re-ranking 10 adds |"]
    lines.append("|---|" + "--:|" * 6)
    names = ("encode the query", "BM25, the best 1,000", "vectors, the best 1,000", "whole, hybrid search")
    for file, label in PATHS.items():
        times = {name: part["ms"] for name, part in read(RESULTS / file)["parts"].items()}
        shown = [f"{times[name]:.1f}" for name in (*names, "compare words of 100")]
        lines.append(f"| {label} | {' | '.join(shown)} | {times['whole, re-ranked'] - times[names[-1]]:.0f} |")
    return lines


def speeds(files: tuple[str, str], header: str, before: dict[str, str] | None = None) -> list[str]:
    """Systems side by side on two processors, in columns of speed and ratio."""
    columns: list[dict[str, str]] = []
    for file in files:
        result, column = read(X86 / f"{file}.json"), {}
        for system in result["systems"]:
            library, _, kind = re.sub(", batches of .*|,", "", system["system"]).partition(" ")
            name = f"{library}, {kind.replace('-', ' ') or 'fp32'}"
            rate = system.get("pairs", result.get("documents")) / median(clock for clock, _ in system["seconds"])
            ratios = [clock for clock, _ in system["ratios"]]
            spread = "" if min(ratios) == max(ratios) else f" ({min(ratios):.2f}–{max(ratios):.2f})"
            bold = "**" * name.endswith("rankwell, int8")
            column[name] = f"{bold}{rate:.1f}{bold} | {bold}{median(ratios):.2f}{bold}{spread}"
        columns.append(column)
    if before is not None:
        columns.insert(0, before)
    lines = [header, "|---|" + "--:|" * (2 * len(columns))]
    for name in dict.fromkeys(name for column in columns[-2:] for name in column):
        if "STRM" not in name and "rankwell, openvino" not in name:
            label = f"**{name}** (`auto`)" if name == "rankwell, int8" else name
            lines.append(f"| {label} | {' | '.join(column.get(name, ' | ') for column in columns)} |")
    return lines


def generated(page: str) -> list[list[str]]:
    """The tables of a page that come from kept files."""
    if page == "docs/performance.md":
        (int8,) = printed_tables(RESULTS / "int8", "int8_agreement.py")
        (commands,) = printed_tables(RESULTS / "commands", "commands.py")
        reranked = (
            "| system | [AMX](results/x86/rerank.json): pairs/s | ratio "
            "| [VNNI](results/x86/rerank.vnni.json): pairs/s | ratio |"
        )
        encoded = (
            "| documents per second | Arm | ratio | [Xeon with AMX](results/x86/encode.json) "
            "| ratio (range of five rounds) | [with VNNI alone](results/x86/encode.vnni.json) | ratio |"
        )
        pairs = speeds(("rerank", "rerank.vnni"), reranked)
        return [int8, commands, query_path(), pairs, speeds(("encode", "encode.vnni"), encoded, ARM)]
    if page == "docs/retrieve.md":
        defaults = printed_tables(RESULTS / "defaults", "zero_shot.py")
        return [*printed_tables(RESULTS / "words", "word_vectors.py"), *defaults]
    if page == "docs/fitted.md":
        return printed_tables(RESULTS, "relevance.py")
    return printed_tables(RESULTS / "zero-shot", "zero_shot.py")


@pytest.mark.parametrize("page", ["docs/performance.md", "docs/retrieve.md", "docs/fitted.md", MINI])
def test_generated_tables_are_the_committed_ones(page: str) -> None:
    shown = tables_of((ROOT / page).read_text(encoding="utf-8"))
    assert [table for table in generated(page) if table not in shown] == []


def figures_of(text: str) -> set[str]:
    """The differences, p-values and ratios of a text: +.028, .047, 1.46."""
    return set(re.findall(r"[+−]?(?<![\d.])\.\d{3}(?!\d)|\d\.\d\d(?!\d)", text))


def test_the_figures_of_the_readme_are_those_of_the_files() -> None:
    (table,) = tables_of((ROOT / "README.md").read_text(encoding="utf-8"))
    rows = [line for line in table if "nothing trained" not in line]
    printed = "\n".join(line for table in printed_tables(FIT, "fit.py") for line in table)
    shown = set(re.findall(r"(?<!\d)\.\d{3}", "\n".join(rows)))
    assert len(shown) > 3
    assert {f"0{figure}" for figure in shown} <= set(re.findall(r"\d\.\d{3}", printed))


def test_the_fit_of_the_readme_is_one_that_was_printed() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^ {4}\$ (rankwell fit .*\n(?: {4}.+\n)+)", readme, re.MULTILINE)
    fits = (FIT / "fits.txt").read_text(encoding="utf-8").split("$ ")
    (printed,) = (fit for fit in fits if fit.splitlines()[:1] == shown.splitlines()[:1])
    lines = [re.sub(r"^ *\d+\.\d ?", "", line).strip() for line in printed.splitlines()]
    steps = [line for line in lines if line.startswith(("✓", "·", "RR@10"))]
    assert [line.strip() for line in shown.splitlines()[1:] if line.strip() != "…"] == steps


def test_the_tables_of_fitted_pipelines_are_those_of_the_files() -> None:
    _, heading, results = (ROOT / "docs" / "fitted.md").read_text(encoding="utf-8").partition("\n## Results\n")
    assert heading
    results = results.partition("\n## ")[0]
    others = tables_of((FIT / "README.md").read_text(encoding="utf-8").partition("\n## Differences\n")[2])
    printed = printed_tables(FIT, "fit.py")
    assert sorted(tables_of(results) + others) == sorted(printed)


def test_gains_by_judged_queries_and_by_clicks_are_those_of_the_files() -> None:
    page = (ROOT / "docs" / "fitted.md").read_text(encoding="utf-8")
    for name, row in (
        ("insuranceqa", "InsuranceQA, unfitted .447"),
        ("medquad", "MedQuAD, .684"),
        ("wiki", "Wikipedia"),
    ):
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {row}"))
        columns = columns_of(FIT / f"curve-{name}.csv.gz")
        before, gains = columns[f"{name}/0/hybrid"], defaultdict[int, list[float]](list)
        for column, values in columns.items():
            if column.endswith(" all"):
                gains[int(column.split("/")[1])].append(float(np.mean(values - before)))
        means = [float(np.mean(gains[size])) for size in (100, 300, 1_000, 3_000, 10_000)]
        assert line.split("|")[2:-1] == [f" +{mean:.3f} ".replace("0.", ".") if mean else " 0 " for mean in means]
        assert f".{1000 * before.mean():.0f}" in line
    for kind, row in (("/engine", "nothing: the engine"), ("/judgments", "judgments"), ("100/clicks", "clicks, 100")):
        columns = [columns_of(FIT / f"clicks-all-{name}.csv.gz") for name in ("insuranceqa", "medquad")]
        means = [np.mean(next(own[name] for name in own if name.endswith(kind))) for own in columns]
        assert any(
            re.match(rf"\| {row}.*\| \.{1000 * means[0]:.0f} \| \.{1000 * means[1]:.0f} \|$", line)
            for line in page.splitlines()
        )


def columns_of(path: Path) -> dict[str, np.ndarray]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        (_, *names), *rows = csv.reader(file)
    return {name: np.array([float(row[place]) for row in rows]) for place, name in enumerate(names, 1)}


def test_arms_are_joined_by_seed(tmp_path: Path) -> None:
    for seed in (1, 2):
        folder = tmp_path / "runs" / f"fit.medquad.s{seed}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({"stages": {}}))
        with gzip.open(folder / "blend.csv.gz", "wt", encoding="utf-8") as file:
            file.write(f"qid,RR@10,nDCG@10,R@100\nq1,{1 / seed},0,1\nq2,0,0,1\n")
    command = [sys.executable, str(ROOT / "bench" / "fit.py"), "collect", "runs", "out"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with gzip.open(tmp_path / "out" / "medquad.csv.gz", "rt", encoding="utf-8", newline="") as file:
        header, first, _ = csv.reader(file)
    assert first[header.index("small blend/seed 1/RR@10")] == "1.0"
    assert first[header.index("small blend/seed 2/RR@10")] == "0.5"


def test_collecting_keeps_what_was_collected(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "runs" / "found.medquad.s1"
    out.mkdir()
    with gzip.open(out / "medquad.csv.gz", "wt", encoding="utf-8") as file:
        file.write("qid,small blend/seed 1/RR@10\nq1,0.25\n")
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    with gzip.open(folder / "blend.csv.gz", "wt", encoding="utf-8") as file:
        file.write("qid,RR@10,nDCG@10,R@100\nq1,1,1,1\n")
    command = [sys.executable, str(ROOT / "bench" / "fit.py"), "collect", "runs", "out"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with gzip.open(out / "medquad.csv.gz", "rt", encoding="utf-8", newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["small blend/seed 1/RR@10"], row["found blend/seed 1/RR@10"]) == ("0.25", "1")


@pytest.mark.parametrize("folder", [RESULTS / "attention-rules", PAPERS, FIT], ids=lambda folder: folder.name)
def test_the_files_are_small_and_hold_no_text(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4_100_000
    for path in folder.glob("*.csv.gz"):
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            _, *rows = csv.reader(file)
        words = {
            cell for row in rows for cell in row if re.search(r"[a-z]{3}", cell) and not re.fullmatch(r"\S+\d", cell)
        }
        assert words <= {"look-alike", "unlike", "neither", *QUERY_TYPES}, path.name


if __name__ == "__main__":
    for lines in generated("docs/performance.md"):
        print("\n".join(lines) + "\n")
