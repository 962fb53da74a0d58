"""A damaged index: an error before it can change a ranking, with checksums and without."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankwell.core.arrays import save_array
from rankwell.core.errors import InputError
from rankwell.corpus.records import Document
from rankwell.retrieve.index import Index

from ..conftest import flip

DOCUMENTS = [Document(f"d{i}", f"bees make honey {'and wax ' * (i % 5)} number{i}") for i in range(200)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Index.build(DOCUMENTS, tmp_path_factory.mktemp("built") / "index").folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "index")
    return tmp_path / "index"


def use(folder: Path) -> None:
    """Read all that a search, a display and a look-up read."""
    index = Index.open(folder)
    ranking = index.rank("bees honey wax number7", k=200)
    index.texts(ranking.docids)


@pytest.mark.parametrize(
    "name",
    [
        *("chunk_ends", "chunk_offsets", "chunk_windows", "frequencies", "largest_ratio", "largest_tf", "lengths"),
        *("posting_begins", "postings", "terms", "terms.ends", "terms.slots", "tie_documents", "ties"),
        *("documents/docids", "documents/docids.ends", "documents/docids.slots"),
        *("documents/texts", "documents/texts.ends"),
    ],
)
@pytest.mark.parametrize("byte", [100, 131, -1])
def test_a_flipped_bit_is_an_error_that_names_the_file(folder: Path, name: str, byte: int) -> None:
    flip(folder / "segment-0001" / f"{name}.npy", byte)
    with pytest.raises(InputError, match=rf"{name.rpartition('/')[2]}\.npy: damaged"):
        use(folder)


@pytest.mark.parametrize("name", ["index.json", "segment-0001/segment.json", "segment-0001/documents/store.json"])
def test_a_changed_description_is_an_error(folder: Path, name: str) -> None:
    path = folder / name
    text = path.read_text()
    digit = next(i for i, character in enumerate(text) if character.isdigit() and text[i - 1] != "n")
    flip(path, digit)
    with pytest.raises(InputError):
        use(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("posting_begins", lambda a: np.concatenate([a[:1] + 10**9, a[1:]])),
        ("posting_begins", lambda a: np.concatenate([[0], a[1:-1][::-1], a[-1:]])),
        ("chunk_ends", lambda a: np.concatenate([-a[:-1], a[-1:]])),
        ("chunk_windows", lambda a: a + np.uint16(99)),
        ("chunk_offsets", lambda a: a + np.uint32(10**6)),
        ("postings", lambda a: a | np.uint16(0x8000)),
        ("postings", lambda a: a * np.uint16(0)),
        ("ties", lambda a: a + np.uint32(10**6)),
        ("tie_documents", lambda a: a + np.uint32(10**6)),
        ("lengths", lambda a: a * np.float32("nan")),
        ("terms.slots", lambda a: np.maximum(a, 0)),
        ("terms.slots", lambda a: np.where(a >= 0, a + 10**6, a).astype(np.int32)),
        ("terms.slots", lambda a: a[:-1]),
        ("terms.ends", lambda a: np.concatenate([a[:-1] + 10**9, a[-1:]])),
        ("documents/texts.ends", lambda a: np.concatenate([a[:-1] - 10**9, a[-1:]])),
        ("documents/docids.ends", lambda a: a[::-1]),
        ("documents/docids", lambda a: a | np.uint8(0x80)),
    ],
)
def test_without_checksums_no_array_is_left(
    folder: Path,
    name: str,
    change: Callable[[np.ndarray], np.ndarray],
    without_checksums: Callable[[Path], None],
) -> None:
    without_checksums(folder)
    path = folder / "segment-0001" / f"{name}.npy"
    save_array(path, change(np.load(path)))
    with pytest.raises(InputError):
        use(folder)


def test_an_index_without_checksums_gives_the_same_rankings(
    folder: Path, without_checksums: Callable[[Path], None]
) -> None:
    expected = Index.open(folder).rank("honey wax number7", k=50)
    without_checksums(folder)
    assert Index.open(folder).rank("honey wax number7", k=50) == expected


def test_an_index_truncated_while_it_is_open_is_an_error(folder: Path) -> None:
    index = Index.open(folder)
    docids = index.rank("honey").docids
    for name in ("postings.npy", "documents/texts.npy"):
        with (folder / "segment-0001" / name).open("r+b") as file:
            file.truncate(0)
    with pytest.raises(InputError, match=r"postings\.npy: was changed while it was open"):
        index.rank("honey")
    with pytest.raises(InputError, match=r"texts\.npy: was changed while it was open"):
        index.text(docids[0])


def test_a_segment_of_another_index_is_refused(folder: Path, tmp_path: Path) -> None:
    other = Index.build(DOCUMENTS[:50], tmp_path / "other").folder
    shutil.rmtree(folder / "segment-0001")
    shutil.copytree(other / "segment-0001", folder / "segment-0001")
    with pytest.raises(InputError, match=r"segment-0001: not the segment that index\.json describes"):
        Index.open(folder)


def test_all_of_a_sound_index_can_be_checked(folder: Path) -> None:
    index = Index.open(folder)
    index.check()
    flip(folder / "segment-0001" / "documents" / "texts.npy", -1)
    with pytest.raises(InputError, match=r"texts\.npy: damaged"):
        Index.open(folder).check()
