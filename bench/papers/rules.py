"""The tables of docs/attention-rules.md, computed from the files in docs/results/attention-rules and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from harness import Table
from papers.results import (
    Effect,
    PerQuery,
    Results,
    Seeds,
    average,
    compare,
    effect_cells,
    equals,
    gap_cell,
    mean_cell,
    number,
    p_value,
    rate_cell,
    signed,
    wins,
)
from rankwell.core.arrays import Values
from rankwell.evaluation.significance import holm

DATA = ("medquad", "insuranceqa", "questions")
SHORT, LONG = "pretrained-6500", "pretrained-20000"
STARTS = {"minilm": "MiniLM", SHORT: "pre-trained"}
ALL_STARTS = {**STARTS, LONG: "20,000 steps more"}
"""The last has full attention and STRM alone, on two data sets."""
RULES = {"strm": "STRM", "exact_match": "exact_match"}


def read_rules(results: Results, measure: str = "RR10") -> dict[str, PerQuery]:
    """The rankings under the three rules, by data set."""
    return {data: results.values(f"rules.{data}.{measure}") for data in DATA}


def arms(data: Sequence[str] = DATA) -> list[tuple[str, str, str]]:
    """Every comparison with full attention: data set, start and rule."""
    return [(name, start, rule) for name in data for start in STARTS for rule in RULES]


def print_summary(results: Results) -> None:
    """How many of the comparisons with full attention are significant."""
    table = Table("measure", "unit of the test", "lower than full", "p < .05", "p < .05 after Holm", labels=2)
    for measure, label in (("RR10", "RR@10"), ("nDCG10", "nDCG@10")):
        files = read_rules(results, measure)
        pairs = [
            (files[data].arms[f"{start}/{rule}"], files[data].arms[f"{start}/full"]) for data, start, rule in arms()
        ]
        gaps = [compare(*pair) for pair in pairs]
        lower = sum(gap.mean < 0 for gap in gaps)
        for unit, ps in (
            ("queries", [gap.p_queries for gap in gaps]),
            ("seeds", [gap.p_seeds for gap in gaps if gap.p_seeds is not None]),
            ("seeds and queries", [Effect.of(*pair).p for pair in pairs]),
        ):
            counts = (lower, sum(p < 0.05 for p in ps), sum(p < 0.05 for p in holm(ps)))
            table.row(label, unit, *(f"{count} of {len(ps)}" for count in counts))


def print_rules(results: Results) -> None:
    """RR@10 under each rule beside full attention."""
    columns = ("rate", "RR@10", "full attention", "difference", "p, queries", "p, seeds", "detectable", "split words")
    table = Table("data", "start", "rule", *columns, labels=3)
    files = read_rules(results)
    rates = {(run["data"], run["id"]): run["rate"] for run in results.runs["rules"]}
    for data, start, rule in arms():
        arm, full = f"{start}/{rule}", f"{start}/full"
        found, split = files[data].arms, files[data].rows("split word", "1")
        gap = compare(found[arm], found[full])
        tests = (p_value(gap.p_queries), p_value(gap.p_seeds), number(gap.detectable, 3))
        figures = (mean_cell(found[arm]), mean_cell(found[full]), signed(gap.mean), *tests)
        on_split = gap_cell(compare(split[arm], split[full]))
        table.row(data, STARTS[start], RULES[rule], rate_cell(rates[data, arm]), *figures, on_split)


def print_pretraining(results: Results) -> None:
    """Held-out figures of the general pre-training, and what it changes in the ranking."""
    table = Table("rule", "MLM loss", "MLM accuracy", "NSP accuracy", *(f"RR@10, {data}" for data in DATA))
    files = read_rules(results)
    for run in results.runs["pretraining"]:
        if not run["id"].startswith("general/") or run["steps"] != 6500:
            continue
        rule, after = run["rule"], run["held-out after"]
        held_out = (number(after["mlm_loss"], 2), number(after["mlm_accuracy"], 3), number(after["nsp_accuracy"], 3))
        both = ((files[data].arms[f"pretrained-6500/{rule}"], files[data].arms[f"minilm/{rule}"]) for data in DATA)
        table.row(RULES.get(rule, rule), *held_out, *(gap_cell(compare(ours, plain)) for ours, plain in both))


def print_traps(results: Results) -> None:
    """Trap pairs: how often the true passage wins, beside a look-alike and beside an unlike word."""
    rules = ("full", *RULES)
    tested = ("STRM − full", "p, seeds too", "exact_match − full", "p, seeds too")
    columns = (*(RULES.get(rule, rule) for rule in rules), *tested)
    table = Table("data (pairs)", "start", *columns, "against an unlike word", "cost ratios", labels=2)
    for data in DATA:
        file = results.values(f"traps.{data}")
        alike, unlike = file.rows("replacement", "look-alike"), file.rows("replacement", "unlike")
        for start, shown in ALL_STARTS.items():
            won = {rule: wins(alike[arm]) for rule in rules if (arm := f"{start}/{rule}") in alike}
            if not won:
                continue
            tests: list[str] = []
            for rule in RULES:
                pair = (won[rule], won["full"]) if rule in won else None
                tests += [gap_cell(compare(*pair)), p_value(Effect.of(*pair).p)] if pair else ["", ""]
            shares = (number(average(won[rule]), 3) if rule in won else "" for rule in rules)
            plain = ", ".join(number(average(wins(unlike[f"{start}/{rule}"])), 3) for rule in won)
            costs = ((average(some[f"{start}/{rule}"]) for some in (alike, unlike)) for rule in won)
            ratios = ", ".join(number(cost / other, 2) for cost, other in costs)
            table.row(f"{data} ({len(won['full'][1])})", shown, *shares, *tests, plain, ratios)


def print_rare_words(results: Results) -> None:
    """The rare-word cases of the bundled sample, averaged over the models trained on the three data sets."""
    files = {data: results.values(f"rare-words.{data}").arms for data in DATA}

    def pooled(arm: str, change: Callable[[Seeds], Seeds]) -> dict[int, Values]:
        changed = [change(arms[arm]) for arms in files.values() if arm in arms]
        return {seed: np.mean([seeds[seed] for seeds in changed], axis=0) for seed in changed[0]}

    columns = ("wins", "wins under full", "wins − full", "margin − full", "p, seeds too")
    table = Table("start", "rule", *columns, labels=2)
    for start, shown in ALL_STARTS.items():
        for rule, name in RULES.items():
            if not any(f"{start}/{rule}" in arms for arms in files.values()):
                continue
            ours, full = pooled(f"{start}/{rule}", wins), pooled(f"{start}/full", wins)
            margins = pooled(f"{start}/{rule}", dict), pooled(f"{start}/full", dict)
            shares = (number(average(ours), 3), number(average(full), 3))
            cells = (gap_cell(compare(ours, full)), gap_cell(compare(*margins), 2), p_value(Effect.of(*margins).p))
            table.row(shown, name, *shares, *cells)


def print_candidates(results: Results) -> None:
    """Candidates that contain a look-alike of a query word, as retrieval finds them."""
    columns = ("full attention", "STRM − full", "exact_match − full", "detectable, larger of the two")
    table = Table("data (queries, documents)", "start", *columns, labels=2)
    for data in DATA:
        file = results.values(f"candidates.{data}")
        alike = file.rows("other", "look-alike")
        for start in ("minilm", LONG):
            full = alike.get(f"{start}/full")
            if full is None:
                continue
            queries = len(full[1])
            documents = sum(map(int, file.labels["look-alike documents"][:queries]))
            gaps = {rule: compare(alike[arm], full) for rule in RULES if (arm := f"{start}/{rule}") in alike}
            cells = (gap_cell(gaps[rule], 4) if rule in gaps else "" for rule in RULES)
            largest = max(gap.detectable for gap in gaps.values())
            label = f"{data} ({queries}, {documents:,})"
            table.row(label, ALL_STARTS[start], number(average(full)), *cells, number(largest, 3))


def print_long(results: Results) -> None:
    """STRM beside full attention after no, short and long pre-training, each under its own rule."""
    columns = ("full attention", "STRM", "STRM − full", "p", "detectable", "split words")
    table = Table("data", "pre-training", *columns, labels=2)
    names = {"minilm": "none", SHORT: "6,500 steps", LONG: "6,500 and 20,000"}
    for data in DATA:
        file = results.values(f"rules.{data}.RR10")
        if f"{LONG}/strm" not in file.arms:
            continue
        split = file.rows("split word", "1")
        gaps: dict[str, dict[int, Values]] = {}
        for start, shown in names.items():
            full, strm = (file.arms[f"{start}/{rule}"] for rule in ("full", "strm"))
            gaps[start] = {seed: strm[seed] - full[seed] for seed in full}
            effect = Effect.of(strm, full)
            on_split = Effect.of(split[f"{start}/strm"], split[f"{start}/full"])
            cells = (mean_cell(full), mean_cell(strm), *effect_cells(effect))
            table.row(data, shown, *cells, f"{signed(on_split.mean)} (p {equals(on_split.p)})")
        changes = [Effect.of(*(file.arms[f"{start}/{rule}"] for start in (LONG, SHORT))) for rule in ("full", "strm")]
        shown_changes = (f"{signed(change.mean)} (p {equals(change.p)})" for change in changes)
        table.row(
            data, "what 20,000 steps change", *shown_changes, *effect_cells(Effect.of(gaps[LONG], gaps[SHORT])), ""
        )


def print_repeats(results: Results) -> None:
    """Trainings that were done twice with one seed."""
    table = Table("data", "rule", "rates chosen", "RR@10, first", "RR@10, second", "difference", labels=2)
    files = read_rules(results)
    for run in results.runs["repeated"]:
        arm, file = run["id"], files[run["data"]]
        first, second = file.repeated[arm][1], file.arms[arm][1]
        rates = ", ".join(map(rate_cell, run["rates"]))
        cells = (number(float(first.mean())), number(float(second.mean())), gap_cell(compare({1: second}, {1: first})))
        rule = arm.rpartition("/")[2]
        table.row(run["data"], RULES.get(rule, rule), rates, *cells)


RULE_TABLES = (
    print_summary,
    print_rules,
    print_pretraining,
    print_long,
    print_traps,
    print_rare_words,
    print_candidates,
    print_repeats,
)
