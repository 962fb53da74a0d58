"""Runs that do not fit their judgments."""

from __future__ import annotations

import math

import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import parse_measures
from rankwell.evaluation.validate import validate

QRELS = Qrels({"1": {"a": 1, "b": 0}, "2": {"c": 1}})
GOOD = {"1": {"a": 3.0, "b": 2.0}, "2": {"c": 2.0, "d": 1.0}}


def messages(run: dict[str, dict[str, float]], measures: str = "RR", qrels: Qrels = QRELS) -> list[str]:
    return [str(problem) for problem in validate(qrels, Run.from_scores(run), parse_measures(measures))]


def test_a_run_that_fits_has_no_problems() -> None:
    assert messages(GOOD, "RR@2 AP") == []


@pytest.mark.parametrize(
    ("qrels", "run", "message"),
    [
        (QRELS, {}, "the run is empty"),
        (QRELS, {"1": {}}, "the run is empty"),
        (Qrels({}), GOOD, "the judgments are empty"),
        (
            QRELS,
            {"q1": {"a": 1.0}},
            "the run and the judgments have no query in common (the run has 'q1', the judgments '1')",
        ),
        (QRELS, {"1": {}, "q1": {"a": 1.0}}, "the run and the judgments have no query in common"),
        (QRELS, {"1": {"a": math.inf, "b": 1.0}}, "query 1, document a: the score is inf, not a number"),
        (QRELS, {"1": {"a": 1.0, "b": -math.inf}}, "query 1, document b: the score is -inf, not a number"),
    ],
)
def test_errors_stop_the_evaluation(qrels: Qrels, run: dict[str, dict[str, float]], message: str) -> None:
    problems = validate(qrels, Run.from_scores(run))
    assert problems[0].severity == "error"
    assert problems[0].message.startswith(message)
    with pytest.raises(RankwellError) as error:
        evaluate(qrels, Run.from_scores(run, name="mine"))
    assert str(error.value).startswith(f"cannot evaluate the run 'mine': {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "measures", "message"),
    [
        ({"9": {"a": 1.0}}, "RR", "warning: 1 query of the run without judgments, left out (9)"),
        (
            {str(i): {"a": 1.0} for i in range(3, 8)},
            "RR",
            "warning: 5 queries of the run without judgments, left out (3, 4, 5, …)",
        ),
        ({"2": {}}, "RR", "warning: 1 judged query without results, counted as 0 (2)"),
        (
            {"1": {"x": 2.0, "y": 1.0}, "2": {"y": 2.0, "x": 1.0}},
            "RR",
            "warning: no retrieved document is judged; do the ids match? (the run has 'x', the judgments 'a')",
        ),
        (
            {"1": {"a": 2.0, "b": 2.0}},
            "RR",
            "warning: 1 query with the same score for every document, ordered by id alone (1)",
        ),
        ({}, "P@1 R@100", "warning: 2 queries with fewer than 100 results, the fewest 2 (1, 2)"),
        (
            {"1": {"a": 2.0, "b": 2.0, "c": 1.0}},
            "RR@1",
            "warning: 1 query with documents tied across rank 1, ordered by id (1)",
        ),
    ],
)
def test_doubts_are_warnings(change: dict[str, dict[str, float]], measures: str, message: str) -> None:
    assert messages(GOOD | change, measures) == [message]


def test_a_query_with_nothing_relevant_is_a_warning() -> None:
    qrels = Qrels({"1": {"a": 1, "b": 0}, "2": {"c": 0}})
    assert messages(GOOD, qrels=qrels) == ["warning: 1 judged query without a relevant document, counted as 0 (2)"]


def test_what_is_relevant_is_what_the_measures_take_for_it() -> None:
    qrels = Qrels({"1": {"a": 2, "b": 0}, "2": {"c": 1}})
    assert messages(GOOD, "nDCG@2 RR", qrels=qrels) == []
    assert messages(GOOD, "RR(rel=2) nDCG@2", qrels=qrels) == [
        "warning: 1 judged query without a document of grade 2 or higher (rel=2), counted as 0 (2)"
    ]
    assert messages(GOOD, "AP(rel=5)", qrels=qrels) == [
        "warning: 2 judged queries without a document of grade 5 or higher (rel=5), counted as 0 (1, 2)"
    ]
    assert messages(GOOD, "AP(rel=0)", qrels=Qrels({"1": {"a": 0}, "2": {"c": 0}})) == []


def test_ties_within_a_cutoff_are_harmless() -> None:
    assert messages(GOOD | {"1": {"a": 2.0, "b": 2.0, "c": 1.0}}, "RR@2") == []


def test_levels_of_recall_are_no_depths() -> None:
    assert messages(GOOD, "IPrec@1.0 Rprec@2.0") == []
