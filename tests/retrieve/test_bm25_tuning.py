"""Tuning k1 and b."""

from __future__ import annotations

import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.datasets import Dataset
from rankwell.corpus.records import Qrels, Query
from rankwell.evaluation.cross_validation import Tuned
from rankwell.evaluation.evaluate import evaluate
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.bm25_tuning import as_point, grid_table, parse_values, tune_bm25
from rankwell.retrieve.index import Index

# Values to try


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.9", [0.9]),
        ("0.3,0.6, 1", [0.3, 0.6, 1.0]),
        ("0.3:0.9:0.3", [0.3, 0.6, 0.9]),
        ("0.1:0.9:0.1", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
        ("0:1:0.4", [0.0, 0.4, 0.8]),
        ("2:2:1", [2.0]),
    ],
)
def test_values_are_a_list_or_a_range(text: str, values: list[float]) -> None:
    assert parse_values(text) == values


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "1,",
        "1:2",
        "1:2:3:4",
        "1:2:0",
        "2:1:1",
        "1:2:-1",
        "0:1:0.0001",
        "0:1:nan",
        "0:inf:1",
        "inf:1:1",
        "0:1e308:1e-9",
    ],
)
def test_values_that_are_neither_are_refused(text: str) -> None:
    with pytest.raises(RankwellError, match="is neither FIRST:LAST:STEP nor a list of numbers separated by commas"):
        parse_values(text)


# BM25


MEASURE = "RR(rel=2)@10"


@pytest.fixture(scope="module")
def tuning(sample_index: Index, sample_data: Dataset) -> Tuned[BM25]:
    queries, qrels = sample_data.queries("dev"), sample_data.qrels("dev")
    return tune_bm25(sample_index, queries, qrels, measure=MEASURE, k1=[0.1, 1.2], b=[0.0, 0.75], folds=3)


def test_the_default_is_always_among_the_settings(tuning: Tuned[BM25]) -> None:
    points = [(bm25.k1, bm25.b) for bm25 in tuning.settings]
    assert points == [(0.1, 0.0), (0.1, 0.75), (1.2, 0.0), (1.2, 0.75), (0.9, 0.4)]


def test_every_point_of_the_grid_is_searched_and_evaluated(
    tuning: Tuned[BM25], sample_index: Index, sample_data: Dataset
) -> None:
    queries, qrels = sample_data.queries("dev"), sample_data.qrels("dev")
    assert tuning.values.shape == (5, len(queries))
    for bm25, values in zip(tuning.settings, tuning.values, strict=True):
        run = sample_index.search(queries, bm25)
        assert values.mean() == pytest.approx(evaluate(qrels, run, MEASURE).mean[MEASURE], abs=1e-12)


def test_the_best_point_is_that_with_the_highest_mean(tuning: Tuned[BM25]) -> None:
    means = dict(zip(tuning.settings, tuning.values.mean(axis=1).tolist(), strict=True))
    assert means[tuning.best] == max(means.values())
    assert min(means.values()) < tuning.cross_validated <= max(means.values())


def test_the_table_shows_the_grid_the_choice_and_the_figures(tuning: Tuned[BM25]) -> None:
    lines = grid_table(tuning).splitlines()
    assert lines[0] == f"{MEASURE} by k1 (down) and b (across)"
    assert lines[2].split() == ["0", "0.4", "0.75"]
    assert [line.split()[0] for line in lines[3:6]] == ["0.1", "0.9", "1.2"]
    best, means = tuning.best, dict(zip(tuning.settings, tuning.means, strict=True))
    queries = len(tuning.qids)
    assert lines[7] == f"best on all {queries} queries: --k1 {best.k1:g} --b {best.b:g}, {means[best]:.4f}"
    assert lines[8] == f"cross-validated, 3 folds: {tuning.cross_validated:.4f}"
    assert lines[9] == f"default: --k1 0.9 --b 0.4, {means[BM25()]:.4f}"


def test_the_json_has_k1_and_b_of_every_point(tuning: Tuned[BM25]) -> None:
    record = tuning.as_dict(as_point)
    assert BM25(**record["best"]) == tuning.best
    assert [BM25(point["k1"], point["b"]) for point in record["grid"]] == list(tuning.settings)
    assert len(record["folds"]) == 3


def test_queries_that_are_not_judged_are_left_out(sample_index: Index) -> None:
    queries = [Query("q1", "honey"), Query("q2", "lighthouse"), Query("q3", "chess")]
    qrels = Qrels({"q1": {"P001": 1}, "q2": {"P001": 1}, "q9": {"P001": 1}})
    assert tune_bm25(sample_index, queries, qrels, k1=[1], b=[0.5], folds=2).values.shape == (2, 2)


def test_queries_without_any_judgment_are_an_error(sample_index: Index) -> None:
    with pytest.raises(RankwellError, match="none of the queries is judged"):
        tune_bm25(sample_index, [Query("q", "honey")], Qrels({"x": {"P001": 1}}), k1=[1], b=[0.5])


def test_a_bad_value_of_the_grid_is_named(sample_index: Index) -> None:
    with pytest.raises(RankwellError, match=r"b must lie between 0 and 1, not 1\.5"):
        tune_bm25(sample_index, [Query("q", "honey")], Qrels({"q": {"P001": 1}}), k1=[1], b=[1.5])
