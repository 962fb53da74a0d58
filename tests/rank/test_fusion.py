"""Fusion of runs, by hand-computed numbers and by its laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.rank.fusion import Fusion, default_settings, fuse, interpolation, rank_fusion, share_settings, tune_fusion

# Spans 8 and 4; the third document of each is the other's missing one.
A = Run.from_scores({"q": {"a": 10.0, "b": 6.0, "c": 2.0}}, name="A")
B = Run.from_scores({"q": {"b": 5.0, "a": 2.0, "d": 1.0}}, name="B")


def fused(fusion: Fusion, *runs: Run) -> dict[str, float]:
    return dict(fuse(runs or (A, B), fusion)["q"])


def test_linear_interpolation_of_raw_scores_fills_in_the_minimum() -> None:
    # d takes A's minimum 2, c takes B's minimum 1.
    expected = {"a": 0.8 * 10 + 0.2 * 2, "b": 0.8 * 6 + 0.2 * 5, "c": 0.8 * 2 + 0.2 * 1, "d": 0.8 * 2 + 0.2 * 1}
    assert fused(interpolation(0.8, "none")) == pytest.approx(expected, rel=1e-6)


def test_min_max_goes_from_0_to_1_within_each_run() -> None:
    # A: a 1, b 1/2, c 0 (d 0); B: b 1, a 1/4, d 0 (c 0).
    expected = {"a": 0.8 + 0.2 / 4, "b": 0.8 / 2 + 0.2, "c": 0.0, "d": 0.0}
    assert fused(interpolation(0.8)) == pytest.approx(expected, abs=1e-7)


def test_z_score_has_mean_0_and_deviation_1_within_each_run() -> None:
    # A: mean 6, variance (16 + 0 + 16) / 3; B: mean 8/3, variance (49 + 4 + 25) / 27.
    a, b = (32 / 3) ** 0.5, (78 / 27) ** 0.5
    expected = {
        "a": 0.5 * 4 / a + 0.5 * (2 - 8 / 3) / b,
        "b": 0.5 * (5 - 8 / 3) / b,
        "c": 0.5 * -4 / a + 0.5 * (1 - 8 / 3) / b,
        "d": 0.5 * -4 / a + 0.5 * (1 - 8 / 3) / b,
    }
    assert fused(interpolation(0.5, "z-score")) == pytest.approx(expected, rel=1e-6)


def test_reciprocal_rank_fusion_adds_over_the_runs_that_have_a_document() -> None:
    expected = {"b": 1 / 62 + 1 / 61, "a": 1 / 61 + 1 / 62, "c": 1 / 63, "d": 1 / 63}
    assert fused(rank_fusion()) == pytest.approx(expected, rel=1e-6)
    assert fused(rank_fusion(k=0.0))["b"] == pytest.approx(1.5)
    assert fused(Fusion("rrf", (3.0, 1.0)))["a"] == pytest.approx(3 / 61 + 1 / 62)


def test_the_result_is_in_the_order_of_all_runs() -> None:
    assert fuse([A, B], rank_fusion())["q"].docids == ("b", "a", "d", "c")


def test_documents_that_one_run_lacks_can_be_dropped() -> None:
    assert fused(interpolation(0.8, missing="drop")) == pytest.approx({"a": 0.85, "b": 0.6})
    assert fuse([A, B], Fusion("rrf", missing="drop"))["q"].docids == ("b", "a")


def test_three_runs_have_three_weights() -> None:
    c = Run.from_scores({"q": {"d": 9.0, "a": 8.0}})
    expected = {"a": 0.5 + 0.3 / 4, "b": 0.25 + 0.3, "c": 0.0, "d": 0.2}
    assert fused(Fusion(weights=(0.5, 0.3, 0.2)), A, B, c) == pytest.approx(expected, abs=1e-7)
    with pytest.raises(RankwellError, match="3 runs to fuse, but 2 weights"):
        fuse([A, B, c], interpolation(0.5))


@pytest.mark.parametrize("normalise", ["none", "min-max", "z-score"])
def test_equal_scores_do_not_divide_by_zero(normalise: str) -> None:
    flat = Run.from_scores({"q": {"a": 0.1, "b": 0.1, "d": 0.1}})
    ranking = fuse([flat, B], interpolation(0.5, normalise))["q"]
    assert ranking.docids == B["q"].docids
    single = Run.from_scores({"q": {"z": 3.0}})
    assert set(fuse([single, B], interpolation(0.5, normalise))["q"].docids) == {"a", "b", "d", "z"}


def test_a_query_of_one_run_alone_is_ranked_by_it_or_dropped() -> None:
    more = Run({**A, "only": Run.from_scores({"only": {"x": 3.0, "y": 4.0}})["only"]})
    assert fuse([more, B], interpolation(0.5))["only"].docids == ("y", "x")
    assert fuse([B, more], rank_fusion())["only"].docids == ("y", "x")
    assert list(fuse([more, B], interpolation(0.5, missing="drop"))) == ["q"]


def test_depth_keeps_what_the_whole_list_begins_with() -> None:
    rng = np.random.default_rng(0)
    runs = [
        Run.from_scores({"q": {f"d{i}": float(rng.integers(5)) for i in rng.permutation(60)[:40]}}) for _ in range(2)
    ]
    for fusion in (interpolation(0.3, "none"), interpolation(0.5, missing="drop"), rank_fusion()):
        whole = fuse(runs, fusion)["q"]
        for depth in (1, 7, 20, 100):
            assert fuse(runs, fusion, depth=depth)["q"] == whole.head(depth)


scores = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-50, 50).map(float), min_size=1)


@given(scores, scores)
def test_rank_fusion_does_not_change_with_the_scale_of_scores(
    first: dict[str, float], second: dict[str, float]
) -> None:
    runs = [Run.from_scores({"q": first}), Run.from_scores({"q": second})]
    bent = [Run.from_scores({"q": {d: (s + 60.0) ** 3 for d, s in r["q"]}}) for r in runs]
    assert fuse(bent, rank_fusion())["q"] == fuse(runs, rank_fusion())["q"]


@given(scores, scores, st.sampled_from(["none", "min-max", "z-score"]))
def test_weight_1_gives_the_first_runs_order(first: dict[str, float], second: dict[str, float], normalise: str) -> None:
    a, b = Run.from_scores({"q": first}), Run.from_scores({"q": second})
    for runs, alpha in (((a, b), 1.0), ((b, a), 0.0)):
        found = fuse(runs, interpolation(alpha, normalise))["q"].docids
        assert tuple(docid for docid in found if docid in first) == a["q"].docids


@given(scores, scores, st.floats(0, 1))
def test_the_runs_may_change_places_with_their_weights(
    first: dict[str, float], second: dict[str, float], alpha: float
) -> None:
    a, b = Run.from_scores({"q": first}), Run.from_scores({"q": second})
    one, other = Fusion(weights=(alpha, 1 - alpha)), Fusion(weights=(1 - alpha, alpha))
    assert dict(fuse([a, b], one)["q"]) == pytest.approx(dict(fuse([b, a], other)["q"]), abs=1e-6)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: interpolation(1.5), "α is 1.5, expected a number from 0 to 1"),
        (lambda: Fusion("liner"), "no fusion is called 'liner'; did you mean linear?"),
        (lambda: Fusion(normalise="minmax"), "no normalisation is called 'minmax'; did you mean min-max?"),
        (lambda: Fusion(weights=(1.0,)), "two or more"),
        (lambda: Fusion(weights=(0.0, 0.0)), "not all 0"),
        (lambda: Fusion(weights=(-1.0, 2.0)), "none negative"),
        (lambda: Fusion(missing="zero"), "expected minimum or drop"),
        (lambda: Fusion("rrf", k=-1.0), "expected 0 or more"),
    ],
)
def test_settings_are_checked_when_they_are_made(make: object, problem: str) -> None:
    with pytest.raises(RankwellError, match=problem):
        make()  # type: ignore[operator]


def helpful_and_misleading(queries: int) -> tuple[Run, Run, Qrels]:
    """Two runs of which the first ranks the relevant document second, the other first, by a wide margin."""
    first = {f"q{i}": {"x": 1.0, "rel": 0.9, "y": 0.0} for i in range(queries)}
    second = {f"q{i}": {"rel": 100.0, "y": 50.0, "x": 0.0} for i in range(queries)}
    qrels = Qrels({f"q{i}": {"rel": 1} for i in range(queries)})
    return Run.from_scores(first), Run.from_scores(second), qrels


def test_tuning_finds_the_weight_and_quotes_the_held_out_figure() -> None:
    first, second, qrels = helpful_and_misleading(20)
    tuning = tune_fusion([first, second], qrels, settings=[interpolation(1.0), interpolation(0.5)])
    assert tuning.best == interpolation(0.5)
    assert (tuning.found.mean, tuning.values.shape) == (1.0, (2, 20))
    assert tuning.values[0].tolist() == [0.5] * 20
    assert "linear 0.5:0.5 min-max" in tuning.table().splitlines()[3]
    assert tuning.table().endswith("cross-validated, 5 folds: 1.0000")


def test_the_default_grid_has_every_normalisation_and_each_runs_own_figure() -> None:
    first, second, qrels = helpful_and_misleading(10)
    tuning = tune_fusion([first, second], qrels, measure="RR@10")
    assert len(tuning.settings) == len(default_settings()) == 34
    means = dict(zip(tuning.settings, tuning.values.mean(axis=1), strict=True))
    assert means[interpolation(1.0, "none")] == evaluate(qrels, first, "RR@10").mean["RR@10"]
    assert means[interpolation(0.0, "none")] == evaluate(qrels, second, "RR@10").mean["RR@10"]


def test_the_held_out_run_fuses_each_query_by_what_the_other_folds_chose() -> None:
    # What is best for one half of the queries is worst for the other, so that each fold is ranked by the wrong one.
    runs = [Run.from_scores({f"q{i}": {"a": 1.0 - row, "b": float(row)} for i in range(2)}) for row in range(2)]
    qrels = Qrels({"q0": {"a": 1}, "q1": {"b": 1}})
    tuning = tune_fusion(runs, qrels, settings=share_settings(2, 1.0), folds=2)
    assert tuning.found.mean == 0.5
    assert tuning.held_out["q0"].docids == ("b", "a")
    assert tuning.held_out["q1"].docids == ("a", "b")


def test_a_query_that_is_not_judged_is_fused_by_the_best_setting() -> None:
    first, second, qrels = helpful_and_misleading(8)
    second = Run({**second, "unjudged": second["q0"]})
    tuning = tune_fusion([first, second], qrels, settings=share_settings(2, 0.5), folds=4)
    assert tuning.held_out["unjudged"] == fuse([first, second], tuning.best)["unjudged"]


def test_shares_sum_to_one_and_must_be_parts_of_it() -> None:
    weights = [fusion.weights for fusion in share_settings(3, 0.25)]
    assert len(weights) == len(set(weights)) == 15
    assert all(sum(own) == 1 for own in weights)
    assert weights[0] == (1, 0, 0)
    with pytest.raises(RankwellError, match=r"a step of 0\.3"):
        share_settings(3, 0.3)

    with pytest.raises(RankwellError, match="a step of 0 between"):
        default_settings(0)


def test_a_judged_query_that_nothing_was_found_for_counts_0() -> None:
    first, second, qrels = helpful_and_misleading(10)
    more = Qrels({**qrels, **{f"unanswered{i}": {"rel": 1} for i in range(10)}})
    tuning = tune_fusion([first, second], more, settings=[interpolation(0.5)])
    assert tuning.found.mean == 0.5
    assert tuning.found.mean == evaluate(more, tuning.held_out, "RR@10").mean["RR@10"]


def test_tuning_needs_a_judged_query() -> None:
    with pytest.raises(RankwellError, match="none of the runs' queries is judged"):
        tune_fusion([A, B], Qrels({"other": {"a": 1}}))
