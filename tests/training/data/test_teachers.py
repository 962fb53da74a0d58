"""Teachers: what they say of lists, in one unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.rank.ranker import Ranker
from rankwell.training.data.teachers import BiEncoderTeacher, CrossEncoderTeacher, load_teachers, teach

TEXTS = ["bee honey market", "river bridge", "iron and salt", "coffee or tea", "the queen of the hive"]
QUERIES = ["honey bee", "iron bridge"]


class Fixed:
    """A teacher whose scores are given."""

    def __init__(self, table: list[list[float]]):
        self._table = np.array(table, np.float32)

    def scores(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        return np.take_along_axis(self._table[queries], documents, axis=1)


@pytest.fixture
def store(tmp_path: Path) -> DocumentStore:
    return DocumentStore.build([Document(f"d{i}", text) for i, text in enumerate(TEXTS)], tmp_path / "store")


def test_teachers_are_averaged_in_units_of_their_own_deviation() -> None:
    # Of 0, 2, 4 the mean is 2 and the deviation √(8/3); of 30, 10, 20 the mean is 20 and the deviation √(200/3).
    one, two = Fixed([[0, 2, 4]]), Fixed([[30, 10, 20]])
    rows, documents = np.array([0]), np.array([[0, 1, 2]])
    unit = 1.5**0.5
    np.testing.assert_allclose(teach([one], rows, documents), [[-unit, 0, unit]], rtol=1e-6)
    np.testing.assert_allclose(teach([one, two], rows, documents), [[0, -unit / 2, unit / 2]], atol=1e-6)


def test_a_list_of_equal_scores_says_nothing() -> None:
    found = teach([Fixed([[0.7, 0.7, 0.7]])], np.array([0]), np.array([[0, 1, 2]]))
    np.testing.assert_array_equal(found, [[0, 0, 0]])


def test_a_bi_encoder_teaches_its_cosines(store: DocumentStore, tiny_bi_encoder: Path) -> None:
    encoder = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", max_length=32)
    vectors = PassageVectors.open(store, encoder)
    teacher = BiEncoderTeacher(encoder.encode_queries(QUERIES), vectors, torch.device("cpu"))
    documents = np.array([[4, 0], [1, 1], [2, 3]])
    rows = np.array([1, 0, 1])
    cosines = encoder.encode_queries(QUERIES) @ encoder.encode_documents(TEXTS).T
    np.testing.assert_allclose(teacher.scores(rows, documents), cosines[rows[:, None], documents], atol=1e-3)
    np.testing.assert_array_equal(teacher.nearest(2), np.argsort(-cosines, axis=1)[:, :2])


def test_a_ranker_teaches_its_scores(store: DocumentStore, tiny_checkpoint: Path) -> None:
    ranker = Ranker.from_pretrained(tiny_checkpoint, engine={"device": "cpu"})
    teacher = CrossEncoderTeacher(ranker, QUERIES, store)
    found = teacher.scores(np.array([1, 0]), np.array([[0, 3], [2, 2]]))
    pairs = [(QUERIES[1], TEXTS[0]), (QUERIES[1], TEXTS[3]), (QUERIES[0], TEXTS[2]), (QUERIES[0], TEXTS[2])]
    expected = ranker.predict(pairs)
    np.testing.assert_allclose(found.reshape(-1), expected, atol=1e-5)


def test_a_language_model_teaches_its_scores_and_has_no_vectors(
    store: DocumentStore, tiny_models: Any, tmp_path: Path
) -> None:
    folder = tiny_models.make_language_model("qwen3", tmp_path / "chat")
    (teacher,) = load_teachers(store, [str(folder)], QUERIES, 32, "cpu")
    expected = Ranker(folder, device="cpu").predict([(QUERIES[1], TEXTS[0]), (QUERIES[1], TEXTS[3])])
    np.testing.assert_allclose(teacher.scores(np.array([1]), np.array([[0, 3]]))[0], expected, atol=1e-5)
    with pytest.raises(RankwellError, match="is a cross-encoder, which has no vectors"):
        BiEncoder.from_pretrained(folder)


def test_a_teacher_that_is_not_there_is_named(store: DocumentStore, tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match=r"none: no (model|such)"):
        load_teachers(store, [str(tmp_path / "none")], QUERIES, None, "cpu")
