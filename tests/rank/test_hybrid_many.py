"""Hybrid search and fusion beside slow references that know documents by their ids alone: equal to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run
from rankwell.corpus.store import DocumentStore
from rankwell.evaluation.evaluate import evaluate
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.rank.dense import DEEP, TIES, DenseRanker, search_both, search_hybrid, tune_hybrid
from rankwell.rank.fusion import NORMALISATIONS, PARTS, Shares, fuse
from rankwell.rank.tuning import tune_fusion
from rankwell.rank.vector_search import search_vectors
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

WORDS = "bank money interest bee honey hive winter river fish whale city country king queen year music book".split()
QUERIES = [Query(f"q{i}", " ".join(np.random.default_rng(i).choice(WORDS, 1 + i % 4))) for i in range(20)]
QUERIES += [Query("unknown", "zzzz"), Query("rare", "xylophone zzzz")]

Rankings = Mapping[str, Mapping[str, float]]


def the_order(scores: Mapping[str, float], depth: int | None = None) -> list[tuple[str, float]]:
    return sorted(scores.items(), key=lambda item: (item[1], item[0]), reverse=True)[:depth]


def slowly_fused(runs: Mapping[str, Run], shares: Shares, depth: int | None = None) -> Rankings:
    """The definition, with numpy's own functions for what is missing."""
    fused = {}
    for qid in dict.fromkeys(qid for run in runs.values() for qid in run):
        found = [dict(run[qid]) if qid in run else {} for run in runs.values()]
        docids = list(dict.fromkeys(docid for own in found for docid in own))
        scores = np.array([[own.get(docid, np.nan) if own else 0.0 for docid in docids] for own in found])
        parts = standardised(scores, shares.normalise)
        parts = np.where(np.isnan(parts), np.nanmin(parts, axis=1, keepdims=True), parts)
        total = sum(shares.as_dict()[name] * part for name, part in zip(runs, parts, strict=True))
        joint = dict(zip(docids, (total.astype(np.float32) + np.float32(0)).tolist(), strict=True))
        if joint:
            fused[qid] = dict(the_order(joint, depth))
    return fused


def standardised(scores: NDArray[np.float64], how: str) -> NDArray[np.float64]:
    low, high = (of(scores, axis=1, keepdims=True) for of in (np.nanmin, np.nanmax))
    if how == "min-max":
        return (scores - low) / np.where(high > low, high - low, 1.0)
    if how == "z-score":
        moved = scores - high
        deviation = np.nanstd(moved, axis=1, keepdims=True)
        return (moved - np.nanmean(moved, axis=1, keepdims=True)) / np.where(deviation > 0, deviation, 1.0)
    return scores


@cache
def slowly_near(dense: DenseRanker, index: Index | DocumentStore, k: int) -> Run:
    """The nearest documents, all of them named and sorted."""
    asked = dense.encoder.encode_queries([query.text for query in QUERIES])
    near: dict[str, dict[str, float]] = {query.qid: {} for query in QUERIES}
    for store in index.documents.stores:
        numbers, scores = search_vectors(asked, dense.vectors(store).blocks(), max(k, DEEP) + TIES)
        for qid, own, values in zip(near, numbers, scores, strict=True):
            near[qid] |= dict(zip(store.docids.strings(own), values.tolist(), strict=True))
    return Run.from_scores({qid: dict(the_order(own, k)) for qid, own in near.items()})


@cache
def slow_words(index: Index, k: int, bm25: BM25 = BM25()) -> Run:  # noqa: B008
    """BM25's run, named one document at a time."""
    hits = index.search_terms(index.analyzer.terms_batch([query.text for query in QUERIES]), bm25, k=k)
    rows = zip(QUERIES, hits.numbers, hits.scores, strict=True)
    named = {
        query.qid: Ranking(tuple(index.docids(np.array([n]))[0] for n in numbers if n >= 0), scores[numbers >= 0])
        for query, numbers, scores in rows
    }
    return Run({qid: ranking for qid, ranking in named.items() if len(ranking)})


def assert_equal(run: Run, expected: Rankings | Run) -> None:
    """The same queries, documents and bits, each in the same order."""
    assert list(run) == list(expected)
    for qid, ranking in run.items():
        other = dict(expected[qid])
        assert ranking.docids == tuple(other), qid
        assert ranking.scores.tobytes() == np.array(list(other.values()), np.float32).tobytes(), qid


class Coarse(BiEncoder):
    """A bi-encoder whose vectors are small whole numbers: many similarities are equal."""

    def encode_queries(self, texts: Sequence[str], *_: object, **words: object) -> Vectors:
        return np.stack([self.vector(sum(map(ord, text))) for text in texts])

    def encode_tokens(
        self, source: StoredTokens, numbers: NDArray[np.int64], words: list[Any] | None = None, code: Any = None
    ) -> Vectors:
        return np.stack([self.vector(int(number) % 301) for number in numbers])

    def vector(self, seed: int) -> Vectors:
        return np.random.default_rng(seed).integers(-2, 3, self.width).astype(np.float32)


def documents(count: int) -> list[Document]:
    random = np.random.default_rng(count)
    made = [Document(f"d{random.integers(10**9)}", " ".join(random.choice(WORDS, 3))) for _ in range(count)]
    return [*made, Document(f"rare{count}", "xylophone")]


@pytest.fixture(scope="module", params=[(1700,), (1300, 40, 1250)], ids=["one segment", "three segments"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("many") / "index"
    for count in request.param:
        Index.build(documents(count), folder, append=True)
    return Index.open(folder)


@pytest.fixture(scope="module")
def dense(tiny_bi_encoder: Path) -> DenseRanker:
    return DenseRanker(Coarse.from_pretrained(str(tiny_bi_encoder)))


@pytest.mark.parametrize("k", [1, 100, 1000, 1200, 5000])
@pytest.mark.parametrize("share", [0.3, 1])
def test_hybrid_search_is_the_fusion_of_both_runs(k: int, share: float, index: Index, dense: DenseRanker) -> None:
    deep = max(k, 1000)
    words, near = slow_words(index, deep), slowly_near(dense, index, deep)
    runs = {"first": words, "similarity": near}
    expected = near.head(k) if share == 1 else slowly_fused(runs, Shares.hybrid(share), k)
    if share < 1:  # in the order of BM25's run, and what it has not at the end
        assert list(expected)[-1] == "unknown"
    assert_equal(search_hybrid(index, dense, QUERIES, share, k=k), expected)


def test_what_both_find_are_runs_like_others(index: Index, dense: DenseRanker) -> None:
    bm25 = BM25(k1=0.7, b=0.2)
    words, near = search_both(index, dense, QUERIES, bm25).values()
    assert_equal(words, slow_words(index, 1000, bm25))
    assert_equal(near, slowly_near(dense, index, 1000))
    assert_equal(index.search(QUERIES, bm25, k=1000), words)
    assert_equal(dense.search(QUERIES, index, 1000), near)
    assert "unknown" in near
    assert "unknown" not in words
    assert words.get("unknown") is None
    assert len(words) == len(QUERIES) - 1
    assert_equal(words.head(3), index.search(QUERIES, bm25, k=3))


def test_runs_over_one_index_are_fused_as_those_from_files(index: Index, dense: DenseRanker) -> None:
    numbered = search_both(index, dense, QUERIES)
    named = {name: Run(run) for name, run in numbered.items()}
    shares = [Shares(first=0.4, similarity=0.6, normalise=how) for how in NORMALISATIONS]
    for depth, fusion in product((None, 7, 100), shares):
        expected = slowly_fused(named, fusion, depth)
        for runs in (numbered, named, {"first": numbered["first"], "similarity": named["similarity"]}):
            assert_equal(fuse(runs, fusion, depth=depth), expected)


def test_runs_over_two_indexes_are_fused_by_ids(index: Index, dense: DenseRanker, tmp_path: Path) -> None:
    other = Index.build(documents(1300)[::-1][:500], tmp_path / "other")
    runs, half = {"first": index.search(QUERIES), "model": other.search(QUERIES)}, Shares(model=0.5, first=0.5)
    assert_equal(fuse(runs, half), slowly_fused(runs, half))


@pytest.mark.parametrize("measure", ["RR@10", "AP"])
def test_shares_are_tuned_as_on_runs_from_files(measure: str, index: Index, dense: DenseRanker) -> None:
    wanted = [query.qid for query in QUERIES]
    qrels = Qrels(
        {qid: {docid: 1 for docid, _ in list(index.search(QUERIES, k=9).get(qid, ()))[::4]} for qid in wanted}
    )
    tuned = tune_hybrid(index, dense, QUERIES, qrels, measure=measure)
    numbered = search_both(index, dense, QUERIES)
    named = {name: Run(run) for name, run in numbered.items()}
    expected = tune_fusion(named, qrels, tuned.settings, measure=measure)
    np.testing.assert_array_equal(tuned.values, expected.values)
    for shares, values in zip(tuned.settings, tuned.values, strict=True):
        assert values.tolist() == evaluate(qrels, fuse(named, shares), measure).values[0].tolist()
    assert_equal(fuse(numbered, tuned.setting_for), Run(fuse(named, expected.setting_for)))


def random_run(random: np.random.Generator, queries: int, levels: int) -> Run:
    """Some of the queries and some of 60 documents, with scores of so many levels and both signs."""
    rankings = {}
    for query in random.permutation(queries)[: queries - 2]:
        docids = random.permutation(60)[: random.integers(1, 45)]
        scores = (random.integers(-levels, levels + 1, len(docids)) / 7).astype(np.float32)
        rankings[f"q{query}"] = Ranking.of([f"d{number}" for number in docids], scores)
    return Run(rankings)


@pytest.mark.parametrize("levels", [0, 3, 10_000])
def test_fusion_is_that_of_the_definition(levels: int) -> None:
    random = np.random.default_rng(levels)
    for count in (2, 3):
        runs = {part: random_run(random, 12, levels) for part in PARTS[:count]}
        weights = random.random(count)
        shares = dict(zip(runs, (weights / weights.sum()).tolist(), strict=True))
        fusions = [Shares(**shares, normalise=how) for how in NORMALISATIONS]
        for depth, fusion in product((None, 1, 7, 100), fusions):
            assert_equal(fuse(runs, fusion, depth=depth), slowly_fused(runs, fusion, depth))


def test_a_similarity_that_is_no_number_is_an_error(dense: DenseRanker, tmp_path: Path) -> None:
    class Broken(Coarse):
        def encode_queries(self, texts: Sequence[str], *_: object, **words: object) -> Vectors:
            return np.full((len(texts), self.width), np.nan, np.float32)

    encoder = Broken(dense.encoder.encoder, dense.encoder.tokenizer, name="broken")
    store = DocumentStore.build([Document("only", "honey")], tmp_path / "store")
    with pytest.raises(RankwellError, match="document only has the score NaN"):
        DenseRanker(encoder).search(QUERIES[:1], store, 3)
