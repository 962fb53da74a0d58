"""Features on disk: the same as in memory, made once, and once only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore
from rankwell.papers.ccnu.stored_features import open_features, store_features
from rankwell.papers.ccnu.word_features import FeatureEncoder

TEXTS = ["The bees keep the hive warm.", "", "insouciantly", "river, sea and fish", "tea " * 20]


@pytest.fixture(scope="module")
def encoder(tiny_checkpoint: Path) -> FeatureEncoder:
    return FeatureEncoder.from_pretrained(tiny_checkpoint, device="cpu")


@pytest.fixture
def store(tmp_path: Path) -> DocumentStore:
    return DocumentStore.build((Document(f"d{i}", text) for i, text in enumerate(TEXTS)), tmp_path / "store")


class Counted:
    """An encoder that notes how many words it was given, each time."""

    def __init__(self, encoder: FeatureEncoder):
        self._encoder = encoder
        self.calls: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._encoder, name)

    def compute(self, words: object) -> np.ndarray:
        self.calls.append(len(words.numbers))  # type: ignore[attr-defined]
        return self._encoder.compute(words)  # type: ignore[arg-type]


def folder_of(store: DocumentStore) -> Path:
    (folder,) = store.folder.glob("features-*")
    return folder


def test_stored_features_are_those_computed_in_memory(store: DocumentStore, encoder: FeatureEncoder) -> None:
    kept = encoder.read(TEXTS, 8)
    stored = open_features(store, encoder, max_words=8, shard_size=2)
    order = np.array([4, 0, 1, 3, 0])
    words, features = stored.at(order)
    expected, computed = kept.at(order)
    np.testing.assert_array_equal(words.numbers, expected.numbers)  # in the one vocabulary both share
    np.testing.assert_array_equal(words.ends, expected.ends)
    np.testing.assert_allclose(features, computed, atol=4e-3)
    assert stored.lengths(order).tolist() == [8, 7, 0, 5, 7]
    assert stored.numbers(["d3", "d0"]).tolist() == [3, 0]
    with pytest.raises(RankwellError, match="'d9'"):
        stored.numbers(["d9"])


def test_the_numbering_of_words_may_differ_from_source_to_source(store: DocumentStore, tiny_checkpoint: Path) -> None:
    encoder = FeatureEncoder.from_pretrained(tiny_checkpoint, device="cpu")
    encoder.vocabulary.read(["fish tea hive"])  # seen first here, not there
    stored = open_features(store, encoder, shard_size=2)
    words, _ = stored.at(np.array([3]))
    assert encoder.vocabulary.forms.strings(words.numbers) == ["river", ",", "sea", "and", "fish"]


def test_what_is_there_is_not_computed_again(store: DocumentStore, encoder: FeatureEncoder) -> None:
    counted = Counted(encoder)
    open_features(store, counted, max_words=8, shard_size=2)  # type: ignore[arg-type]
    assert counted.calls == [7, 1 + 5, 8]
    before = {path.name: path.read_bytes() for path in folder_of(store).glob("*.f16")}
    (folder_of(store) / "shard-000001.f16").unlink()
    again = Counted(encoder)
    open_features(store, again, max_words=8, shard_size=2)  # type: ignore[arg-type]
    assert again.calls == [6]
    assert {path.name: path.read_bytes() for path in folder_of(store).glob("*.f16")} == before


def test_size_and_truncated_texts_are_known(store: DocumentStore, encoder: FeatureEncoder) -> None:
    stored = open_features(store, encoder, max_words=8, shard_size=2).features
    assert stored.bytes_per_text == (7 + 0 + 1 + 5 + 8) * 3 * 32 * 2 / 5
    assert stored.truncated == 1


def test_other_settings_have_a_folder_of_their_own(
    store: DocumentStore, encoder: FeatureEncoder, tiny_checkpoint: Path
) -> None:
    open_features(store, encoder, max_words=8)
    open_features(store, encoder, max_words=4)
    last = FeatureEncoder.from_pretrained(tiny_checkpoint, layers=1, device="cpu")
    found = open_features(store, last, max_words=8)
    assert found.at(np.array([0]))[1].shape == (7, 1, 32)
    assert len(list(store.folder.glob("features-*"))) == 3


def test_a_folder_of_other_texts_is_refused(tmp_path: Path, encoder: FeatureEncoder) -> None:
    def texts(numbers: np.ndarray) -> list[str]:
        return [TEXTS[number] for number in numbers]

    store_features(encoder, texts, 3, tmp_path / "f", name="one")
    with pytest.raises(RankwellError, match="texts was 'one', now 'other'"):
        store_features(encoder, texts, 3, tmp_path / "f", name="other")
    with pytest.raises(RankwellError, match="the words of 3 texts, not of 4"):
        store_features(encoder, texts, 4, tmp_path / "f", name="one")


def test_a_damaged_shard_is_named(store: DocumentStore, encoder: FeatureEncoder) -> None:
    open_features(store, encoder, shard_size=2)
    path = folder_of(store) / "shard-000000.f16"
    path.write_bytes(path.read_bytes()[:-2])
    damaged = open_features(store, encoder, shard_size=2)
    with pytest.raises(RankwellError, match=r"shard-000000\.f16: has the wrong size"):
        damaged.at(np.array([0]))


OTHER_TEXTS = [
    "bees and honey",
    "tea",
    "a river runs to the sea",
    "",
    "honey for tea",
    "stone",
    "bread and salt",
    "iron",
]


def test_some_passages_have_the_features_they_have_among_all(tiny_checkpoint: Path, tmp_path: Path) -> None:
    store = DocumentStore.build((Document(f"d{i}", text) for i, text in enumerate(OTHER_TEXTS)), tmp_path / "store")
    encoder = FeatureEncoder.from_pretrained(tiny_checkpoint, device="cpu")
    some = open_features(store, encoder, np.array([6, 2, 3, 2]), max_words=4, shard_size=2)
    assert len(some.features) == 3
    every = open_features(store, encoder, np.arange(7), max_words=4, shard_size=2)
    assert len(every.features) == 8
    wanted = some.numbers(["d6", "d3", "d2", "d6"])
    assert some.lengths(wanted).tolist() == [3, 0, 4, 3]
    (words, features), (expected_words, expected) = some.at(wanted), every.at(wanted)
    assert words.numbers.tolist() == expected_words.numbers.tolist()
    np.testing.assert_allclose(features, expected, atol=2e-3)
    assert features.std() > 0.1
    with pytest.raises(RankwellError, match="no features were computed for a passage outside the candidates"):
        some.at(np.array([2, 7]))
