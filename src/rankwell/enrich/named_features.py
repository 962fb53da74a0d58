"""Features of the passages that candidates name, where these are few of a collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.manifest import digest
from rankwell.core.types import Rows
from rankwell.corpus.store import DocumentStore
from rankwell.enrich.features import SHARD_SIZE, PassageFeatures, StoredFeatures, store_features
from rankwell.inputs.words import Vocabulary, WordRows
from rankwell.models.sdnet.word_features import FeatureEncoder

MOST = 0.75
"""Above this share of a collection all of it is computed: that is little more, and serves other recipes as well."""


@dataclass(frozen=True, eq=False)
class NamedFeatures:
    """Features of some documents of a store, ``named`` (ascending), which are numbered as the store numbers them."""

    store: DocumentStore
    named: Rows
    features: StoredFeatures

    @property
    def vocabulary(self) -> Vocabulary:
        """See :class:`~rankwell.models.sdnet.word_features.FeatureSource`."""
        return self.features.vocabulary

    def numbers(self, docids: Sequence[str]) -> Rows:
        """The documents' numbers; an unknown id is an error that names it."""
        return self.store.numbers(docids).astype(np.int64)

    def lengths(self, numbers: Rows) -> Rows:
        """See :class:`~rankwell.models.sdnet.word_features.FeatureSource`."""
        return self.features.lengths(self._places(numbers))

    def at(self, numbers: Rows) -> tuple[WordRows, NDArray[np.floating]]:
        """See :class:`~rankwell.models.sdnet.word_features.FeatureSource`."""
        return self.features.at(self._places(numbers))

    def _places(self, numbers: Rows) -> Rows:
        places = np.searchsorted(self.named, numbers)
        if len(numbers) and (self.named.take(places, mode="clip") != numbers).any():
            raise RankwellError(f"{self.store.folder}: a passage without features, which no candidate named")
        return places


def open_features(
    store: DocumentStore, encoder: FeatureEncoder, named: Rows, *, max_words: int = 256, shard_size: int = SHARD_SIZE
) -> PassageFeatures | NamedFeatures:
    """The features of the documents ``named``, kept beside the store's texts, or made now and kept there."""
    named = np.unique(named).astype(np.int64)
    if len(named) > MOST * len(store):
        return PassageFeatures.open(store, encoder, max_words=max_words, shard_size=shard_size)
    which = blake2b(named.tobytes(), digest_size=16).hexdigest()
    folder = store.folder / f"features-{digest([encoder.digest, encoder.layers, max_words, shard_size, which])}"
    found = store_features(
        encoder,
        lambda places: store.texts_at(named[places]),
        len(named),
        folder,
        name=which,
        max_words=max_words,
        shard_size=shard_size,
    )
    return NamedFeatures(store, named, found)
