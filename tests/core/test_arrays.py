"""Arrays on disk: written without knowing their length, mapped afterwards, and never trusted blindly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwell.core.arrays import ArrayWriter, RaggedWriter, gather, pack_strings, positions, save_array
from rankwell.core.errors import InputError
from rankwell.core.mapped import ArrayFolder, Ragged, map_array


def test_what_is_appended_in_pieces_is_mapped_as_one_array(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path / "a.npy", np.int32) as writer:
        writer.append(np.array([1, 2], np.int32))
        writer.append(np.array([], np.int32))
        writer.append(np.array([3], np.int32))
    assert map_array(tmp_path / "a.npy", np.int32).tolist() == [1, 2, 3]


def test_values_are_converted_to_the_type_of_the_file(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path / "a.npy", np.uint8) as writer:
        writer.append(np.array([7.0, 8.0]))
    mapped = map_array(tmp_path / "a.npy")
    assert (mapped.dtype, mapped.tolist()) == (np.dtype(np.uint8), [7, 8])


@pytest.mark.parametrize("values", [np.linspace(0, 1, 5, dtype=np.float32), np.zeros(0, np.int64)])
@pytest.mark.parametrize(("write", "read"), [(save_array, np.load), (np.save, map_array), (save_array, map_array)])
def test_numpy_reads_and_writes_the_same_files(tmp_path: Path, values: Any, write: Any, read: Any) -> None:
    write(tmp_path / "a.npy", values)
    assert (read(tmp_path / "a.npy").tolist(), read(tmp_path / "a.npy").dtype) == (values.tolist(), values.dtype)


def test_a_mapped_array_cannot_be_written_to(tmp_path: Path) -> None:
    save_array(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(ValueError, match="read-only"):
        map_array(tmp_path / "a.npy")[0] = 9


def test_closing_twice_does_no_harm(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path / "a.npy", np.int8) as writer:
        writer.append(np.array([5], np.int8))
        writer.close()
    assert map_array(tmp_path / "a.npy").tolist() == [5]


def test_a_writer_that_was_never_closed_leaves_no_array(tmp_path: Path) -> None:
    writer = ArrayWriter(tmp_path / "a.npy", np.int8)
    writer.append(np.arange(100, dtype=np.int8))
    with pytest.raises(InputError):
        map_array(tmp_path / "a.npy")
    writer.close()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.npy: this file of the index or store is missing"):
        map_array(tmp_path / "a.npy")


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_the_wrong_length_is_refused(tmp_path: Path, change: int) -> None:
    path = tmp_path / "a.npy"
    save_array(path, np.arange(10))
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"\0")
    with pytest.raises(InputError, match="cut short or too long"):
        map_array(path)


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", b"junk" * 100, b"\x93NUMPY\x01\x00v\x00{'descr': 1}" + b" " * 200]
)
def test_a_file_that_is_no_array_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(InputError, match="not an array of this index or store"):
        map_array(tmp_path / "a.npy")


def test_another_type_or_shape_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((2, 2)))
    np.save(tmp_path / "ints.npy", np.zeros(2, np.int16))
    with pytest.raises(InputError, match="not a list of numbers"):
        map_array(tmp_path / "wide.npy")
    with pytest.raises(InputError, match="holds int16"):
        map_array(tmp_path / "ints.npy", np.int32)


def test_an_array_of_python_objects_is_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}, []], object), allow_pickle=True)
    with pytest.raises(InputError, match="not a list of numbers"):
        map_array(tmp_path / "a.npy")


def test_rows_of_different_lengths_come_back_one_by_one(tmp_path: Path) -> None:
    with RaggedWriter(tmp_path, "rows", np.int32) as writer:
        writer.append(np.array([1, 2, 3]), np.array([2, 2, 3]))
        writer.append(np.array([4]), np.array([1]))
    rows = Ragged.open(ArrayFolder(tmp_path), "rows", np.int32)
    assert [row.tolist() for row in rows] == [[1, 2], [], [3], [4]]
    assert [len(rows[number]) for number in range(len(rows))] == [2, 0, 1, 1]


@pytest.mark.parametrize("ends", [[1], [1, 3], []])
def test_rows_must_end_where_the_values_end(tmp_path: Path, ends: list[int]) -> None:
    with RaggedWriter(tmp_path, "rows", np.int32) as writer, pytest.raises(ValueError, match="last row must end"):
        writer.append(np.array([1, 2]), np.array(ends, np.int64))


@pytest.mark.parametrize("row", [-1, 1])
def test_a_row_outside_is_an_index_error(row: int) -> None:
    with pytest.raises(IndexError):
        Ragged(np.arange(3), np.array([3]))[row]


@given(st.lists(st.text(st.characters(exclude_categories=()))))
def test_packed_strings_can_be_unpacked(strings: list[str]) -> None:
    text, ends = pack_strings(strings)
    begins = [0, *ends.tolist()]
    unpacked = [bytes(text[begins[i] : begins[i + 1]]).decode("utf-8", "surrogatepass") for i in range(len(strings))]
    assert unpacked == strings


def test_gather_copies_rows_in_any_order_and_more_than_once() -> None:
    values, ends = np.arange(6) * 10, np.array([2, 2, 6])
    rows = np.array([2, 1, 0, 2])
    lengths = np.diff(ends, prepend=0)[rows]
    assert values[gather(ends[rows] - lengths, lengths)].tolist() == [20, 30, 40, 50, 0, 10, 20, 30, 40, 50]
    assert gather(np.empty(0, np.int64), np.empty(0, np.int64)).tolist() == []


def test_positions_count_from_zero_in_every_row() -> None:
    assert positions(np.array([2, 0, 3])).tolist() == [0, 1, 0, 1, 2]
