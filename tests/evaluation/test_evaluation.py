"""Averages over queries, and what an evaluation holds."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Ranking, Run
from rankwell.evaluation.evaluate import evaluate

QRELS = Qrels({"q1": {"a": 1, "b": 0}, "q2": {"c": 1}, "q3": {"d": 0}})
RUN = Run.from_scores({"q1": {"x": 3.0, "a": 2.0}, "q3": {"d": 1.0}, "stray": {"a": 1.0}}, name="mine")


def test_the_mean_is_over_the_judged_queries() -> None:
    evaluation = evaluate(QRELS, RUN, "RR@10 NumQ NumRet NumRel")
    assert evaluation.qids == ("q1", "q2", "q3")
    assert evaluation.per_query["RR@10"].tolist() == [0.5, 0.0, 0.0]
    assert evaluation.mean == {"RR@10": pytest.approx(0.5 / 3), "NumQ": 3.0, "NumRet": 3.0, "NumRel": 2.0}


def test_the_mean_can_be_over_queries_with_results() -> None:
    evaluation = evaluate(QRELS, RUN, "RR@10", average="both")
    assert evaluation.qids == ("q1", "q3")
    assert evaluation.mean["RR@10"] == 0.25


def test_a_query_with_an_empty_ranking_has_no_results() -> None:
    run = Run({"q1": RUN["q1"], "q2": Ranking.of([], [])})
    assert evaluate(QRELS, run, "RR@10", average="both").qids == ("q1",)
    assert evaluate(QRELS, run, "RR@10").mean["RR@10"] == pytest.approx(0.5 / 3)


def test_ties_are_broken_by_document_id_descending() -> None:
    qrels = Qrels({"q": {"a": 1}})
    assert evaluate(qrels, Run.from_scores({"q": {"a": 1.0, "b": 1.0}}), "RR").mean["RR"] == 0.5
    # Equal as 32-bit floats, though not as the 64-bit floats they were read as.
    assert evaluate(qrels, Run.from_scores({"q": {"a": 1.0 + 1e-9, "b": 1.0}}), "RR").mean["RR"] == 0.5


def test_figures_as_a_dictionary() -> None:
    assert evaluate(QRELS, RUN, "RR@10").as_dict(per_query=True) == {
        "run": "mine",
        "queries": 3,
        "mean": {"RR@10": pytest.approx(0.5 / 3)},
        "per_query": {"q1": {"RR@10": 0.5}, "q2": {"RR@10": 0.0}, "q3": {"RR@10": 0.0}},
    }


def test_an_evaluation_prints_its_figures() -> None:
    evaluation = evaluate(QRELS, RUN, "RR@10 AP")
    assert repr(evaluation) == "Evaluation('mine', 3 queries: RR@10 0.1667, AP 0.1667)"
    assert "<caption>mine: 3 queries</caption>" in evaluation._repr_html_()
    assert "<td>RR@10</td><td>0.1667</td>" in evaluation._repr_html_()


def test_measures_and_queries_keep_their_order() -> None:
    evaluation = evaluate(QRELS, RUN, "AP P@5 RR@10")
    assert list(evaluation.mean) == ["AP", "P@5", "RR@10"]
    assert evaluation.values.shape == (3, 3)
    assert np.array_equal(evaluation.values[2], evaluation.per_query["RR@10"])


def test_an_unknown_average_is_refused() -> None:
    with pytest.raises(RankwellError, match="no way of averaging is called 'all'"):
        evaluate(QRELS, RUN, "AP", average="all")  # type: ignore[arg-type]


def test_evaluation_and_its_tests_need_neither_torch_nor_scipy() -> None:
    program = """
import sys
from rankwell.evaluation.significance import TESTS
import numpy as np
[test(np.array([0.1, 0.5, 0.9]), np.array([0.2, 0.3, 0.4])) for test in TESTS.values()]
print([m for m in ("torch", "scipy") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
