"""JSON files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwell.core.errors import InputError
from rankwell.core.manifest import read_json, read_object, write_json


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ä": [1, None]})
    assert read_object(tmp_path / "a.json") == {"ä": [1, None]}
    assert (tmp_path / "a.json").read_text(encoding="utf-8").endswith("}\n")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert read_json(tmp_path / "a.json") == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON"),
        ("[1]", "holds a JSON list, expected an object"),
        ("[" * 66 + "1" + "]" * 66, "lists and objects nested more than 64 deep"),
        ('{"a": ' * 10**5, "lists and objects nested more than 64 deep"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=problem) as error:
        read_object(tmp_path / "a.json")
    assert error.value.path == str(tmp_path / "a.json")


def test_a_missing_file_is_the_callers_matter(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_object(tmp_path / "none.json")
