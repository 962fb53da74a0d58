"""The tables of the papers' pages, computed from the kept values: ``python -m tests.paper_tables`` prints them.

What a suite measured is shown as the suite's own table of claims. Earlier measurements, made before there were suites,
are differences between two columns of a file.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rankwell.core.arrays import Values
from rankwell.evaluation.tables import as_markdown
from rankwell.training.experiments.claims import Effect, claims_table, number, read_values, signed
from rankwell.training.experiments.experiment import read_suite
from rankwell.training.recipe_reader import Override

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
COLUMNS = {"as published": "as-published", "at equal training": "at-equal-training"}
FIRST = "BM25"

Seeds = dict[int, Values]
Earlier = tuple[str, str, str, str]
"""What is compared, the file, the column with it, and the column without it."""

EARLIER: dict[str, Sequence[Earlier]] = {
    "monobert": [
        ("BERT against BM25, InsuranceQA", "papers/table1.insuranceqa.RR10", "pointwise-only", FIRST),
        ("BERT against BM25, Wikipedia's questions", "papers/table1.questions.RR10", "pointwise-only", FIRST),
        ("BERT against BM25, Wikipedia's headings", "papers/table1.headings.RR10", "pointwise-only", FIRST),
        ("BERT against BM25, headings, AP", "papers/table1.headings.AP", "pointwise-only", FIRST),
    ],
    "marks": [
        ("marks, InsuranceQA", "papers/table1.insuranceqa.RR10", "marked", "pointwise-only"),
        ("marks, Wikipedia's questions", "papers/table1.questions.RR10", "marked", "pointwise-only"),
        ("also on words without a match", "papers/table1.insuranceqa.RR10", "marked-unmatched", "marked"),
        *(
            (
                f"marks, doc2query's first {depth}",
                "papers/depths.insuranceqa.doc2query",
                f"marked RR@10 at {depth}",
                f"pointwise-only RR@10 at {depth}",
            )
            for depth in (10, 100, 1000)
        ),
    ],
    "drbert": [
        ("all parts, Wikipedia's questions", "papers/table1.questions.RR10", "drbert", "pointwise-only"),
        ("only relevant passages that BM25 found", "papers/table1.insuranceqa.RR10", "found-only", "listwise-only"),
        (
            "20,000 steps of pre-training, InsuranceQA",
            "attention-rules/rules.insuranceqa.RR10",
            "pretrained-20000/full",
            "pretrained-6500/full",
        ),
        (
            "20,000 steps of pre-training, MedQuAD",
            "attention-rules/rules.medquad.RR10",
            "pretrained-20000/full",
            "pretrained-6500/full",
        ),
        ("types given with MedQuAD", "papers/table1.medquad.RR10", "typed", "full"),
        ("types guessed by rules", "papers/table1.medquad.RR10", "rule-types", "full"),
        ("types shuffled", "papers/table1.medquad.RR10", "shuffled-types", "full"),
        *(
            (
                f"noise reduction, 1 of {n} candidates is noise",
                "papers/noise.insuranceqa.RR10",
                f"1 of {n}/threshold 0.9",
                f"1 of {n}/noisy",
            )
            for n in (100, 33, 10)
        ),
    ],
    "look-alikes": [
        (
            f"{cases}, models of {data}",
            f"papers/rare-words.{data}.{file}",
            "STRM misleading rank",
            "full misleading rank",
        )
        for file, cases in (("sample", "bundled sample"), ("mined", "mined from the data"))
        for data in ("insuranceqa", "medquad")
    ],
    "rules": [
        (f"{rule} from {start}, {name}", f"attention-rules/rules.{data}.RR10", f"{arm}/{rule_arm}", f"{arm}/full")
        for data, name in (("medquad", "MedQuAD"), ("insuranceqa", "InsuranceQA"), ("questions", "questions"))
        for arm, start in (
            ("minilm", "MiniLM"),
            ("pretrained-6500", "6,500 steps"),
            ("pretrained-20000", "20,000 more"),
        )
        for rule_arm, rule in (("strm", "STRM"), ("exact_match", "exact match"))
        if arm != "pretrained-20000" or (rule_arm == "strm" and data != "questions")
    ],
    "deepct": [
        ("DeepCT, RR@10", "papers/first-stage.insuranceqa.RR10", "deepct", "BM25, tuned"),
        ("DeepCT, R@1000", "papers/first-stage.insuranceqa.R1000", "deepct", "BM25, tuned"),
    ],
    "doc2query": [
        ("doc2query, RR@10", "papers/first-stage.insuranceqa.RR10", "doc2query", "BM25, tuned"),
        ("doc2query, R@1000", "papers/first-stage.insuranceqa.R1000", "doc2query", "BM25, tuned"),
    ],
    "documents": [
        ("windows alone", "papers/document.medquad.AP", "windows", FIRST),
        ("windows and BM25", "papers/document.medquad.AP", "interpolate", FIRST),
    ],
    "sdnet": [
        (f"{label}: {part_label}", "papers/sdnet.insuranceqa.AP", f"{arm}/{part}", FIRST)
        for arm, label in (
            ("softmax, tags, all layers, dropout 0.4, negatives 1", "the paper's settings"),
            ("dot, no tags, all layers, dropout 0.2, negatives 2", "dot products, dropout .2"),
            ("dot, tags, all layers, dropout 0.2, negatives 2", "the same with tags"),
        )
        for part, part_label in (("S", "S alone"), ("both", "with BM25"))
    ],
}
PAGES = {
    "monobert.md": ["claims monobert", "monobert"],
    "markedbert.md": ["marks"],
    "drbert.md": ["claims drbert-table1", "rows drbert-table1", "drbert", "look-alikes"],
    "attention-rules.md": ["rules"],
    "deepct.md": ["deepct"],
    "doc2query.md": ["doc2query"],
    "ccnu.md": ["sdnet", "documents"],
}
"""The tables of each page, in order."""


def seeds_of(path: Path, row: str) -> Seeds:
    """The values of a row by seed; a column without seeds is one."""
    rows = read_values(path)
    if row in rows:
        return rows[row]
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return {0: np.array([float(line[row]) for line in csv.DictReader(file)])}


def average(seeds: Seeds) -> float:
    """The mean over seeds and queries."""
    return float(np.mean([values.mean() for values in seeds.values()]))


def earlier_table(rows: Sequence[Earlier]) -> list[str]:
    """Differences that were measured before there were suites."""
    lines = ["| | seeds | without | with | difference | detectable |", "|---|---:|---:|---:|---:|---:|"]
    for label, file, row, against in rows:
        path = RESULTS / f"{file}.csv.gz"
        ours, theirs = seeds_of(path, row), seeds_of(path, against)
        effect, seeds = Effect.of(ours, theirs), max(len(ours.keys() & theirs.keys()), 1)
        if len(theirs) == 1:
            seeds = len(ours)
        digits = 1 if average(ours) > 1 else 3  # ranks, or measures
        gap = f"{signed(effect.mean, digits)} ± {number(effect.width, digits)}"
        means = f"{number(average(theirs), digits)} | {number(average(ours), digits)}"
        lines.append(f"| {label} | {seeds} | {means} | {gap} | {number(effect.detectable, digits)} |")
    return lines


def kept(suite: str) -> dict[str, dict[str, Seeds]]:
    """The values of each column of a suite that were kept."""
    files = {column: RESULTS / "papers" / f"{suite}.insuranceqa.{name}.RR10.csv.gz" for column, name in COLUMNS.items()}
    return {column: read_values(path) if path.exists() else {} for column, path in files.items()}


def suite_claims(suite: str) -> list[str]:
    """The table of claims that the suite itself writes."""
    claims = read_suite(suite, [Override("data", "/data")]).suite.claims
    columns = {column: rows for column, rows in kept(suite).items() if rows}
    table = claims_table(claims, list(columns), {(column, "dev"): rows for column, rows in columns.items()})
    return as_markdown(table).split("\n\n")[0].splitlines()


def suite_rows(suite: str) -> list[str]:
    """The mean, the number of seeds and the deviation between them of each row and column."""
    columns = kept(suite)
    heads = [head for name in columns for head in (name, "seeds")]
    lines = ["| RR@10 | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for row in dict.fromkeys(name for rows in columns.values() for name in rows):
        cells = []
        for rows in columns.values():
            means = [float(values.mean()) for values in rows[row].values()]
            deviation = f" ± {number(float(np.std(means, ddof=1)))}" if len(means) > 1 else ""
            cells += [number(float(np.mean(means)), 4) + deviation, str(len(means))]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return lines


def table(name: str) -> list[str]:
    """The lines of a table by its name in :data:`PAGES`."""
    kind, _, suite = name.partition(" ")
    if kind == "claims":
        return suite_claims(suite)
    return suite_rows(suite) if kind == "rows" else earlier_table(EARLIER[name])


if __name__ == "__main__":
    for page, names in PAGES.items():
        for name in names:
            print(f"## {page}: {name}\n\n" + "\n".join(table(name)) + "\n")
