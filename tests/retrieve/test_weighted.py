"""Term frequencies given as real numbers, as DeepCT computes them, in place of counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.core.errors import RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Document, TermWeights
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

from .test_bm25 import ranked

MakeIndex = Callable[..., Index]
Weights = Mapping[str, Mapping[str, float]]


def build(folder: Path, weights: Weights, **options: object) -> Index:
    documents = [Document(docid, f"the text of {docid}") for docid in weights]
    vectors = [TermWeights(docid, vector) for docid, vector in weights.items()]
    return Index.build(documents, folder / "index", weights=vectors, **options)  # type: ignore[arg-type]


def test_scores_computed_by_hand(tmp_path: Path) -> None:
    # Both have bee: idf = ln(1 + 0.5 / 2.5) = 0.182322. Lengths 3 and 1, mean 2, so the norms at k1 = 0.9 and b = 0.4
    # are 0.9 · (0.6 + 0.4 · 1.5) = 1.08 and 0.9 · (0.6 + 0.4 · 0.5) = 0.72.
    index = build(tmp_path, {"a": {"bee": 2.5, "honey": 0.5}, "b": {"bee": 1.0}})
    hits = index.rank("bee")
    assert hits.docids == ("a", "b")
    assert hits.scores.tolist() == pytest.approx([0.182322 * 2.5 / 3.58, 0.182322 * 1 / 1.72], rel=1e-5)
    # Only one has honey: idf = ln(1 + 1.5 / 1.5) = 0.693147.
    assert dict(index.rank("honey")) == pytest.approx({"a": 0.693147 * 0.5 / 1.58}, rel=1e-5)


def test_the_weights_replace_the_words_of_the_text_but_the_text_is_kept(tmp_path: Path) -> None:
    index = build(tmp_path, {"a": {"bee": 1}})
    assert len(index.rank("text")) == 0
    assert index.text("a") == "the text of a"
    assert index.manifest["config"]["weighted"] is True


def test_the_data_hash_depends_on_every_weight(tmp_path: Path) -> None:
    weightings: list[Weights] = [
        {"a": {"red": 5, "apples": 1}, "b": {"green": 2}},
        {"a": {"red": 4, "apples": 1}, "b": {"green": 2}},  # another value
        {"a": {"red": 5, "pears": 1}, "b": {"green": 2}},  # another term in the place of one
        {"a": {"red": 5}, "b": {"apples": 1, "green": 2}},  # a term of another document
        {"a": {"red": 5, "apples": 1}, "b": {"green": 2.5}},
        {"a": {"red": 1, "apples": 5}, "b": {"green": 2}},
    ]
    hashes = [build(tmp_path / str(n), weights).manifest["data_hash"] for n, weights in enumerate(weightings)]
    assert len(set(hashes)) == len(weightings)
    assert build(tmp_path / "again", weightings[0]).manifest["data_hash"] == hashes[0]


words = st.sampled_from("abcde")
counts = st.dictionaries(words, st.integers(1, 4), max_size=5)


@settings(max_examples=40, deadline=None)
@given(
    bags=st.dictionaries(st.text("xyz", min_size=1, max_size=2), counts, min_size=1, max_size=9), query=st.lists(words)
)
def test_counts_given_as_weights_are_counts(
    make_index: MakeIndex, bags: dict[str, dict[str, int]], query: list[str]
) -> None:
    texts = {docid: " ".join(word for word, tf in bag.items() for _ in range(tf)) for docid, bag in bags.items()}
    counted, weighted = make_index(texts), make_index(texts, weights=bags, batch=2, run_postings=4)
    assert weighted.rank(" ".join(query)) == counted.rank(" ".join(query))


@settings(max_examples=40, deadline=None)
@given(
    bags=st.dictionaries(
        st.text("xyz", min_size=1, max_size=2),
        st.dictionaries(words, st.floats(2**-7, 1000, width=32), max_size=5),
        min_size=1,
        max_size=9,
    ),
    query=st.lists(words),
    k=st.integers(1, 10),
)
def test_pruning_changes_no_bit_of_real_weights(
    make_index: MakeIndex, bags: dict[str, dict[str, float]], query: list[str], k: int
) -> None:
    index = make_index(dict.fromkeys(bags, ""), weights=bags)
    text = " ".join(query)
    assert index.rank(text, k=k) == ranked(index, text, k=k, prune=False)


@pytest.mark.parametrize("largest", [255, 256, 65_535, 65_536, 300_000])
def test_whole_weights_of_any_size_are_exact(make_index: MakeIndex, largest: int) -> None:
    index = make_index({"a": "", "b": ""}, weights={"a": {"bee": largest}, "b": {"bee": largest - 1}})
    hits = index.rank("bee", BM25(b=0, k1=largest))
    # tf / (tf + k1) with k1 = tf is a half; idf = ln(1.2).
    assert hits.docids == ("a", "b")
    expected = [0.1823215568 / 2, 0.1823215568 * (largest - 1) / (2 * largest - 1)]
    assert hits.scores.tolist() == pytest.approx(expected, rel=1e-6)


def test_one_real_number_makes_every_weight_real(make_index: MakeIndex) -> None:
    index = make_index({"a": "", "b": ""}, weights={"a": {"bee": 70_000}, "b": {"bee": 0.25}})
    assert index.rank("bee", BM25(b=0, k1=0.25)).scores.tolist() == pytest.approx(
        [0.1823215568 * 70_000 / 70_000.25, 0.1823215568 / 2], rel=1e-6
    )


def test_words_with_one_stem_take_the_largest_weight(tmp_path: Path) -> None:
    several = build(tmp_path / "several", {"a": {"bee": 1.0, "Bees": 3.0, "BEE": 2.0}, "b": {"wasp": 3.0}})
    one = build(tmp_path / "one", {"a": {"bee": 3.0}, "b": {"wasp": 3.0}})
    assert several.rank("bees") == one.rank("bees")


def test_stop_words_and_weights_that_are_not_positive_are_dropped(tmp_path: Path) -> None:
    dropped = build(tmp_path / "a", {"a": {"the": 9, "bee": 2, "wasp": 0, "fly": -1.5}, "b": {"ant": 1}})
    clean = build(tmp_path / "b", {"a": {"bee": 2}, "b": {"ant": 1}})
    assert dropped.rank("bee") == clean.rank("bee")
    assert len(dropped.rank("wasp fly the")) == 0


def test_a_document_may_have_no_weights(tmp_path: Path) -> None:
    index = build(tmp_path, {"a": {}, "b": {"bee": 1}})
    assert (len(index), index.rank("bee").docids) == (2, ("b",))


def test_an_empty_word_is_no_term(tmp_path: Path) -> None:
    assert len(build(tmp_path, {"a": {"": 1, "bee": 1}}).rank("bee")) == 1


@pytest.mark.parametrize(
    ("docids", "vectors", "problem"),
    [
        (["a", "b"], ["b", "a"], "weights of 'b' where 'a' is expected; they must be in the collection's order"),
        (["a", "b"], ["a"], "the weights end before document 'b'"),
        (["a"], ["a", "b"], "the weights go on after the last document, with 'b'"),
    ],
)
def test_weights_that_do_not_go_with_the_documents_are_named(
    tmp_path: Path, docids: list[str], vectors: list[str], problem: str
) -> None:
    documents = [Document(docid, "text") for docid in docids]
    with pytest.raises(RankwellError) as raised:
        Index.build(documents, tmp_path / "index", weights=[TermWeights(docid, {"bee": 1}) for docid in vectors])
    assert str(raised.value) == problem


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_a_weight_that_is_not_a_finite_number_is_an_error_that_names_the_document(
    tmp_path: Path, weight: float
) -> None:
    with pytest.raises(RankwellError, match="document 'b' has a term weight that is not a finite number"):
        build(tmp_path, {"a": {"bee": 1}, "b": {"bee": weight}})


@pytest.mark.parametrize("weight", [1e-40, 1e-46, 5e-324])
def test_a_vanishing_weight_does_no_harm(tmp_path: Path, weight: float) -> None:
    index = build(tmp_path, {"a": {"bee": weight}, "b": {"bee": 1, "wasp": weight}})
    for k1 in (0.0, 0.9):
        for prune in (True, False):
            hits = ranked(index, "bee wasp", BM25(k1=k1), prune=prune)
            assert "b" in hits.docids
            assert all(score > 0 for score in hits.scores.tolist())


def test_weights_without_a_finite_sum_are_an_error(tmp_path: Path) -> None:
    weights = [TermWeights("a", {"bees": 3e38, "honey": 3e38})]
    with pytest.raises(RankwellError, match="the term weights of document 'a' have no finite sum"):
        Index.build([Document("a", "bees honey")], tmp_path / "index", weights=weights)


# Titles


TITLED = [
    Document("a", "honey honey wax", title="Bées"),
    Document("b", "bées", title=""),
    Document("c", "wax of the bées", title="東京 the Wax"),
]


def test_scores_of_weighted_titles_computed_by_hand() -> None:
    # Terms: a has bées 3 (the title's), honey 2, wax 1: length 6. b has bées 1: length 1. c has 東 3, 京 3, wax 3 + 1
    # and bées 1: length 11. All three have bées: idf = ln(1 + 0.5 / 3.5); the mean length is 6.
    index = Index.build(TITLED, analyzer=Analyzer(stemmer=None, title_weight=3))
    idf = math.log(1 + 0.5 / 3.5)
    expected = {
        docid: idf * tf / (tf + 0.9 * (0.6 + 0.4 * length / 6))
        for docid, tf, length in (("a", 3, 6), ("b", 1, 1), ("c", 1, 11))
    }
    assert dict(index.rank("bées")) == pytest.approx(expected, rel=1e-6)
    idf = math.log(1 + 1.5 / 2.5)
    expected = {
        docid: idf * tf / (tf + 0.9 * (0.6 + 0.4 * length / 6)) for docid, tf, length in (("a", 1, 6), ("c", 4, 11))
    }
    assert dict(index.rank("wax")) == pytest.approx(expected, rel=1e-6)


def test_a_title_of_weight_2_is_a_title_twice() -> None:
    texts = {document.docid: f"{document.title} {document.contents}" for document in TITLED}
    weighted, twice = Index.build(TITLED, analyzer=Analyzer(title_weight=2)), Index.build(texts)
    for query in ("bées", "honey wax", "東京 wax"):
        assert weighted.rank(query) == twice.rank(query)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("weight", [2.5, 300])
def test_an_updated_index_weighs_titles_as_a_new_one_does(language: str, weight: float) -> None:
    analyzer = Analyzer.of(language, title_weight=weight)
    index = Index.build([Document("a", "old", title="old"), TITLED[1]], analyzer=analyzer)
    index.update([TITLED[0], TITLED[2]])
    fresh = Index.build(TITLED, analyzer=analyzer)
    for merged in (False, True):
        if merged:
            index.merge()
        for query in ("bées", "honey wax", "東京 wax", "old"):
            assert index.rank(query) == fresh.rank(query)
    assert Index.open(index.folder).analyzer.title_weight == weight


def test_term_weights_exclude_a_weight_of_titles(tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match="titles have no weight beside them"):
        build(tmp_path, {"a": {"bee": 1}}, analyzer=Analyzer(title_weight=3))
