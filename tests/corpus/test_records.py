"""Records, and THE ranking order: score descending as a 32-bit float, then document id descending."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run, ranking_order


def test_scores_that_differ_only_beyond_32_bits_are_equal() -> None:
    assert Ranking.of(["a", "b"], [1.0 + 1e-12, 1.0]).docids == ("b", "a")


def test_minus_zero_equals_zero() -> None:
    ranking = Ranking.of(["a", "b"], [0.0, -0.0])
    assert ranking.docids == ("b", "a")
    assert not np.signbit(ranking.scores).any()


@given(st.dictionaries(st.text(max_size=3), st.sampled_from([0.0, 0.5, 1.0, 1.5, float("inf"), -float("inf")])))
def test_the_order_does_not_depend_on_the_order_of_the_input(scores: dict[str, float]) -> None:
    expected = sorted(scores.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
    assert list(Ranking.of(scores, scores.values())) == expected
    backwards = dict(reversed(scores.items()))
    assert Ranking.of(backwards, backwards.values()) == Ranking.of(scores, scores.values())


def test_scores_in_order_stay_as_they_are_and_a_tie_at_the_very_end_is_seen() -> None:
    assert ranking_order(["a", "b", "c"], np.array([3, 2, 1], np.float32)) == [0, 1, 2]
    assert ranking_order(["a", "b", "c"], np.array([3, 2, 2], np.float32)) == [0, 2, 1]
    assert ranking_order([], np.array([], np.float32)) == []


def test_a_score_that_is_not_a_number_is_an_error_that_names_the_document() -> None:
    with pytest.raises(RankwellError, match="document b has the score NaN"):
        Ranking.of(["a", "b"], [1.0, float("nan")])


def test_a_document_cannot_be_ranked_twice() -> None:
    with pytest.raises(RankwellError, match="document a is ranked twice"):
        Ranking.of(["a", "b", "a"], [1, 2, 3])


def test_documents_and_scores_must_be_equally_many() -> None:
    with pytest.raises(ValueError, match="2 documents but 1 scores"):
        Ranking.of(["a", "b"], [1.0])


def test_the_callers_scores_are_left_alone() -> None:
    scores = np.array([1, 2], np.float32)
    ranking = Ranking.of(["a", "b"], scores)
    ranking.scores[0] = 9
    assert scores.tolist() == [1, 2]


def test_the_head_of_a_ranking_and_of_a_run() -> None:
    run = Run.from_scores({"q1": {"a": 1, "b": 2, "c": 3}, "q2": {"a": 1}}, name="mine")
    assert run.head(2)["q1"].docids == ("c", "b")
    assert (len(run.head(2)["q2"]), run.head(2).name, len(run["q1"])) == (1, "mine", 3)


def test_documents_selected_from_a_ranking_stay_in_order_with_their_scores() -> None:
    ranking = Ranking.of("abcd", [1.0, 4.0, 2.0, 3.0])
    assert ranking.select({"c", "b"}.__contains__) == Ranking.of("bc", [4.0, 2.0])
    assert ranking.select(lambda docid: False) == Ranking.of([], [])


def test_a_run_keeps_the_order_of_its_queries() -> None:
    run = Run.from_scores({"q2": {"a": 1}, "q1": {"a": 1, "b": 1}})
    assert list(run) == ["q2", "q1"]
    assert repr(run) == "Run('rankwell', 2 queries, 3 documents)"


def test_qrels_do_not_share_the_callers_tables() -> None:
    grades = {"q": {"a": 1}}
    qrels = Qrels(grades)
    grades["q"]["a"] = 2
    assert qrels["q"]["a"] == 1
    assert repr(qrels) == "Qrels(1 queries, 1 judgments)"


def test_a_title_stands_before_the_text() -> None:
    assert Document("a", "text", "Title").contents == "Title text"
    assert Document("a", "text").contents == "text"


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Query("q", "text").text = "other"  # type: ignore[misc]


def test_a_notebook_shows_the_first_documents_of_some_queries() -> None:
    run = Run.from_scores({f"q{n}": {f"<d{m}>": 9 - m for m in range(9)} for n in range(1200)}, name="<b>")
    shown = run._repr_html_()
    assert "<caption>Run(&#x27;&lt;b&gt;&#x27;, 1,200 queries, 10,800 documents)</caption>" in shown
    assert (shown.count("<tr>"), "<td>q4</td><td>&lt;d4&gt;</td><td>5.000</td>" in shown) == (26, True)
