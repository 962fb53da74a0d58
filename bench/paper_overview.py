"""The tables of docs/papers.md, in its order; first what each paper claims beside what was measured here.

All of ours is computed from the files in docs/results/papers; the papers' own figures are written down here.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness import Table
from paper_statistics import Effect, Seeds
from paper_tables import LONG, SHORT, PerQuery, Results, average, compare, equals, number, signed
from paper_verdicts import (
    BERT,
    BM25,
    DATA,
    DRBERT,
    HEADINGS,
    QUESTIONS,
    WHOLE,
    first_stage,
    interval_cell,
    marks_by_length,
    marks_by_type,
    misleading_ranks_by_seed,
    print_ceiling,
    print_drops,
    print_headings,
    print_marked,
    print_noise,
    print_pretraining,
    print_query_types,
    print_questions,
    print_rare_words,
    print_rare_words_by_seed,
    print_table1,
    print_types,
    print_variants,
    rank_cell,
    rare_word_files,
)

Published = tuple[float | None, float]
"""Without and with what is claimed; None where the paper's text does not give the first."""
NOT_RUN = (
    ("Nogueira and Cho, Figure 1", "RR@10 by the number of training pairs", ""),
    ("MarkedBERT, Table 1", "marks on doc2query's 1,000 candidates", ".302 → .328"),
    ("DR-BERT, Table 1", "all parts on DeepCT's 1,000 candidates", ".367 → .420"),
    ("CCNU, Table 2", "documents: MAP, nDCG, P@10", ".237, .430, .598"),
)
CCNU_ARM = "softmax, tags, all layers, dropout 0.4, negatives 1"
PAIRS = "144,000 pairs"


class Overview:
    """The table: a claim, what it was measured on here, the paper's figures, ours, and the verdict."""

    def __init__(self) -> None:
        columns = ("published", "here", "difference", "detectable", "verdict")
        self._table = Table("paper", "claim", "measured on", *columns, labels=3)

    def effect(self, paper: str, claim: str, setting: str, published: Published, ours: Seeds, theirs: Seeds) -> None:
        """A row for a difference over seeds and queries."""
        low, high = published
        effect = Effect.of(ours, theirs)
        gap = None if low is None else high - low
        shown = number(high, 3) if low is None else f"{number(low, 3)} → {number(high, 3)} ({signed(high - low)})"
        here = f"{number(average(theirs))} → {number(average(ours))}"
        cells = (interval_cell(effect), number(effect.detectable, 3), effect.verdict(gap))
        where = f"{setting}, {len(ours.keys() & theirs.keys())} seeds"
        self._table.row(paper, claim, where, shown, here, *cells)

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
        overview.effect("MarkedBERT, Table 1", claim, f"{data}, {PAIRS}", (0.302, 0.328), *marks)
    _add_groups(overview, results)
    for data in (DATA, QUESTIONS):
        arms = files[data].arms
        claim, parts = "all parts together, against BERT", (arms["drbert"], arms["pointwise-only"])
        overview.effect("DR-BERT, Table 1", claim, f"{data}, {PAIRS}", (BERT, WHOLE), *parts)
    arms = files[DATA].arms
    for name, (label, without) in DRBERT.items():
        part = label.removeprefix("without ")
        parts = arms["drbert"], arms[name]
        overview.effect("DR-BERT, Table 1", part, f"{DATA}, {PAIRS}", (without, WHOLE), *parts)
    _add_long(overview, results, arms["listwise-only"])
    _add_rare_words(overview, results)
    _add_ccnu(overview, results)
    for paper, claim, published in NOT_RUN:
        overview.row(paper, claim, "", published, "not run", "", "", "")


def _add_bert(overview: Overview, results: Results, files: Mapping[str, PerQuery]) -> None:
    paper, claim = "Nogueira and Cho, Table 1", "BERT re-ranks BM25's candidates"
    for data, file in files.items():
        both = file.arms["pointwise-only"], first_stage(file)
        overview.effect(paper, claim, f"{data}, {PAIRS}", (BM25, 0.365), *both)
    file = results.values(f"table1.{HEADINGS}.AP")
    both = file.arms["pointwise-only"], first_stage(file)
    overview.effect(paper, "the same on TREC-CAR, AP", f"{HEADINGS}, {PAIRS}", (None, 0.335), *both)


def _add_groups(overview: Overview, results: Results) -> None:
    """MarkedBERT's tables by groups of queries."""
    for paper, claim, published, groups in (
        ("MarkedBERT, Table 2", "marks help at every length", "9 of 9", marks_by_length),
        ("MarkedBERT, Table 3", "marks help most types", "5 of 6", marks_by_type),
    ):
        for data in (DATA, QUESTIONS):
            gaps = [compare(marked, base) for _, base, marked in groups(results, data)]
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


def _add_ccnu(overview: Overview, results: Results) -> None:
    """BM25's MAP beside that of the sum of BM25 and the network."""
    file = results.values(f"sdnet.{DATA}.AP")
    both = file.arms[f"{CCNU_ARM}/both"]
    bm25 = dict.fromkeys(both, first_stage(file)[1])
    gap = compare(both, bm25)
    cells = (f"{number(average(bm25))} → {number(average(both))}", f"{signed(gap.mean)}, p {equals(gap.p_queries)}")
    verdict = "cannot be told: small model and data, no TREC 2019"
    setting = f"{DATA}, {len(next(iter(both.values())))} queries, 1 seed"
    overview.row("CCNU, Table 1", "passages: MAP", setting, ".278", *cells, number(gap.detectable, 3), verdict)


VERDICT_TABLES = (
    print_overview,
    print_table1,
    print_variants,
    print_query_types,
    print_questions,
    print_headings,
    print_ceiling,
    print_pretraining,
    print_marked,
    print_types,
    print_noise,
    print_drops,
    print_rare_words,
    print_rare_words_by_seed,
)
