"""`rankwell check`: damage is found and named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell.core.checksums import write_checksums

from ..conftest import flip

Rankwell = Callable[..., Any]


@pytest.fixture
def copy(index: Path, tmp_path: Path) -> Path:
    shutil.copytree(index, tmp_path / "index")
    return tmp_path / "index"


def test_a_sound_index_is_said_to_be_as_written(rankwell: Rankwell, copy: Path) -> None:
    checked = rankwell("check", copy)
    assert (checked.code, checked.err) == (0, "")
    assert "369 documents" in checked.out
    assert "as written" in checked.out
    assert "no checksums" not in checked.out


def test_what_an_interrupted_change_left_is_said_and_goes_at_the_next(rankwell: Rankwell, copy: Path) -> None:
    (copy / ".partial-0a1b2c3d-segment-0002").mkdir()
    (copy / "segment-0002").mkdir()
    assert (
        "not in use, removed by the next change: .partial-0a1b2c3d-segment-0002, segment-0002\n"
        in rankwell("check", copy).out
    )
    assert rankwell("delete", copy, "P272").code == 0
    assert "not in use" not in rankwell("check", copy).out
    assert not list(copy.glob(".partial-*"))
    assert not (copy / "segment-0002").exists()


def test_a_damaged_file_is_named(rankwell: Rankwell, copy: Path) -> None:
    path = copy / "segment-0001" / "documents" / "texts.npy"
    flip(path, -1)
    checked = rankwell("check", copy)
    assert (checked.code, checked.err.count("\n")) == (2, 1)
    assert checked.err.startswith(f"rankwell: {path}: damaged: block ")


def test_a_damaged_record_of_what_made_the_vectors_is_named(
    rankwell: Rankwell, copy: Path, tiny_bi_encoder: Path
) -> None:
    found = rankwell("search", copy, "how do bees keep warm", "--hybrid", "0.5", "--encoder", tiny_bi_encoder)
    assert found.code == 0, found.err
    (path,) = copy.rglob("vectors-*/shards.json")
    content = path.read_bytes()
    places = [
        content.index(name)
        for name in (b"tokens", b"created", b"architecture", b"config_hash", b"checksum", b"{", b"}")
    ]
    for place in [*places, content.index(b'"created"') + 20]:
        flip(path, place)
        checked = rankwell("check", copy)
        assert (checked.code, checked.err.count("\n")) == (2, 1), content[place:].split(b"\n")[0]
        assert checked.err.startswith(f"rankwell: {path}: ")
        path.write_bytes(content)
    assert rankwell("check", copy).code == 0


def test_an_index_of_an_earlier_version_is_said_to_have_no_checksums(
    rankwell: Rankwell, copy: Path, without_checksums: Callable[[Path], None]
) -> None:
    without_checksums(copy)
    checked = rankwell("check", copy)
    assert (checked.code, checked.err) == (0, "")
    # How many depends on what other tests stored beside the texts.
    assert re.search(r"\n[0-9]{2,} more files have no checksums\n$", checked.out)


def test_a_model_is_checked_too(rankwell: Rankwell, tiny_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "model")
    write_checksums(tmp_path / "model")
    assert "as written" in rankwell("check", tmp_path / "model").out
    path = tmp_path / "model" / "config.json"
    path.write_text(path.read_text().replace("0", "1", 1))
    assert "config.json: damaged" in rankwell("check", tmp_path / "model").err


def test_other_folders_are_refused(rankwell: Rankwell, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "nothing to check" in rankwell("check", tmp_path / "empty").err
    assert "no such folder" in rankwell("check", tmp_path / "missing").err
