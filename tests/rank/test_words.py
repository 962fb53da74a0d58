"""Word vectors: made with the vectors of documents, compared as codes, and used to re-rank."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rankwell.cli.main import app
from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.models.bi_encoder_modules import Modules, save_bi_encoder
from rankwell.models.checkpoints.folders import load_encoder
from rankwell.models.vector_layers import Dense
from rankwell.rank import passage_vectors
from rankwell.rank.dense import DenseRanker, EncodedQueries
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import Shares
from rankwell.rank.passage_vectors import PassageVectors, PassageWords
from rankwell.rank.requests import SearchRequest
from rankwell.rank.system import System
from rankwell.rank.word_codes import LEVELS, RESTS, compare_codes, encode_words, word_directions, word_integers
from rankwell.rank.word_ranker import WordRanker
from rankwell.retrieve.index import Index

WORDS = "bee honey hive flower river bridge stone iron coffee tea bread salt".split()
TEXTS = [*(f"{word} {WORDS[(i + 1) % 12]} market" for i, word in enumerate(WORDS)), "bee", "...", "the river " * 10_000]
DOCUMENTS = [Document(f"d{number:02d}", text) for number, text in enumerate(TEXTS)]
QUERIES = [Query("q1", "honey market"), Query("q2", "an iron bridge?")]


@pytest.fixture
def store(tmp_path: Path) -> DocumentStore:
    return DocumentStore.build(DOCUMENTS, tmp_path / "store")


def estimates(vectors: Vectors, query: Vectors, passage: Vectors) -> Vectors:
    """The products of words (T, W) of a passage (H,), as they are stored, with those of a query (Q, W)."""
    passages = torch.from_numpy(passage[None])
    codes = encode_words(torch.from_numpy(vectors), passages, torch.zeros(len(vectors), dtype=torch.int64)).numpy()
    integers, factors = word_integers(query)
    sums = (2.0 * np.unpackbits(codes[:, 1:], axis=1) - 1) @ integers.T
    along = query @ word_directions(passages.half().float(), query.shape[1]).numpy()[0]
    return LEVELS[codes[:, 0], None] * along + RESTS[codes[:, 0], None] * (sums * factors)


@pytest.mark.parametrize("width", [32, 128, 384, 768])
@pytest.mark.parametrize(
    "passage",
    [lambda words: words[3], lambda words: words.mean(axis=0), lambda words: words[3, :20], lambda words: 0 * words[0]],
    ids=["a word", "the mean", "narrower", "none"],
)
def test_codes_estimate_products_without_a_bias(width: int, passage: Callable[[Vectors], Vectors]) -> None:
    vectors = np.random.default_rng(0).standard_normal((2000, width)).astype(np.float32)
    vectors[:, 0] += np.sqrt(width)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    exact, found = vectors[10:] @ vectors[:10].T, estimates(vectors[10:], vectors[:10], passage(vectors))
    assert abs(found.mean() / exact.mean() - 1) < 0.05
    assert np.sqrt(((found - exact) ** 2).mean()) < 0.08


def test_the_kernel_finds_the_best_word_of_each_document(store: DocumentStore, encoder: BiEncoder) -> None:
    words = PassageWords.open(store, encoder)
    query = DenseRanker(encoder).encode(QUERIES[1:2], words=True).words[0]
    np.testing.assert_allclose(np.linalg.norm(query, axis=1), 1, rtol=1e-5)
    vectors: list[Vectors] = []
    passages = encoder.encode_documents(TEXTS, vectors)
    assert [len(document) for document in vectors][-3:] == [3, 5, 32]  # with [CLS] and [SEP], and at most 32
    similarities, places = words.matches(np.arange(len(TEXTS)), query)
    for number, document in enumerate(vectors):
        products = estimates(document, query, passages[number])
        np.testing.assert_allclose(similarities[number], products.max(axis=0), atol=1e-5)
        chosen = products[places[number], np.arange(len(query))]
        np.testing.assert_allclose(chosen, products.max(axis=0), atol=1e-5)
    again, _ = words.matches(np.array([7, 2]), query)
    np.testing.assert_array_equal(again, similarities[[7, 2]])


def test_torch_finds_what_the_kernel_finds(store: DocumentStore, encoder: BiEncoder) -> None:
    PassageVectors.open(store, encoder, shard_size=4)  # words have as many
    words, query = PassageWords.open(store, encoder), DenseRanker(encoder).encode(QUERIES[1:2], words=True).words[0]
    numbers = np.array([14, 0, 13, 12, 5])
    expected, places = words.matches(numbers, query)
    assert len(words._parts) == 4
    words._device = torch.device("meta")  # any but a CPU
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passage_vectors, "compare_codes", lambda *given: compare_codes(*given[:-1], torch.device("cpu")))
        found, found_places = words.matches(numbers, query)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    np.testing.assert_array_equal(found_places, places)


def test_one_pass_makes_the_vectors_of_documents_and_words(
    store: DocumentStore, encoder: BiEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = PassageVectors.open(DocumentStore.build(DOCUMENTS, tmp_path / "alone"), encoder).at(np.arange(15))
    assert not PassageWords.is_complete(store, encoder)
    PassageWords.open(store, encoder)
    assert PassageWords.is_complete(store, encoder)
    monkeypatch.setattr(BiEncoder, "encode_tokens", None)  # nothing is computed again
    np.testing.assert_array_equal(PassageVectors.open(store, encoder).at(np.arange(15)), alone)
    PassageWords.open(store, encoder)


def test_words_are_added_to_vectors_that_exist(store: DocumentStore, encoder: BiEncoder, tmp_path: Path) -> None:
    query = DenseRanker(encoder).encode(QUERIES[:1], words=True).words[0]
    shard = next(PassageVectors.open(store, encoder).folder.glob("shard-*"))
    before = shard.stat().st_mtime_ns
    added, _ = PassageWords.open(store, encoder).matches(np.arange(15), query)
    other = PassageWords.open(DocumentStore.build(DOCUMENTS, tmp_path / "other"), encoder)
    np.testing.assert_array_equal(added, other.matches(np.arange(15), query)[0])
    assert shard.stat().st_mtime_ns == before


def test_many_small_shards_of_words_are_merged(
    store: DocumentStore, encoder: BiEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, numbers = DenseRanker(encoder).encode(QUERIES[:1], words=True).words[0], np.array([14, 3, 8, 0])
    monkeypatch.setattr(passage_vectors, "shard_size", lambda encoder: 2)
    small = PassageWords.open(store, encoder)
    assert len(list(small.folder.glob("shard-*"))) == 8
    expected, places = small.matches(numbers, query)
    monkeypatch.setattr(passage_vectors, "MANY_SHARDS", 4)
    monkeypatch.setattr(passage_vectors, "MERGED_SHARD", 8)
    merged = PassageWords.open(store, encoder)
    assert len(list(merged.folder.glob("shard-*"))) == 2
    assert not small.folder.exists()
    np.testing.assert_array_equal(merged.matches(numbers, query)[0], expected)
    np.testing.assert_array_equal(merged.matches(numbers, query)[1], places)


@pytest.mark.parametrize("byte", [0, 100, -1])
def test_damaged_words_are_refused(store: DocumentStore, encoder: BiEncoder, byte: int) -> None:
    shard = next(PassageWords.open(store, encoder).folder.glob("shard-*"))
    read = DenseRanker(encoder).encode(QUERIES[:1], words=True)
    data = bytearray(shard.read_bytes())
    data[byte] ^= 64
    shard.write_bytes(data)
    with pytest.raises(RankwellError, match="damaged") as told:
        PassageWords.open(store, encoder).matches(np.arange(15), read.words[0])
    assert "\n" not in str(told.value)
    shard.write_bytes(data[:50])
    with pytest.raises(RankwellError):
        PassageWords.open(store, encoder)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    Index.build(DOCUMENTS[:9], tmp_path / "index")
    return Index.build(DOCUMENTS[9:], tmp_path / "index", append=True)


def test_words_re_rank_what_was_found(index: Index, tiny_bi_encoder: Path) -> None:
    first = FirstStage(index, encoder=tiny_bi_encoder)
    found = first.search(QUERIES, 20)
    words = first.dense.compare_words(found, QUERIES, index)
    assert {qid: set(words[qid].docids) for qid in words} == {qid: set(found[qid].docids) for qid in found}
    only = FirstStage(index, encoder=tiny_bi_encoder, words=1.0)
    best = only.search(QUERIES, 3)
    assert [best[qid].docids for qid in found] == [words[qid].docids[:3] for qid in found]
    assert FirstStage(index, encoder=tiny_bi_encoder, words=0.0).search(QUERIES, 20) == found


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The queries of each pass through the encoder."""
    encode, passes = BiEncoder.encode_queries, list[list[str]]()

    def counted(
        encoder: BiEncoder, texts: Sequence[str], told: str | None = None, *, words: list[Vectors] | None = None
    ) -> Vectors:
        passes.append(list(texts))
        return encode(encoder, texts, told, words=words)

    monkeypatch.setattr(BiEncoder, "encode_queries", counted)
    return passes


def test_one_pass_makes_the_vectors_of_queries_and_their_words(
    index: Index, tiny_bi_encoder: Path, passes: list[list[str]], tiny_checkpoint: Path
) -> None:
    texts = [query.text for query in QUERIES]
    apart = FirstStage(index, encoder=tiny_bi_encoder, share=0.6)
    both = FirstStage(index, encoder=tiny_bi_encoder, share=0.6, words=0.4)
    expected = replace(both, share=0.0).add_words(apart.search(QUERIES, 15), QUERIES)
    assert passes == [texts, texts]
    assert both.search(QUERIES, 15) == expected
    assert passes[2:] == [texts]
    reranked = System(both).rerank(expected, QUERIES)
    assert passes[3:] == [texts]
    assert System(both).rerank(expected, QUERIES) == reranked
    blended = System(both, ranker=tiny_checkpoint, shares=Shares.beside_model(similarity=0.5, first=0.2))
    blended.search(QUERIES, 15)
    assert passes[5:] == [texts]
    other = [Query("q1", "tea"), QUERIES[1]]
    assert (
        both.search(other, 15)["q1"]
        == FirstStage(index, encoder=tiny_bi_encoder, share=0.6, words=0.4).search(other[:1], 15)["q1"]
    )


def test_many_queries_are_encoded_some_at_a_time(
    index: Index, tiny_bi_encoder: Path, passes: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word vectors need some 20 KB a query, so those of all queries are never held at once."""
    first = FirstStage(index, encoder=tiny_bi_encoder, share=0.6, words=0.4)
    many = [Query(str(number), text) for number, text in enumerate(["honey", "tea", "fish in rivers", "bee"] * 150)]
    held: list[weakref.ref[Vectors]] = []
    encode = DenseRanker.encode

    def watched(ranker: DenseRanker, queries: Sequence[Query], **how: Any) -> EncodedQueries:
        encoded = encode(ranker, queries, **how)
        assert sum(vectors() is not None for vectors in held) <= 256
        held.extend(weakref.ref(vectors) for vectors in encoded.words)
        return encoded

    monkeypatch.setattr(DenseRanker, "encode", watched)
    run = first.search(many, 5)
    assert [len(texts) for texts in passes] == [256, 256, 88]
    assert len(held) == 600
    for query in (many[0], many[300], many[599]):
        alone = first.search([query], 5)[query.qid]
        assert run[query.qid].docids == alone.docids
        np.testing.assert_allclose(run[query.qid].scores, alone.scores, atol=1e-5)
    found = first.search(many, 20)
    passes.clear()
    first.dense.compare_words(found, many, index)
    assert [len(texts) for texts in passes] == [256, 256, 88]


def test_a_system_records_its_weight_and_takes_the_words_along(
    index: Index, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    made = System(FirstStage(index, encoder=tiny_bi_encoder, share=0.6, words=0.4))
    saved = made.save(tmp_path / "system")
    assert "re-ranked by word vectors (weight 0.4)" in saved.describe()
    expected = made.search(QUERIES, 5)
    shutil.move(tmp_path / "system", tmp_path / "moved")
    system = System.open(tmp_path / "moved")
    assert system.first_stage.words == 0.4
    assert system.search(QUERIES, 5) == expected
    assert len(list(system.index.folder.rglob("*.cosine-signs"))) == 4  # of two segments, with their checksums
    system.check()
    system.add([Document("new", "honey market")])
    assert all(
        PassageWords.is_complete(store, system.first_stage.dense.encoder) for store in system.index.documents.stores
    )
    assert "new" in system.search(QUERIES, 5)["q1"].docids
    other = Run.from_scores({"q1": {"d00": 3.0, "d01": 2.0, "d10": 1.0}, "q2": {"d06": 2.0, "d03": 1.0}})
    reranked = system.rerank(other, QUERIES)
    assert {qid: set(reranked[qid].docids) for qid in reranked} == {qid: set(other[qid].docids) for qid in other}


def test_a_system_with_dense_layers_takes_along_what_its_words_need(
    index: Index, tiny_bi_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, _, tokenizer = load_encoder(tiny_bi_encoder)
    layer = (Dense(torch.randn(8, 32, generator=torch.Generator().manual_seed(2))),)
    save_bi_encoder(tmp_path / "mapped", encoder, tokenizer, Modules(query=layer, document=layer), max_length=32)
    made = System(FirstStage(index, encoder=tmp_path / "mapped", share=0.6, words=0.4))
    expected = made.search(QUERIES, 5)
    made.save(tmp_path / "system")
    monkeypatch.setattr(BiEncoder, "encode_tokens", None)  # no document is encoded again
    assert System.open(tmp_path / "system").search(QUERIES, 5) == expected


def test_words_that_met_are_named(index: Index, tiny_bi_encoder: Path) -> None:
    dense = DenseRanker(str(tiny_bi_encoder))
    explained = dense.explain_words("honey hive market", ["d01", "d13"], index)
    assert [pair[:2] for pair in explained[0]] == [(word, word) for word in ("honey", "hive", "market")]
    assert {len(met) for met in explained} == {3}
    assert explained[0][0][2] > explained[1][0][2]


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan"), 0.0])
def test_a_wrong_weight_is_refused(index: Index, weight: float) -> None:
    with pytest.raises(RankwellError, match="weight"):
        SearchRequest(index.folder, "bee", words=weight).check()


def test_a_weight_needs_a_bi_encoder(index: Index) -> None:
    with pytest.raises(RankwellError, match="no bi-encoder"):
        FirstStage(index, words=0.5)


def test_the_words_of_another_encoder_are_not_used(
    index: Index, encoder: BiEncoder, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    other = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", max_length=4)
    run = Run.from_scores({query.qid: dict.fromkeys((d.docid for d in DOCUMENTS), 0.0) for query in QUERIES})
    first = DenseRanker(encoder).compare_words(run, QUERIES, index)
    assert not any(PassageWords.is_complete(store, other) for store in index.documents.stores)
    alone = Index.build(DOCUMENTS, tmp_path / "alone")
    expected = DenseRanker(other).compare_words(run, QUERIES, alone)
    assert DenseRanker(other).compare_words(run, QUERIES, index) == expected != first
    assert DenseRanker(encoder).compare_words(run, QUERIES, index) == first


def test_a_passage_of_one_token_or_of_10000_is_compared_as_far_as_it_is_read(
    encoder: BiEncoder, tmp_path: Path
) -> None:
    texts = ["the river " * 10_000, "the river " * 15, "bee", "", "?"]
    store = DocumentStore.build([Document(str(n), text) for n, text in enumerate(texts)], tmp_path / "some")
    dense = DenseRanker(encoder)
    [query] = dense.encode([Query("q", "river bee")], words=True).words
    similarities, places = PassageWords.open(store, encoder).matches(np.arange(5), query)
    np.testing.assert_array_equal(similarities[0], similarities[1])  # 30 tokens, [CLS] and [SEP]
    exact = dense.compare_texts("river bee", texts)
    assert np.corrcoef(similarities.sum(axis=1), exact)[0, 1] > 0.9
    assert places.max(axis=1).tolist() <= [31, 31, 2, 1, 2]


@pytest.mark.parametrize("vectors", [False, True])
def test_a_read_only_index_without_words_is_refused_in_one_line(
    index: Index, tiny_bi_encoder: Path, vectors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if vectors:
        FirstStage(index, encoder=tiny_bi_encoder, share=0.5).prepare()
    before = sorted(index.folder.rglob("*"))
    monkeypatch.setattr(DocumentStore, "writable", False)
    asked = ["search", str(index.folder), "honey market", "--encoder", str(tiny_bi_encoder), "--words", "0.5"]
    told = CliRunner().invoke(app, asked).exception
    assert isinstance(told, RankwellError)  # which the command line prints and ends with
    assert "read-only, and without the word vectors of this bi-encoder" in str(told)
    assert "\n" not in str(told)
    assert sorted(index.folder.rglob("*")) == before
    run = Run.from_scores({"q1": {"d01": 2.0, "d04": 1.0, "d12": 0.0}})
    ranker = WordRanker.from_pretrained(tiny_bi_encoder, device="cpu")
    compared = ranker.dense.compare_texts("honey market", index.texts(["d01", "d04", "d12"]))
    assert dict(ranker.rerank(run, QUERIES[:1], index)["q1"]) == pytest.approx(
        dict(zip(("d01", "d04", "d12"), compared.tolist(), strict=True))
    )
    assert sorted(index.folder.rglob("*")) == before
