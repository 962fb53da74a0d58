"""An index that was changed is searched as one that was built anew from what is left, to the bit."""

from __future__ import annotations

import errno
import gc
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwell.core.errors import InputError, Notice, RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats.texts import Expansion
from rankwell.corpus.records import Document, Query, TermWeights
from rankwell.retrieve import merging
from rankwell.retrieve.index import Index

WORDS = ["bees", "honey", "wax", "hive", "queen", "tea"]
QUERIES = [Query(str(n), text) for n, text in enumerate(["honey", "bees wax tea", "queen hive honey bees", "tea tea"])]
FILTERS = [None, "year >= 2", "lang = 'de' or tags = 'b'", "not lang = 'de' and year < 3", "tags in ('a', 'c')"]

documents = st.builds(
    lambda words, title, metadata: (" ".join(words), title, metadata),
    st.lists(st.sampled_from(WORDS), max_size=8),
    st.sampled_from(["", "queen"]),
    st.fixed_dictionaries(
        {"year": st.integers(0, 4), "always": st.just(True)},
        optional={"lang": st.sampled_from(["de", "en"]), "tags": st.lists(st.sampled_from("abc"), max_size=3)},
    ),
)
changes = st.one_of(
    st.tuples(st.just("update"), st.dictionaries(st.sampled_from("abcdefghijkl"), documents, min_size=1, max_size=4)),
    st.tuples(st.just("delete"), st.sets(st.sampled_from("abcdefghijkl"), max_size=4)),
    st.tuples(st.just("merge"), st.none()),
)


def as_documents(contents: Mapping[str, Any]) -> list[Document]:
    return [Document(docid, text, title, metadata) for docid, (text, title, metadata) in contents.items()]


def found(index: Index) -> Any:
    """All that is found with each filter, and its documents."""
    runs = [index.search(QUERIES, k=20, filter=filter) for filter in FILTERS]
    lists = [{qid: (run[qid].docids, run[qid].scores.tobytes()) for qid in run} for run in runs]
    docids = sorted({docid for run in runs for qid in run for docid in run[qid].docids})
    return lists, [(d.docid, d.text, d.title, dict(d.metadata or {})) for d in index.read(docids)]


@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(st.sampled_from("abcdefghijkl"), documents, min_size=1, max_size=9), st.lists(changes, max_size=6)
)
def test_any_changes_leave_what_a_new_build_would_find(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, Any], steps: list[tuple[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("changed")
    first["z"] = ("honey bees", "", {"year": 1, "lang": "de", "tags": ["a"], "always": True})
    now = dict(first)
    index = Index.build(as_documents(now), folder / "index", analyzer=Analyzer.plain())
    opened = Index.open(index.folder)
    before = found(opened)
    for kind, what in steps:
        if kind == "update":
            index.update(as_documents(what))
            now |= what
        elif kind == "delete":
            assert index.delete(what) == len(what & now.keys())
            now = {docid: value for docid, value in now.items() if docid not in what}
        else:
            index.merge()
    assert found(opened) == before  # a reader sees one point in time
    expected = Index.build(as_documents(now), folder / "fresh", analyzer=Analyzer.plain())
    assert len(index) == len(now)
    assert found(index) == found(expected)
    assert found(opened.refreshed()) == found(expected)
    assert found(Index.open(index.folder)) == found(expected)
    index.merge()
    assert found(index) == found(expected)
    assert index.terms == expected.terms
    index.check()
    shutil.rmtree(folder)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    texts = {f"d{i}": f"bees number {i} make honey {'and wax ' * (i % 3)}" for i in range(30)}
    return Index.build(texts, tmp_path / "index")


def test_deleted_documents_are_gone_for_every_reader(index: Index) -> None:
    assert index.delete(["d2", "d5", "nowhere", "d5"]) == 2
    again = Index.open(index.folder)
    assert len(again) == 28
    assert "d2" not in again
    with pytest.raises(RankwellError, match="document 'd2' is not in the index"):
        again.text("d2")
    assert "d2" not in again.search("wax", k=30).docids
    assert index.delete(["d2"]) == 0


def test_an_id_can_return_after_it_was_deleted(index: Index) -> None:
    index.delete(["d2"])
    index.add({"d2": "tea"})
    assert index.text("d2") == "tea"
    with pytest.raises(RankwellError, match="'d2' is in the index already; --update replaces documents"):
        index.add({"d2": "milk"})
    index.update({"d2": "milk", "new": "tea"})
    assert index.texts(["d2", "new"]) == ["milk", "tea"]


def test_nothing_is_left_when_all_is_deleted_and_the_index_can_be_filled_again(index: Index) -> None:
    index.delete([f"d{i}" for i in range(30)])
    assert len(index) == 0
    assert len(index.search("honey")) == 0
    index.merge()
    index.add({"a": "honey"})
    assert Index.open(index.folder).search("honey").docids == ("a",)
    assert len(Index.open(index.folder).segments) == 1


def test_the_name_of_a_segment_is_not_given_twice(index: Index) -> None:
    index.add({"new": "wax"})
    index.delete(["new"])
    index.add({"new": "wax"})
    assert [segment.folder.name for segment in index.segments] == ["segment-0001", "segment-0003"]


def test_a_segment_with_many_deleted_documents_is_rewritten(index: Index) -> None:
    size = len(index.segments[0])
    index.delete([f"d{i}" for i in range(6)])
    assert (len(index.segments[0]), index.segments[0].live) == (size, 24)
    index.delete(["d6"])
    assert len(index.segments[0]) == index.segments[0].live == 23


def test_many_small_segments_become_one(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "TIER", 3)
    for number in range(4):
        index.add({f"new{number}": "wax"})
    assert [len(segment) for segment in index.segments] == [30, 4]
    assert not index.leftovers()


def test_merging_keeps_term_weights_and_expansions(tmp_path: Path) -> None:
    texts = {"a": "bees honey", "b": "wax", "c": "tea"}
    weights = [TermWeights(docid, {"honey": 2.5 * place + 0.25, "wax": 7.0}) for place, docid in enumerate(texts, 1)]
    expansions = [Expansion(docid, ("sweet honey", "honey")) for docid in texts]
    for name, more in (("weights", {"weights": weights}), ("expansions", {"expansions": expansions})):
        index = Index.build(texts, tmp_path / name, **more)  # type: ignore[arg-type]
        index.delete(["b"])
        kept = [record for record in next(iter(more.values())) if record.docid != "b"]
        fresh = Index.build({"a": texts["a"], "c": texts["c"]}, **{name: kept})
        for query in ("honey", "wax", "sweet tea"):
            assert index.search(query) == fresh.search(query)
            assert Index.open(index.folder).search(query) == fresh.search(query)


def test_an_index_without_texts_can_be_merged(tmp_path: Path) -> None:
    index = Index.build({"a": "honey", "b": "wax", "c": "honey honey"}, tmp_path / "index", store=False)
    index.delete(["a"])
    index.merge()
    assert index.search("honey").docids == ("c",)
    assert not index.has_texts


def test_tokens_are_copied_when_segments_are_merged(index: Index) -> None:
    rows = [np.arange(number % 4, dtype=np.uint16) for number in range(30)]
    index.segments[0].store.put_tokens(
        "name", [(np.concatenate(rows), np.cumsum([len(row) for row in rows]))], np.uint16
    )
    index.delete(["d3"])
    index.merge()
    store = index.segments[0].store
    tokens = store.tokens("name", np.uint16)
    assert [len(tokens[row]) for row in range(len(store))] == [n % 4 for n in range(30) if n != 3]


def test_an_update_of_nothing_new_is_refused_as_a_whole(index: Index) -> None:
    before = list(index.search("honey"))
    with pytest.raises(RankwellError, match="occurs twice"):
        index.update([Document("d1", "tea"), Document("d1", "milk")])
    assert list(Index.open(index.folder).search("honey")) == before


def test_a_flipped_bit_in_the_marks_is_found(index: Index) -> None:
    index.delete(["d2"])
    (marks,) = index.folder.glob("deleted-*/segment-0001.npy")
    data = bytearray(marks.read_bytes())
    data[-1] ^= 1
    marks.chmod(0o644)
    marks.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        Index.open(index.folder)


def test_opening_while_the_index_changes_tries_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.delete(["d1"])
    opened = Index._open_described

    def late(folder: Path, description: dict[str, Any], known: Any) -> Index:
        monkeypatch.undo()
        Index.open(index.folder).delete(["d2"])  # removes the marks that this reader has just heard of
        return opened(folder, description, known)

    monkeypatch.setattr(Index, "_open_described", late)
    assert len(Index.open(index.folder)) == 28


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_what_is_not_used_any_more_is_closed_at_once(index: Index) -> None:
    index.update([Document("d1", "tea", metadata={"n": 1})])
    served, counts = Index.open(index.folder), []
    gc.disable()  # nothing may wait for it: each segment holds some twenty files
    try:
        for number in range(5):
            served.search("honey", filter="n = 1")
            Index.open(index.folder).update([Document("d1", f"tea {number}", metadata={"n": 1})])
            served = served.refreshed()
            counts.append(len(os.listdir("/proc/self/fd")))
    finally:
        gc.enable()
    assert len(set(counts)) == 1


def test_looking_for_changes_reads_nothing(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", None)
    assert index.refreshed() is index


@pytest.mark.parametrize("prune", [True, False])
def test_filters_that_select_few_documents_look_them_up(tmp_path: Path, prune: bool) -> None:
    chosen = np.random.default_rng(0)
    texts = [" ".join(chosen.choice(WORDS, 5)) for _ in range(5000)]
    made = [Document(f"{n:04d}", text, metadata={"n": n, "tenth": n % 10}) for n, text in enumerate(texts)]
    index = Index.build(made, tmp_path / "index")
    for filter, kept in (("n < 20", range(20)), ("tenth = 3", range(3, 5000, 10)), ("n >= 4990", range(4990, 5000))):
        all_of = dict(index.search("honey bees tea", k=5000))
        expected = [docid for docid in all_of if int(docid) in kept][:30]
        ranking = index.search("honey bees tea", k=30, filter=filter)
        assert list(ranking.docids) == expected
        assert [all_of[docid] for docid in expected] == ranking.scores.tolist()


Change = Callable[[Index], object]


@pytest.mark.parametrize("change", [lambda i: i.delete(["d1"]), lambda i: i.update({"d1": "tea"}), lambda i: i.merge()])
def test_two_processes_do_not_change_an_index_at_once(index: Index, change: Change) -> None:
    from rankwell.core.locks import lock

    with lock(index.folder, wait=False), pytest.raises(RankwellError, match="another process is working"):
        change(index)


def test_merging_keeps_all_fields(tmp_path: Path) -> None:
    def document(docid: str) -> Document:
        return Document(docid, "honey", metadata={f"{docid}{n}": n for n in range(80)})

    index = Index.build([document("a")], tmp_path / "index")
    index.add([document("b")])
    before = index.read(["a", "b"])
    index.merge()
    assert index.read(["a", "b"]) == before
    assert len(index.documents.fields) == 160
    assert index.search("honey", filter="a79 = 79").docids == ("a",)


@pytest.mark.parametrize("wanted", ["n1", ["n1"]])
def test_an_id_is_deleted_as_a_whole(tmp_path: Path, wanted: Any) -> None:
    index = Index.build({"1": "one", "n": "letter", "n1": "both"}, tmp_path / "index")
    assert index.delete(wanted) == 1
    assert [docid in index for docid in ("1", "n", "n1")] == [True, True, False]


def test_an_index_stays_what_it_is(tmp_path: Path) -> None:
    expanded = Index.build(["bees"], tmp_path / "expanded", expansions=[Expansion("0", ["honey"])])
    expanded.add([Document("plain", "tea")])
    assert expanded.manifest["config"]["expanded"]
    bare = Index.build(["bees"], tmp_path / "bare", store=False)
    Index.build([Document("b", "tea")], bare.folder, append=True)
    assert not Index.open(bare.folder).manifest["config"]["store"]
    with pytest.raises(RankwellError, match="has texts; add documents without --no-store"):
        Index.build([Document("c", "tea")], expanded.folder, update=True, store=False)
    weighted = Index.build(["bees"], tmp_path / "weighted", weights=[TermWeights("0", {"bees": 80.0})])
    with pytest.raises(RankwellError, match="has term weights; add documents with --weights"):
        weighted.add([Document("plain", "tea")])
    weighted.delete("0")
    assert weighted.manifest["config"]["weighted"]


def test_a_change_is_complete_if_its_merge_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index.build({str(n): f"bees {n}" for n in range(10)}, tmp_path / "index")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(merging, "keep_vectors", fail)  # after the merged segment has its name
        with pytest.warns(Notice, match="was changed, but its segments were not merged: .*no space left"):
            assert index.delete(list("01234")) == 5
    assert len(Index.open(index.folder)) == len(index) == 5
    assert not index.leftovers()
    index.merge()
    assert len(index.segments[0]) == 5
