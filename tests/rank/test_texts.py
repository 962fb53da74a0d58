"""Tokens of a run's documents: found where they are kept, and the same as of their texts wherever they come from."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document, Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.folders import add_markers, load_checkpoint, save_checkpoint
from rankwell.papers.duobert.ranker import DuoRanker
from rankwell.rank.cache import ScoreCache
from rankwell.rank.ranker import Ranker
from rankwell.rank.texts import Texts, make_tokens, open_texts
from rankwell.retrieve.index import Index

TEXTS = {
    "a": "the banks of bogue",
    "b": "tea and coffee",
    "c": "",
    "d": "bees keep the hive warm " * 30,
    "e": "money in the bank",
    "f": "insouciantly",
}
QUERIES = [Query("1", "how do bees keep warm"), Query("2", "what is a bank")]
RUN = Run.from_scores({"1": {"a": 3.0, "d": 2.0, "f": 1.0, "c": 0.5}, "2": {"e": 3.0, "a": 2.0, "b": 1.0}})


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Three segments of two documents each."""
    folder = tmp_path_factory.mktemp("texts") / "index"
    documents = [Document(*item) for item in TEXTS.items()]
    for begin in (0, 2, 4):
        Index.build(documents[begin : begin + 2], folder, append=begin > 0)
    return Index.open(folder)


@pytest.fixture(scope="module")
def marked(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, tokenizer, config = load_checkpoint(tiny_checkpoint)
    add_markers(model, tokenizer)
    folder = tmp_path_factory.mktemp("marked") / "model"
    save_checkpoint(folder, model, tokenizer, config.changed({"template": {"markers": True}}))
    return folder


@pytest.mark.parametrize("stems", [False, True])
@pytest.mark.parametrize("wanted", [["f", "a", "d", "a", "c"], ["c"], [], ["e", "f"], list(TEXTS)])
def test_an_indexs_tokens_are_its_segments(index: Index, tiny_tokenizer: Path, stems: bool, wanted: list[str]) -> None:
    tokenizer = Tokenizer.open(tiny_tokenizer)
    source = StoredTokens.open(index.documents, tokenizer, stems)
    numbers = source.numbers(wanted)
    expected = tokenizer.encode([TEXTS[docid] for docid in wanted], stems=stems)
    found = source.at(numbers)
    for name in ("ids", "continues", "ends", "stems", "opens"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert source.lengths(numbers).tolist() == expected.lengths().tolist()
    assert index.docids(numbers) == wanted


def test_a_document_that_is_in_no_segment_is_named(index: Index, tiny_tokenizer: Path) -> None:
    with pytest.raises(RankwellError, match="document 'x' is not in the index"):
        StoredTokens.open(index.documents, Tokenizer.open(tiny_tokenizer)).numbers(["a", "x"])


def test_a_runs_documents_are_not_looked_up_one_by_one(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.from_scores({"q": {"a": 2.0, "d": 1.0}})

    def refuse(lexicon: Lexicon, string: str) -> int:
        raise AssertionError(f"{string} was looked up alone")

    monkeypatch.setattr(Lexicon, "number", refuse)
    assert open_texts(index.folder, run).texts(["d", "a"]) == [TEXTS["d"], TEXTS["a"]]


def test_tokens_are_found_when_most_documents_have_them(tmp_path: Path, tiny_tokenizer: Path) -> None:
    tokenizer = Tokenizer.open(tiny_tokenizer)
    documents = [Document(*item) for item in TEXTS.items()]
    index = Index.build(documents[:3], tmp_path / "index")
    assert StoredTokens.find(index.documents, tokenizer) is None
    make_tokens(index, tokenizer)
    assert StoredTokens.find(index.documents, tokenizer) is not None
    assert StoredTokens.find(index.documents, tokenizer, stems=True) is None
    index.add(documents[3:4])
    tokens = StoredTokens.find(index.documents, tokenizer)
    assert tokens is not None  # those of the new document were made
    assert all(store.has_tokens(tokenizer.digest) for store in index.documents.stores)
    index.add([Document(f"n{n}", "tea") for n in range(9)])
    assert StoredTokens.find(index.documents, tokenizer) is None
    make_tokens(index, tokenizer)
    assert StoredTokens.find(Index.open(tmp_path / "index").documents, tokenizer) is not None


def test_tokens_stay_in_memory_if_the_folder_is_gone(tmp_path: Path, tiny_tokenizer: Path) -> None:
    store = DocumentStore.build([Document("a", "tea")], tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    assert len(StoredTokens.open(store.documents, Tokenizer.open(tiny_tokenizer))) == 1


def test_nothing_is_made_where_nothing_can_be_kept(
    tmp_path: Path, tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.open(tiny_tokenizer)
    store = DocumentStore.build([Document("a", "tea")], tmp_path / "store")
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr(tokenizer, "encode", None)
    make_tokens(store, tokenizer)
    assert StoredTokens.find(store.documents, tokenizer) is None


class Unreadable(Index):
    """An index whose texts must not be read."""

    def texts(self, docids: Sequence[str]) -> list[str]:
        raise AssertionError("the texts were read")


@pytest.mark.parametrize("attention", ["full", "strm"])
def test_a_run_is_scored_alike_from_texts_and_from_tokens(marked: Path, index: Index, attention: str) -> None:
    ranker = Ranker.from_pretrained(marked, attention=attention)
    assert ranker.template.markers
    make_tokens(index, ranker.tokenizer, stems=True)
    tokenised = DocumentStore.of_texts(TEXTS)
    make_tokens(tokenised, ranker.tokenizer, stems=True)
    sources: list[Texts] = [Unreadable.open(index.folder), tokenised, DocumentStore.of_texts(TEXTS)]
    runs = [ranker.rerank(RUN, QUERIES, source) for source in sources]
    for qid, ranking in runs[0].items():
        query = next(query.text for query in QUERIES if query.qid == qid)
        expected = ranker.predict([(query, TEXTS[docid]) for docid in ranking.docids])
        assert ranking.scores == pytest.approx(expected, abs=1e-5)
        for other in runs[1:]:
            assert other[qid].docids == ranking.docids
            assert np.allclose(other[qid].scores, ranking.scores, atol=1e-5)


def test_duo_compares_from_tokens_too(tiny_checkpoint: Path, index: Index) -> None:
    ranker = Ranker.from_pretrained(tiny_checkpoint)
    make_tokens(index, ranker.tokenizer)
    found = DuoRanker(ranker).rerank(RUN, QUERIES, Unreadable.open(index.folder))
    expected = DuoRanker(ranker).rerank(RUN, QUERIES, DocumentStore.of_texts(TEXTS))
    for qid in RUN:
        assert found[qid].docids == expected[qid].docids
        assert np.allclose(found[qid].scores, expected[qid].scores, atol=1e-5)


def test_a_cache_is_filled_and_used_with_kept_tokens(tiny_checkpoint: Path, index: Index, tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.db")
    ranker = Ranker.from_pretrained(tiny_checkpoint, cache=cache)
    make_tokens(index, ranker.tokenizer)
    first = ranker.rerank(RUN, QUERIES, index)
    assert (cache.hits, cache.misses) == (0, 7)
    # The same texts from elsewhere: the same keys.
    assert dict(ranker.rerank(RUN, QUERIES, DocumentStore.of_texts(TEXTS))) == dict(first)
    assert (cache.hits, cache.misses) == (7, 7)
    plain = Ranker.from_pretrained(tiny_checkpoint).rerank(RUN, QUERIES, index)
    for qid in RUN:
        assert np.allclose(plain[qid].scores, first[qid].scores, atol=1e-5)


def test_texts_in_memory_are_tokenised_once(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranker = Ranker.from_pretrained(tiny_checkpoint)
    texts = DocumentStore.of_texts(TEXTS)
    assert StoredTokens.find(texts.documents, ranker.tokenizer) is None
    expected = ranker.rerank(RUN, QUERIES, texts)
    ranker.store_tokens(texts)
    monkeypatch.setattr(texts, "texts", None)
    assert dict(ranker.rerank(RUN, QUERIES, texts)) == dict(expected)
    assert StoredTokens.find(texts.documents, ranker.tokenizer, stems=True) is None


# Where texts come from


DOCUMENTS = [
    Document("d1", "bees keep the hive warm in winter"),
    Document("d2", "the bank keeps money warm"),
    Document("d3", "bees and honey"),
    Document("d4", "a warm river", title="water"),
    Document("d5", "warm bees"),
]


@pytest.fixture(scope="module")
def plain_index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build(DOCUMENTS, tmp_path_factory.mktemp("plain") / "index")


@pytest.fixture
def run() -> Run:
    return Run.from_scores({"q1": {"d4": 2.0, "d1": 1.0}, "q2": {"d1": 3.0}})


def write_collection(folder: Path, lines: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "collection.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


LINES = [f'{{"_id": "{d.docid}", "title": "{d.title}", "text": "{d.text}"}}' for d in DOCUMENTS]


def test_texts_are_the_same_from_every_source(tmp_path: Path, plain_index: Index, run: Run) -> None:
    path = write_collection(tmp_path / "data", LINES)
    DocumentStore.build(DOCUMENTS, tmp_path / "store")
    Index.build(DOCUMENTS[:2], tmp_path / "two")
    Index.build(DOCUMENTS[2:], tmp_path / "two", append=True)
    for source in (path, tmp_path / "data", tmp_path / "store", plain_index.folder, tmp_path / "two"):
        texts = open_texts(source, run)
        assert texts.texts(["d1", "d4", "d1"]) == [DOCUMENTS[0].text, "water a warm river", DOCUMENTS[0].text]


def test_a_collection_is_read_no_further_than_needed(tmp_path: Path, run: Run) -> None:
    path = write_collection(tmp_path / "data", [*LINES[:4], "broken"])
    assert open_texts(path, run).texts(["d4"]) == ["water a warm river"]
    path = write_collection(tmp_path / "data", [*LINES[:3], "broken", LINES[3]])
    with pytest.raises(RankwellError, match="line 4"):
        open_texts(path, run)


def test_the_first_document_that_is_missing_is_named(tmp_path: Path, plain_index: Index) -> None:
    run = Run.from_scores({"q1": {"d1": 2.0}, "q2": {"x": 3.0, "y": 1.0}})
    path = write_collection(tmp_path / "data", LINES)
    DocumentStore.build(DOCUMENTS, tmp_path / "store")
    for source in (path, tmp_path / "store", plain_index.folder):
        with pytest.raises(RankwellError, match=r"document 'x' of the run \(query 'q2'\) is not in"):
            open_texts(source, run)


def test_an_index_without_texts_is_refused_at_once(tmp_path: Path, run: Run) -> None:
    Index.build(DOCUMENTS, tmp_path / "bare", store=False)
    with pytest.raises(RankwellError, match="built without texts"):
        open_texts(tmp_path / "bare", run)
