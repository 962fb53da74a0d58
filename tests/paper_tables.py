"""The tables of the papers' pages, computed from the kept values: ``python -m tests.paper_tables`` prints them.

What a suite measured is shown as the suite's own table of claims. Earlier measurements, made before there were suites,
are differences between two columns of a file.
"""

from __future__ import annotations

import csv
import gzip
import tarfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from rankwell.core.arrays import Values
from rankwell.evaluation.tables import as_markdown
from rankwell.training.experiments.claims import (
    Claim,
    Effect,
    claims_table,
    corrected,
    effect_of,
    number,
    signed,
)
from rankwell.training.experiments.experiment import read_suite
from rankwell.training.experiments.suite_tables import DEV, file_name
from rankwell.training.recipe_files import SAMPLE_FOLDER
from rankwell.training.recipe_reader import Override

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
KEPT = {
    "ccnu-data": ("insuranceqa", "AP"),
    "ccnu-document": ("medquad", "AP"),
    "ccnu-passage": ("insuranceqa", "AP"),
    "drbert-table3": ("insuranceqa", "RR"),
    "documents": ("medquad", "AP"),
    "trec-car": ("headings", "AP"),
}
"""The data and the measure of the files of a suite, where they are not InsuranceQA and RR@10."""
FIRST = "BM25"

Seeds = dict[int, Values]
Earlier = tuple[str, str, str, str]
"""What is compared, the file, the column with it, and the column without it."""

EARLIER: dict[str, Sequence[Earlier]] = {
    "monobert": [
        ("BERT against BM25, Wikipedia's questions", "papers/table1.questions.RR10", "pointwise-only", FIRST),
        ("BERT against BM25, Wikipedia's headings", "papers/table1.headings.RR10", "pointwise-only", FIRST),
        ("BERT against BM25, headings, AP", "papers/table1.headings.AP", "pointwise-only", FIRST),
    ],
    "marks": [
        ("marks, Wikipedia's questions", "papers/table1.questions.RR10", "marked", "pointwise-only"),
        (
            "marks also on words without a match, InsuranceQA",
            "papers/table1.insuranceqa.RR10",
            "marked-unmatched",
            "marked",
        ),
    ],
    "drbert": [
        ("all parts, Wikipedia's questions", "papers/table1.questions.RR10", "drbert", "pointwise-only"),
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
            f"mined from the data, models of {data}",
            f"papers/rare-words.{data}.mined",
            "STRM misleading rank",
            "full misleading rank",
        )
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
    "recall": [
        ("DeepCT, R@1000", "papers/first-stage.insuranceqa.R1000", "deepct", "BM25, tuned"),
        ("doc2query, 20 queries, R@1000", "papers/first-stage.insuranceqa.R1000", "doc2query", "BM25, tuned"),
        ("doc2query, 20 queries, RR@10", "papers/first-stage.insuranceqa.RR10", "doc2query", "BM25, tuned"),
    ],
    "documents": [
        ("windows alone", "papers/document.medquad.AP", "windows", FIRST),
        ("windows and BM25", "papers/document.medquad.AP", "interpolate", FIRST),
    ],
    "one-layer": [
        ("S and BM25", "papers/sdnet-one-layer.insuranceqa.AP", "S and BM25", "first stage"),
        ("S alone", "papers/sdnet-one-layer.insuranceqa.AP", "S alone", "first stage"),
    ],
}
PAGES = {
    "papers.md": [],
    "monobert.md": [
        "claims monobert",
        "verdicts markedbert",
        "claims markedbert-epochs",
        "verdicts markedbert-depth",
        "rows markedbert-depth",
    ],
    "results/papers/monobert.md": [
        "rows markedbert",
        "rows markedbert-epochs",
        "types markedbert-epochs",
        "gains markedbert",
        "rows markedbert-depth BM25",
        "found-only",
        "claims duobert",
        "rows duobert",
        "claims trec-car",
        "rows trec-car",
    ],
    "drbert.md": [
        "claims drbert-parts",
        "claims drbert-cause",
    ],
    "results/papers/drbert.md": [
        "claims drbert-table1",
        "rows drbert-table1",
        "claims drbert-figure5",
        "claims drbert-noise",
        "claims drbert-noise medquad",
        "claims threshold",
        "claims drbert-table3",
        "split drbert-table3",
        "both-passages",
        "claims drbert-base",
        "rows drbert-base",
    ],
    "results/attention-rules/README.md": ["rules", "look-alikes"],
    "results/papers/earlier.md": ["monobert", "drbert", "marks", "recall", "documents", "one-layer"],
    "results/papers/README.md": [
        "measures documents",
        "rows ccnu-passage",
        "measures ccnu-data",
        "rows drbert-cause",
        "rows drbert-parts",
    ],
    "deepct.md": ["claims deepct", "rows deepct", "claims doc2query"],
    "ccnu.md": ["claims ccnu-passage", "claims ccnu-data", "claims ccnu-document", "claims documents"],
}
"""The tables of each page, in order."""


def read_values(path: Path) -> dict[str, dict[int, Values]]:
    """The rows of a file of values by name and seed; columns that are not of a training are left out."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    rows: dict[str, dict[int, Values]] = {}
    for name, column in zip(header, zip(*lines, strict=True), strict=True):
        row, slash, seed = name.rpartition("/seed ")
        if slash and seed.isdigit():
            rows.setdefault(row, {})[int(seed)] = np.array(column, np.float64)
    return rows


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
        if len(theirs) == 1:
            theirs = dict.fromkeys(ours, *theirs.values())
        effect, seeds = Effect.of(ours, theirs), len(ours.keys() & theirs.keys())
        digits = 1 if average(ours) > 1 else 3  # ranks, or measures
        gap = f"{signed(effect.mean, digits)} ± {number(effect.width, digits)}"
        means = f"{number(average(theirs), digits)} | {number(average(ours), digits)}"
        lines.append(f"| {label} | {seeds} | {means} | {gap} | {number(effect.detectable, digits)} |")
    return lines


@cache
def kept(suite: str, place: str = DEV, data: str | None = None) -> dict[str, dict[str, Seeds]]:
    """The values of each column of a suite that were kept, on dev or another place that it measured on."""
    usual, measure = KEPT.get(suite, ("insuranceqa", "RR10"))
    data, columns = data or usual, {}
    for column in read_suite(suite, [Override("data", "/data")]).columns:
        parts = [suite, data, *([place] if place != DEV else []), *([file_name(column)] if column else []), measure]
        path = RESULTS / "papers" / f"{'.'.join(parts)}.csv.gz"
        if path.exists():
            columns[column] = read_values(path)
    return columns


Judged = list[tuple[Claim, str, Effect]]


def judged(suite: str, data: str | None = None) -> Judged:
    """What a suite's claims come to, by claim and column."""
    claims = read_suite(suite, [Override("data", "/data")]).suite.claims
    return [
        (claim, column, effect)
        for claim in claims
        for column, rows in kept(suite, claim.data, data).items()
        if (effect := effect_of(rows, claim.row, claim.against)) is not None
    ]


def measured(suite: str, claim: Claim, data: str | None) -> bool:
    """Whether the rows of a claim were trained."""
    return any({claim.row, claim.against} <= rows.keys() for rows in kept(suite, claim.data, data).values())


def beside(kind: str, *arguments: str) -> list[Effect]:
    """The effects of the other tables of verdicts on the same page, which are corrected together."""
    name = " ".join((kind, *arguments))
    (page,) = (names for names in PAGES.values() if name in names)
    others = (other.split() for other in page if other != name)
    return [effect for kind, *where in others if kind in ("claims", "verdicts") for *_, effect in judged(*where)]


def suite_claims(suite: str, data: str | None = None) -> list[str]:
    """The table of claims that the suite itself writes."""
    claims = [
        claim for claim in read_suite(suite, [Override("data", "/data")]).suite.claims if measured(suite, claim, data)
    ]
    places = {place: kept(suite, place, data) for place in {claim.data for claim in claims}}
    columns = list(next(iter(places.values())))
    values = {(column, place): rows[column] for place, rows in places.items() for column in columns}
    others = beside("claims", suite, *([data] if data else []))
    return as_markdown(claims_table(claims, columns, values, others)).split("\n\n")[0].splitlines()


def suite_verdicts(suite: str) -> list[str]:
    """The same with a line for each claim and column, for suites of many columns."""
    lines = ["| claim | column | published | difference | detectable | verdict |", "|---|---|---:|---:|---:|---|"]
    found = judged(suite)
    p_values = corrected([*(effect for *_, effect in found), *beside("verdicts", suite)])
    for (claim, column, effect), p in zip(found, p_values, strict=False):
        published = "" if claim.published is None else signed(claim.published)
        cells = (claim.claim, column, published, shown(effect), number(effect.detectable))
        lines.append(f"| {' | '.join(cells)} | {effect.verdict(claim.published, p)} |")
    return lines


def gains(suite: str) -> list[str]:
    """MarkedBERT's Table 2 and Figure 2: queries that gain and lose by marks, and the gain by length of query."""
    ((_, words),) = seeds_of(RESULTS / "papers" / "table1.insuranceqa.RR10.csv.gz", "words").items()
    lengths = [(str(n), words == n) for n in range(3, 10)] + [("10+", words >= 10)]
    heads = ["column", "gain", "tie", "loss", *(f"{label} words" for label, _ in lengths)]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for column, rows in kept(suite).items():
        seeds = rows["marked"].keys() & rows["BERT"].keys()
        gap = np.mean([rows["marked"][seed] - rows["BERT"][seed] for seed in seeds], axis=0)
        cells = [str(int(count.sum())) for count in (gap > 0, gap == 0, gap < 0)]
        cells += [signed(float(gap[chosen[: len(gap)]].mean())) for _, chosen in lengths]
        lines.append(f"| {column} | {' | '.join(cells)} |")
    return lines


def types(suite: str) -> list[str]:
    """MarkedBERT's Table 3: the mean of each row by the type of answer, which a column of the file names."""
    lines = [f"| {KEPT.get(suite, ('', 'RR@10'))[1]} | queries | " + " | ".join(kept(suite)["BM25"]) + " |"]
    lines.append("|---|" + "---:|" * (1 + len(kept(suite)["BM25"])))
    with gzip.open(RESULTS / "papers" / f"{suite}.insuranceqa.BM25.RR10.csv.gz", "rt", encoding="utf-8") as file:
        types = np.array([line["type"] for line in csv.DictReader(file)])
    for name in sorted({*types.tolist()} - {""}):
        of_type = types == name
        means = (np.mean([values[of_type].mean() for values in row.values()]) for row in kept(suite)["BM25"].values())
        lines.append(f"| {name} | {of_type.sum()} | " + " | ".join(number(float(mean), 4) for mean in means) + " |")
    return lines


def suite_rows(suite: str, place: str = DEV) -> list[str]:
    """The mean, the number of seeds and the deviation between them of each row and column."""
    columns = kept(suite, place)
    heads = [head for name in columns for head in (name, "seeds")]
    measure = KEPT.get(suite, ("", "RR@10"))[1]
    lines = [f"| {measure} | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for row in dict.fromkeys(name for rows in columns.values() for name in rows):
        cells = []
        for rows in columns.values():
            means = [float(values.mean()) for values in rows.get(row, {}).values()]
            deviation = f" ± {number(float(np.std(means, ddof=1)))}" if len(means) > 1 else ""
            cells += [number(float(np.mean(means)), 4) + deviation, str(len(means))] if means else ["", ""]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return lines


def measures(suite: str) -> list[str]:
    """The means of a suite's rows in each measure that was kept."""
    data, names = KEPT[suite][0], ("AP", "nDCG", "P10")
    files = [read_values(RESULTS / "papers" / f"{suite}.{data}.{name}.csv.gz") for name in names]
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for row in files[-1]:
        lines.append(f"| {row} | " + " | ".join(number(average(rows[row]), 4) for rows in files) + " |")
    return lines


def split_words(suite: str) -> list[str]:
    """STRM against full attention on queries with and without a word that the tokenizer splits."""
    ((_, split),) = seeds_of(RESULTS / "papers" / "table1.insuranceqa.RR10.csv.gz", "split word").items()
    lines = ["| | queries | full attention | STRM | difference | detectable |", "|---|---:|---:|---:|---:|---:|"]
    for column, rows in kept(suite).items():
        for label, queries in (("a split word", split > 0), ("no split word", split == 0)):
            full, strm = (
                {seed: values[queries] for seed, values in rows[row].items()} for row in ("full attention", "STRM")
            )
            effect = Effect.of(strm, full)
            means = f"{number(average(full))} | {number(average(strm))}"
            figures = f"{shown(effect)} | {number(effect.detectable)}"
            lines.append(f"| {column}, {label} | {int(queries.sum())} | {means} | {figures} |")
    return lines


def both_passages() -> list[str]:
    """The right and the misleading passage of the bundled sample's rare words, by the first ten documents."""
    lines = ["| RR@10, 20,000 steps | full attention | STRM | difference | detectable |", "|---|---:|---:|---:|---:|"]
    cases = [line.split("\t") for line in (SAMPLE_FOLDER / "rare_words.tsv").read_text("utf-8").splitlines()]
    with tarfile.open(RESULTS / "papers" / "drbert-table3-20-000-steps.insuranceqa.top10.tar.xz") as archive:
        tops = []
        for name in ("full-attention", "STRM"):
            file = archive.extractfile(f"{name}.seed-1.look-alikes.top10.tsv")
            assert file is not None
            rows = (line.split("\t") for line in file.read().decode().splitlines())
            tops.append({qid: docids for qid, *docids in rows})
    for label, place in (("the right passage", 3), ("the misleading one", 4)):
        found = [[(top[case[0]], case[place]) for case in cases] for top in tops]
        full, strm = (np.array([1 / (1 + ids.index(one)) if one in ids else 0 for ids, one in own]) for own in found)
        effect = Effect.of({1: strm}, {1: full})
        means = f"{number(full.mean())} | {number(strm.mean())}"
        lines.append(f"| {label} | {means} | {shown(effect)} | {number(effect.detectable)} |")
    return lines


def found_only() -> list[str]:
    """Rankers trained on all relevant passages, and on those among their candidates."""
    first = RESULTS / "papers" / "table1.insuranceqa.RR10.csv.gz"
    before = read_values(RESULTS / "papers" / "duobert-before.insuranceqa.as-published.RR10.csv.gz")  # as many queries
    mono, depth = kept("duobert"), {place: kept("markedbert-depth", place) for place in ("BM25", DEV)}
    pairs = {
        "lists, BM25's 100": (seeds_of(first, "listwise-only"), seeds_of(first, "found-only")),
        "pairs, BM25's 100": (before["mono"], mono["at equal training"]["mono"]),
    }
    for place, candidates in (("BM25", "BM25's 1,000"), (DEV, "doc2query's 1,000")):
        for row, kind in (("BERT", "pairs"), ("marked", "pairs with marks")):
            columns = depth[place]
            pairs[f"{kind}, {candidates}"] = columns["all relevant passages"][row], columns["candidates only"][row]
    lines = [
        "| trained on, ranked | seeds | all | found only | difference | detectable |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for label, (every, found) in pairs.items():
        effect, means = Effect.of(found, every), f"{number(average(every))} | {number(average(found))}"
        lines.append(f"| {label} | {len(every)} | {means} | {shown(effect)} | {number(effect.detectable)} |")
    return lines


def shown(effect: Effect) -> str:
    """A difference with its interval."""
    return f"{signed(effect.mean)} ± {number(effect.width)}"


@cache
def table(name: str) -> list[str]:
    """The lines of a table by its name in :data:`PAGES`."""
    kinds = {
        "claims": suite_claims,
        "verdicts": suite_verdicts,
        "rows": suite_rows,
        "split": split_words,
        "gains": gains,
        "types": types,
        "measures": measures,
    }
    kind, *arguments = name.split()
    if name == "found-only":
        return found_only()
    if name == "both-passages":
        return both_passages()
    return kinds[kind](*arguments) if arguments else earlier_table(EARLIER[name])


if __name__ == "__main__":
    for page, names in PAGES.items():
        for name in names:
            print(f"## {page}: {name}\n\n" + "\n".join(table(name)) + "\n")
