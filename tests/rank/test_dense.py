"""Dense ranking: kept vectors, exact search, and the blend with a re-ranker's run."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.bi_encoder_modules import Modules, save_bi_encoder
from rankwell.models.checkpoints.folders import load_encoder
from rankwell.models.devices import Computing
from rankwell.models.vector_layers import Dense
from rankwell.rank import passage_vectors
from rankwell.rank.dense import DenseRanker
from rankwell.rank.first_stage import GivenRun
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.passage_vectors import LARGEST_SHARD, SMALLEST_SHARD, PassageVectors, shard_size
from rankwell.rank.system import System
from rankwell.rank.vector_search import _on_device, search_vectors
from rankwell.retrieve.index import Index

from ..conftest import flip

WORDS = "bee honey hive flower river bridge stone iron coffee tea bread salt".split()
DOCUMENTS = [Document(f"d{i}", f"{word} {WORDS[(i + 1) % 12]} market") for i, word in enumerate(WORDS)]
QUERIES = [Query("q1", "honey market"), Query("q2", "iron bridge")]


@pytest.fixture
def store(tmp_path: Path) -> DocumentStore:
    return DocumentStore.build(DOCUMENTS, tmp_path / "store")


def cosines(encoder: BiEncoder) -> np.ndarray:
    """(queries, documents)"""
    queries, documents = [q.text for q in QUERIES], [d.contents for d in DOCUMENTS]
    return encoder.encode_queries(queries) @ encoder.encode_documents(documents).T


def test_vectors_are_made_once_and_kept_in_shards(store: DocumentStore, encoder: BiEncoder) -> None:
    vectors = PassageVectors.open(store, encoder, shard_size=5)
    expected = encoder.encode_documents([d.contents for d in DOCUMENTS])
    np.testing.assert_allclose(vectors.at(np.array([11, 0, 5, 11])), expected[[11, 0, 5, 11]], atol=1e-3)
    assert [len(block) for block in vectors.blocks()] == [5, 5, 2]
    shards = sorted((store.folder / f"vectors-{encoder.name}").glob("shard-*.f16"))
    before = [shard.stat().st_mtime_ns for shard in shards]
    shards[1].unlink()
    again = PassageVectors.open(store, encoder, shard_size=5)
    np.testing.assert_array_equal(again.at(np.arange(12)), vectors.at(np.arange(12)))
    after = [shard.stat().st_mtime_ns for shard in shards]
    assert (after[0], after[2]) == (before[0], before[2])
    shards[0].write_bytes(shards[0].read_bytes()[:-2])
    with pytest.raises(RankwellError, match="wrong size"):
        PassageVectors.open(store, encoder, shard_size=5)


def test_many_small_shards_are_merged_when_all_are_done(
    store: DocumentStore, encoder: BiEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = PassageVectors.open(store, encoder, shard_size=2)
    expected = small.at(np.arange(12))
    shutil.copytree(small.folder, tmp_path / "before")
    monkeypatch.setattr(passage_vectors, "MANY_SHARDS", 4)
    monkeypatch.setattr(passage_vectors, "MERGED_SHARD", 8)
    merged = PassageVectors.open(store, encoder)
    assert [len(block) for block in merged.blocks()] == [8, 4]
    np.testing.assert_array_equal(merged.at(np.arange(12)), expected)
    assert not small.folder.exists()
    assert PassageVectors.is_complete(store, encoder)
    shutil.copytree(tmp_path / "before", small.folder)  # as if killed before the small ones were removed
    again = PassageVectors.open(store, encoder)
    np.testing.assert_array_equal(again.at(np.arange(12)), expected)
    assert not small.folder.exists()


def test_a_damaged_shard_is_not_merged(
    store: DocumentStore, encoder: BiEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = sorted(PassageVectors.open(store, encoder, shard_size=2).folder.glob("shard-*.f16"))
    flip(shards[3], 5)
    monkeypatch.setattr(passage_vectors, "MANY_SHARDS", 4)
    monkeypatch.setattr(passage_vectors, "MERGED_SHARD", 8)
    with pytest.raises(RankwellError, match="damaged"):
        PassageVectors.open(store, encoder)
    assert all(shard.exists() for shard in shards)


def test_vectors_behind_dense_layers_are_made_from_stored_ones(
    store: DocumentStore, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    encoder, _, tokenizer = load_encoder(tiny_bi_encoder)
    base = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", max_length=32)
    modules = Modules(document=(Dense(torch.randn(8, 32)),), query=(Dense(torch.randn(8, 32)),))
    save_bi_encoder(tmp_path / "mapped", encoder, tokenizer, modules, max_length=32, base=base.name)
    mapped = BiEncoder.from_pretrained(tmp_path / "mapped", device="cpu")
    stored = PassageVectors.open(store, base)
    mapped.encoder.tokens.weight.fill_(float("nan"))  # texts must not be encoded again
    vectors = PassageVectors.open(store, mapped).at(np.arange(12))
    np.testing.assert_allclose(vectors, mapped.map_documents(stored.at(np.arange(12))), atol=1e-3)
    assert vectors.shape == (12, 8)


def test_stored_shards_keep_their_size(
    store: DocumentStore, encoder: BiEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = PassageVectors.open(store, encoder, shard_size=5).at(np.arange(12))
    monkeypatch.setattr(BiEncoder, "encode_tokens", None)  # nothing is computed again
    np.testing.assert_array_equal(PassageVectors.open(store, encoder).at(np.arange(12)), expected)
    assert PassageVectors.is_complete(store, encoder)


def test_the_larger_the_model_the_smaller_its_shards(encoder: BiEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shard_size(encoder) == LARGEST_SHARD
    config = encoder.encoder.config
    minilm = dataclasses.replace(config, num_hidden_layers=6, hidden_size=384)
    monkeypatch.setattr(encoder.encoder, "config", minilm)
    assert shard_size(encoder) == 4096  # of at most 32 tokens
    monkeypatch.setattr(encoder.encoder, "config", dataclasses.replace(config, num_hidden_layers=24, hidden_size=4096))
    assert shard_size(encoder) == SMALLEST_SHARD


def test_vectors_in_int8_are_others_unless_exact_ones_are_stored(
    store: DocumentStore, one_head_bi_encoder: Path
) -> None:
    exact = BiEncoder.from_pretrained(one_head_bi_encoder, device="cpu", precision="fp32")
    fast = BiEncoder.from_pretrained(one_head_bi_encoder, device="cpu", precision="int8")
    assert PassageVectors.open(store, fast).folder.name == f"vectors-{fast.name}"
    assert not PassageVectors.is_complete(store, exact)
    folder = PassageVectors.open(store, exact).folder
    assert folder.name == f"vectors-{exact.name}"
    assert PassageVectors.open(store, fast).folder == folder


def test_search_compares_every_document(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    queries = random.normal(size=(7, 8)).astype(np.float32)
    documents = random.normal(size=(103, 8)).astype(np.float32)
    monkeypatch.setattr("rankwell.rank.vector_search.DOCUMENTS_AT_A_TIME", (8, 20))
    monkeypatch.setattr("rankwell.rank.vector_search.SCORES_AT_A_TIME", {"cpu": 60})
    numbers, scores = search_vectors(queries, iter(np.array_split(documents, 11)), 5)
    whole = queries @ documents.T
    np.testing.assert_array_equal(numbers, np.argsort(-whole, axis=1)[:, :5])
    np.testing.assert_allclose(scores, -np.sort(-whole, axis=1)[:, :5], rtol=1e-5)
    few, _ = search_vectors(queries, iter([documents[:3]]), 5)
    assert few.shape == (7, 3)


def test_vectors_that_stay_on_a_device_are_compared_as_those_that_are_copied() -> None:
    random, device = np.random.default_rng(0), torch.device("cpu")
    documents, queries = random.normal(size=(30, 8)).astype(np.float16), torch.randn(3, 8)
    copied, kept = np.split(documents, [10, 12]), [torch.from_numpy(part) for part in np.split(documents, [7])]
    whole = queries @ torch.from_numpy(documents).float().T
    for blocks in (copied, kept):
        torch.testing.assert_close(_on_device(blocks, device)(queries), whole)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_keeps_vectors(store: DocumentStore, tiny_bi_encoder: Path) -> None:
    dense = DenseRanker(BiEncoder.from_pretrained(tiny_bi_encoder, device="cuda"))
    queries = dense.encoder.encode_queries(["bee", "river"])
    first, again = (dense.nearest(queries, store, 3, compressed=False) for _ in range(2))
    assert all(block.is_cuda for block in dense._copies[store.docids])
    np.testing.assert_array_equal(first[0], again[0])


@pytest.mark.parametrize("queries", [1, 4, 5])
def test_few_queries_find_the_same_documents_in_fp16(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwell.rank.vector_search.PIECE", 16)
    monkeypatch.setattr("rankwell.rank.vector_search.DOCUMENTS_AT_A_TIME", (8, 40))
    random = np.random.default_rng(0)
    documents = random.normal(size=(103, 24)).astype(np.float16)
    documents.flags.writeable = False  # as a shard that is mapped to be read
    vectors = random.normal(size=(queries, 24)).astype(np.float32)
    numbers, scores = search_vectors(vectors, iter(np.split(documents, [3, 30, 31, 90])), 6)
    whole = vectors @ documents.astype(np.float32).T
    np.testing.assert_array_equal(numbers, np.argsort(-whole, axis=1)[:, :6])
    np.testing.assert_allclose(scores, -np.sort(-whole, axis=1)[:, :6], rtol=1e-5)


@pytest.mark.parametrize("source", ["store", "index", "memory"])
def test_candidates_are_ranked_by_their_cosine(source: str, tmp_path: Path, encoder: BiEncoder) -> None:
    texts = {
        "store": lambda: DocumentStore.build(DOCUMENTS, tmp_path / "store"),
        "index": lambda: Index.build(DOCUMENTS, tmp_path / "index"),
        "memory": lambda: DocumentStore.of_texts({d.docid: d.contents for d in DOCUMENTS}),
    }[source]()
    run = Run.from_scores({"q2": {"d0": 3.0, "d5": 2.0, "d7": 1.0}, "q1": {"d1": 2.0, "d9": 1.0}})
    found = DenseRanker(encoder).rerank(run, QUERIES, texts, depth=2)
    expected = cosines(encoder)
    assert dict(found["q1"]) == pytest.approx({"d1": expected[0, 1], "d9": expected[0, 9]}, abs=1e-3)
    assert dict(found["q2"]) == pytest.approx({"d0": expected[1, 0], "d5": expected[1, 5]}, abs=1e-3)
    if source != "memory":
        assert not list(tmp_path.rglob("vectors-*"))  # four documents of twelve are not worth all
        nearest = DenseRanker(encoder).search(QUERIES, texts, k=3)
        assert list(nearest["q1"].docids) == [f"d{i}" for i in np.argsort(-expected[0])[:3]]
        assert list(tmp_path.rglob("vectors-*"))
        again = DenseRanker(encoder).rerank(run, QUERIES, texts, depth=2)
        assert dict(again["q2"]) == pytest.approx(dict(found["q2"]), abs=1e-3)


def test_queries_and_documents_have_each_their_prompt(store: DocumentStore, tiny_bi_encoder: Path) -> None:
    options = {"device": "cpu", "max_length": 32, "query_prompt": "how much ", "document_prompt": "a word: "}
    encoder = BiEncoder.from_pretrained(tiny_bi_encoder, **options)
    plain = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", max_length=32)
    queries, documents = [f"how much {q.text}" for q in QUERIES], [f"a word: {d.contents}" for d in DOCUMENTS]
    expected = plain.encode_queries(queries) @ plain.encode_documents(documents).T
    run = Run.from_scores({"q1": {"d1": 2.0, "d9": 1.0}})
    texts = DocumentStore.of_texts({d.docid: d.contents for d in DOCUMENTS})
    in_memory = DenseRanker(encoder).rerank(run, QUERIES, texts)
    found = DenseRanker(encoder).search(QUERIES, store, 12)
    kept = DenseRanker(encoder).rerank(run, QUERIES, store)
    for row, query in enumerate(QUERIES):
        assert dict(found[query.qid]) == pytest.approx({f"d{i}": expected[row, i] for i in range(12)}, abs=1e-3)
    for one in (in_memory, kept):
        assert dict(one["q1"]) == pytest.approx({"d1": expected[0, 1], "d9": expected[0, 9]}, abs=1e-3)


def blend(encoder: Path, first: Run, model: Run, shares: Shares) -> Run:
    texts = DocumentStore.of_texts({d.docid: d.contents for d in DOCUMENTS})
    finder = GivenRun(first, texts, encoder, computing=Computing("cpu", "fp32"))
    return System(finder, ranker="a model", shares=shares).fuse(first, model, QUERIES)


def test_a_blend_adds_the_similarity_to_the_run_before_it(encoder: BiEncoder, tiny_bi_encoder: Path) -> None:
    texts = DocumentStore.of_texts({d.docid: d.contents for d in DOCUMENTS})
    run = Run.from_scores({"q1": {"d1": 9.0, "d2": 5.0, "d3": 1.0}})
    shares = Shares(model=0.75, similarity=0.25)
    blended = blend(tiny_bi_encoder, run, run, shares)
    dense = DenseRanker(encoder).rerank(run, QUERIES, texts)
    assert dict(blended["q1"]) == pytest.approx(dict(fuse({"model": run, "similarity": dense}, shares)["q1"]))
    own = cosines(encoder)[0, [1, 2, 3]]
    scaled = (own - own.min()) / (own.max() - own.min())
    expected = 0.75 * np.array([1, 0.5, 0]) + 0.25 * scaled  # as --blend 0.25 does
    assert dict(blended["q1"]) == pytest.approx(dict(zip(("d1", "d2", "d3"), expected, strict=True)), abs=1e-3)


def test_a_blend_ranks_what_the_ranker_ranked(tiny_bi_encoder: Path) -> None:
    first = Run.from_scores({"q1": {f"d{i}": 9.0 - i for i in range(8)}})
    for how in (Shares(0.5, 0.5), Shares(model=0.5, similarity=0.3, first=0.2, normalise="z-score")):
        blended = blend(tiny_bi_encoder, first, first.head(3), how)
        assert set(blended["q1"].docids) == {"d0", "d1", "d2"}


def test_equal_documents_are_ordered_by_their_ids_however_few_are_wanted(tmp_path: Path, encoder: BiEncoder) -> None:
    store = DocumentStore.build([Document(f"d{i}", "honey market") for i in range(300)], tmp_path / "equal")
    dense = DenseRanker(encoder)
    many = dense.search(QUERIES[:1], store, 300)["q1"]
    # The last bits of a vector may depend on its place in the batch, so only most of the scores are equal.
    scores = many.scores.tolist()
    assert len(set(scores)) < 150
    assert list(zip(scores, many.docids, strict=True)) == sorted(zip(scores, many.docids, strict=True), reverse=True)
    assert dense.search(QUERIES[:1], store, 5)["q1"].docids == many.docids[:5]


def test_what_cannot_be_ranked_is_said(encoder: BiEncoder) -> None:
    run = Run.from_scores({"q9": {"d1": 1.0}})
    with pytest.raises(RankwellError, match="'q9'"):
        DenseRanker(encoder).rerank(run, QUERIES, DocumentStore.of_texts({"d1": "honey"}))
