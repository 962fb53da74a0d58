"""The tables of docs/papers.md: what the papers published, what was measured here, and whether the two agree.

All of ours is computed from the files in docs/results/papers; the papers' own figures are written down here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness import Table
from paper_tables import MODELS, PerQuery, Results, average, compare, gap_cell, mean_cell, number, p_value, signed
from rankwell.core.types import Values
from rankwell.evaluation.significance import paired_t_test

DATA = "insuranceqa"
Seeds = Mapping[int, Values]

DRBERT = {
    "no-pretraining": ("without pre-training", 0.413),
    "no-pointwise": ("without pointwise", 0.413),
    "no-types": ("without types", 0.415),
    "no-listwise": ("without listwise", 0.390),
    "no-strm": ("without STRM", 0.405),
}
"""DR-BERT's Table 1, RR@10 on MS MARCO dev; the whole model has .420, BERT .367, BM25 .167."""
WHOLE, BERT, BM25 = 0.420, 0.367, 0.167

VARIANTS = (
    ("pointwise, all parts off", "pointwise-only", "DR-BERT", "drbert"),
    ("listwise, all parts off", "listwise-only", "DR-BERT", "drbert"),
    ("listwise, all parts off", "listwise-only", "pointwise, all parts off", "pointwise-only"),
    ("listwise, only relevant passages that BM25 found", "found-only", "listwise, all parts off", "listwise-only"),
    ("pointwise with marks", "marked", "pointwise, all parts off", "pointwise-only"),
    ("pointwise with marks, none on function words", "marked-content", "pointwise, all parts off", "pointwise-only"),
    ("DR-BERT with noise reduction", "denoised", "DR-BERT", "drbert"),
)
NOISE = {
    "1 of 100/noisy": "1 of 100 is a hidden relevant passage",
    "1 of 100/threshold 0.9": "the same, noise reduction at .9",
    "1 of 100/threshold 0.97": "the same, noise reduction at .97",
    "1 of 100/clean": "without the hidden passages",
}
LENGTHS = {"up to 5": (1, 5), "6 or 7": (6, 7), "8 or 9": (8, 9), "10 or more": (10, 99)}
"""Words of a query."""
NOT_RUN = (
    ("Nogueira and Cho", "MAP on TREC-CAR", "33.5", "its articles and folds are not at hand"),
    ("CCNU, Table 1", "passages: MAP, nDCG, P@10", ".278, .549, .616", "no BERT-large, tagger or TREC 2019 passages"),
    ("CCNU, Table 2", "documents: MAP, nDCG, P@10", ".237, .430, .598", "no BERT-large, MNLI or TREC 2019 documents"),
)
RARE_WORDS = {"sample": "bundled sample"}
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
"""The 97.5 % quantile of Student's t by degrees of freedom."""


@dataclass(frozen=True)
class Interval:
    """A difference with the wider of two 95 % intervals: over queries, and over seeds where there are two or more."""

    mean: float
    width: float

    @classmethod
    def of(cls, ours: Seeds, theirs: Seeds) -> Interval:
        """``ours`` less ``theirs``, on the seeds that both have."""
        seeds = sorted(ours.keys() & theirs.keys())
        gaps = np.array([ours[seed] - theirs[seed] for seed in seeds])
        over_queries, over_seeds = gaps.mean(0), gaps.mean(1)
        widths = [1.96 * over_queries.std(ddof=1) / np.sqrt(len(over_queries))]
        if len(seeds) > 1:
            widths.append(STUDENT[len(seeds) - 1] * over_seeds.std(ddof=1) / np.sqrt(len(seeds)))
        return cls(float(gaps.mean()), float(max(widths)))

    def verdict(self, published: float) -> str:
        """Whether an effect that the paper found positive is found here, too."""
        if self.mean - self.width > 0:
            return "reproduced"
        return "not reproduced" if self.mean + self.width < published else "cannot be told"

    def __str__(self) -> str:
        return f"{signed(self.mean)} ± {number(self.width, 3)}"


def first_stage(file: PerQuery) -> dict[int, Values]:
    """BM25's own values, the same for every seed."""
    values = np.array(file.labels["BM25"], np.float64)
    return dict.fromkeys((1, 2, 3), values)


def print_overview(results: Results) -> None:
    """One line for each claim that can be compared."""
    file = results.values(f"table1.{DATA}.RR10")
    arms = file.arms
    table = Table("paper", "claim", "published", "here", "verdict", labels=2)

    def row(paper: str, claim: str, published: tuple[float, float], ours: Seeds, theirs: Seeds) -> None:
        low, high = published
        gap = Interval.of(ours, theirs)
        here = f"{number(average(theirs))} → {number(average(ours))} ({gap})"
        table.row(paper, claim, f"{number(low, 3)} → {number(high, 3)}", here, gap.verdict(high - low))

    whole, pointwise = arms["drbert"], arms["pointwise-only"]
    row("Nogueira and Cho", "BERT re-ranks BM25's candidates", (BM25, 0.365), pointwise, first_stage(file))
    row("MarkedBERT, Table 1", "marks around matching words", (0.302, 0.328), arms["marked"], pointwise)
    row("DR-BERT, Table 1", "all parts together, against BERT", (BERT, WHOLE), whole, pointwise)
    for name, (label, without) in DRBERT.items():
        part = label.removeprefix("without ")
        row("DR-BERT, Table 1", part, (without, WHOLE), whole, arms[name])
    before, after = misleading_ranks(results, "sample")
    p = paired_t_test(after, before)
    here = f"{before.mean():.1f} → {after.mean():.1f} (mean of {len(before)}, p {p_value(p)})"
    verdict = "reproduced" if p < 0.05 and after.mean() > before.mean() else "cannot be told"
    table.row("DR-BERT, Table 3", "rank of a passage with a look-alike", "1 → 139, 1 → 71", here, verdict)
    for paper, claim, published, reason in NOT_RUN:
        table.row(paper, claim, published, "not run", f"cannot be told: {reason}")


def misleading_ranks(results: Results, name: str) -> tuple[Values, Values]:
    """The ranks of the misleading documents, without and with STRM."""
    values = results.values(f"rare-words.{name}").labels
    before, after = (np.array(values[f"{model} misleading rank"], np.float64) for model in MODELS)
    return before, after


def print_table1(results: Results) -> None:
    """DR-BERT's Table 1 at equal pairs."""
    reciprocal, precision = (results.values(f"table1.{DATA}.{name}") for name in ("RR10", "AP"))
    columns = ("paper", "seeds", "RR@10", "AP", "− DR-BERT", "p, queries", "p, seeds", "detectable")
    table = Table("", *columns)
    bm25 = (number(average(first_stage(file))) for file in (reciprocal, precision))
    table.row("BM25", number(BM25, 3), "", *bm25, "", "", "", "")
    rows = {"pointwise-only": ("BERT: pointwise, all parts off", BERT), "drbert": ("DR-BERT", WHOLE), **DRBERT}
    for name, (label, published) in rows.items():
        seeds = reciprocal.arms[name]
        cells = (mean_cell(seeds), number(average(precision.arms[name])))
        tests = ("", "", "", "") if name == "drbert" else difference_cells(seeds, reciprocal.arms["drbert"])
        table.row(label, number(published, 3), str(len(seeds)), *cells, *tests)


def print_variants(results: Results) -> None:
    """Other trainings at the same number of pairs."""
    arms = results.values(f"table1.{DATA}.RR10").arms
    columns = ("seeds", "RR@10", "beside", "RR@10", "difference", "p, queries", "p, seeds", "detectable")
    table = Table("", *columns)
    for label, name, other, baseline in VARIANTS:
        ours = arms[name]
        theirs = {seed: arms[baseline][seed] for seed in ours}
        figures = (str(len(ours)), mean_cell(ours), other, mean_cell(theirs))
        table.row(label, *figures, *difference_cells(ours, theirs))


def print_marked(results: Results) -> None:
    """MarkedBERT's Table 2 and Figure 2: marks by the length of the query, and how many queries gain and lose."""
    file = results.values(f"table1.{DATA}.RR10")
    words = np.array(file.labels["words"], np.int64)
    table = Table("words of the query", "queries", "without marks", "with marks", "difference", "gain", "lose")
    for label, (low, high) in {**LENGTHS, "all": (1, 99)}.items():
        mask = (words >= low) & (words <= high)
        base, marked = (
            {seed: values[mask] for seed, values in file.arms[name].items()} for name in ("pointwise-only", "marked")
        )
        gaps = np.mean([marked[seed] - base[seed] for seed in base], axis=0)
        shares = (f"{(gaps > 0).mean():.0%}", f"{(gaps < 0).mean():.0%}")
        means = (number(average(base)), number(average(marked)))
        table.row(label, str(int(mask.sum())), *means, gap_cell(compare(marked, base)), *shares)


def print_noise(results: Results) -> None:
    """Noise reduction where the noise is known."""
    arms = results.values(f"noise.{DATA}.RR10").arms
    table = Table("training candidates", "RR@10", "− noisy", "p, queries", "p, seeds", "detectable")
    noisy = arms["1 of 100/noisy"]
    for name, label in NOISE.items():
        tests = ("", "", "", "") if arms[name] is noisy else difference_cells(arms[name], noisy)
        table.row(label, mean_cell(arms[name]), *tests)


def print_drops(results: Results) -> None:
    """What noise reduction drops: how many hidden relevant passages it finds, and how much else."""
    run = next(run for run in results.runs["noise"] if run["row"] == "1 of 100/threshold 0.9")
    seeds = list(run["seeds"].values())
    table = Table("threshold", "candidates dropped", "hidden passages found", "known relevant among the dropped")
    for place, threshold in enumerate(row["threshold"] for row in seeds[0]["drops"]):
        rows = [seed["drops"][place] for seed in seeds]
        dropped, hidden, total = (float(np.mean([row[name] for row in rows])) for name in ("dropped", "hidden", "of"))
        unjudged = float(np.mean([seed["stages"]["denoise"]["unjudged"] for seed in seeds]))
        precision = number(hidden / dropped, 2) if dropped > 100 else ""
        table.row(f"{threshold:g}"[1:], f"{dropped / unjudged:.1%}", f"{hidden / total:.1%}", precision)


def print_rare_words(results: Results) -> None:
    """DR-BERT's Table 3 over many cases: where the document with the look-alike is ranked."""
    columns = ("right document wins", "mean rank, right", "mean rank, misleading", "p, rank of the misleading")
    table = Table("cases", "attention", *columns, labels=2)
    for name, shown in RARE_WORDS.items():
        values = results.values(f"rare-words.{name}").labels
        ranks = dict(zip(MODELS, misleading_ranks(results, name), strict=True))
        for model in MODELS:
            scores = (np.array(values[f"{model} {which} score"], np.float64) for which in ("right", "misleading"))
            wins = float(np.greater(*scores).mean())
            right = float(np.mean(np.array(values[f"{model} right rank"], np.float64)))
            p = "" if model == MODELS[0] else p_value(paired_t_test(ranks[model], ranks[MODELS[0]]))
            cells = (number(wins, 3), f"{right:.1f}", f"{ranks[model].mean():.1f}", p)
            table.row(f"{shown} ({len(ranks[model])})", model, *cells)


def difference_cells(ours: Seeds, theirs: Seeds) -> tuple[str, str, str, str]:
    """The difference, its p-values and the smallest difference that would be found."""
    gap = compare(ours, theirs)
    return signed(gap.mean), p_value(gap.p_queries), p_value(gap.p_seeds), number(gap.detectable, 3)


VERDICT_TABLES = (
    print_overview,
    print_table1,
    print_variants,
    print_marked,
    print_noise,
    print_drops,
    print_rare_words,
)
