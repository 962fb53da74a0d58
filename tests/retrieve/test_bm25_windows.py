"""BM25 over collections of several windows and runs."""

from __future__ import annotations

import numpy as np
import pytest

from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

from .test_bm25 import MakeIndex, Parameters, equal_bits, ids, ranked, reference, search_batch


@pytest.fixture(scope="module")
def large() -> dict[str, str]:
    """20,000 documents of words that become rarer and rarer, some of the documents alike."""
    random = np.random.default_rng(7)
    lengths = random.integers(1, 30, 20_000)
    words = np.minimum(random.zipf(1.3, int(lengths.sum())), 5000).astype(str).tolist()
    ends = np.cumsum(lengths).tolist()
    names = random.permutation(100_000)[:20_000].tolist()
    return {
        f"d{name}": " ".join(words[end - size : end])
        for name, end, size in zip(names, ends, lengths.tolist(), strict=True)
    }


LARGE_QUERIES = ["1", "1 2 3", "40 1", "4999 2 1 1", "77 78 79 1 2", "5000", "1 2 3 4 5 6 7 8 9 10", "3000 3001 3002"]


@pytest.fixture(scope="module")
def large_index(make_index: MakeIndex, large: dict[str, str]) -> Index:
    return make_index(large, batch=20_000)


@pytest.mark.parametrize("k", [1, 10, 1000, 30_000])
def test_pruning_changes_no_bit_over_many_windows(large_index: Index, k: int) -> None:
    for k1, b in ((0.9, 0.4), (0.0, 0.0), (3.0, 1.0)):
        pruned = search_batch(large_index, LARGE_QUERIES, BM25(k1=k1, b=b), k=k, prune=True)
        whole = search_batch(large_index, LARGE_QUERIES, BM25(k1=k1, b=b), k=k, prune=False)
        assert equal_bits(pruned, whole)


@pytest.mark.parametrize("query", ["1 2 3", "4999 2 1 1"])
def test_many_windows_give_the_formulas_scores(large_index: Index, large: dict[str, str], query: str) -> None:
    expected = reference(large, query.split(), Parameters())
    hits = dict(large_index.rank(query, k=30_000))
    assert hits == pytest.approx(expected, rel=1e-5)
    best = large_index.rank(query, k=100)
    assert best.scores.tolist() == pytest.approx(sorted(expected.values(), reverse=True)[:100], rel=1e-5)
    assert list(best) == sorted(hits.items(), key=lambda hit: (hit[1], hit[0]), reverse=True)[:100]


def test_many_small_runs_give_the_same_index_as_one(
    make_index: MakeIndex, large_index: Index, large: dict[str, str]
) -> None:
    runs = make_index(large, batch=500, run_postings=10_000)
    one, many = (search_batch(index, LARGE_QUERIES, k=500) for index in (large_index, runs))
    assert equal_bits(many, one)


def test_segments_of_many_windows_give_the_same_hits_as_one(
    make_index: MakeIndex, large_index: Index, large: dict[str, str]
) -> None:
    parts = make_index(large, cuts=[5_000, 5_001, 13_000], batch=20_000)
    one, many = (search_batch(index, LARGE_QUERIES, k=500) for index in (large_index, parts))
    assert ids(parts, many) == ids(large_index, one)
    assert many.scores.tobytes() == one.scores.tobytes()


@pytest.mark.parametrize("threads", [2, 4, 64])
def test_threads_change_nothing(large_index: Index, threads: int) -> None:
    one, several = (search_batch(large_index, LARGE_QUERIES * 5, k=50, threads=n) for n in (1, threads))
    assert equal_bits(several, one)


def test_a_tie_over_the_whole_collection_is_cut_by_id(make_index: MakeIndex) -> None:
    names = [f"{i * 7919 % 10_000:04d}" for i in range(10_000)]
    expected = [(name, True) for name in sorted(names, reverse=True)[:25]]
    for cuts in ((), (3, 4200)):
        for prune in (True, False):
            hits = ranked(make_index(dict.fromkeys(names, "bee"), cuts=cuts, batch=10_000), "bee", k=25, prune=prune)
            assert [(docid, score == hits.scores[0]) for docid, score in hits] == expected
