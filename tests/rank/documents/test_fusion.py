"""BM25 and windows together: the scores against general fusion, the choice against counting on fingers."""

from __future__ import annotations

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import parse_measure
from rankwell.rank.documents.fusion import (
    DocumentFusion,
    DocumentTable,
    settings_of,
    tune_documents,
    weight_grid,
)
from rankwell.rank.documents.window_scores import WindowScores
from rankwell.rank.fusion import fuse, interpolation

QUERIES, DOCUMENTS = 12, 7


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
    kept = WindowScores(docids, np.array(counts), first, mean, best)
    return Run.from_scores(scores), kept, Qrels({**qrels, "no candidates": {"d1": 1}})


@pytest.mark.parametrize("normalise", ["none", "min-max", "z-score"])
@pytest.mark.parametrize("aggregate", ["first", "max", "mean", "top3", "top3:0.6,0.3,0.1"])
def test_the_run_is_that_of_fusing_two_runs(aggregate: str, normalise: str) -> None:
    first, windows, _ = random_windows()
    table = DocumentTable(first, windows)
    for beta in (0.0, 0.3, 1.0):
        expected = fuse([first, windows.run(aggregate)], interpolation(beta, normalise))
        found = table.run([DocumentFusion(beta, aggregate, normalise)])
        assert {qid: found[qid].docids for qid in found} == {qid: expected[qid].docids for qid in expected}
        for qid in expected:
            assert np.array_equal(found[qid].scores, expected[qid].scores)


@pytest.mark.parametrize("measure", ["RR@10", "nDCG@3", "AP", "RR(rel=2)@10"])
def test_the_figures_of_a_setting_are_those_of_its_run(measure: str) -> None:
    first, windows, qrels = random_windows(1)
    settings = settings_of([0.0, 0.5, 0.9], ["max", "top2"])
    tuning = tune_documents(first, windows, qrels, parse_measure(measure), settings, folds=3)
    assert tuning.qids == tuple(qrels)
    for number, setting in enumerate(settings):
        expected = evaluate(qrels, tuning.table.run([setting]), measure)
        assert tuning.values[number] == pytest.approx(expected.values[0])
    assert tuning.values[:, -1].tolist() == [0.0] * len(settings), "a query without candidates counts"


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
    tuning = tune_documents(first, windows, qrels, parse_measure("RR@10"), settings_of([0.0, 0.5, 1.0], ["max"]))
    # Equal scores go by id, descending: of "good" and "top" at 1, "top" comes first.
    assert tuning.values.mean(axis=1).tolist() == pytest.approx([(1 / 2 + 1 / 3) / 2, 1 / 2, (1 / 2 + 1 / 3) / 2])
    assert tuning.best == DocumentFusion(0.5, "max")
    assert tuning.found.mean == pytest.approx(1 / 2)
    beta, values = tuning.rows("max")
    assert beta.tolist() == [0.0, 0.5, 1.0]
    assert np.array_equal(values, tuning.values)


def test_each_query_is_held_out_of_its_own_choice() -> None:
    first, windows, qrels = random_windows(3)
    settings = settings_of([0.0, 0.2, 0.5, 0.8, 1.0], ["max", "mean", *weight_grid(2, 0.25)])
    tuning = tune_documents(first, windows, qrels, parse_measure("RR@10"), settings, folds=4, seed=2)
    assert len(set(tuning.found.chosen)) > 1, "the folds must differ, or this shows nothing"
    held_out = evaluate(qrels, tuning.held_out, "RR@10")
    assert held_out.values[0] == pytest.approx(tuning.found.values)
    folds = [np.flatnonzero(tuning.found.settings == number) for number in set(tuning.found.chosen)]
    assert sorted(np.concatenate(folds).tolist()) == list(range(len(qrels)))


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
        (lambda: DocumentFusion(1.5), "β is 1.5"),
        (lambda: DocumentFusion(aggregate="best"), "no aggregation is called 'best'"),
        (lambda: DocumentFusion(normalise="softmax"), "softmax"),
    ],
)
def test_what_is_wrong_is_told(make: object, problem: str) -> None:
    with pytest.raises(RankwellError, match=problem):
        make()  # type: ignore[operator]


def test_runs_that_do_not_belong_together() -> None:
    first, windows, _ = two_kinds(6)
    others = Run.from_scores({qid: {"good": 1.0} for qid in first})
    with pytest.raises(
        RankwellError, match="document 'bad' has scores of windows for query 'q0', but is not in the run"
    ):
        DocumentTable(others, windows)
    with pytest.raises(RankwellError, match="none of the queries with scores of windows is judged"):
        tune_documents(first, windows, Qrels({"x": {"good": 1}}), parse_measure("RR@10"), [DocumentFusion()])


def test_a_setting_prints_as_what_it_is() -> None:
    assert str(DocumentFusion()) == "β=0.9 top3 min-max"
