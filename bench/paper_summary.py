"""The table of docs/results.md: each ranker on each data set, from the values of the other two pages."""

from __future__ import annotations

from pathlib import Path

from harness import Table
from paper_tables import LONG, SHORT, Results, average, mean_cell, number
from paper_verdicts import first_stage

DATA = {"insuranceqa": 2000, "questions": 1568, "headings": 3000, "medquad": 1655}
ROWS = {
    "pointwise-only": "BERT, pointwise",
    "listwise-only": "BERT, listwise",
    "full": "BERT, pointwise, then listwise",
    "long": "BERT, listwise, after 20,000 steps of domain pre-training",
    "found-only": "BERT, listwise, only relevant passages that BM25 found",
    "marked": "BERT, pointwise, with marks",
    "drbert": "DR-BERT without noise reduction",
    "deepct": "DeepCT, nothing re-ranked",
    "doc2query": "doc2query, nothing re-ranked",
}


def print_summary(folder: Path) -> None:
    """RR@10 of BM25 and of every row that was trained: rankers with three seeds, first stages with one."""
    papers, rules = Results(folder / "papers"), Results(folder / "attention-rules")
    files = {data: papers.values(f"table1.{data}.RR10") for data in DATA if data != "medquad"}
    files["medquad"] = rules.values("rules.medquad.RR10")
    # The attention rules were compared by listwise training alone, from the same pre-training.
    arms = {data: file.arms for data, file in files.items()}
    both = papers.values("table1.medquad.RR10").arms["full"]
    arms["medquad"] = {"listwise-only": arms["medquad"][f"{SHORT}/full"], "full": both}
    first_stages = papers.values("first-stage.insuranceqa.RR10").arms
    arms["insuranceqa"] |= {name: first_stages[name] for name in ("deepct", "doc2query")}
    for data in ("insuranceqa", "medquad"):
        arms[data]["long"] = rules.values(f"rules.{data}.RR10").arms[f"{LONG}/full"]
    table = Table("RR@10", *(f"{data} ({queries:,})" for data, queries in DATA.items()))
    table.row("BM25", *(number(average(first_stage(file))) for file in files.values()))
    for name, label in ROWS.items():
        table.row(label, *(mean_cell(arms[data][name]) if name in arms[data] else "" for data in DATA))
