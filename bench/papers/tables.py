"""The tables of docs/papers.md but for its first.

All of ours is computed from the files in docs/results/papers; the papers' own figures are written down here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import Table
from papers.results import (
    MODELS,
    POINTWISE_ONLY,
    Effect,
    PerQuery,
    Results,
    Seeds,
    average,
    compare,
    difference_cells,
    effect_cells,
    equals,
    first_stage,
    gap_cell,
    interval_cell,
    mean_cell,
    number,
    p_value,
    signed,
    wins,
)
from papers.rules import RULES
from rankwell.core.arrays import Values
from rankwell.evaluation.significance import holm, paired_t_test

FIRST_STAGE = "first stage"
DATA, QUESTIONS, HEADINGS = "insuranceqa", "questions", "headings"

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
    (
        "pointwise with marks, also on query words without a match",
        "marked-unmatched",
        "pointwise with marks, trained again",
        "marked again",
    ),
    ("pointwise, all parts off, trained again", "pointwise-only again", "pointwise, all parts off", "pointwise-only"),
    ("pointwise with marks, trained again", "marked again", "pointwise with marks", "marked"),
    ("DR-BERT, trained again", "drbert again", "DR-BERT", "drbert"),
)
NOISE = {
    "1 of 100/noisy": "1 of 100 is a hidden relevant passage",
    "1 of 100/threshold 0.9": "the same, noise reduction at .9",
    "1 of 100/threshold 0.97": "the same, noise reduction at .97",
    "1 of 100/clean": "without the hidden passages",
    "1 of 33/noisy": "1 of 33 is a hidden relevant passage",
    "1 of 33/threshold 0.9": "the same, noise reduction at .9",
    "1 of 33/threshold 0.9, 2 folds": "the same, each half judged by a model of the other",
    "1 of 33/clean": "without the hidden passages",
    "1 of 10/noisy": "1 of 10 is a hidden relevant passage",
    "1 of 10/threshold 0.9": "the same, noise reduction at .9",
    "1 of 10/clean": "without the hidden passages",
}
ON_QUESTIONS = {
    "pointwise-only": "BERT: pointwise, all parts off",
    "listwise-only": "listwise, all parts off",
    "marked": "pointwise with marks",
    "drbert": "DR-BERT",
}
LENGTHS = {"up to 5": (1, 5), "6 or 7": (6, 7), "8 or 9": (8, 9), "10 or more": (10, 99)}
"""Words of a query."""
MARKED_TYPES = {
    "numeric": (0.291, 0.330),
    "person": (0.356, 0.384),
    "location": (0.420, 0.446),
    "description": (0.332, 0.350),
    "entity": (0.305, 0.315),
}
"""MarkedBERT's Table 3, the base model and MarkedBERT; its sixth type has nine queries."""
RARE_WORDS = {"sample": "bundled sample", "insuranceqa": "mined from InsuranceQA"}


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


def print_table1(results: Results) -> None:
    """DR-BERT's Table 1 at equal pairs."""
    reciprocal, precision = (results.values(f"table1.{DATA}.{name}") for name in ("RR10", "AP"))
    columns = ("paper", "seeds", "RR@10", "AP", "− DR-BERT", "p", "detectable")
    table = Table("", *columns)
    bm25 = (number(average(first_stage(file))) for file in (reciprocal, precision))
    table.row("BM25", number(BM25, 3), "", *bm25, "", "", "")
    rows = {"pointwise-only": ("BERT: pointwise, all parts off", BERT), "drbert": ("DR-BERT", WHOLE), **DRBERT}
    for name, (label, published) in rows.items():
        seeds = reciprocal.arms[name]
        cells = (mean_cell(seeds), number(average(precision.arms[name])))
        tests = ("", "", "") if name == "drbert" else difference_cells(seeds, reciprocal.arms["drbert"])
        table.row(label, number(published, 3), str(len(seeds)), *cells, *tests)


def print_questions(results: Results) -> None:
    """The rows of Table 1 that were trained on Wikipedia's questions."""
    files = [results.values(f"table1.{QUESTIONS}.{name}") for name in ("RR10", "AP")]
    table = Table("", "seeds", "RR@10", "AP", "− BERT", "p", "detectable")
    table.row("BM25", "", *(number(average(first_stage(file))) for file in files), "", "", "")
    base = files[0].arms["pointwise-only"]
    for name, label in ON_QUESTIONS.items():
        seeds = files[0].arms[name]
        tests = ("", "", "") if seeds is base else difference_cells(seeds, base)
        table.row(label, str(len(seeds)), mean_cell(seeds), number(average(files[1].arms[name])), *tests)


def print_headings(results: Results) -> None:
    """Nogueira and Cho's second data set: the measures of its stand-in, and how many times BM25's they are."""
    names = {"AP": "AP", "RR10": "RR@10", "nDCG10": "nDCG@10"}
    table = Table("measure", "BM25", "BERT", "difference", "p", "times BM25")
    for name, measure in names.items():
        file = results.values(f"table1.{HEADINGS}.{name}")
        ours, bm25 = file.arms["pointwise-only"], first_stage(file)
        effect = Effect.of(ours, bm25)
        cells = (number(average(bm25)), mean_cell(ours), interval_cell(effect), p_value(effect.p))
        table.row(measure, *cells, f"{average(ours) / average(bm25):.2f}")


def print_ceiling(results: Results) -> None:
    """How much of what re-ranking BM25's candidates could reach on headings BERT reaches."""
    precision, recall = results.values(f"table1.{HEADINGS}.AP"), results.values(f"first-stage.{HEADINGS}.R100")
    bm25, bert = average(first_stage(precision)), average(precision.arms["pointwise-only"])
    # With all relevant candidates first, AP is the share of relevant documents that are candidates.
    most = average(recall.arms["BM25"])
    table = Table("AP", "BM25", "BERT", "relevant candidates first", "times BM25", "BERT reaches")
    table.row("headings", number(bm25), number(bert), number(most), f"{most / bm25:.2f}", f"{bert / most:.0%}")


def print_variants(results: Results) -> None:
    """Other trainings at the same number of pairs."""
    file = results.values(f"table1.{DATA}.RR10")
    arms = {**file.arms, **{f"{name} again": seeds for name, seeds in file.repeated.items()}}
    columns = ("seeds", "RR@10", "beside", "RR@10", "difference", "p", "detectable")
    table = Table("", *columns)
    for label, name, other, baseline in VARIANTS:
        if name not in arms:
            continue
        ours = arms[name]
        theirs = {seed: arms[baseline][seed] for seed in ours}
        figures = (str(len(ours)), mean_cell(ours), other, mean_cell(theirs))
        table.row(label, *figures, *difference_cells(ours, theirs))


def print_pretraining(results: Results) -> None:
    """Pre-training on the domain: how well the model predicts held-out passages."""
    columns = ("MLM loss", "MLM accuracy", "NSP accuracy")
    table = Table("attention", "general pre-training", "steps", *columns, labels=2)
    runs = [(*run["row"].split("/"), run) for run in results.runs["pretrain"]]
    for rule, steps, run in sorted(runs, key=lambda row: (row[0], int(row[1]))):
        start, figures = run["recipe"]["model"]["start"], run["seeds"]["1"]["stages"]["pretrain"]
        loss, *accuracies = (figures[f"held-out {name}"] for name in columns)
        cells = (number(loss, 2), *(number(accuracy, 3) for accuracy in accuracies))
        table.row(RULES.get(rule, rule), "STRM" if start.endswith("strm") else "full", f"{int(steps):,}", *cells)


Group = tuple[str, dict[int, Values], dict[int, Values], dict[int, Values]]
"""A group of queries by name, with the values of its queries under BM25, without and with marks."""


def marks_by_length(results: Results, data: str) -> Iterator[Group]:
    """Groups by the number of words."""
    file = results.values(f"table1.{data}.RR10")
    words = np.array(file.labels["words"], np.int64)
    for label, (low, high) in LENGTHS.items():
        yield _group(file, label, (words >= low) & (words <= high))


def marks_by_type(results: Results, data: str) -> Iterator[Group]:
    """Groups by the type that rules guess."""
    file, kinds = results.values(f"table1.{data}.RR10"), results.values(f"types.{data}").labels
    type_of = dict(zip(kinds["qid"], kinds["type"], strict=True))
    types = np.array([type_of[qid] for qid in file.labels["qid"]])
    for kind in MARKED_TYPES:
        yield _group(file, kind, types == kind)


def _group(file: PerQuery, label: str, mask: NDArray[np.bool_]) -> Group:
    bm25, base, marked = (
        {seed: values[mask] for seed, values in seeds.items()}
        for seeds in (first_stage(file), file.arms["pointwise-only"], file.arms["marked"])
    )
    return label, bm25, base, marked


def print_marked(results: Results) -> None:
    """MarkedBERT's Table 2 and Figure 2: marks by the length of the query, and how many queries gain and lose."""
    columns = ("queries", "without marks", "with marks", "difference", "gain, lose", "gain, lose against BM25")
    table = Table("data", "words of the query", *columns, labels=2)
    for data in (DATA, QUESTIONS):
        file = results.values(f"table1.{data}.RR10")
        whole = _group(file, "all", np.ones(len(file.labels["words"]), np.bool_))
        for label, bm25, base, marked in (*marks_by_length(results, data), whole):
            means = (number(average(base)), number(average(marked)))
            shares = (gain_cell(marked, base), gain_cell(marked, bm25))
            table.row(data, label, str(len(base[1])), *means, gap_cell(compare(marked, base)), *shares)


def gain_cell(ours: Seeds, theirs: Seeds) -> str:
    """The shares of queries that gain and that lose, by their means over seeds."""
    gaps = np.mean([ours[seed] - theirs[seed] for seed in ours], axis=0)
    return f"{(gaps > 0).mean():.0%}, {(gaps < 0).mean():.0%}"


def print_types(results: Results) -> None:
    """MarkedBERT's Table 3: marks by the type of the query, as rules guess it."""
    columns = ("paper", "queries", "without marks", "with marks", "difference")
    table = Table("data", "type", *columns, labels=2)
    for data in (DATA, QUESTIONS):
        for kind, _, base, marked in marks_by_type(results, data):
            paper = " → ".join(number(value, 3) for value in MARKED_TYPES[kind])
            means = (number(average(base)), number(average(marked)))
            table.row(data, kind, paper, str(len(base[1])), *means, gap_cell(compare(marked, base)))


def print_noise(results: Results) -> None:
    """Noise reduction where the noise is known."""
    arms = results.values(f"noise.{DATA}.RR10").arms
    table = Table("training candidates", "seeds", "RR@10", "− noisy", "p", "detectable")
    for name, label in NOISE.items():
        if name not in arms:
            continue
        noisy = arms[f"{name.partition('/')[0]}/noisy"]
        tests = ("", "", "") if arms[name] is noisy else difference_cells(arms[name], noisy)
        table.row(label, str(len(arms[name])), mean_cell(arms[name]), *tests)


def print_drops(results: Results) -> None:
    """What noise reduction drops: how many hidden relevant passages it finds, and how much else."""
    columns = ("candidates dropped", "hidden passages found", "known relevant among the dropped")
    table = Table("hidden", "judge", "threshold", *columns, labels=3)
    judges = {"threshold 0.9": "one model", "threshold 0.9, 2 folds": "of the other half"}
    runs = {run["row"]: run for run in results.runs["noise"]}
    for row in NOISE:
        share, _, arm = row.partition("/")
        if arm in judges and row in runs:
            for cells in drop_cells(list(runs[row]["seeds"].values())):
                table.row(share, judges[arm], *cells)


def drop_cells(seeds: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """For each threshold the mean over seeds of what is dropped."""
    for place, threshold in enumerate(row["threshold"] for row in seeds[0]["drops"]):
        rows = [seed["drops"][place] for seed in seeds]
        dropped, hidden, total = (float(np.mean([row[name] for row in rows])) for name in ("dropped", "hidden", "of"))
        unjudged = float(np.mean([seed["stages"]["denoise"]["unjudged"] for seed in seeds]))
        precision = number(hidden / dropped, 2) if dropped > 100 else ""
        yield f"{threshold:g}"[1:], f"{dropped / unjudged:.1%}", f"{hidden / total:.1%}", precision


def print_rare_words(results: Results) -> None:
    """DR-BERT's Table 3 over many cases: where the document with the look-alike is ranked."""
    columns = ("right document wins", "mean rank, right", "mean rank, misleading", "p, rank of the misleading")
    table = Table("cases", "attention", *columns, labels=2)
    for name, shown in RARE_WORDS.items():
        values = results.values(f"rare-words.{name}").labels
        ranks = {model: np.array(values[f"{model} misleading rank"], np.float64) for model in MODELS}
        for model in MODELS:
            scores = (np.array(values[f"{model} {which} score"], np.float64) for which in ("right", "misleading"))
            wins = float(np.greater(*scores).mean())
            right = float(np.mean(np.array(values[f"{model} right rank"], np.float64)))
            p = "" if model == MODELS[0] else p_value(paired_t_test(ranks[model], ranks[MODELS[0]]))
            cells = (number(wins, 3), f"{right:.1f}", f"{ranks[model].mean():.1f}", p)
            table.row(f"{shown} ({len(ranks[model])})", model, *cells)


def rare_word_files(results: Results) -> dict[str, PerQuery]:
    """Models that differ in the rule alone, after long pre-training under it: their cases by name."""
    names = {
        "insuranceqa.sample": "bundled sample, models of insuranceqa",
        "medquad.sample": "bundled sample, models of medquad",
        "insuranceqa.mined": "mined from insuranceqa",
        "medquad.mined": "mined from medquad",
    }
    return {
        label: results.values(f"rare-words.{name}")
        for name, label in names.items()
        if results.has(f"rare-words.{name}")
    }


def misleading_ranks_by_seed(file: PerQuery) -> tuple[dict[int, Values], dict[int, Values]]:
    """The ranks of the misleading documents, without and with STRM."""
    full, strm = (file.arms[f"{model} misleading rank"] for model in MODELS)
    return full, strm


def rank_cell(difference: float) -> str:
    """A difference of ranks."""
    return f"{difference:+.1f}".replace("-", "−")


def print_rare_words_by_seed(results: Results) -> None:
    """DR-BERT's Table 3 with models that differ in the rule alone, over seeds."""
    means = ("right document wins, full", "STRM", "rank of the misleading, full", "STRM")
    table = Table("cases", "seeds", *means, "difference", "p", "detectable")
    for label, file in rare_word_files(results).items():
        won = [
            wins({seed: right - file.arms[f"{model} misleading score"][seed] for seed, right in seeds.items()})
            for model in MODELS
            for seeds in [file.arms[f"{model} right score"]]
        ]
        full, strm = misleading_ranks_by_seed(file)
        effect = Effect.of(strm, full)
        ranks = (f"{average(full):.1f}", f"{average(strm):.1f}")
        shares = (number(average(some), 3) for some in won)
        tests = (rank_cell(effect.mean), p_value(effect.p), f"{effect.detectable:.1f}")
        table.row(f"{label} ({len(full[1])})", str(len(full)), *shares, *ranks, *tests)


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
    kinds = ("relevant, found by BM25", "relevant, missed", "other candidates")
    table = Table("query words in the passage", *kinds, "relevant, 1 to 1", "found only, 1 to 1")

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


DETAIL_TABLES = (
    print_table1,
    print_variants,
    print_pairs,
    print_query_types,
    print_questions,
    print_headings,
    print_ceiling,
    print_pretraining,
    print_marked,
    print_types,
    print_noise,
    print_drops,
    print_first_stages,
    print_depths,
    print_crossed,
    print_overlap,
    print_shortcut,
    print_documents,
    print_rare_words,
    print_rare_words_by_seed,
)
