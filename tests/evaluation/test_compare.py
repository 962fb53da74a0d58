"""Comparisons with a baseline."""

from __future__ import annotations

import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Run
from rankwell.evaluation.compare import compare
from rankwell.evaluation.significance import holm, wilcoxon_test

QUERIES = [f"q{i}" for i in range(20)]
QRELS = Qrels({qid: {"good": 1, "bad": 0} for qid in QUERIES})


def run_with(ranks: dict[str, int]) -> Run:
    """A run whose relevant document is at the given rank of each query."""
    return Run.from_scores(
        {qid: {"good": 0.0, **{f"x{i}": float(i) for i in range(1, rank)}} for qid, rank in ranks.items()}
    )


BASE = run_with(dict.fromkeys(QUERIES, 2))
BETTER = run_with({qid: 1 if i < 15 else 2 if i < 18 else 4 for i, qid in enumerate(QUERIES)})
WORSE = run_with(dict.fromkeys(QUERIES, 3))


def test_differences_wins_and_losses() -> None:
    comparison = compare(QRELS, {"base": BASE, "better": BETTER}, "RR@10 P@1")
    contrast = comparison.by_name["better", "RR@10"]
    mean = (15 * 1 + 3 / 2 + 2 / 4) / 20
    assert comparison.baseline == "base"
    assert comparison.mean["better"]["RR@10"] == pytest.approx(mean)
    assert contrast.difference == pytest.approx(mean - 0.5)
    assert contrast.relative == pytest.approx((mean - 0.5) / 0.5)
    assert (contrast.wins, contrast.ties, contrast.losses) == (15, 3, 2)
    assert contrast.interval.low < contrast.difference < contrast.interval.high
    assert comparison.significant("better", "RR@10")


def test_a_baseline_of_zero_has_no_relative_change() -> None:
    assert compare(QRELS, {"base": BASE, "better": BETTER}, "P@1").contrasts[0].relative is None


def test_p_values_are_corrected_over_runs_and_measures() -> None:
    runs = {"better": BETTER, "base": BASE, "worse": WORSE}
    comparison = compare(QRELS, runs, "RR@10 P@1", baseline="base", test="wilcoxon")
    assert [(c.run, c.measure) for c in comparison.contrasts] == [
        ("better", "RR@10"),
        ("better", "P@1"),
        ("worse", "RR@10"),
        ("worse", "P@1"),
    ]
    values = {name: evaluation.per_query for name, evaluation in comparison.evaluations.items()}
    raw = [wilcoxon_test(values[c.run][c.measure], values["base"][c.measure]) for c in comparison.contrasts]
    assert [c.p for c in comparison.contrasts] == raw
    assert [c.corrected for c in comparison.contrasts] == holm(raw)
    assert comparison.contrasts[3].p == 1.0
    assert not comparison.significant("worse", "P@1")
    assert not comparison.significant("base", "RR@10")


def test_counts_are_compared_by_their_sum() -> None:
    half = Run({qid: BASE[qid] for qid in QUERIES[:10]})
    contrast = compare(QRELS, {"base": BASE, "half": half}, "NumRelRet").contrasts[0]
    assert contrast.difference == -10
    assert contrast.interval.low <= -10 <= contrast.interval.high


def test_a_query_missing_in_one_run_counts_0_or_is_left_out_for_all() -> None:
    half = Run({qid: BETTER[qid] for qid in QUERIES[:10]})
    runs = {"base": BASE, "half": half}
    assert compare(QRELS, runs, "RR@10").mean["half"]["RR@10"] == 0.5
    common = compare(QRELS, runs, "RR@10", average="both")
    assert common.qids == tuple(QUERIES[:10])
    assert common.mean["half"]["RR@10"] == 1.0
    assert common.mean["base"]["RR@10"] == 0.5


def test_runs_without_a_common_query_cannot_be_compared_on_common_ones() -> None:
    runs = {"a": Run({"q0": BASE["q0"]}), "b": Run({"q1": BASE["q1"]})}
    with pytest.raises(RankwellError, match="no judged query has results in every run"):
        compare(QRELS, runs, "RR", average="both")


def test_equal_runs_do_not_differ() -> None:
    contrast = compare(QRELS, {"a": BASE, "b": BASE}, "RR@10").contrasts[0]
    assert (contrast.difference, contrast.p, contrast.interval) == (0.0, 1.0, (0.0, 0.0))
    assert (contrast.wins, contrast.ties, contrast.losses) == (0, 20, 0)


@pytest.mark.parametrize(
    ("runs", "options", "message"),
    [
        ({}, {}, "there is no run to compare"),
        ({"a": BASE}, {"baseline": "b"}, r"the baseline 'b' is not among the runs \(a\)"),
        ({"a": BASE}, {"test": "sign"}, "no significance test is called 'sign'"),
        ({"a": BASE, "b": Run()}, {}, "cannot evaluate the run 'b': the run is empty"),
    ],
)
def test_mistakes_are_named(runs: dict[str, Run], options: dict[str, str], message: str) -> None:
    with pytest.raises(RankwellError, match=message):
        compare(QRELS, runs, "RR@10", **options)  # type: ignore[arg-type]
