"""The index as a folder: building, opening, appending, replacing, and refusing what is not one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Document
from rankwell.retrieve.index import Index

BEES = [Document("d1", "bees make honey"), Document("d2", "bees sting", "Wasps"), Document("d3", "ants")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Index.build(BEES, tmp_path / "index")
    return tmp_path / "index"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_index_can_be_opened_again_and_anywhere(folder: Path, tmp_path: Path) -> None:
    before = Index.open(folder).rank("honey bees")
    folder.rename(tmp_path / "elsewhere")
    index = Index.open(str(tmp_path / "elsewhere"))
    assert index.rank("honey bees") == before
    assert (len(index), index.analyzer, len(index.segments)) == (3, Analyzer.english(), 1)
    assert repr(index).endswith("elsewhere', 3 documents, 1 segment)")


def test_titles_are_indexed_and_texts_kept(folder: Path) -> None:
    index = Index.open(folder)
    assert index.rank("wasp").docids == ("d2",)
    assert index.text("d2") == "Wasps bees sting"
    assert ("d2" in index, "d4" in index) == (True, False)


def test_an_unknown_document_is_named(folder: Path) -> None:
    with pytest.raises(RankwellError, match="document 'd9' is not in the index"):
        Index.open(folder).text("d9")


def test_an_index_without_texts_ranks_but_says_it_has_none(tmp_path: Path) -> None:
    index = Index.build(BEES, tmp_path / "index", store=False)
    assert index.rank("honey").docids == ("d1",)
    with pytest.raises(RankwellError, match="was built without texts"):
        index.text("d1")


def test_the_manifest_says_what_made_the_index(folder: Path) -> None:
    manifest = Index.open(folder).manifest
    assert manifest["kind"] == "index"
    assert manifest["config"]["analyzer"]["stemmer"] == "porter"
    assert manifest["config"]["analyzer"]["stop_words"] == sorted(manifest["config"]["analyzer"]["stop_words"])
    assert {"version", "config_hash", "data_hash", "machine", "seed", "created"} <= manifest.keys()


def test_two_builds_of_the_same_documents_write_the_same_files(folder: Path, tmp_path: Path) -> None:
    Index.build(BEES, tmp_path / "again")
    first, second = tree(folder), tree(tmp_path / "again")
    del first["index.json"], second["index.json"]  # which holds the time
    assert first == second
    hashes = [Index.open(path).manifest["data_hash"] for path in (folder, tmp_path / "again")]
    assert hashes[0] == hashes[1]


def test_segments_of_two_analysers_are_told_apart(tmp_path: Path) -> None:
    texts = {"a": "Die Häuser der Stadt", "b": "Ein Haus am See"}
    opened = Index.build(texts, tmp_path / "index")
    german = Index.build(texts, tmp_path / "new", analyzer=Analyzer.of("de"))
    assert [len(index.rank("Haus")) for index in (opened, german)] == [1, 2]
    shutil.copytree(tmp_path / "index" / "segment-0001", tmp_path / "copy")
    (tmp_path / "index").rename(tmp_path / "old")
    (tmp_path / "new").rename(tmp_path / "index")
    assert opened.refreshed().rank("Haus").docids == german.rank("Haus").docids
    shutil.rmtree(tmp_path / "index" / "segment-0001")
    (tmp_path / "copy").rename(tmp_path / "index" / "segment-0001")
    with pytest.raises(InputError, match=r"not the segment that index\.json describes"):
        Index.open(tmp_path / "index")


def test_the_data_hash_depends_on_where_a_text_ends(tmp_path: Path) -> None:
    one = Index.build([Document("a", "bees"), Document("b", "wasps")], tmp_path / "one")
    two = Index.build([Document("a", "beeswasp"), Document("b", "s")], tmp_path / "two")
    assert one.manifest["data_hash"] != two.manifest["data_hash"]


def test_the_data_hash_depends_on_every_text_and_id(tmp_path: Path) -> None:
    collections = [
        [Document("a", "b c")],
        [Document("a", "b d")],
        [Document("b", "b c")],
        [Document("a", "b"), Document("c", "")],
        [Document("a", "b c"), Document("b", "")],
    ]
    indexes = [Index.build(documents, tmp_path / str(i)) for i, documents in enumerate(collections)]
    assert len({index.manifest["data_hash"] for index in indexes}) == len(collections)


def test_no_documents_are_an_error_and_no_index(tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match="the collection has no documents"):
        Index.build([], tmp_path / "index")
    with pytest.raises(InputError, match="no such folder"):
        Index.open(tmp_path / "index")


# Appending and replacing


def test_appended_documents_are_found_and_scored_as_in_one_index(folder: Path, tmp_path: Path) -> None:
    more = [Document("c1", "bees bees and honey"), Document("d0", "bees make honey")]
    appended = Index.build(more, folder, append=True)
    whole = Index.build([*BEES, *more], tmp_path / "whole")
    for query in ("honey", "bees sting", "ants", "wasps and bees", "none"):
        assert appended.rank(query) == whole.rank(query)
    assert appended.docids(np.array([4, 0, 3])) == ["d0", "d1", "c1"]
    assert appended.text("d0") == "bees make honey"
    assert len(appended.manifest["data"]) == 2


def test_terms_that_segments_share_are_counted_once(tmp_path: Path) -> None:
    for number, text in enumerate(("bees make honey", "honey is sweet", "sweet bees", "")):
        index = Index.build([Document(str(number), text)], tmp_path / "index", append=True)
    assert index.terms == 4  # bee, make, honei, sweet


def test_append_makes_an_index_where_there_is_none(tmp_path: Path) -> None:
    assert len(Index.build(BEES, tmp_path / "index", append=True)) == 3


def test_append_keeps_the_analyser_of_the_index(tmp_path: Path) -> None:
    Index.build(BEES, tmp_path / "index", analyzer=Analyzer.plain())
    index = Index.build([Document("d4", "The Bee")], tmp_path / "index", append=True)
    assert index.analyzer == Analyzer.plain()
    assert index.rank("the").docids == ("d4",)


def test_append_with_another_analyser_is_refused(folder: Path) -> None:
    before = tree(folder)
    with pytest.raises(RankwellError, match="was built with another analyser"):
        Index.build([Document("d4", "x")], folder, append=True, analyzer=Analyzer.plain())
    assert tree(folder) == before


def test_append_takes_new_documents_only(folder: Path) -> None:
    before = tree(folder)
    with pytest.raises(RankwellError, match="document 'd2' is in the index already"):
        Index.build([Document("d4", "x"), Document("d2", "y")], folder, append=True)
    assert tree(folder) == before


def test_an_existing_index_is_not_replaced_by_accident(folder: Path) -> None:
    before = tree(folder)
    with pytest.raises(
        RankwellError, match="holds an index already; add to it with --append or --update, or replace it with"
    ):
        Index.build([Document("x", "y")], folder)
    with pytest.raises(RankwellError, match="append, update and overwrite cannot be combined"):
        Index.build([Document("x", "y")], folder, append=True, overwrite=True)
    assert tree(folder) == before


def test_overwriting_replaces_everything_and_leaves_nothing_of_the_old(folder: Path) -> None:
    Index.build([Document("d4", "more")], folder, append=True)
    index = Index.build([Document("x", "moths")], folder, overwrite=True)
    assert (len(index), index.rank("moths").docids, len(index.rank("bees"))) == (1, ("x",), 0)
    assert len(list(folder.glob("segment-*"))) == 1


def test_a_collection_that_breaks_off_leaves_the_old_index(folder: Path) -> None:
    def documents() -> Iterator[Document]:
        yield Document("x", "y")
        raise InputError("collection.tsv", 2, "broken")

    before = tree(folder)
    for options in ({"append": True}, {"overwrite": True}):
        with pytest.raises(InputError, match="line 2"):
            Index.build(documents(), folder, **options)
        assert tree(folder) == before


# What is not an index


def test_a_folder_with_other_files_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for options in ({}, {"append": True}, {"overwrite": True}):
        with pytest.raises(RankwellError, match="exists and is not an index"):
            Index.build(BEES, tmp_path, **options)
        assert tree(tmp_path) == {"thesis.txt": b"years of work"}


@pytest.mark.parametrize("name", ["lockfile.txt", "segment-notes.txt", "segment-2024-results", "segment-1a"])
def test_files_that_only_look_like_parts_of_an_index_are_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "precious").write_text("x")
    with pytest.raises(RankwellError, match="exists and is not an index"):
        Index.build(BEES, tmp_path)
    assert tree(tmp_path) == {f"{name}/precious": b"x"}


@pytest.mark.parametrize("name", ["segment-2024-results", "segment-1a", "notes.txt"])
def test_foreign_files_inside_an_index_survive_a_build(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "precious").write_text("x")
    Index.build(BEES, folder, overwrite=True)
    assert (folder / name / "precious").read_text() == "x"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RankwellError, match="exists and is not an index"):
        Index.build(BEES, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "x"


def test_an_empty_folder_is_built_into(tmp_path: Path) -> None:
    assert len(Index.build(BEES, tmp_path)) == 3


def test_a_folder_without_an_index_says_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, problem in (
        (tmp_path, r"not an index \(it has no index\.json\)"),
        (tmp_path / "nowhere", "no such folder"),
        (tmp_path / "file", "is a file, expected a folder"),
    ):
        with pytest.raises(InputError, match=f"{problem}; make an index with `rankwell index`"):
            Index.open(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"3", b"{}", b'{"format": "other"}'])
def test_a_description_that_is_garbage_is_named(folder: Path, content: bytes) -> None:
    (folder / "index.json").write_bytes(content)
    with pytest.raises(InputError, match=r"index\.json: not the description of an index"):
        Index.open(folder)


def test_a_folder_in_the_place_of_the_description_is_named(tmp_path: Path) -> None:
    (tmp_path / "index.json").mkdir()
    with pytest.raises(InputError, match=r"index\.json: not the description of an index"):
        Index.open(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("version", 99, "an index of version 99; this rankwell reads version 1: upgrade rankwell"),
        ("version", None, "an index of version None"),
        ("segments", [], "names no segments"),
        ("segments", None, "names no segments"),
        ("segments", ["../../etc"], "names no segments"),
        ("segments", ["segment-0001/../../x"], "names no segments"),
        ("segments", ["segment-0007"], "segment-0007: not a segment of an index"),
        ("analyzer", {"stemmer": "klingon"}, "the analyser's settings cannot be read"),
        ("analyzer", None, "the analyser's settings cannot be read"),
    ],
)
def test_a_description_that_was_changed_is_refused(
    folder: Path, key: str, value: object, problem: str, without_checksums: Callable[[Path], None]
) -> None:
    without_checksums(folder)
    path = folder / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(RankwellError, match=problem):
        Index.open(folder)


@pytest.mark.parametrize("key", ["format", "version", "segments", "analyzer", "manifest"])
def test_a_description_without_one_of_its_parts_is_refused(folder: Path, key: str) -> None:
    path = folder / "index.json"
    description = json.loads(path.read_text())
    del description[key]
    path.write_text(json.dumps(description))
    with pytest.raises(RankwellError, match=r"index\.json"):
        Index.open(folder)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"version": 99}', '{"version": 1}'])
def test_a_broken_description_of_a_segment_is_refused(folder: Path, content: str) -> None:
    (folder / "segment-0001" / "segment.json").write_text(content)
    with pytest.raises(InputError, match="segment-0001"):
        Index.open(folder)


def use(folder: Path) -> None:
    index = Index.open(folder)
    index.rank("honey")
    index.text("d1")


def names_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.npy"))


def test_every_truncated_or_missing_file_is_named(folder: Path) -> None:
    segment = folder / "segment-0001"
    assert len(names_of(segment)) > 10
    for name in names_of(segment):
        path = segment / name
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(InputError, match=path.name):
            use(folder)
        path.unlink()
        with pytest.raises(InputError, match=path.name):
            use(folder)
        path.write_bytes(content)
    use(folder)
