"""The tables of docs/papers.md on training pairs, types of queries, first stages, their candidates, and documents."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from harness import Table
from paper_collect import FIRST_STAGE
from paper_recipes import POINTWISE_ONLY
from paper_statistics import Effect
from paper_tables import (
    PerQuery,
    Results,
    average,
    compare,
    effect_cells,
    equals,
    gap_cell,
    mean_cell,
    number,
    p_value,
    signed,
)
from paper_verdicts import DATA, WHOLE, first_stage
from rankwell.core.types import Values
from rankwell.evaluation.significance import holm
from rankwell.plots.pictures import new_picture, save_picture

SHARES = ("0.01", "0.03", "0.1", "0.3")
"""Of the 144,000 pairs of pointwise training."""
TYPES = {
    "full": "none",
    "typed": "given with the data",
    "rule-types": "guessed by rules",
    "classifier-types": "predicted by a classifier",
    "shuffled-types": "given, shuffled among the queries",
}
MEDQUAD = "medquad"
TUNED = "BM25, tuned"
STAGES = {TUNED: ("BM25", 0.167), "deepct": ("DeepCT", 0.243), "doc2query": ("doc2query", 0.221)}
"""First stages, and their RR@10 on MS MARCO dev: in DR-BERT's Table 1, and in MarkedBERT's, where BM25 has .184."""
DEPTHS = (10, 20, 50, 100, 200, 500, 1000)
PLAIN, MARKED, WHOLE_MODEL = "pointwise-only", "marked", "drbert"
RERANKERS = {
    "bm25": ("BM25", {PLAIN: "BERT"}),
    "deepct": ("DeepCT", {PLAIN: "BERT", WHOLE_MODEL: "DR-BERT"}),
    "doc2query": ("doc2query", {PLAIN: "BERT", MARKED: "BERT with marks"}),
}
"""What was re-ranked by what."""
CROSSED = (
    ("MarkedBERT", "BM25", "bm25", None, 0.184),
    ("MarkedBERT", "doc2query", "doc2query", None, 0.221),
    ("MarkedBERT", "doc2query, BERT", "doc2query", PLAIN, 0.302),
    ("MarkedBERT", "doc2query, BERT with marks", "doc2query", MARKED, 0.328),
    ("DR-BERT", "BM25", "bm25", None, 0.167),
    ("DR-BERT", "DeepCT", "deepct", None, 0.243),
    ("DR-BERT", "DeepCT, BERT", "deepct", PLAIN, 0.367),
    ("DR-BERT", "DeepCT, DR-BERT", "deepct", WHOLE_MODEL, WHOLE),
)
"""The papers' Table 1: first stage, ranker and RR@10."""
SHORTCUT = {
    "unmatched over candidates": "no query word above a candidate",
    "unmatched over relevant": "no query word above a relevant passage",
    "relevant over candidates": "a relevant passage above a candidate",
}
DOCUMENTS = {"windows": "windows by entailment", "interpolate": "BM25 and windows"}
DOCUMENT_MEASURES = {"AP": ("MAP", 0.237), "nDCG": ("nDCG", 0.430), "P10": ("P@10", 0.598)}
"""CCNU's Table 2: BM25 and windows on TREC 2019."""


def by_pairs(file: PerQuery) -> dict[int, dict[int, Values]]:
    """The values of BERT by the number of pairs it was trained on, all of one run of trainings."""
    curve = {64 * round(float(share) * POINTWISE_ONLY): file.arms[f"{PLAIN}, {share} of the pairs"] for share in SHARES}
    return {**curve, 64 * POINTWISE_ONLY: file.repeated[PLAIN]}


def print_pairs(results: Results) -> None:
    """Nogueira and Cho's Figure 1: RR@10 by the number of training pairs."""
    reciprocal, precision = (results.values(f"table1.{DATA}.{name}") for name in ("RR10", "AP"))
    table = Table("training pairs", "seeds", "RR@10", "AP", "− BM25", "p", "detectable", "share of the whole gain")
    bm25 = first_stage(reciprocal)
    table.row("BM25", "", *(number(average(first_stage(file))) for file in (reciprocal, precision)), "", "", "", "")
    curve = by_pairs(reciprocal)
    whole = average(curve[max(curve)]) - average(bm25)
    for (pairs, seeds), other in zip(curve.items(), by_pairs(precision).values(), strict=True):
        share = f"{(average(seeds) - average(bm25)) / whole:.0%}".replace("-", "−")
        cells = (mean_cell(seeds), number(average(other)), *effect_cells(Effect.of(seeds, bm25)))
        table.row(f"{pairs:,}", str(len(seeds)), *cells, share)


def draw_pairs(results: Results, path: Path) -> None:
    """The same as a picture."""
    file = results.values(f"table1.{DATA}.RR10")
    bm25, curve = first_stage(file), by_pairs(file)
    widths = [Effect.of(seeds, bm25).width for seeds in curve.values()]
    figure, axes = new_picture("drawing a curve", 5.4, 3.0)
    means = [average(seeds) for seeds in curve.values()]
    axes.errorbar(list(curve), means, yerr=widths, marker="o", markersize=3.5, linewidth=1.2, elinewidth=0.6)
    axes.axhline(average(bm25), color="black", linewidth=0.8, linestyle="--")
    axes.annotate("BM25", (max(curve), average(bm25)), xytext=(0, 4), textcoords="offset points", ha="right")
    axes.set_xscale("log")
    axes.set_xlabel("training pairs")
    axes.set_ylabel("RR@10")
    save_picture(figure, path)


def print_query_types(results: Results) -> None:
    """DR-BERT's types by where they come from."""
    reciprocal, precision = (results.values(f"table1.{MEDQUAD}.{name}") for name in ("RR10", "AP"))
    table = Table("types", "seeds", "RR@10", "AP", "− none", "p", "p after Holm", "detectable")
    effects = {name: Effect.of(reciprocal.arms[name], reciprocal.arms["full"]) for name in TYPES if name != "full"}
    corrected = dict(zip(effects, holm([effect.p for effect in effects.values()]), strict=True))
    for name, label in TYPES.items():
        seeds = reciprocal.arms[name]
        tests = ("", "", "", "")
        if name in effects:
            difference, p, detectable = effect_cells(effects[name])
            tests = (difference, p, p_value(corrected[name]), detectable)
        table.row(label, str(len(seeds)), mean_cell(seeds), number(average(precision.arms[name])), *tests)


def print_first_stages(results: Results) -> None:
    """First stages that learn term weights or queries, beside BM25; one training each."""
    measures = {"RR10": "RR@10", "AP": "AP", "R100": "R@100", "R1000": "R@1000"}
    files = {name: results.values(f"first-stage.{DATA}.{name}").arms for name in measures}
    columns = ("k1", "b", "paper", *measures.values(), "RR@10 − BM25", "detectable", "R@1000 − BM25")
    table = Table("first stage", *columns)
    settings = {run["row"]: run["recipe"]["first_stage"] for run in results.runs["first-stage"] if run["data"] == DATA}
    for row, (label, published) in STAGES.items():
        gaps = [compare(files[name][row], files[name][TUNED]) for name in ("RR10", "R1000")]
        tests = ("", "", "") if row == TUNED else (gap_cell(gaps[0]), number(gaps[0].detectable, 3), gap_cell(gaps[1]))
        means = (number(average(files[name][row])) for name in measures)
        tuned = (f"{settings[row][name]:g}".removeprefix("0") for name in ("k1", "b"))
        table.row(label, *tuned, number(published, 3), *means, *tests)


def candidate_values(
    results: Results, first: str, ranker: str | None, depth: int, measure: str = "RR@10"
) -> dict[int, Values]:
    """The values of a first stage, or of a ranker on its first ``depth`` candidates, by seed."""
    file = results.values(f"depths.{DATA}.{first}")
    if ranker is not None:
        return file.arms[f"{ranker} {measure} at {depth}"]
    return dict.fromkeys((1, 2, 3), np.array(file.labels[f"{FIRST_STAGE} {measure} at {depth}"], np.float64))


def print_depths(results: Results) -> None:
    """What rankers make of each first stage's candidates, by their number."""
    columns = [column for label, rankers in RERANKERS.values() for column in (f"{label}: recall", *rankers.values())]
    table = Table("candidates re-ranked", *columns)
    alone: list[str] = []
    for first, (_, rankers) in RERANKERS.items():
        alone += ["", *[number(average(candidate_values(results, first, None, 1000)))] * len(rankers)]
    table.row("none", *alone)
    for depth in DEPTHS:
        cells: list[str] = []
        for first, (_, rankers) in RERANKERS.items():
            recall = average(candidate_values(results, first, None, depth, "R"))
            cells += [number(recall, 3)]
            cells += [number(average(candidate_values(results, first, ranker, depth))) for ranker in rankers]
        table.row(f"{depth:,}", *cells)


def crossed(results: Results, first: str, ranker: str, depth: int) -> tuple[dict[int, Values], dict[int, Values]]:
    """A ranker and plain BERT on the same candidates."""
    return candidate_values(results, first, ranker, depth), candidate_values(results, first, PLAIN, depth)


def print_crossed(results: Results) -> None:
    """Table 1 of MarkedBERT and of DR-BERT on the first stages that the papers use."""
    tests = ("1,000 − first stage", "1,000 − BERT", "p", "detectable")
    table = Table("paper", "row", "published", "10 candidates", "100", "1,000", *tests, labels=2)
    for paper, label, first, ranker, published in CROSSED:
        means = [number(average(candidate_values(results, first, ranker, depth))) for depth in (10, 100, 1000)]
        cells = [""] * len(tests)
        if ranker is not None:
            ours, alone = (candidate_values(results, first, which, 1000) for which in (ranker, None))
            effect = Effect.of(ours, alone)
            cells[0] = f"{signed(effect.mean)} (p {equals(effect.p)})"
        if ranker not in (None, PLAIN):
            cells[1:] = effect_cells(Effect.of(*crossed(results, first, ranker, 1000)))
        table.row(paper, label, number(published, 3), *means, *cells)


def print_overlap(results: Results) -> None:
    """How many of a query's words relevant and other passages contain, and what a model can learn from that."""
    counts = results.record(f"overlap.{DATA}")
    found, missed, other = (np.array(counts[kind], np.float64) for kind in ("found", "missed", "other"))
    columns = (
        "relevant, found by BM25",
        "relevant, missed",
        "other candidates",
        "relevant, 1 to 1",
        "found only, 1 to 1",
    )
    table = Table("query words in the passage", *columns)

    def balanced(relevant: Values) -> list[str]:
        """The share of relevant passages if as many relevant ones as others are drawn."""
        both = relevant / relevant.sum(), other / other.sum()
        return [f"{a / (a + b):.0%}" if a + b > 0 else "" for a, b in zip(*both, strict=True)]

    ends = [f"{share:.0%}" for share in counts["shares"]]
    labels = ["none", f"up to {ends[1]}", *(f"{low} to {high}" for low, high in pairwise(ends[1:]))]
    shares = [[f"{share:.1%}" for share in kind / kind.sum()] for kind in (found, missed, other)]
    for cells in zip(labels, *shares, balanced(found + missed), balanced(found), strict=True):
        table.row(*cells)


def print_shortcut(results: Results) -> None:
    """What small rankers make of passages without a query word, by what they were trained on."""
    arms = results.values(f"shortcut.{DATA}").arms
    table = Table("ranker", "trained on relevant passages", *SHORTCUT.values(), "difference of the first", labels=2)
    base = arms[f"{MARKED}, all {next(iter(SHORTCUT))}"]
    rows = ((MARKED, "with marks", "all", "all"), (MARKED, "with marks", "found", "those that BM25 found"))
    for row, label, which, trained_on in (*rows, (PLAIN, "without marks", "all", "all")):
        shares = [arms[f"{row}, {which} {figure}"] for figure in SHORTCUT]
        difference = "" if shares[0] is base else gap_cell(compare(shares[0], base))
        table.row(label, trained_on, *(f"{average(share):.0%}" for share in shares), difference)


def document_values(results: Results, measure: str, row: str | None) -> dict[int, Values]:
    """A row of CCNU's document ranker; None: BM25."""
    file = results.values(f"document.{MEDQUAD}.{measure}")
    return {1: first_stage(file)[1]} if row is None else file.arms[row]


def print_documents(results: Results) -> None:
    """CCNU's Table 2: windows scored by an entailment model, alone and with BM25."""
    table = Table("", *(label for label, _ in DOCUMENT_MEASURES.values()), "MAP − BM25", "detectable")
    table.row("paper: BM25 and windows", *(number(value, 3) for _, value in DOCUMENT_MEASURES.values()), "", "")
    bm25 = document_values(results, "AP", None)
    for row, label in ((None, "BM25, k2 8"), *DOCUMENTS.items()):
        means = (number(average(document_values(results, name, row))) for name in DOCUMENT_MEASURES)
        gap = compare(document_values(results, "AP", row), bm25)
        table.row(label, *means, *(("", "") if row is None else (gap_cell(gap), number(gap.detectable, 3))))
