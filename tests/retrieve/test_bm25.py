"""BM25 against the formula written out in plain Python, over small collections full of ties."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.core.errors import RankwellError
from rankwell.corpus.datasets import Dataset, open_dataset
from rankwell.corpus.records import Document, Query, Ranking, Run
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25, Hits, Statistics, search_segments
from rankwell.retrieve.index import Index
from rankwell.retrieve.numbering import join_hits

MakeIndex = Callable[..., Index]


@dataclass(frozen=True)
class Parameters:
    k: int = 10
    k1: float = 0.9
    b: float = 0.4
    k2: float | None = None


def reference(texts: Mapping[str, str], query: Sequence[str], p: Parameters) -> dict[str, float]:
    """The score of each document that has a term of the query, by the formula in bm25.py's docstring."""
    bags = {docid: Counter(text.split()) for docid, text in texts.items()}
    mean = sum(bag.total() for bag in bags.values()) / len(bags)
    scores: dict[str, float] = {}
    for term, qtf in Counter(query).items():
        df = sum(term in bag for bag in bags.values())
        idf = math.log(1 + (len(bags) - df + 0.5) / (df + 0.5))
        weight = qtf if p.k2 is None else (p.k2 + 1) * qtf / (p.k2 + qtf)
        for docid, bag in bags.items():
            if tf := bag[term]:
                damped = tf / (tf + p.k1 * (1 - p.b + p.b * bag.total() / mean))
                scores[docid] = scores.get(docid, 0.0) + weight * idf * damped
    return scores


def search_batch(
    index: Index, texts: Sequence[str], bm25: BM25 = DEFAULT_BM25, *, k: int, threads: int = 1, prune: bool = True
) -> Hits:
    terms = index.analyzer.terms_batch(texts)
    parts = search_segments(index.segments, terms, bm25, k=k, threads=threads, prune=prune)
    return parts[0] if len(parts) == 1 else join_hits(index.documents, parts, k)


def ranked(index: Index, text: str, bm25: BM25 = DEFAULT_BM25, *, k: int = 10, prune: bool = True) -> Ranking:
    hits = search_batch(index, [text], bm25, k=k, prune=prune)
    count = int(hits.counts[0])
    return Ranking(tuple(index.docids(hits.numbers[0, :count])), hits.scores[0, :count])


def found(index: Index, query: Sequence[str], p: Parameters, **options: object) -> list[tuple[str, float]]:
    return list(ranked(index, " ".join(query), BM25(k1=p.k1, b=p.b, k2=p.k2), k=p.k, **options))  # type: ignore[arg-type]


def equal_bits(one: Hits, other: Hits) -> bool:
    return one.numbers.tolist() == other.numbers.tolist() and one.scores.tobytes() == other.scores.tobytes()


def ids(index: Index, hits: Hits) -> list[list[str]]:
    return [index.docids(row[row >= 0]) for row in hits.numbers]


vocabulary = ["a", "b", "c", "d", "e"]
some_words = st.lists(st.sampled_from(vocabulary), max_size=6)
docids = st.text("ab01é日", min_size=1, max_size=3)
collections = st.dictionaries(docids, some_words.map(" ".join), min_size=1, max_size=25)
queries = st.lists(st.sampled_from([*vocabulary, "unknown"]), max_size=5)
parameters = st.builds(
    Parameters,
    k=st.integers(1, 30),
    k1=st.sampled_from([0.0, 0.3, 0.9, 2.5, 100.0]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
    k2=st.sampled_from([None, 0.0, 1.5]),
)


@settings(max_examples=60, deadline=None)
@given(texts=collections, queries=st.lists(queries, min_size=1, max_size=4), p=parameters)
def test_scores_and_order_are_those_of_the_formula(
    make_index: MakeIndex, texts: dict[str, str], queries: list[list[str]], p: Parameters
) -> None:
    index = make_index(texts)
    for query in queries:
        expected = reference(texts, query, p)
        hits = found(index, query, p)
        # Each has its own score, the scores are the best there are, and equal ones are ordered by descending id. So
        # the order is the formula's wherever its scores differ by more than rounding.
        assert [score for _, score in hits] == pytest.approx([expected[docid] for docid, _ in hits], rel=1e-5)
        assert [score for _, score in hits] == pytest.approx(sorted(expected.values(), reverse=True)[: p.k], rel=1e-5)
        assert hits == sorted(hits, key=lambda hit: (hit[1], hit[0]), reverse=True)
        # Documents with the same words have the same score; of these, too, the largest ids are taken.
        kept = {docid for docid, _ in hits}
        for docid in expected.keys() - kept:
            alike = {other for other in kept if Counter(texts[other].split()) == Counter(texts[docid].split())}
            assert all(other > docid for other in alike)


@settings(max_examples=40, deadline=None)
@given(texts=collections, queries=st.lists(queries, max_size=6), p=parameters, data=st.data())
def test_cutting_a_collection_into_segments_changes_no_bit(
    make_index: MakeIndex, texts: dict[str, str], queries: list[list[str]], p: Parameters, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(texts) - 1), max_size=3))) if len(texts) > 1 else []
    whole, parts = make_index(texts), make_index(texts, cuts=cuts)
    assert len(parts.segments) == len(cuts) + 1
    for query in queries:
        assert found(parts, query, p) == found(whole, query, p)


@settings(max_examples=30, deadline=None)
@given(texts=collections, queries=st.lists(queries, max_size=6), p=parameters)
def test_the_order_of_the_documents_does_not_matter(
    make_index: MakeIndex, texts: dict[str, str], queries: list[list[str]], p: Parameters
) -> None:
    forwards, backwards = make_index(texts), make_index(dict(reversed(texts.items())), batch=2, run_postings=3)
    for query in queries:
        assert found(forwards, query, p) == found(backwards, query, p)


@settings(max_examples=30, deadline=None)
@given(texts=collections, queries=st.lists(queries, max_size=6), p=parameters)
def test_pruning_changes_no_bit(
    make_index: MakeIndex, texts: dict[str, str], queries: list[list[str]], p: Parameters
) -> None:
    index = make_index(texts)
    for query in queries:
        assert found(index, query, p, prune=True) == found(index, query, p, prune=False)


def test_neither_the_order_of_the_words_nor_the_other_queries_change_a_bit(make_index: MakeIndex) -> None:
    # Every document has every word, so that all have the same weight and only their order could change the sums.
    random = np.random.default_rng(1)
    words = [f"w{i}" for i in range(7)]
    texts = {
        f"d{i}": " ".join(random.permutation([word for word in words for _ in range(random.integers(1, 9))]))
        for i in range(40)
    }
    index = make_index(texts)
    alone = index.rank(" ".join(words), k=40)
    for _ in range(20):
        asked = " ".join(random.permutation(words))
        assert index.rank(asked, k=40) == alone
        batch = search_batch(index, [" ".join(random.permutation(words)[:3]), asked], k=40)
        assert ids(index, batch)[1] == list(alone.docids)
        assert batch.scores[1].tobytes() == alone.scores.tobytes()


# By hand

BEES = {"d1": "bees make honey", "d2": "bees bees sting", "d3": "wasps sting"}


def test_a_score_computed_by_hand(make_index: MakeIndex) -> None:
    # 3 documents, 2 with bees: idf = ln(1 + 1.5 / 2.5) = 0.470004; mean length 8 / 3, both have length 3.
    # The norm is 0.9 · (0.6 + 0.4 · 9 / 8) = 0.945, so tf 1 gives 1 / 1.945 and tf 2 gives 2 / 2.945.
    hits = make_index(BEES).rank("bees", k=10)
    assert hits.docids == ("d2", "d1")
    assert hits.scores.tolist() == pytest.approx([0.470004 * 2 / 2.945, 0.470004 / 1.945], rel=1e-5)


# What is and is not found


def test_documents_without_a_term_of_the_query_are_never_listed(make_index: MakeIndex) -> None:
    hits = search_batch(make_index(BEES), ["honey", "sting bees", "moths"], k=3)
    assert hits.counts.tolist() == [1, 3, 0]
    assert hits.numbers.tolist()[0][1:] == [-1, -1]
    assert hits.scores.tolist()[0][1:] == [0.0, 0.0]
    assert hits.numbers.tolist()[2] == [-1, -1, -1]


def test_a_query_of_stop_words_only_finds_nothing(sample_index: Index) -> None:
    run = sample_index.search([Query("q1", "to be or not to be"), Query("q2", "bees"), Query("q3", "")])
    assert list(run) == ["q2"]


@pytest.mark.parametrize("text", ["", "  ", "?!", "zzzz qqqq"])
def test_a_query_without_known_terms_has_no_row_and_an_empty_ranking(make_index: MakeIndex, text: str) -> None:
    index = make_index(BEES)
    assert len(index.search([Query("q", text)])) == 0
    assert len(index.rank(text)) == 0


def test_no_queries_give_no_hits(make_index: MakeIndex) -> None:
    index = make_index(BEES)
    assert search_batch(index, [], k=5).numbers.shape == (0, 0)
    assert len(index.search([])) == 0
    assert search_batch(index, [], k=5, threads=4).scores.shape == (0, 0)


def test_k_may_be_larger_than_the_collection(make_index: MakeIndex) -> None:
    index = make_index(BEES)
    assert search_batch(index, ["bees wasps"], k=1_000_000).numbers.shape == (1, 3)
    assert len(index.rank("bees wasps", k=1_000_000)) == 3


def test_a_collection_of_empty_documents_can_be_searched(make_index: MakeIndex) -> None:
    assert len(make_index({"a": "", "b": "!"}).rank("bee")) == 0


def test_a_query_of_thousands_of_words_is_answered(make_index: MakeIndex) -> None:
    words = [f"w{i}" for i in range(3000)]
    index = make_index({"all": " ".join(words), "half": " ".join(words[:1500]), "one": words[0], "none": "x"})
    assert index.rank(" ".join(words)).docids == ("all", "half", "one")


def test_a_document_of_ten_megabytes_is_indexed(make_index: MakeIndex) -> None:
    index = make_index({"huge": "bee " * 2_500_000, "small": "bee wasp"})
    assert index.rank("wasp").docids == ("small",)
    assert index.rank("bee", BM25(b=0)).docids == ("huge", "small")


@pytest.mark.parametrize("tf", [255, 256, 65_535, 65_536, 70_000])
def test_large_term_frequencies_are_exact(make_index: MakeIndex, tf: int) -> None:
    texts = {"often": "bee " * tf, "once": "bee", "none": "wasp"}
    expected = reference(texts, ["bee"], Parameters(b=0, k1=1000))
    assert dict(make_index(texts).rank("bee", BM25(b=0, k1=1000))) == pytest.approx(expected, rel=1e-5)


# Bad parameters


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"k": 0}, "k must lie between 1 and 1,000,000, not 0"),
        ({"k": 1_000_001}, "k must lie between 1 and 1,000,000, not 1000001"),
        ({"k1": -0.1}, "k1 must be a number of at least 0, not -0.1"),
        ({"k1": float("nan")}, "k1 must be a number of at least 0, not nan"),
        ({"k1": float("inf")}, "k1 must be a number of at least 0, not inf"),
        ({"b": -0.1}, "b must lie between 0 and 1, not -0.1"),
        ({"b": 1.1}, "b must lie between 0 and 1, not 1.1"),
        ({"b": float("nan")}, "b must lie between 0 and 1, not nan"),
        ({"k2": -1.0}, "k2 must be a number of at least 0, not -1.0"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
    ],
)
def test_a_bad_parameter_is_named(make_index: MakeIndex, options: dict[str, float], problem: str) -> None:
    def search(**others: int) -> None:
        bm25 = BM25(**{name: value for name, value in options.items() if name in ("k1", "b", "k2")})
        make_index(BEES).search([Query("q", "bees")], bm25, **others)

    with pytest.raises(RankwellError) as raised:
        search(**{name: int(value) for name, value in options.items() if name in ("k", "threads")})
    assert str(raised.value) == problem


# Real collections


@pytest.mark.data
def test_pruning_and_segments_change_no_bit_on_insuranceqa(data_folder: Path, tmp_path: Path) -> None:
    dataset = open_dataset(data_folder / "insuranceqa")
    documents = list(dataset.documents())
    texts = [query.text for query in dataset.queries("valid")][:300]
    one = Index.build(documents, tmp_path / "one")
    two = Index.build(documents[:9_999], tmp_path / "two")
    two = Index.build(documents[9_999:], tmp_path / "two", append=True)
    for k in (1, 10, 100, 1000):
        whole = search_batch(one, texts, k=k, prune=False)
        for index in (one, two):
            pruned = search_batch(index, texts, k=k, prune=True, threads=2)
            assert ids(index, pruned) == ids(one, whole)
            assert pruned.scores.tobytes() == whole.scores.tobytes()


def test_scores_are_those_of_bm25s_given_the_same_terms(sample_index: Index, sample_data: Dataset) -> None:
    bm25s = pytest.importorskip("bm25s")
    documents: list[Document] = list(sample_data.documents())
    words = sample_index.analyzer.words  # without codes, which add nothing to a length
    terms = [[word.term for word in words(document.contents) if word.term] for document in documents]
    peer = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    peer.index(terms, show_progress=False)
    for query in sample_data.queries("dev")[:60]:
        asked = [word.term for word in words(query.text) if word.term in peer.vocab_dict]
        scores = peer.get_scores(asked)
        expected = {document.docid: score for document, score in zip(documents, scores, strict=True) if score > 0}
        hits = sample_index.search_terms([asked], BM25(), k=1000)
        found = zip(sample_index.docids(hits.numbers[0]), hits.scores[0].tolist(), strict=True)
        assert dict(found) == pytest.approx(expected, rel=1e-4)


def test_segments_searched_one_by_one_with_the_statistics_of_all_give_the_same_hits(make_index: MakeIndex) -> None:
    random = np.random.default_rng(5)
    texts = {f"d{i}": " ".join(random.choice(vocabulary, random.integers(1, 9))) for i in range(60)}
    index = make_index(texts, cuts=[7, 30])
    queries = [["a", "b"], ["e"], ["c", "c", "d"], []]
    frequencies = {term: sum(term in text.split() for text in texts.values()) for term in vocabulary}
    total_length = sum(len(text.split()) for text in texts.values())
    together = join_hits(index.documents, search_segments(index.segments, queries, BM25(), k=10), 10)

    def one_by_one(statistics: Statistics | None) -> Hits:
        parts = [search_segments([segment], queries, BM25(), k=10, statistics=statistics) for segment in index.segments]
        return join_hits(index.documents, [hits for [hits] in parts], 10)

    assert equal_bits(one_by_one(Statistics(len(texts), total_length, frequencies)), together)
    assert one_by_one(None).scores.tobytes() != together.scores.tobytes()


def test_a_run_is_pickled_without_its_index(sample_index: Index, sample_data: Dataset) -> None:
    run = sample_index.search(sample_data.queries("dev")[:3], k=2, name="short")
    copy = pickle.loads(pickle.dumps(run))  # noqa: S301
    assert (type(copy), copy.name, copy) == (Run, "short", run)
    assert len(pickle.dumps(run)) < 2000


def test_queries_that_are_analysed_already_give_the_same_hits(sample_index: Index, sample_data: Dataset) -> None:
    texts = [query.text for query in sample_data.queries("dev")[:20]]
    terms = [sample_index.analyzer.terms(text) for text in texts]
    by_text, by_terms = search_batch(sample_index, texts, k=7), sample_index.search_terms(terms, BM25(), k=7)
    assert equal_bits(by_terms, by_text)


def test_a_run_over_more_queries_than_a_batch_is_what_its_queries_give_alone(
    sample_index: Index, sample_data: Dataset
) -> None:
    queries = [Query(f"{query.qid}-{i}", query.text) for i in range(4) for query in sample_data.queries("dev")[:100]]
    run = sample_index.search(queries, k=3, threads=2)
    assert list(run) == [query.qid for query in queries if len(sample_index.rank(query.text))]
    assert all(run[query.qid] == sample_index.rank(query.text, k=3) for query in queries[::37])
