"""Word vectors from files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import InputError
from rankwell.papers.ccnu.word_features import open_vectors

GLOVE = "the 0.5 -1\nbee 2 3e-1\nat name@x.org 1 2\nbee 9 9\n"


def test_glove_text(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text(GLOVE)
    vectors = open_vectors(path)
    assert vectors.size == 2
    found = vectors.at(["bee", "The", "wasp", "at name@x.org"])  # a word may have a space within; the first bee stays
    np.testing.assert_allclose(found, [[2, 0.3], [0.5, -1], [0, 0], [1, 2]])
    assert found.dtype == np.float32


def test_word2vec_text_with_its_first_line_zipped(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt.gz"
    path.write_bytes(gzip.compress(("3 2\n" + GLOVE).encode()))
    plain = tmp_path / "plain.txt"
    plain.write_text(GLOVE)
    np.testing.assert_array_equal(open_vectors(path).at(["bee"]), open_vectors(plain).at(["bee"]))
    assert open_vectors(path).digest != open_vectors(plain).digest


def test_the_written_form_goes_before_the_lower_cased(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("Bee 1\nbee 2\n")
    assert open_vectors(tmp_path / "v.txt").at(["Bee", "bee", "BEE"]).tolist() == [[1], [2], [2]]


def test_an_array_with_its_words(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.array([[1, 2], [3, 4]], np.float32))
    with pytest.raises(InputError, match=r"its list of words is missing; expected v\.txt"):
        open_vectors(tmp_path / "v.npy")
    (tmp_path / "v.txt").write_text("bee\nhive\n")
    for path in (tmp_path / "v.npy", tmp_path):
        assert open_vectors(path).at(["hive", "bee"]).tolist() == [[3, 4], [1, 2]]
    (tmp_path / "v.txt").write_text("bee\n")
    with pytest.raises(InputError, match=r"shape \(2, 2\), but v\.txt has 1 words"):
        open_vectors(tmp_path)
    (tmp_path / "v.txt").write_text("bee\nbee\n")
    with pytest.raises(InputError, match="'bee' occurs twice"):
        open_vectors(tmp_path)
    (tmp_path / "w.txt").write_text("bee\n")
    with pytest.raises(InputError, match=r"2 files .*expected one"):
        open_vectors(tmp_path)


def test_an_array_with_its_words_as_a_parquet_column(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    np.save(tmp_path / "v.npy", np.array([[1, 2], [3, 4]], np.float32))
    parquet.write_table(pyarrow.table({"index": ["bee", "hive"]}), tmp_path / "words.parquet")
    assert open_vectors(tmp_path).at(["hive"]).tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("bee 1 2\nhive 1\n", 2, "'hive 1', expected a word and 2 numbers"),
        ("bee 1 2\nhive 1 x\n", 2, "expected a word and 2 numbers"),
        ("bee 1 nan\n", 1, "expected a word and 2 numbers"),
        ("bee\n", 1, "expected a word and its numbers"),
        ("", None, "has no word vectors"),
    ],
)
def test_what_is_no_vector_is_named_with_its_line(tmp_path: Path, text: str, line: int | None, problem: str) -> None:
    path = tmp_path / "v.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=problem) as caught:
        open_vectors(path)
    assert caught.value.line == line


def test_an_array_of_objects_is_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.array([[{}]], object), allow_pickle=True)
    (tmp_path / "v.txt").write_text("bee\n")
    with pytest.raises(InputError, match="not an array of numbers"):
        open_vectors(tmp_path)
