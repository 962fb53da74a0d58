"""Tuning k1 and b."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.datasets import Dataset
from rankwell.corpus.records import Qrels, Query
from rankwell.evaluation.cross_validation import CrossValidation, cross_validate
from rankwell.evaluation.evaluate import evaluate
from rankwell.retrieve.index import Index
from rankwell.retrieve.tune import Tuning, parse_values, tune_bm25

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
    with pytest.raises(RankwellError, match="is neither FIRST:LAST:STEP nor a list of numbers with commas"):
        parse_values(text)


# Cross-validation


def test_a_setting_that_is_best_everywhere_is_chosen_everywhere() -> None:
    found = cross_validate(np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]), folds=2)
    assert (found.best, found.chosen, found.mean) == (1, (1, 1), pytest.approx(0.65))


def test_one_lucky_query_does_not_count_for_itself() -> None:
    # Setting 0 is best on average thanks to query 0 alone. Without query 0 setting 1 is chosen, which gives it 0;
    # without any other setting 0 is, which gives that one 0.
    found = cross_validate(np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.2, 0.2, 0.2]]), folds=4)
    assert found.best == 0
    assert sorted(found.chosen) == [0, 0, 0, 1]
    assert found.values.tolist() == [0, 0, 0, 0]


def test_equal_settings_go_to_the_earlier_one() -> None:
    found = cross_validate(np.full((3, 4), 0.5), folds=2)
    assert (found.best, found.chosen) == (0, (0, 0))


def test_the_seed_decides_the_folds() -> None:
    values = np.random.default_rng(0).random((50, 20))
    first, again, other = (cross_validate(values, folds=4, seed=seed) for seed in (1, 1, 2))
    assert first.values.tolist() == again.values.tolist()
    assert first.best == other.best
    assert first.values.tolist() != other.values.tolist()


def test_every_query_is_measured_under_a_setting_chosen_without_it() -> None:
    values = np.random.default_rng(3).random((4, 9))
    found = cross_validate(values, folds=9)
    chosen = [int(np.delete(values, query, axis=1).mean(axis=1).argmax()) for query in range(9)]
    assert found.values.tolist() == [values[setting, query] for query, setting in enumerate(chosen)]


@pytest.mark.parametrize("folds", [0, 1, 4])
def test_there_are_at_least_two_folds_and_a_query_for_each(folds: int) -> None:
    with pytest.raises(RankwellError, match=f"{folds} folds for 3 queries"):
        cross_validate(np.zeros((2, 3)), folds=folds)


def test_there_must_be_a_setting() -> None:
    with pytest.raises(RankwellError, match="no setting"):
        cross_validate(np.zeros((0, 3)), folds=2)


# BM25


MEASURE = "RR(rel=2)@10"


@pytest.fixture(scope="module")
def tuning(sample_index: Index, sample_data: Dataset) -> Tuning:
    queries, qrels = sample_data.queries("dev"), sample_data.qrels("dev")
    return tune_bm25(sample_index, queries, qrels, measure=MEASURE, k1=[0.1, 1.2], b=[0.0, 0.75], folds=3)


def test_the_default_is_always_among_the_settings(tuning: Tuning) -> None:
    assert tuning.settings == ((0.1, 0.0), (0.1, 0.75), (1.2, 0.0), (1.2, 0.75), (0.9, 0.4))


def test_every_point_of_the_grid_is_searched_and_evaluated(
    tuning: Tuning, sample_index: Index, sample_data: Dataset
) -> None:
    queries, qrels = sample_data.queries("dev"), sample_data.qrels("dev")
    assert tuning.values.shape == (5, len(queries))
    for (k1, b), values in zip(tuning.settings, tuning.values, strict=True):
        run = sample_index.search(queries, k1=k1, b=b)
        assert values.mean() == pytest.approx(evaluate(qrels, run, MEASURE).mean[MEASURE], abs=1e-12)


def test_the_best_point_is_that_with_the_highest_mean(tuning: Tuning) -> None:
    means = dict(zip(tuning.settings, tuning.values.mean(axis=1).tolist(), strict=True))
    assert means[tuning.best] == max(means.values())
    assert min(means.values()) < tuning.found.mean <= max(means.values())


def test_the_table_shows_the_grid_the_choice_and_the_figures() -> None:
    values = np.array([[0.0, 1.0], [1.0, 1.0], [0.5, 0.5], [0.0, 0.0], [0.25, 0.0]])
    settings = ((0.3, 0.1), (0.3, 0.5), (1.5, 0.1), (1.5, 0.5), (0.9, 0.4))
    found = CrossValidation(best=1, chosen=(1, 2), values=np.array([1.0, 0.5]), settings=np.array([1, 2]))
    lines = Tuning("RR@10", settings, values, found).table().splitlines()
    assert lines[0] == "RR@10 by k1 (down) and b (across)"
    assert lines[2].split() == ["k1", "\\", "b", "0.1", "0.4", "0.5"]
    assert lines[3].split() == ["0.3", "0.5000", "1.0000*"]
    assert lines[4].split() == ["0.9", "0.1250"]
    assert lines[5].split() == ["1.5", "0.5000", "0.0000"]
    # A value stands under its b, also where the grid has holes.
    at = {b: lines[2].index(b) for b in ("0.1", "0.4", "0.5")}
    assert at["0.1"] < lines[3].index("0.5000") + 6 < at["0.4"] < lines[4].index("0.1250") + 6 < at["0.5"]
    assert lines[3].index("1.0000*") + 7 == len(lines[2])
    assert lines[7].endswith("--k1 0.3 --b 0.5   1.0000")
    assert lines[8].endswith(" 0.7500")
    assert lines[9].endswith("--k1 0.9 --b 0.4             0.1250")


def test_the_json_holds_the_grid_and_the_choice(tuning: Tuning, tmp_path: Path) -> None:
    tuning.write(tmp_path / "tuning.json")
    written = json.loads((tmp_path / "tuning.json").read_text())
    assert written["measure"] == MEASURE
    assert (written["best"]["k1"], written["best"]["b"]) == tuning.best
    assert written["cross_validated"] == tuning.found.mean
    assert len(written["folds"]) == 3
    assert [(point["k1"], point["b"]) for point in written["grid"]] == list(tuning.settings)
    assert [point["mean"] for point in written["grid"]] == tuning.values.mean(axis=1).tolist()


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
