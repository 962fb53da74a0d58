"""The tables of docs/ccnu.md, computed from the files in docs/results/papers and nothing else."""

from __future__ import annotations

from harness import Table
from paper_tables import Results, average, compare, gap_cell, number
from paper_verdicts import first_stage

MEASURES = {"AP": "MAP", "nDCG": "nDCG", "P10": "P@10"}
DATA = "insuranceqa"
TAGS_COMPARED = "all layers, dropout 0.2, negatives 2"


def print_sdnet(results: Results) -> None:
    """Each trained network alone and with BM25's share, beside BM25."""
    files = {name: results.values(f"sdnet.{DATA}.{name}") for name in MEASURES}
    table = Table("", *MEASURES.values(), "MAP − BM25", labels=1)
    bm25 = {name: {1: first_stage(file)[1]} for name, file in files.items()}
    table.row("BM25, k2 8", *(number(average(seeds)) for seeds in bm25.values()), "")
    for arm in files["AP"].arms:
        name, _, part = arm.rpartition("/")
        label = f"{name}: {'S alone' if part == 'S' else 'with BM25'}"
        cells = (number(average(file.arms[arm])) for file in files.values())
        table.row(label, *cells, gap_cell(compare(files["AP"].arms[arm], bm25["AP"])))


def print_tags(results: Results) -> None:
    """The same training with and without tags."""
    file = results.values(f"sdnet.{DATA}.AP")
    table = Table("MAP", "no tags", "tags", "difference", "detectable")
    for part, label in (("S", "S alone"), ("both", "with BM25")):
        plain, tagged = (file.arms[f"dot, {tags}, {TAGS_COMPARED}/{part}"] for tags in ("no tags", "tags"))
        gap = compare(tagged, plain)
        table.row(label, number(average(plain)), number(average(tagged)), gap_cell(gap), number(gap.detectable, 3))


def print_k2(results: Results) -> None:
    """BM25 with and without k2 on all dev queries."""
    table = Table("data (queries)", "k2", *MEASURES.values(), "MAP, difference", labels=2)
    for data in ("insuranceqa", "medquad"):
        files = {name: results.values(f"first-stage.{data}.{name}") for name in MEASURES}
        plain = {name: {1: first_stage(file)[1]} for name, file in files.items()}
        k2 = {name: file.arms["BM25, k2 8"] for name, file in files.items()}
        label = f"{data} ({len(k2['AP'][1]):,})"
        table.row(label, "none", *(number(average(seeds)) for seeds in plain.values()), "")
        gap = gap_cell(compare(k2["AP"], plain["AP"]), 4)
        table.row(label, "8", *(number(average(seeds)) for seeds in k2.values()), gap)


CCNU_TABLES = (print_sdnet, print_tags, print_k2)
