"""Candidates: from judgments and a run to columns, and what is said about data that cannot be trained on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.training.data.candidates import UNJUDGED, TrainingCandidates
from rankwell.training.data.sampling import TrainingSet

DOCUMENTS = DocumentStore.of_texts({f"{docid}{n}": "" for docid in "zyxwvutsrqponmlkjihgfedcba" for n in ("", 2, 3)})
"""Among others ``a`` … ``z``, whose numbers are not their places in the alphabet."""


def ranked(**rankings: str) -> Run:
    """A run with the documents of each query, best first."""
    return Run.from_scores({qid: {d: 10.0 - place for place, d in enumerate(own)} for qid, own in rankings.items()})


def asked(*qids: str) -> list[Query]:
    return [Query(qid, f"what is {qid}") for qid in qids]


def make(
    run: Run,
    selection: Mapping[str, Any] | None = None,
    queries: list[Query] | None = None,
    **grades: Mapping[str, int],
) -> TrainingCandidates:
    return TrainingCandidates.of(queries or asked(*grades), Qrels(grades), run, DOCUMENTS, **(selection or {}))


def shown(candidates: TrainingCandidates) -> dict[str, list[tuple[str, int, float]]]:
    """Id, grade and score of each query's candidates."""
    names = candidates.docids.strings(candidates.documents)
    columns = list(zip(names, candidates.grades.tolist(), candidates.scores.tolist(), strict=True))
    begins = candidates.ends - candidates.lengths
    return {q: columns[b:e] for q, b, e in zip(candidates.qids, begins, candidates.ends, strict=True)}


def names(candidates: TrainingCandidates) -> dict[str, str]:
    return {qid: "".join(name for name, _, _ in own) for qid, own in shown(candidates).items()}


def test_a_query_has_what_the_run_found_and_the_relevant_documents_it_missed() -> None:
    candidates = make(ranked(q="abc", r="cd"), q={"b": 1, "z": 2, "c": 0, "y": 0}, r={"d": 1})
    found = shown(candidates)
    assert found["q"][:3] == [("a", UNJUDGED, 10.0), ("b", 1, 9.0), ("c", 0, 8.0)]
    assert found["q"][3][:2] == ("z", 2)
    assert np.isnan(found["q"][3][2])
    assert len(found["q"]) == 4  # y was judged non-relevant, but the run missed it
    assert found["r"] == [("c", UNJUDGED, 10.0), ("d", 1, 9.0)]
    assert candidates.rows.tolist() == [0, 0, 0, 0, 1, 1]
    assert candidates.relevant.tolist() == [False, True, False, True, False, True]
    assert candidates.per_query(candidates.unjudged).tolist() == [1, 1]


def test_the_documents_are_the_collections_numbers() -> None:
    candidates = make(ranked(q="abc"), q={"b": 1})
    assert candidates.documents.tolist() == DOCUMENTS.numbers([*"abc"]).tolist()


@pytest.mark.parametrize(
    ("missed", "relevant", "told"),
    [(1, 20, []), (2, 21, ["2 of 21 relevant"]), (19, 20, ["19 of 20 relevan"]), (20, 20, [])],
)
def test_relevant_documents_that_the_run_missed_are_left_out_where_they_are_many(
    missed: int, relevant: int, told: list[str]
) -> None:
    letters = "abcdefghijklmnopqrstu"[:relevant]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        candidates = make(ranked(q=letters[missed:] + "z"), {"found_only": "auto"}, q=dict.fromkeys(letters, 1))
    assert [str(warning.message)[:16] for warning in caught] == told
    assert candidates.relevant.sum() == relevant - (missed if told else 0)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"depth": None}, "abcdefxy"),
        ({"depth": 3}, "abcexy"),
        ({"found_only": True}, "abcdef"),
        ({"depth": 3, "found_only": True}, "abce"),
    ],
)
def test_the_ranks_of_negatives_can_be_chosen(selection: dict[str, Any], expected: str) -> None:
    candidates = make(ranked(q="abcdef"), selection, q={"b": 1, "e": 1, "x": 1, "a": 0, "y": 1, "z": 0})
    assert sorted(names(candidates)["q"]) == sorted(expected)


def test_queries_keep_the_order_they_are_asked_in() -> None:
    candidates = make(ranked(p="ab", q="ab"), None, asked("q", "p"), p={"a": 1}, q={"b": 1})
    assert candidates.qids == ("q", "p")


@given(
    st.dictionaries(
        st.sampled_from("pqrs"),
        st.tuples(
            st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1),
            st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-1, 3), min_size=1),
        ),
        min_size=1,
    ),
    st.integers(1, 2),
    st.integers(3, 6),
)
def test_candidates_are_those_of_a_slow_reference(
    data: dict[str, tuple[list[str], dict[str, int]]], level: int, depth: int
) -> None:
    expected = {}
    for qid, (docids, grades) in data.items():
        taken = [d for rank, d in enumerate(docids) if rank < depth or grades.get(d, 0) >= level]
        taken += [d for d, grade in grades.items() if grade >= level and d not in docids]
        relevant = [d for d in taken if grades.get(d, 0) >= level]
        if relevant and len(relevant) < len(taken):
            expected[qid] = [(d, max(grades.get(d, UNJUDGED), UNJUDGED)) for d in taken]
    run, qrels = ranked(**{qid: "".join(own) for qid, (own, _) in data.items()}), {q: g for q, (_, g) in data.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not expected:
            with pytest.raises(RankwellError, match="can be trained on"):
                make(run, {"level": level, "depth": depth}, **qrels)
            return
        candidates = make(run, {"level": level, "depth": depth}, **qrels)
    assert {qid: [pair[:2] for pair in own] for qid, own in shown(candidates).items()} == expected


def test_some_candidates_and_some_queries_can_be_taken() -> None:
    candidates = make(ranked(p="abc", q="de", r="fg"), p={"a": 1}, q={"d": 1}, r={"g": 1})
    assert names(candidates.take(np.array([2, 0]))) == {"p": "abc", "r": "fg"}
    fewer = candidates.where(np.array([1, 0, 1, 0, 0, 1, 1], np.bool_))
    assert names(fewer) == {"p": "ac", "q": "", "r": "fg"}
    assert fewer.ends.tolist() == [2, 2, 4]
    assert names(candidates) == {"p": "abc", "q": "de", "r": "fg"}


def test_judged_and_ranked_documents_must_be_in_the_collection() -> None:
    with pytest.raises(RankwellError, match="document 'nope' is not among"):
        make(ranked(p="ab", q="b"), p={"a": 1}, q={"b": 1, "nope": 0})
    run = Run.from_scores({"q": {"a": 2.0, "gone": 1.0}}, name="BM25")
    with pytest.raises(RankwellError, match="document 'gone' is not among"):
        make(run, q={"a": 1})


@pytest.mark.parametrize(
    ("extra", "text", "ranking", "reason"),
    [
        ({"b": 1}, "", "ab", "without text"),
        ({"b": 1}, "why", "", "without candidates"),
        ({"b": 0}, "why", "ab", "without a relevant document"),
        ({"b": 1, "a": 1}, "why", "ab", "without a non-relevant candidate"),
    ],
)
def test_a_query_that_cannot_be_trained_on_is_left_out_and_counted(
    extra: dict[str, int], text: str, ranking: str, reason: str
) -> None:
    queries = [*asked("q"), Query("bad", text)]
    run = ranked(q="ab", bad=ranking) if ranking else ranked(q="ab")
    with pytest.warns(UserWarning, match=f"1 of 2 queries of the qrels are {reason} and left out, such as 'bad'"):
        candidates = make(run, None, queries, q={"a": 1}, bad=extra)
    assert candidates.qids == ("q",)
    with pytest.raises(RankwellError, match=f"none of the 1 queries can be trained on: 1 are {reason} .such as 'bad'"):
        make(run, None, queries, bad=extra)


def test_a_clean_set_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make(ranked(q="ab"), q={"a": 1}).qids == ("q",)


def test_a_training_set_has_the_queries_of_its_candidates(tiny_tokenizer: Path) -> None:
    tokenizer = Tokenizer.open(tiny_tokenizer)
    queries = [Query("p", "what is honey", "entity"), Query("q", "who was the king"), Query("r", "how many", "NUMERIC")]
    documents = StoredTokens.open(DocumentStore.of_texts({"a": "bees", "b": "a bank"}).documents, tokenizer)

    def words(row: int) -> list[str]:
        return tokenizer.token_names(data.queries.take([row]).ids)

    def type_of(row: int) -> list[str]:
        assert data.types is not None
        return tokenizer.token_names(data.types.take([row]).ids)

    data = TrainingSet.of(queries, "pqr", documents, tokenizer)
    assert words(1) == ["who", "was", "the", "king"]
    assert [type_of(row) for row in range(3)] == [
        tokenizer.token_names(tokenizer.encode(["entity"]).ids),
        [],
        ["nu", "##meric"],
    ]
    data = TrainingSet.of(queries, "q", documents, tokenizer)
    assert data.types is None
    assert words(0) == ["who", "was", "the", "king"]
    with pytest.raises(RankwellError, match="query 'q' has candidates but no text"):
        TrainingSet.of(queries[:1], "q", documents, tokenizer)
