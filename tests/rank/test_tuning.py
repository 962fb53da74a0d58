"""Tuning of shares: the figures against evaluated runs, the choice against counting on fingers."""

from __future__ import annotations

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.rank.fusion import NORMALISATIONS, Shares, fuse
from rankwell.rank.tuning import (
    fuse_windows,
    share_grid,
    tune_fusion,
    tune_windows,
    weight_grid,
    window_grid,
)
from rankwell.rank.window_scores import WindowScores

QUERIES, DOCUMENTS = 12, 7


def pair(first: Run, model: Run) -> dict[str, Run]:
    return {"first": first, "model": model}


def helpful_and_misleading(queries: int) -> tuple[Run, Run, Qrels]:
    """Two runs of which the first ranks the relevant document second, the other first, by a wide margin."""
    first = {f"q{i}": {"x": 1.0, "rel": 0.9, "y": 0.0} for i in range(queries)}
    second = {f"q{i}": {"rel": 100.0, "y": 50.0, "x": 0.0} for i in range(queries)}
    qrels = Qrels({f"q{i}": {"rel": 1} for i in range(queries)})
    return Run.from_scores(first), Run.from_scores(second), qrels


# Runs


def test_the_best_share_is_chosen_and_the_held_out_figure_quoted() -> None:
    first, second, qrels = helpful_and_misleading(20)
    tuned = tune_fusion(pair(first, second), qrels, [Shares(first=1.0), Shares(model=0.5, first=0.5)])
    assert tuned.best == Shares(model=0.5, first=0.5)
    assert (tuned.cross_validated, tuned.values.shape) == (1.0, (2, 20))
    assert tuned.values[0].tolist() == [0.5] * 20
    assert tuned.table().splitlines()[3] == "model 0.5, first 0.5 (min-max)  1.0000*"
    assert tuned.table().endswith("cross-validated, 5 folds: 1.0000")


def test_settings_are_compared_and_each_run_has_its_own_figure() -> None:
    first, second, qrels = helpful_and_misleading(10)
    grid = [shares for how in NORMALISATIONS for shares in share_grid(["model", "first"], normalise=how)]
    tuned = tune_fusion(pair(first, second), qrels, grid)
    assert len(tuned.settings) == 33
    means = dict(zip(tuned.settings, tuned.means, strict=True))
    assert means[Shares(first=1.0, normalise="none")] == evaluate(qrels, first, "RR@10").mean["RR@10"]
    assert means[Shares(model=1.0, normalise="none")] == evaluate(qrels, second, "RR@10").mean["RR@10"]


@pytest.mark.parametrize("measure", ["RR@10", "nDCG@3", "AP", "RR(rel=2)@10"])
@pytest.mark.parametrize("levels", [2, 50])
def test_the_figures_of_a_setting_are_those_of_its_run(measure: str, levels: int) -> None:
    random = np.random.default_rng(levels)
    runs = {
        part: Run.from_scores(
            {
                f"q{q}": {f"d{d}": float(random.integers(levels)) for d in random.permutation(40)[:25]}
                for q in random.permutation(9)[:8]
            }
        )
        for part in ("first", "model")
    }
    qrels = Qrels({f"q{q}": {f"d{d}": int(random.integers(3)) for d in range(12)} for q in range(10)})
    settings = [Shares.beside_model(first=0.3, normalise=how) for how in NORMALISATIONS]
    tuned = tune_fusion(runs, qrels, settings, measure=measure)
    for fusion, values in zip(settings, tuned.values, strict=True):
        assert values.tolist() == evaluate(qrels, fuse(runs, fusion), measure).values[0].tolist()


def test_the_held_out_run_fuses_each_query_by_what_the_other_folds_chose() -> None:
    # What is best for one half of the queries is worst for the other, so that each fold is ranked by the wrong one.
    runs = [Run.from_scores({f"q{i}": {"a": 1.0 - row, "b": float(row)} for i in range(2)}) for row in range(2)]
    qrels = Qrels({"q0": {"a": 1}, "q1": {"b": 1}})
    tuned = tune_fusion(pair(*runs), qrels, share_grid(["first", "model"], 1.0), folds=2)
    assert tuned.cross_validated == 0.5
    held_out = fuse(pair(*runs), tuned.setting_for)
    assert held_out["q0"].docids == ("b", "a")
    assert held_out["q1"].docids == ("a", "b")


def test_a_query_that_is_not_judged_is_fused_by_the_best_setting() -> None:
    first, second, qrels = helpful_and_misleading(8)
    runs = pair(first, Run({**second, "unjudged": second["q0"]}))
    tuned = tune_fusion(runs, qrels, share_grid(["first", "model"], 0.5), folds=4)
    assert fuse(runs, tuned.setting_for)["unjudged"] == fuse(runs, tuned.best)["unjudged"]


def test_shares_are_all_multiples_of_a_step_that_divides_1() -> None:
    grid = share_grid(["model", "similarity", "first"], 0.25)
    assert len(grid) == len(set(grid)) == 15
    assert all(sum(shares.as_dict().values()) == 1 for shares in grid)
    assert grid[0] == Shares(model=1, normalise="z-score")
    with pytest.raises(RankwellError, match=r"a step of 0\.3"):
        share_grid(["model", "first"], 0.3)
    with pytest.raises(RankwellError, match="a step of 0 between"):
        share_grid(["model", "first"], 0)


def test_a_judged_query_that_nothing_was_found_for_counts_0() -> None:
    first, second, qrels = helpful_and_misleading(10)
    more = Qrels({**qrels, **{f"unanswered{i}": {"rel": 1} for i in range(10)}})
    tuned = tune_fusion(pair(first, second), more, [Shares(model=0.5, first=0.5)])
    held_out = fuse(pair(first, second), tuned.setting_for)
    assert tuned.cross_validated == 0.5 == evaluate(more, held_out, "RR@10").mean["RR@10"]


def test_bad_input_is_refused_before_anything_is_measured() -> None:
    first, second, qrels = helpful_and_misleading(3)
    grid = share_grid(["first", "model"], 0.5)
    with pytest.raises(RankwellError, match="none of the runs' queries is judged"):
        tune_fusion(pair(first, second), Qrels({"other": {"a": 1}}), grid)
    with pytest.raises(RankwellError, match="5 folds for 3 queries"):
        tune_fusion(pair(first, second), qrels, grid)
    with pytest.raises(RankwellError, match="there is no run called 'similarity'"):
        tune_fusion(pair(first, second), qrels, [Shares(similarity=1)], folds=2)


# Windows


def random_windows(seed: int = 0) -> tuple[Run, WindowScores, Qrels]:
    """A run, scores of up to four windows for its documents, and judgments; some scores are equal."""
    random = np.random.default_rng(seed)
    scores, docids, counts, windows = {}, {}, [], []
    for q in range(QUERIES):
        own = [f"d{i}" for i in random.permutation(20)[: random.integers(1, DOCUMENTS + 1)]]
        scores[f"q{q}"] = {docid: float(random.integers(0, 6)) for docid in own}
        docids[f"q{q}"] = tuple(own)
        for _ in own:
            counts.append(int(random.integers(1, 5)))
            windows.append(np.sort(random.integers(0, 9, counts[-1]))[::-1].astype(np.float32))
    best = np.full((len(windows), 4), np.nan, np.float32)
    for row, own in zip(best, windows, strict=True):
        row[: len(own)] = own
    first, mean = (np.array([f(own) for own in windows], np.float32) for f in (lambda own: own[-1], np.mean))
    qrels = {qid: {own[random.integers(len(own))]: 1, "unseen": 2} for qid, own in docids.items()}
    stored = WindowScores(docids, np.array(counts), first, mean, best)
    return Run.from_scores(scores), stored, Qrels({**qrels, "no candidates": {"d1": 1}})


@pytest.mark.parametrize("normalise", ["none", "min-max", "z-score"])
@pytest.mark.parametrize("aggregate", ["first", "max", "mean", "top3", "top3:0.6,0.3,0.1"])
def test_the_run_is_that_of_fusing_two_runs(aggregate: str, normalise: str) -> None:
    first, windows, _ = random_windows()
    for setting in window_grid([0.0, 0.3, 1.0], [aggregate], normalise):
        assert fuse_windows(first, windows, setting) == fuse(pair(first, windows.run(aggregate)), setting[0])


def test_only_documents_with_scores_of_windows_are_ranked_and_normalised() -> None:
    first, windows, _ = random_windows()
    deeper = Run.from_scores({qid: {**dict(ranking), "below": -100.0} for qid, ranking in first.items()})
    [setting] = window_grid([0.5], ["max"])
    assert fuse_windows(deeper, windows, setting) == fuse_windows(first, windows, setting)


@pytest.mark.parametrize("measure", ["RR@10", "nDCG@3", "AP", "RR(rel=2)@10"])
def test_the_figures_of_windows_are_those_of_their_run(measure: str) -> None:
    first, windows, qrels = random_windows(1)
    settings = window_grid([0.0, 0.5, 0.9], ["max", "top2"])
    tuned = tune_windows(first, windows, qrels, settings, measure=measure, folds=3)
    assert tuned.qids == tuple(qrels)
    for number, setting in enumerate(settings):
        expected = evaluate(qrels, fuse_windows(first, windows, setting), measure)
        assert tuned.values[number] == pytest.approx(expected.values[0])
    assert tuned.values[:, -1].tolist() == [0.0] * len(settings), "a query without candidates counts"


def two_kinds(n: int = 20) -> tuple[Run, WindowScores, Qrels]:
    """BM25 is right for the even queries by much and wrong for the odd ones by little; windows the other way round."""
    first, docids, best, qrels = {}, {}, [], {}
    for q in range(n):
        even = q % 2 == 0
        first[f"q{q}"] = {"good": 1.0 if even else 0.4, "bad": 0.0 if even else 0.6, "worst": 0.0, "top": 1.0}
        docids[f"q{q}"] = ("good", "bad", "worst", "top")
        best += [[0.4], [0.6], [0.0], [1.0]] if even else [[1.0], [0.0], [0.0], [1.0]]
        qrels[f"q{q}"] = {"good": 1}
    scores = np.array(best, np.float32)
    one = np.ones(len(scores), np.int64)
    return Run.from_scores(first), WindowScores(docids, one, scores[:, 0], scores[:, 0], scores), Qrels(qrels)


def test_both_together_are_better_than_either_and_chosen() -> None:
    # "top" is always first; "good" is second for half of the queries by either part, for all by both: 1/2 or 1/3.
    first, windows, qrels = two_kinds()
    tuned = tune_windows(first, windows, qrels, window_grid([0.0, 0.5, 1.0], ["max"]))
    # Equal scores go by id, descending: of "good" and "top" at 1, "top" comes first.
    assert tuned.means == pytest.approx([(1 / 2 + 1 / 3) / 2, 1 / 2, (1 / 2 + 1 / 3) / 2])
    assert tuned.best == (Shares(model=0.5, first=0.5), "max")
    assert tuned.cross_validated == pytest.approx(1 / 2)


def test_each_query_is_held_out_of_its_own_choice() -> None:
    first, windows, qrels = random_windows(3)
    settings = window_grid([0.0, 0.2, 0.5, 0.8, 1.0], ["max", "mean", *weight_grid(2, 0.25)])
    tuned = tune_windows(first, windows, qrels, settings, folds=4, seed=2)
    assert len(set(tuned.fold_settings)) > 1, "the folds must differ, or this shows nothing"
    held_out = evaluate(qrels, fuse_windows(first, windows, tuned.setting_for), "RR@10")
    assert held_out.values[0] == pytest.approx(tuned.held_out)


def test_the_grid_of_weights() -> None:
    grid = weight_grid(3)
    assert len(grid) == len(set(grid)) == 55  # of 66 on the simplex, 11 have nothing on the first
    assert {"top3:1,0,0", "top3:0.5,0.3,0.2", "top3:0.1,0,0.9"} <= set(grid)
    assert weight_grid(1) == ("top1:1",)
    for how in grid:
        assert sum(map(float, how.partition(":")[2].split(","))) == pytest.approx(1)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: weight_grid(3, 0.3), "a step that divides 1"),
        (lambda: window_grid([1.5], ["max"]), r"a weight of 1\.5 for the first stage"),
        (lambda: window_grid([0.5], ["best"]), "no aggregation is called 'best'"),
        (lambda: window_grid([0.5], ["max"], "softmax"), "softmax"),
    ],
)
def test_a_bad_grid_is_refused(make: object, problem: str) -> None:
    with pytest.raises(RankwellError, match=problem):
        make()  # type: ignore[operator]


def test_runs_that_do_not_belong_together() -> None:
    first, windows, _ = two_kinds(6)
    others = Run.from_scores({qid: {"good": 1.0} for qid in first})
    grid = window_grid([0.5], ["max"])
    with pytest.raises(
        RankwellError, match="document 'bad' has scores of windows for query 'q0', but is not in the run"
    ):
        fuse_windows(others, windows, grid[0])
    with pytest.raises(RankwellError, match="none of the queries with scores of windows is judged"):
        tune_windows(first, windows, Qrels({"x": {"good": 1}}), grid)
