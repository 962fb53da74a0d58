"""The document store: what is put in comes out, and what is broken is said to be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Thread

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.formats import read_documents, write_documents
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore, document_batches

DOCUMENTS = [Document("b", "second"), Document("a", "first", "Title"), Document("ü", ""), Document("c", "日本 😀\tx\n")]


@pytest.fixture
def store(tmp_path: Path) -> DocumentStore:
    return DocumentStore.build(DOCUMENTS, tmp_path / "store")


def test_texts_are_found_by_id(store: DocumentStore) -> None:
    assert store.text("a") == "Title first"
    assert store.texts(["c", "b", "ü", "b"]) == ["日本 😀\tx\n", "second", "", "second"]
    assert store.texts([]) == []
    assert (len(store), "ü" in store, "u" in store, 7 in store) == (4, True, False, False)


def test_documents_come_back_in_their_order(store: DocumentStore) -> None:
    assert list(store) == DOCUMENTS
    assert store.read(["a", "ü"]) == [DOCUMENTS[1], DOCUMENTS[2]]
    assert store.numbers(["c", "b"]).tolist() == [3, 0]


def test_a_store_of_an_earlier_version_has_no_titles(store: DocumentStore) -> None:
    described = json.loads((store.folder / "store.json").read_text())
    del described["titles"]
    (store.folder / "store.json").write_text(json.dumps(described))
    (store.folder / "titles.npy").unlink()
    (store.folder / "checksums").unlink()
    assert DocumentStore.open(store.folder).read(["a"]) == [Document("a", "Title first")]


def test_titles_are_stored_only_if_there_are_any(tmp_path: Path) -> None:
    plain = DocumentStore.build([Document("a", "text")], tmp_path / "plain")
    assert not (plain.folder / "titles.npy").exists()
    assert plain.read(["a"]) == [Document("a", "text")]


def test_a_store_can_be_opened_again(store: DocumentStore) -> None:
    assert list(DocumentStore.open(store.folder)) == list(store)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.text(st.characters(exclude_categories=())), max_size=20))
@example({})
@example({"a": "", "b": ""})
def test_any_ids_and_texts_survive(tmp_path_factory: pytest.TempPathFactory, texts: dict[str, str]) -> None:
    folder = tmp_path_factory.mktemp("store") / "store"
    store = DocumentStore.build([Document(*pair) for pair in texts.items()], folder)
    assert [(document.docid, document.text) for document in store] == list(texts.items())
    assert [store.text(docid) for docid in texts] == list(texts.values())


@pytest.mark.parametrize("ask", [lambda store: store.text("x"), lambda store: store.texts(["a", "x"])])
def test_an_unknown_id_is_named(store: DocumentStore, ask: object) -> None:
    with pytest.raises(RankwellError, match="document 'x' is not in the store"):
        ask(store)  # type: ignore[operator]


def test_an_id_that_comes_twice_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    documents = [Document("a", "1"), Document("b", "2"), Document("c", "3"), Document("b", "4")]
    with pytest.raises(RankwellError, match="document id 'b' occurs twice"):
        DocumentStore.build(documents, tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["c.tsv", "c.jsonl.gz"])
def test_an_id_that_comes_twice_in_a_file_is_told_with_both_lines(tmp_path: Path, name: str) -> None:
    write_documents([Document(docid, "x") for docid in ("a", "b", "c", "b", "b")], tmp_path / name)
    with pytest.raises(InputError, match=r"document id 'b' occurs twice .* \(first on line 2\)") as raised:
        DocumentStore.build(read_documents(tmp_path / name), tmp_path / "store")
    assert (raised.value.path, raised.value.line) == (str(tmp_path / name), 4)


def test_an_id_that_comes_twice_in_a_pipe_is_told_without_lines(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    Thread(target=lambda: pipe.write_text("a\tx\na\ty\n"), daemon=True).start()
    with pytest.raises(InputError, match=r"pipe: document id 'a' occurs twice .* unique$"):
        DocumentStore.build(read_documents(pipe), tmp_path / "store")


def test_an_id_that_comes_again_in_a_later_batch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwell.corpus.store.BATCH_CHARACTERS", 3)
    with pytest.raises(RankwellError, match="'a' occurs twice"):
        DocumentStore.build([Document("a", "long text"), Document("b", "x"), Document("a", "y")], tmp_path / "store")


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def documents() -> Iterator[Document]:
        yield Document("a", "text")
        raise InputError("collection.tsv", 2, "broken")

    with pytest.raises(InputError, match="line 2: broken"):
        DocumentStore.build(documents(), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(RankwellError, match="exists already"):
        DocumentStore.build(DOCUMENTS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_or_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(InputError, match="not a document store"):
            DocumentStore.open(path)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "{}", '{"version": 1}', "\udcff"])
def test_a_description_that_cannot_be_read_is_named(
    store: DocumentStore, content: str, without_checksums: Callable[[Path], None]
) -> None:
    without_checksums(store.folder)
    (store.folder / "store.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"store\.json: not the description of a document store"):
        DocumentStore.open(store.folder)


def test_a_store_of_another_version_is_refused(store: DocumentStore, without_checksums: Callable[[Path], None]) -> None:
    without_checksums(store.folder)
    path = store.folder / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(InputError, match="a store of version 99; this rankwell reads version 1"):
        DocumentStore.open(store.folder)


FILES = ["docids.npy", "docids.ends.npy", "docids.slots.npy", "texts.npy", "texts.ends.npy"]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(store: DocumentStore, name: str) -> None:
    (store.folder / name).unlink()
    with pytest.raises(InputError, match=rf"{name}: this file of the index or store is missing"):
        DocumentStore.open(store.folder)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(store: DocumentStore, name: str) -> None:
    path = store.folder / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=rf"{name}: damaged: .* bytes long, expected"):
        DocumentStore.open(store.folder)


def test_batches_are_cut_by_characters_and_hold_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwell.corpus.store.BATCH_CHARACTERS", 10)
    documents = [Document(str(i), "x" * 4) for i in range(7)]
    assert [docids for docids, *_ in document_batches(documents)] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


# Token ids


def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    yield np.array([101, 5, 102]), np.array([1, 3])
    yield np.array([7]), np.array([0, 1])


def test_token_ids_are_kept_beside_the_texts(store: DocumentStore) -> None:
    assert not store.has_tokens("bert-base.1")
    store.put_tokens("bert-base.1", rows(), np.uint16)
    assert store.has_tokens("bert-base.1")
    tokens = DocumentStore.open(store.folder).tokens("bert-base.1", np.uint16)
    assert [row.tolist() for row in tokens] == [[101], [5, 102], [], [7]]


def test_tokens_for_too_few_documents_are_refused_and_leave_nothing(store: DocumentStore) -> None:
    before = sorted(store.folder.iterdir())
    with pytest.raises(RankwellError, match="1 rows of tokens for 4 documents"):
        store.put_tokens("bert", [(np.array([1]), np.array([1]))], np.uint16)
    assert sorted(store.folder.iterdir()) == before
    assert not store.has_tokens("bert")


def test_tokens_are_written_once(store: DocumentStore) -> None:
    store.put_tokens("bert", rows(), np.uint16)
    with pytest.raises(RankwellError, match="cannot write"):
        store.put_tokens("bert", rows(), np.uint16)
    assert len(store.tokens("bert", np.uint16)) == 4


def test_tokens_that_were_never_put_are_a_readable_error(store: DocumentStore) -> None:
    with pytest.raises(InputError, match="missing"):
        store.tokens("bert", np.uint16)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", "-x", "a\n", "a b", "x" * 101, "é"])
def test_a_name_that_could_leave_the_folder_is_refused(store: DocumentStore, name: str) -> None:
    for ask in (
        store.has_tokens,
        lambda name: store.tokens(name, np.uint16),
        lambda name: store.put_tokens(name, [], "u2"),
    ):
        with pytest.raises(RankwellError, match="cannot name a set of tokens"):
            ask(name)


def test_processes_that_arrive_together_build_a_store_once(tmp_path: Path) -> None:
    read: list[str] = []
    together = Barrier(3)

    def documents() -> Iterator[Document]:
        for number in range(10):
            read.append(f"d{number}")
            yield Document(f"d{number}", "bees")

    def build(_: int) -> int:
        together.wait()
        return len(DocumentStore.build_once(documents(), tmp_path / "store"))

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(build, range(3))) == [10] * 3
    assert read == [f"d{number}" for number in range(10)]


def test_a_store_in_memory_reads_as_one_on_disk(tmp_path: Path) -> None:
    documents = [Document("a", "Café \ud83d", title="Tea"), Document("ü", ""), Document("b", "plain")]
    on_disk = DocumentStore.build(documents, tmp_path / "store")
    texts = {document.docid: document.contents for document in documents}
    store = DocumentStore.of_texts(texts, [len(document.title) for document in documents])
    assert store.in_memory
    assert not on_disk.in_memory
    wanted = ["b", "a", "b", "ü"]
    assert store.texts(wanted) == on_disk.texts(wanted)
    assert store.read(wanted) == on_disk.read(wanted)
    assert list(store) == list(on_disk) == documents
    assert list(DocumentStore.of_texts({"a": "tea"})) == [Document("a", "tea")]
    with pytest.raises(RankwellError, match="document 'x' is not among the texts"):
        store.texts(["a", "x"])
    with pytest.raises(RankwellError, match="has no folder"):
        store.folder.exists()


def test_tokens_in_memory_are_those_on_disk(tmp_path: Path) -> None:
    texts = {"a": "one", "b": "", "c": "two three"}
    on_disk = DocumentStore.build((Document(*item) for item in texts.items()), tmp_path / "store")
    store = DocumentStore.of_texts(texts)
    rows = [(np.array([5, 6, 7]), np.array([3, 3])), (np.array([8]), np.array([1]))]
    assert not store.has_tokens("some")
    kept, put = store.keep_tokens("some", rows, np.uint16), on_disk.put_tokens("some", rows, np.uint16)
    assert store.has_tokens("some")
    assert [row.tolist() for row in kept] == [row.tolist() for row in put] == [[5, 6, 7], [], [8]]
    assert kept.values.dtype == put.values.dtype
