"""The ranker: scores of pairs, ranked documents, re-ranked runs; on the tiny model, and on an engine whose scores are
known beforehand where the order matters.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.batching import Sequences
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import Template
from rankwell.rank.engines.engine import Engine
from rankwell.rank.ranker import Ranker

PAIRS = [
    ("what is bogue", "a bogus claim"),
    ("how many bees are in a hive", "the bees keep warm in winter"),
    ("what is bogue", "insouciantly numeric"),
    ("bank", ""),
    ("", "honey"),
    ("bank", "the river bank, " * 30),
]


class TestPredict:
    def test_gives_one_fp32_score_a_pair_in_their_order(self, ranker: Ranker) -> None:
        scores = ranker.predict(PAIRS)
        assert scores.dtype == np.float32
        assert scores.shape == (len(PAIRS),)
        backwards = ranker.predict(PAIRS[::-1])
        assert np.abs(scores - backwards[::-1]).max() < 1e-5
        for pair, score in zip(PAIRS, scores, strict=True):
            assert ranker.predict([pair])[0] == pytest.approx(score, abs=1e-5)

    def test_one_pair_gets_one_score(self, ranker: Ranker) -> None:
        for query, document in (*PAIRS, ("ab", "cd")):
            (expected,) = ranker.predict([(query, document)])
            for pair in ((query, document), [query, document], np.array([query, document])):
                score = ranker.predict(pair)  # type: ignore[arg-type]
                assert isinstance(score, np.float32)
                assert score == expected
        chance = ranker.predict(PAIRS[0], activation="probability")
        assert chance == ranker.predict(PAIRS[:1], activation="probability")[0]

    @pytest.mark.parametrize(
        ("pairs", "found"),
        [
            ([("a", None)], "pair 1 is \"('a', None)\""),
            ([("a", "b"), ("a", "b", "c")], "pair 2 is"),
            (["ab", "cd", "ef"], "pair 1 is \"'ab'\""),
            (("a", None), "pair 1 is \"'a'\""),
            ("ab", "pair 1 is \"'a'\""),
            ([3], "pair 1 is '3'"),
            ([{"query": "a", "document": "b"}], "pair 1 is"),
        ],
    )
    def test_what_is_no_pair_is_refused(self, ranker: Ranker, pairs: Any, found: str) -> None:
        with pytest.raises(RankwellError, match=re.escape(found)) as raised:
            ranker.predict(pairs)
        assert "expected (query, document), two strings" in str(raised.value)

    def test_probabilities_on_request(self, ranker: Ranker) -> None:
        scores, chances = ranker.predict(PAIRS), ranker.predict(PAIRS, activation="probability")
        assert chances == pytest.approx(np.exp(scores), abs=1e-6)
        assert chances.min() > 0
        assert chances.max() < 1

    def test_of_nothing_is_nothing(self, ranker: Ranker) -> None:
        for found in (ranker.predict([]), ranker.predict([], types=[]), ranker.predict([], activation="probability")):
            assert found.shape == (0,)
            assert found.dtype == np.float32

    def test_repeated_texts_score_alike(self, ranker: Ranker) -> None:
        once = ranker.predict(PAIRS)
        assert ranker.predict([*PAIRS, *PAIRS, PAIRS[0]]) == pytest.approx([*once, *once, once[0]], abs=1e-5)

    def test_more_pairs_than_are_laid_out_at_a_time(self, counting: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rankwell.rank.ranker.PAIRS_AT_A_TIME", 3)
        pairs = [("tea", "bank " * count) for count in (4, 0, 2, 7, 1, 1, 9, 3)]
        assert counting.predict(pairs).tolist() == [4, 0, 2, 7, 1, 1, 9, 3]
        types = Ranker.from_engine(counting.engine, Reader(counting.tokenizer, Template("typed")))
        named = ["bank", None, "", "BANK", "tea", None, "bank bank", "bank"]
        assert types.predict(pairs, types=named).tolist() == [5, 0, 2, 8, 1, 1, 11, 4]

    def test_what_was_cut_is_counted(self, tiny_checkpoint: Path) -> None:
        ranker = Ranker.from_pretrained(tiny_checkpoint, template={"max_length": 80}, windows=None)
        ranker.predict([("bank", "tea " * 100), ("bank", "tea")])
        assert str(ranker.truncation) == "truncated: 24 document tokens (1 of 2 pairs)"

    def test_threads_at_once_get_what_one_gets(self, ranker: Ranker) -> None:
        parts = [[(query, f"{document} {number}") for query, document in PAIRS] for number in range(12)]
        alone = [ranker.predict(part) for part in parts]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(ranker.predict, parts))
        for one, other in zip(alone, together, strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "problem"), [("duo", "reads query and document and other, not"), ("single", "reads query, not")]
)
def test_a_template_that_reads_something_else_is_refused(tiny_checkpoint: Path, name: str, problem: str) -> None:
    ranker = Ranker(tiny_checkpoint, template={"name": name})
    run = Run.from_scores({"q": {"d": 1.0}})
    for call in (
        lambda: ranker.predict([("tea", "bank")]),
        lambda: ranker.rank("tea", ["bank"]),
        lambda: ranker.rerank(run, [Query("q", "tea")], DocumentStore.of_texts({"d": "bank"})),
    ):
        with pytest.raises(RankwellError, match=problem):
            call()


class Begun(Engine):
    """An engine that computes when it is asked for the result, and notes what came when."""

    def __init__(self, engine: Any):
        self.engine = engine
        self.log: list[tuple[str, int]] = []
        self.count = 0

    def submit(self, sequences: Sequences) -> Any:
        number = self.count
        self.count += 1
        self.log.append(("begun", number))

        def finish() -> Any:
            self.log.append(("asked", number))
            return self.engine.logits(sequences)

        return finish

    def logits(self, sequences: Sequences) -> Any:
        raise AssertionError("to be submitted")


class TestOverlap:
    """Sequences are laid out while those before them are computed."""

    def test_the_next_part_is_begun_before_the_last_is_asked_for(
        self, counting: Ranker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rankwell.rank.ranker.PAIRS_AT_A_TIME", 2)
        engine = Begun(counting.engine)
        ranker = Ranker.from_engine(engine, Reader(counting.tokenizer, Template()))
        pairs = [("tea", "bank " * count) for count in (4, 0, 2, 7, 1, 1, 9)]
        assert ranker.predict(pairs).tolist() == [4, 0, 2, 7, 1, 1, 9]
        kinds = "begun begun asked begun asked begun asked asked".split()
        assert engine.log == list(zip(kinds, (0, 1, 0, 2, 1, 3, 2, 3), strict=True))

    def test_also_from_one_group_of_queries_to_the_next(
        self, counting: Ranker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rankwell.rank.ranker.PAIRS_AT_A_TIME", 1)
        run = Run.from_scores({qid: {"a": 3.0, "b": 2.0, "c": 1.0} for qid in "123"})
        queries = [Query(qid, "bank " * int(qid)) for qid in "123"]
        texts = DocumentStore.of_texts({"a": "tea", "b": "bank", "c": "bank bank"})
        engine = Begun(counting.engine)
        found = Ranker.from_engine(engine, Reader(counting.tokenizer, Template())).rerank(run, queries, texts)
        assert dict(found) == dict(counting.rerank(run, queries, texts))
        done = [engine.log.index(("asked", number)) for number in range(9)]
        begun = [engine.log.index(("begun", number)) for number in range(9)]
        assert all(later < earlier for later, earlier in zip(begun[1:], done, strict=False))
        under_way = np.cumsum([1 if what == "begun" else -1 for what, _ in engine.log])
        assert under_way.max() <= 3  # two, and the last of the group before

    def test_scores_are_the_same_bits(self, ranker: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rankwell.rank.ranker.PAIRS_AT_A_TIME", 2)

        class Plain(Engine):
            def logits(self, sequences: Sequences) -> Any:
                return ranker.engine.logits(sequences)

        plain = Ranker.from_engine(Plain(), Reader(ranker.tokenizer, ranker.template))
        assert plain.predict(PAIRS).tobytes() == ranker.predict(PAIRS).tobytes()


class TestTypes:
    def test_matter_to_a_typed_template_in_any_case(self, tiny_checkpoint: Path) -> None:
        ranker = Ranker.from_pretrained(tiny_checkpoint, template={"name": "typed"})
        plain = ranker.predict(PAIRS)
        assert np.abs(ranker.predict(PAIRS, types=["numeric"] * 6) - plain).min() > 1e-4
        some = ranker.predict(PAIRS, types=["numeric", None, "", "NUMERIC", None, "numeric"])
        changed = np.abs(some - plain) > 1e-4
        assert changed.tolist() == [True, False, False, True, False, True]
        every = ranker.predict(PAIRS, types=["Numeric"] * 6)
        assert np.abs(some - every)[changed].max() < 1e-5

    def test_are_refused_by_a_template_without_a_place_for_them(self, ranker: Ranker) -> None:
        with pytest.raises(RankwellError, match="the template mono has no place for types"):
            ranker.predict(PAIRS, types=["person"] * 6)
        assert np.array_equal(ranker.predict(PAIRS, types=[None] * 6), ranker.predict(PAIRS))

    def test_must_be_as_many_as_pairs(self, ranker: Ranker) -> None:
        with pytest.raises(RankwellError, match="1 types for 6 pairs"):
            ranker.predict(PAIRS, types=["person"])


class TestRank:
    DOCUMENTS = ("bank", "tea", "bank bank bank", "milk bank", "")

    def test_is_best_first_and_ties_keep_their_order(self, counting: Ranker) -> None:
        expected = [(2, 3.0), (0, 1.0), (3, 1.0), (1, 0.0), (4, 0.0)]
        found = counting.rank("tea", self.DOCUMENTS)
        assert found == [{"corpus_id": number, "score": score} for number, score in expected]

    def test_top_k_may_be_more_than_there_are(self, counting: Ranker) -> None:
        assert len(counting.rank("tea", self.DOCUMENTS, top_k=99)) == 5

    def test_agrees_with_predict(self, ranker: Ranker) -> None:
        scores = ranker.predict([("what is bogue", document) for document in self.DOCUMENTS])
        found = ranker.rank("what is bogue", self.DOCUMENTS)
        assert [entry["corpus_id"] for entry in found] == np.argsort(-scores, kind="stable").tolist()
        assert [entry["score"] for entry in found] == sorted(scores.tolist(), reverse=True)
        chances = ranker.rank("what is bogue", self.DOCUMENTS, activation="probability")
        assert [entry["corpus_id"] for entry in chances] == [entry["corpus_id"] for entry in found]
        assert chances[0]["score"] == pytest.approx(np.exp(found[0]["score"]), abs=1e-6)

    def test_takes_the_querys_type(self, counting: Ranker) -> None:
        typed = Ranker.from_engine(counting.engine, Reader(counting.tokenizer, Template("typed")))
        assert typed.rank("tea", ["milk"], type="bank") == [{"corpus_id": 0, "score": 1.0}]

    def test_of_no_documents_is_nothing(self, ranker: Ranker) -> None:
        assert ranker.rank("tea", []) == []


class TestRerank:
    TEXTS: ClassVar = {"a": "tea", "b": "bank", "c": "bank bank", "d": "", "e": "bank bank bank"}
    COLLECTION = DocumentStore.of_texts(TEXTS)
    QUERIES = (Query("1", "milk"), Query("2", "bank", "numeric"), Query("3", "unasked"))
    RUN = Run.from_scores({"2": {"a": 9, "b": 8, "e": 7}, "1": {"d": 5, "b": 4, "c": 3, "a": 2}})

    def test_keeps_the_candidates_and_orders_them_anew(self, counting: Ranker) -> None:
        found = counting.rerank(self.RUN, self.QUERIES, self.COLLECTION, name="counted")
        assert found.name == "counted"
        assert list(found) == ["2", "1"], "queries stay in the run's order"
        assert list(found["2"]) == [("e", 4.0), ("b", 2.0), ("a", 1.0)]
        # Equal scores are in THE order, by document id descending.
        assert list(found["1"]) == [("c", 2.0), ("b", 1.0), ("d", 0.0), ("a", 0.0)]

    def test_to_a_depth(self, counting: Ranker) -> None:
        found = counting.rerank(self.RUN, self.QUERIES, self.COLLECTION, depth=2)
        assert {qid: ranking.docids for qid, ranking in found.items()} == {"2": ("b", "a"), "1": ("b", "d")}

    def test_gives_what_predict_gives_on_the_pairs(self, tiny_checkpoint: Path) -> None:
        ranker = Ranker.from_pretrained(tiny_checkpoint, template={"name": "typed"}, attention="strm")
        texts = {query.qid: query for query in self.QUERIES}
        found = ranker.rerank(self.RUN, self.QUERIES, self.COLLECTION)
        for qid, ranking in found.items():
            pairs = [(texts[qid].text, self.TEXTS[docid]) for docid in ranking.docids]
            expected = ranker.predict(pairs, types=[texts[qid].type] * len(pairs))
            assert np.abs(ranking.scores - expected).max() < 1e-5
            assert sorted(ranking.docids) == sorted(self.RUN[qid].docids)
            assert np.all(np.diff(ranking.scores) <= 0)

    def test_in_groups_gives_the_same(self, counting: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = counting.rerank(self.RUN, self.QUERIES, self.COLLECTION)
        monkeypatch.setattr("rankwell.rank.ranker.PAIRS_AT_A_TIME", 1)
        assert dict(counting.rerank(self.RUN, self.QUERIES, self.COLLECTION)) == dict(whole)

    def test_an_empty_run_and_a_query_without_candidates(self, counting: Ranker) -> None:
        assert len(counting.rerank(Run(), self.QUERIES, self.COLLECTION)) == 0
        found = counting.rerank(Run.from_scores({"1": {}, "2": {"b": 1}}), self.QUERIES, self.COLLECTION)
        assert {qid: ranking.docids for qid, ranking in found.items()} == {"1": (), "2": ("b",)}

    def test_a_query_that_nobody_asked_is_an_error(self, counting: Ranker) -> None:
        run = Run.from_scores({"7": {"a": 1}})
        with pytest.raises(RankwellError, match="query '7', which is not among the queries"):
            counting.rerank(run, self.QUERIES, self.COLLECTION)
