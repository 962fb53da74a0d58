"""Labelled texts: columns in either order, pairs, and files that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwell.core.errors import InputError
from rankwell.corpus.query_types import QUERY_TYPES
from rankwell.papers.drbert.labelled_texts import read_labelled


def write(folder: Path, *lines: str) -> Path:
    path = folder / "labelled.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_coarse_and_fine_labels_become_query_types(tmp_path: Path) -> None:
    path = write(
        tmp_path, "NUM:dist\tHow far is it ?", "ABBR:exp\tWhat is NATO ?", "HUM:gr\tWhich team ?", "LOC:city\tx"
    )
    data = read_labelled(path)
    assert data.names == QUERY_TYPES
    assert [data.names[number] for number in data.classes] == ["numeric", "description", "person", "location"]
    assert data.texts[0] == "How far is it ?"
    assert data.others is None


@pytest.mark.parametrize("first", [True, False])
def test_the_label_may_stand_first_or_last(tmp_path: Path, first: bool) -> None:
    rows = [("good", "one"), ("bad", "two"), ("good", "three"), ("bad", "four")]
    data = read_labelled(write(tmp_path, *("\t".join(row if first else row[::-1]) for row in rows)))
    assert data.names == ("bad", "good")
    assert data.texts == ["one", "two", "three", "four"]
    assert data.classes.tolist() == [1, 0, 1, 0]


def test_pairs_of_texts(tmp_path: Path) -> None:
    data = read_labelled(write(tmp_path, "yes\ta\tb", "no\tc\td", "yes\te\tf"))
    assert (data.texts, data.others, data.names) == (["a", "c", "e"], ["b", "d", "f"], ("no", "yes"))


def test_a_model_s_classes_keep_their_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "b\tone", "b\ttwo")
    assert read_labelled(path, names=("a", "b")).classes.tolist() == [1, 1]
    with pytest.raises(InputError, match="line 1: the label 'b' is not one of the classes a, c"):
        read_labelled(path, names=("a", "c"))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "is empty, expected labelled texts"),
        (["one column"], "found 1 column on the first line, expected a label and a text"),
        (["a\tb\tc\td"], "found 4 columns on the first line"),
        (["a\tone", "b\ttwo\tthree"], "line 2: found 3 columns, expected 2"),
        (["a\tone", "a\ttwo"], "every text has the label 'a', expected two labels or more"),
        (["a\tone", "\ttwo", "a\tthree", "\tfour"], "line 2: the label is empty"),
        (["a\tone", "b\t ", "a\ttwo", "b\tx"], "line 2: the text of the label 'b' is empty"),
        (["q1\tone", "q2\ttwo", "q3\tthree"], "3 labels for 3 texts: no column looks like labels"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, lines: list[str], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_labelled(write(tmp_path, *lines))
    assert problem in str(caught.value)
    assert "labelled.tsv" in str(caught.value)
