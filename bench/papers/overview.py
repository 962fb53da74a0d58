"""What each paper claims beside what was measured here, and the tables of docs/results.md and docs/ccnu.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness import Table
from papers.results import (
    Effect,
    PerQuery,
    Results,
    Seeds,
    average,
    compare,
    equals,
    first_stage,
    gap_cell,
    interval_cell,
    mean_cell,
    number,
    signed,
)
from papers.rules import LONG, SHORT
from papers.tables import (
    BERT,
    BM25,
    DATA,
    DETAIL_TABLES,
    DOCUMENT_MEASURES,
    DRBERT,
    HEADINGS,
    MARKED,
    MEDQUAD,
    QUESTIONS,
    STAGES,
    TUNED,
    WHOLE,
    WHOLE_MODEL,
    by_pairs,
    crossed,
    document_values,
    marks_by_length,
    marks_by_type,
    misleading_ranks_by_seed,
    rank_cell,
    rare_word_files,
)

Published = tuple[float | None, float]
"""Without and with what is claimed; None where the paper's text does not give the first."""
CCNU_ARM = "softmax, tags, all layers, dropout 0.4, negatives 1"
PAIRS = "144,000 pairs"
ON_CANDIDATES = f"{DATA}, 500 queries, {PAIRS}"
MARKS = (0.302, 0.328)
SUMMARY_DATA = {"insuranceqa": 2000, "questions": 1568, "headings": 3000, "medquad": 1655}
SUMMARY_ROWS = {
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
CCNU_MEASURES = {"AP": "MAP", "nDCG": "nDCG", "P10": "P@10"}
TAGS_COMPARED = "all layers, dropout 0.2, negatives 2"


class Overview:
    """The table: a claim, what it was measured on here, the paper's figures, ours, and the verdict."""

    def __init__(self) -> None:
        columns = ("published", "here", "difference", "detectable", "verdict")
        self._table = Table("paper", "claim", "measured on", *columns, labels=3)

    def effect(
        self, paper: str, claim: str, setting: str, published: Published | None, ours: Seeds, theirs: Seeds
    ) -> None:
        """A row for a difference over seeds and queries."""
        low, high = published or (None, None)
        effect = Effect.of(ours, theirs)
        gap = None if low is None or high is None else high - low
        shown = "" if high is None else number(high, 3)
        if low is not None and gap is not None:
            shown = f"{number(low, 3)} → {shown} ({signed(gap)})"
        here = f"{number(average(theirs))} → {number(average(ours))}"
        cells = (interval_cell(effect), number(effect.detectable, 3), effect.verdict(gap))
        where = f"{setting}, {len(ours.keys() & theirs.keys())} seeds"
        self._table.row(paper, claim, where, shown, here, *cells)

    def trained_once(
        self, paper: str, claim: str, setting: str, published: str, ours: Seeds, theirs: Seeds, verdict: str = ""
    ) -> None:
        """A row for a difference over queries, of one training."""
        gap = compare(ours, theirs)
        here = f"{number(average(theirs))} → {number(average(ours))}"
        clear = gap.mean > 0 and gap.p_queries < 0.05
        cells = (f"{signed(gap.mean)}, p {equals(gap.p_queries)}", number(gap.detectable, 3))
        verdict = verdict or ("reproduced" if clear else "not reproduced")
        self._table.row(paper, claim, f"{setting}, 1 seed", published, here, *cells, verdict)

    def row(self, paper: str, claim: str, setting: str, published: str, *cells: str) -> None:
        """A row of another kind: here, difference, detectable, verdict."""
        self._table.row(paper, claim, setting, published, *cells)


def print_overview(results: Results) -> None:
    """One line for each claim that can be compared."""
    overview = Overview()
    files = {data: results.values(f"table1.{data}.RR10") for data in (DATA, QUESTIONS, HEADINGS)}
    _add_bert(overview, results, files)
    for data in (DATA, QUESTIONS):
        arms = files[data].arms
        claim, marks = "marks around matching words", (arms["marked"], arms["pointwise-only"])
        overview.effect("MarkedBERT, Table 1", claim, f"{data}, {PAIRS}", MARKS, *marks)
    marks = crossed(results, "doc2query", MARKED, 1000)
    overview.effect("MarkedBERT, Table 1", "marks, doc2query's 1,000 candidates", ON_CANDIDATES, MARKS, *marks)
    _add_groups(overview, results)
    for data in (DATA, QUESTIONS):
        arms = files[data].arms
        claim, parts = "all parts together, against BERT", (arms["drbert"], arms["pointwise-only"])
        overview.effect("DR-BERT, Table 1", claim, f"{data}, {PAIRS}", (BERT, WHOLE), *parts)
    parts = crossed(results, "deepct", WHOLE_MODEL, 1000)
    overview.effect("DR-BERT, Table 1", "all parts, DeepCT's 1,000 candidates", ON_CANDIDATES, (BERT, WHOLE), *parts)
    arms = files[DATA].arms
    for name, (label, without) in DRBERT.items():
        part = label.removeprefix("without ")
        parts = arms["drbert"], arms[name]
        overview.effect("DR-BERT, Table 1", part, f"{DATA}, {PAIRS}", (without, WHOLE), *parts)
    _add_long(overview, results, arms["listwise-only"])
    _add_types_and_noise(overview, results)
    _add_rare_words(overview, results)
    _add_first_stages(overview, results)
    _add_ccnu(overview, results)


def _add_bert(overview: Overview, results: Results, files: Mapping[str, PerQuery]) -> None:
    paper, claim = "Nogueira and Cho, Table 1", "BERT re-ranks BM25's candidates"
    for data, file in files.items():
        both = file.arms["pointwise-only"], first_stage(file)
        overview.effect(paper, claim, f"{data}, {PAIRS}", (BM25, 0.365), *both)
    file = results.values(f"table1.{HEADINGS}.AP")
    both = file.arms["pointwise-only"], first_stage(file)
    overview.effect(paper, "the same on TREC-CAR, AP", f"{HEADINGS}, {PAIRS}", (None, 0.335), *both)
    curve, bm25 = by_pairs(files[DATA]), first_stage(files[DATA])
    # From the fewest pairs on that are enough.
    pairs = min(pairs for pairs, seeds in curve.items() if Effect.of(seeds, bm25).verdict(None) == "reproduced")
    claim, setting = "few pairs are enough to beat BM25", f"{DATA}, {pairs:,} pairs"
    overview.effect("Nogueira and Cho, Figure 1", claim, setting, None, curve[pairs], bm25)


def _add_groups(overview: Overview, results: Results) -> None:
    """MarkedBERT's tables by groups of queries."""
    for paper, claim, published, groups in (
        ("MarkedBERT, Table 2", "marks help at every length", "9 of 9", marks_by_length),
        ("MarkedBERT, Table 3", "marks help most types", "5 of 6", marks_by_type),
    ):
        for data in (DATA, QUESTIONS):
            gaps = [compare(marked, base) for _, _, base, marked in groups(results, data)]
            higher, clear = (sum(gap.mean > 0 and gap.p_queries < limit for gap in gaps) for limit in (2, 0.05))
            verdict = "reproduced" if 2 * clear > len(gaps) else "not reproduced"
            cells = (f"{higher} of {len(gaps)}", f"p < .05 in {clear}", "", verdict)
            overview.row(paper, claim, f"{data}, {PAIRS}, 3 seeds", published, *cells)


def _add_long(overview: Overview, results: Results, listwise: Seeds) -> None:
    """Two parts of DR-BERT on their own, with long pre-training: pre-training itself, and STRM."""
    rules = results.of_page("attention-rules")
    arms = {data: rules.values(f"rules.{data}.RR10").arms for data in (DATA, "medquad")}
    before = {DATA: listwise, "medquad": arms["medquad"][f"{SHORT}/full"]}
    claim, published = "pre-training alone, 20,000 steps", (DRBERT["no-pretraining"][1], WHOLE)
    for data, file in arms.items():
        both = file[f"{LONG}/full"], before[data]
        overview.effect("DR-BERT, Table 1", claim, f"{data}, {PAIRS}", published, *both)
    claim, published = "STRM alone, after 20,000 steps under it", (DRBERT["no-strm"][1], WHOLE)
    for data, file in arms.items():
        both = file[f"{LONG}/strm"], file[f"{LONG}/full"]
        overview.effect("DR-BERT, Table 1", claim, f"{data}, {PAIRS}", published, *both)


def _add_types_and_noise(overview: Overview, results: Results) -> None:
    """Two more parts of DR-BERT on their own; the paper has no figure for noise reduction."""
    arms = results.values(f"table1.{MEDQUAD}.RR10").arms
    published = DRBERT["no-types"][1], WHOLE
    setting = f"{MEDQUAD}, {PAIRS}"
    overview.effect("DR-BERT, Table 1", "types alone", setting, published, arms["typed"], arms["full"])
    arms = results.values(f"noise.{DATA}.RR10").arms
    for hidden in (100, 33, 10):
        both = arms[f"1 of {hidden}/threshold 0.9"], arms[f"1 of {hidden}/noisy"]
        claim, setting = "noise reduction", f"{DATA}, 1 of {hidden} candidates is noise"
        overview.effect("DR-BERT, section 3.1.2", claim, setting, None, *both)


def _add_rare_words(overview: Overview, results: Results) -> None:
    """DR-BERT's Table 3: ranks instead of a measure."""
    for label, file in rare_word_files(results).items():
        full, strm = misleading_ranks_by_seed(file)
        effect = Effect.of(strm, full)
        cells = (f"{average(full):.1f} → {average(strm):.1f}", f"{rank_cell(effect.mean)} ± {effect.width:.1f}")
        setting = f"{label}, {len(full[1])} cases, {len(full)} seeds"
        tests = (f"{effect.detectable:.1f}", effect.verdict(70))
        claim = "rank of a passage with a look-alike"
        overview.row("DR-BERT, Table 3", claim, setting, "1 → 139, 1 → 71", *cells, *tests)


def _add_first_stages(overview: Overview, results: Results) -> None:
    """First stages that learn, beside BM25."""
    arms = results.values(f"first-stage.{DATA}.RR10").arms
    published = {"deepct": ("DR-BERT, Table 1", 0.167), "doc2query": ("MarkedBERT, Table 1", 0.184)}
    for name, (paper, bm25) in published.items():
        label, value = STAGES[name]
        shown = f"{number(bm25, 3)} → {number(value, 3)} ({signed(value - bm25)})"
        setting = f"{DATA}, {len(arms[name][1]):,} queries"
        overview.trained_once(paper, f"{label} against BM25", setting, shown, arms[name], arms[TUNED])


def _add_ccnu(overview: Overview, results: Results) -> None:
    """BM25's MAP beside that of the sum of BM25 and the network, for passages and for documents."""
    file = results.values(f"sdnet.{DATA}.AP")
    both = file.arms[f"{CCNU_ARM}/both"]
    setting, bm25 = f"{DATA}, {len(both[1])} queries", {1: first_stage(file)[1]}
    verdict = "cannot be told: small model and data, no TREC 2019"
    overview.trained_once("CCNU, Table 1", "passages: MAP", setting, ".278", both, bm25, verdict)
    both, bm25 = (document_values(results, "AP", row) for row in ("interpolate", None))
    published = number(DOCUMENT_MEASURES["AP"][1], 3)
    setting, verdict = f"{MEDQUAD}, {len(both[1]):,} queries", "cannot be told: no figure of BM25, no TREC 2019"
    overview.trained_once("CCNU, Table 2", "documents: MAP", setting, published, both, bm25, verdict)


PAPER_TABLES = (print_overview, *DETAIL_TABLES)


def print_summary(folder: Path) -> None:
    """RR@10 of BM25 and of every row that was trained: rankers with three seeds, first stages with one."""
    papers, rules = Results(folder / "papers"), Results(folder / "attention-rules")
    files = {data: papers.values(f"table1.{data}.RR10") for data in SUMMARY_DATA if data != "medquad"}
    files["medquad"] = rules.values("rules.medquad.RR10")
    # The attention rules were compared by listwise training alone, from the same pre-training.
    arms = {data: file.arms for data, file in files.items()}
    both = papers.values("table1.medquad.RR10").arms["full"]
    arms["medquad"] = {"listwise-only": arms["medquad"][f"{SHORT}/full"], "full": both}
    first_stages = papers.values("first-stage.insuranceqa.RR10").arms
    arms["insuranceqa"] |= {name: first_stages[name] for name in ("deepct", "doc2query")}
    for data in ("insuranceqa", "medquad"):
        arms[data]["long"] = rules.values(f"rules.{data}.RR10").arms[f"{LONG}/full"]
    table = Table("RR@10", *(f"{data} ({queries:,})" for data, queries in SUMMARY_DATA.items()))
    table.row("BM25", *(number(average(first_stage(file))) for file in files.values()))
    for name, label in SUMMARY_ROWS.items():
        table.row(label, *(mean_cell(arms[data][name]) if name in arms[data] else "" for data in SUMMARY_DATA))


def print_sdnet(results: Results) -> None:
    """Each trained network alone and with BM25's share, beside BM25."""
    files = {name: results.values(f"sdnet.{DATA}.{name}") for name in CCNU_MEASURES}
    table = Table("", *CCNU_MEASURES.values(), "MAP − BM25", labels=1)
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
    table = Table("data (queries)", "k2", *CCNU_MEASURES.values(), "MAP, difference", labels=2)
    for data in ("insuranceqa", "medquad"):
        files = {name: results.values(f"first-stage.{data}.{name}") for name in CCNU_MEASURES}
        plain = {name: {1: first_stage(file)[1]} for name, file in files.items()}
        k2 = {name: file.arms["BM25, k2 8"] for name, file in files.items()}
        label = f"{data} ({len(k2['AP'][1]):,})"
        table.row(label, "none", *(number(average(seeds)) for seeds in plain.values()), "")
        gap = gap_cell(compare(k2["AP"], plain["AP"]), 4)
        table.row(label, "8", *(number(average(seeds)) for seeds in k2.values()), gap)


CCNU_TABLES = (print_sdnet, print_tags, print_k2)
