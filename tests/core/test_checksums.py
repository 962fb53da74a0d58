"""Checksums: every damaged byte is found, when the folder is verified or when the block is read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwell.core.arrays import RaggedWriter, save_array
from rankwell.core.checksums import (
    BLOCK,
    TABLE,
    FileChecksums,
    Verified,
    encode_checksums,
    read_checksums,
    verify_folder,
    write_checksums,
)
from rankwell.core.errors import InputError
from rankwell.core.files import atomic_folder
from rankwell.core.mapped import ArrayFolder, Ragged, map_array

from ..conftest import flip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with atomic_folder(tmp_path / "folder") as temporary:
        save_array(temporary / "numbers.npy", np.arange(20_000, dtype=np.int64))
        (temporary / "README.md").write_text("a card")
        (temporary / "inner").mkdir()
        (temporary / "inner" / "empty").write_bytes(b"")
    return tmp_path / "folder"


def test_a_folder_that_is_written_at_once_has_checksums(folder: Path) -> None:
    checksums = read_checksums(folder / TABLE)
    assert checksums is not None
    assert {name: sums.size for name, sums in checksums.items()} == {"numbers.npy": 128 + 8 * 20_000}
    assert verify_folder(folder) == Verified(files=2, size=160_128, without=0)


def test_a_folder_without_checksums_is_said_to_have_none(folder: Path) -> None:
    (folder / TABLE).unlink()
    flip(folder / "numbers.npy", 130)
    assert verify_folder(folder) == Verified(files=1, size=0, without=1)


@pytest.mark.parametrize("byte", [0, 129, BLOCK - 1, BLOCK, 100_000, 128 + 8 * 20_000 - 1])
def test_every_flipped_byte_is_found(folder: Path, byte: int) -> None:
    flip(folder / "numbers.npy", byte, bit=byte % 8)
    with pytest.raises(InputError, match=r"numbers\.npy: damaged: block \d+ of 10 has a wrong checksum"):
        verify_folder(folder)
    with pytest.raises(InputError, match="wrong checksum"):
        map_array(folder / "numbers.npy", np.int64)


def test_a_file_that_is_missing_or_cut_short_is_named(folder: Path) -> None:
    path = folder / "numbers.npy"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"damaged: 160,120 bytes long, expected 160,128"):
        verify_folder(folder)
    path.unlink()
    with pytest.raises(InputError, match=r"numbers\.npy: is missing"):
        verify_folder(folder)


def test_a_model_card_may_be_edited(folder: Path) -> None:
    (folder / "README.md").write_text("another card")
    assert verify_folder(folder).files == 2


@given(st.data())
def test_a_damaged_table_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    table = tmp_path_factory.mktemp("table") / TABLE
    content = bytearray(encode_checksums({"a": FileChecksums.of(Path(__file__))}))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    table.write_bytes(content)
    with pytest.raises(InputError, match="table of checksums"):
        read_checksums(table)


def test_writing_a_table_leaves_a_linked_one_alone(folder: Path, tmp_path: Path) -> None:
    before = (folder / TABLE).read_bytes()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / TABLE).hardlink_to(folder / TABLE)
    (tmp_path / "copy" / "other").write_bytes(b"x")
    write_checksums(tmp_path / "copy")
    assert (folder / TABLE).read_bytes() == before


# Arrays that are verified as they are read


def test_only_blocks_that_are_read_are_verified(folder: Path) -> None:
    flip(folder / "numbers.npy", 100_000)  # number 12,484
    numbers = ArrayFolder(folder).map("numbers", np.int64)
    numbers.check(np.array([0, 19_000]), np.array([5, 20_000]))
    numbers.check_row(19_999, 20_000)
    with pytest.raises(InputError, match="wrong checksum"):
        numbers.check_row(12_484, 12_485)
    with pytest.raises(InputError, match="wrong checksum"):
        numbers.check(np.array([3]), np.array([19_000]))
    with pytest.raises(InputError, match="wrong checksum"):
        numbers.whole()


def test_opening_verifies_the_first_block(folder: Path) -> None:
    flip(folder / "numbers.npy", 128)
    with pytest.raises(InputError, match="block 1 of 10 has a wrong checksum"):
        ArrayFolder(folder).map("numbers", np.int64)


def test_a_file_truncated_while_it_is_mapped_is_an_error(folder: Path) -> None:
    arrays = ArrayFolder(folder)
    numbers = arrays.map("numbers", np.int64)
    with (folder / "numbers.npy").open("r+b") as file:
        file.truncate(200)
    for read in (numbers.whole, arrays.check_sizes, lambda: numbers.check_row(0, 1)):
        with pytest.raises(InputError, match="was changed while it was open"):
            read()


def test_a_file_that_the_table_does_not_know_is_refused(folder: Path) -> None:
    save_array(folder / "more.npy", np.arange(3))
    with pytest.raises(InputError, match=r"more\.npy: is not in this folder's table of checksums"):
        ArrayFolder(folder).map("more")


@pytest.mark.parametrize("ends", [[2, 1, 4], [-1, 2, 4], [2, 9, 4]])
def test_rows_outside_their_values_are_refused_even_without_checksums(tmp_path: Path, ends: list[int]) -> None:
    with RaggedWriter(tmp_path, "rows", np.int32) as writer:
        writer.append(np.arange(4), np.array([1, 2, 4]))
    save_array(tmp_path / "rows.ends.npy", np.array(ends))
    rows = Ragged.open(ArrayFolder(tmp_path), "rows", np.int32)
    with pytest.raises(InputError, match="damaged"):
        rows.spans(np.arange(3))
    with pytest.raises(InputError, match="damaged"):
        [rows[number] for number in range(3)]
    with pytest.raises(InputError, match="damaged"):
        rows.check()


def test_a_string_that_is_not_text_is_refused(tmp_path: Path) -> None:
    with RaggedWriter(tmp_path, "rows", np.uint8) as writer:
        writer.append(np.array([0xFF, 0x41]), np.array([1, 2]))
    rows = Ragged.open(ArrayFolder(tmp_path), "rows", np.uint8)
    assert rows.strings(np.array([1])) == ["A"]
    with pytest.raises(InputError, match="not UTF-8"):
        rows.strings(np.array([1, 0]))


@pytest.mark.parametrize("seconds", [-100, 0, 100])
def test_a_changed_file_is_damaged_whatever_its_time_unless_the_table_is_deleted(tmp_path: Path, seconds: int) -> None:
    with atomic_folder(tmp_path / "model") as temporary:
        for name in ("config.json", "rankwell.json", "model.safetensors"):
            (temporary / name).write_text('{"layers": 2}')
    model = tmp_path / "model"
    flip(model / "config.json", 11)
    when = (model / "checksums").stat().st_mtime + seconds
    os.utime(model / "config.json", (when, when))
    advice = "if it was changed on purpose, delete the file checksums beside it"
    with pytest.raises(InputError, match=rf"config\.json: damaged: .*; {advice}"):
        verify_folder(model)
    flip(model / "config.json", 11)
    (model / "rankwell.json").unlink()
    with pytest.raises(InputError, match=r"rankwell\.json: is missing"):
        verify_folder(model)
    (model / "checksums").unlink()
    assert verify_folder(model).without == 2
