"""Features of the passages that candidates name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore
from rankwell.enrich.features import PassageFeatures
from rankwell.enrich.named_features import NamedFeatures, open_features
from rankwell.models.sdnet.word_features import FeatureEncoder

TEXTS = ["bees and honey", "tea", "a river runs to the sea", "", "honey for tea", "stone", "bread and salt", "iron"]


def test_some_passages_have_the_features_they_have_among_all(tiny_checkpoint: Path, tmp_path: Path) -> None:
    store = DocumentStore.build((Document(f"d{i}", text) for i, text in enumerate(TEXTS)), tmp_path / "store")
    encoder = FeatureEncoder.from_pretrained(tiny_checkpoint, device="cpu")
    some = open_features(store, encoder, np.array([6, 2, 3, 2]), max_words=4, shard_size=2)
    assert isinstance(some, NamedFeatures)
    assert len(some.features) == 3
    every = open_features(store, encoder, np.arange(7), max_words=4, shard_size=2)
    assert isinstance(every, PassageFeatures)
    wanted = some.numbers(["d6", "d3", "d2", "d6"])
    assert some.lengths(wanted).tolist() == [3, 0, 4, 3]
    (words, features), (expected_words, expected) = some.at(wanted), every.at(wanted)
    assert words.numbers.tolist() == expected_words.numbers.tolist()
    np.testing.assert_allclose(features, expected, atol=2e-3)
    assert features.std() > 0.1
    with pytest.raises(RankwellError, match="a passage without features, which no candidate named"):
        some.at(np.array([2, 7]))
