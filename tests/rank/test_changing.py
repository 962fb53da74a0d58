"""Vectors of an index that changes: searches find what a new build finds, and only changed texts are encoded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwell.corpus.records import Document, Query
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.rank import vector_codes
from rankwell.rank.dense import DenseRanker, search_hybrid
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.models import Models
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.rank.system import System
from rankwell.rank.vector_codes import VectorCodes
from rankwell.retrieve.index import Index

WORDS = "bank money interest bee honey hive winter river fish whale city country king queen year music".split()
QUERIES = [Query("1", "bee honey in winter"), Query("2", "king of the river")]
FILTERS = [None, "year >= 2", "year < 1 or lang = 'de'"]
IDS = "abcdefgh"


@pytest.fixture(scope="module")
def encoder(tiny_bi_encoder: Path) -> BiEncoder:
    """Encodes each text alone, so that vectors do not depend on what is encoded with it; some have negative cosines."""
    encoder = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", max_length=32)
    encode, encoder.encoded = encoder.encode_tokens, 0  # type: ignore[attr-defined]

    def one_by_one(source: StoredTokens, numbers: Any, words: list[Any] | None = None, code: Any = None) -> Vectors:
        encoder.encoded += len(numbers)  # type: ignore[attr-defined]
        signs = 1 - 2 * (source.lengths(numbers)[:, None] % 2)
        return signs * np.concatenate([encode(source, np.array([number]), words, code) for number in numbers])

    encoder.encode_tokens = one_by_one  # type: ignore[method-assign]
    return encoder


documents = st.tuples(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), st.integers(0, 3)).map(
    lambda both: (" ".join(both[0]), {"year": both[1], "lang": "de" if both[1] % 2 else "en"})
)
changes = st.one_of(
    st.tuples(st.just("update"), st.dictionaries(st.sampled_from(IDS), documents, min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.sets(st.sampled_from(IDS), max_size=3)),
    st.tuples(st.just("merge"), st.none()),
)


def as_documents(contents: dict[str, Any]) -> list[Document]:
    return [Document(docid, text, metadata=metadata) for docid, (text, metadata) in contents.items()]


def found(dense: DenseRanker, index: Index) -> Any:
    views = [index.filtered(filter) for filter in FILTERS]
    runs = [dense.search(QUERIES, view, k) for view in views for k in (1, 3, 1000)]
    runs += [search_hybrid(view, dense, QUERIES, 0.5, k=k) for view in views for k in (1, 3, 1000)]
    runs.append(dense.compare_words(runs[0], QUERIES, index))
    return [{qid: (run[qid].docids, run[qid].scores.tobytes()) for qid in run} for run in runs]


class Held(Models):
    """What is open: one encoder, which was made here."""

    def __init__(self, ranker: DenseRanker):
        super().__init__()
        self.here = ranker

    def dense(self, *_: object) -> DenseRanker:
        return self.here


@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from(IDS), documents, max_size=6), st.lists(changes, max_size=4))
def test_any_changes_leave_what_a_new_build_would_find(
    tmp_path_factory: pytest.TempPathFactory, encoder: BiEncoder, before: dict[str, Any], steps: list[tuple[str, Any]]
) -> None:
    folder, dense = tmp_path_factory.mktemp("changed"), DenseRanker(encoder)
    now = {"z": ("bee", {"year": 1, "lang": "de"}), **before}
    index = Index.build(as_documents(now), folder / "index")
    first = FirstStage(index, encoder="", words=0.5, models=Held(dense))
    first.prepare()
    for kind, what in steps:
        if kind == "update":
            index.update(as_documents(what), prepare=lambda store: first.prepare_stores([store]))
            now |= what
        elif kind == "delete":
            index.delete(what)
            now = {docid: value for docid, value in now.items() if docid not in what}
        else:
            index.merge()
    fresh = Index.build(as_documents(now), folder / "fresh")
    expected = found(DenseRanker(encoder), fresh)
    assert found(dense, index) == expected
    assert found(DenseRanker(encoder), Index.open(index.folder)) == expected
    shutil.rmtree(folder)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    random = np.random.default_rng(0)
    documents = [
        Document(f"d{n:02d}", " ".join(random.choice(WORDS, 6)), metadata={"n": n, "tenth": n % 10}) for n in range(60)
    ]
    return Index.build(documents, tmp_path / "index")


def count(encoder: BiEncoder, index: Index) -> int:
    """How many documents are encoded when the vectors of an index are opened."""
    before = encoder.encoded  # type: ignore[attr-defined]
    for store in index.documents.stores:
        PassageVectors.open(store, encoder)
    return int(encoder.encoded - before)  # type: ignore[attr-defined]


def test_only_texts_that_changed_are_encoded_again(index: Index, encoder: BiEncoder) -> None:
    assert count(encoder, index) == 60
    same = [Document(d.docid, d.text) for d in index.read(["d01", "d02", "d03"])]
    index.update([*same, Document("d04", "whale music"), Document("new", "queen")])
    assert count(encoder, index) == 2
    index.merge()
    assert count(encoder, index) == 0
    assert not list(index.folder.rglob("*-known"))
    everything = index.read(index.docids(np.arange(len(index))))
    again = Index.build([*everything[1:], Document("last", "fish")], index.folder, overwrite=True)
    assert count(encoder, again) == 1
    renamed = [Document(f"new-{n}", d.text, metadata=d.metadata) for n, d in enumerate([*everything[:0:-1], *same])]
    again = Index.build([Document("first", "king"), *renamed], index.folder, overwrite=True)
    assert count(encoder, again) == 1


def test_an_index_that_is_overwritten_may_be_damaged(index: Index, encoder: BiEncoder) -> None:
    count(encoder, index)
    next(index.folder.rglob("texts.npy")).write_bytes(b"")
    assert len(Index.build({"a": "bee"}, index.folder, overwrite=True)) == 1


def test_compressed_vectors_are_filtered(index: Index, encoder: BiEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEWEST_CANDIDATES", "CANDIDATES_PER_HIT", "FEWEST_RESCORED"):
        monkeypatch.setattr(vector_codes, name, 1)
    index.delete(["d07", "d17"])
    (store,) = index.documents.stores
    codes = VectorCodes.open(PassageVectors.open(store, encoder))
    queries = encoder.encode_queries([query.text for query in QUERIES])
    for filter in ("n = 20", "tenth in (1, 7)", "n < 50"):
        allowed = index.filtered(filter).documents.stores[0].allowed
        assert allowed is not None
        numbers, scores = codes.search(queries, 5, allowed=allowed)
        kept = min(5, np.count_nonzero(allowed))
        assert allowed[numbers[:, :kept]].all()
        assert (numbers[:, kept:] == -1).all()
        assert (scores[:, kept:] == 0).all()


def test_a_system_is_changed_without_loading_its_encoder_again(
    index: Index, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    system = System(FirstStage(index, encoder=tiny_bi_encoder, share=0.6)).save(tmp_path / "system")
    dense = system.first_stage.dense
    system.update([Document("d00", "bee honey winter hive", metadata={"n": 1000}), Document("new", "king river")])
    assert system.delete(["d01", "nowhere"]) == 1
    assert system.first_stage.dense is dense
    assert len(system) == 60
    answers = system.search("bee honey winter hive", k=60, filter="n >= 30")
    assert answers[0].docid == "d00"
    assert answers[0].metadata == {"n": 1000}
    assert {answer.docid for answer in answers} == {"d00", *(f"d{n}" for n in range(30, 60))}
    system.merge()
    opened = System.open(tmp_path / "system", device="cpu")
    assert [a.docid for a in opened.search("bee honey winter hive", k=60, filter={"n": {"$gte": 30}})] == [
        answer.docid for answer in answers
    ]
    assert opened.check().without == 0
    by_meaning = opened.search("bee honey winter -river", k=60, syntax=True)
    docids = opened.index.docids(opened.index.documents.live_numbers())
    assert {a.docid for a in by_meaning} == {docid for docid in docids if "river" not in opened.index.text(docid)}
