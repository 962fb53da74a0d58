"""Computing the vectors of an index's documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rankwell.core.shards import Shards
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.models.devices import DEFAULT_COMPUTING, Computing
from rankwell.rank.passage_vectors import compute_vectors, vector_shards
from rankwell.rank.rankers import open_encoder


@dataclass(frozen=True)
class VectorsJob:
    """Computes the vectors of a store's documents in shards."""

    store: Path
    encoder: str
    computing: Computing = DEFAULT_COMPUTING

    def prepare(self) -> Shards:
        """See :class:`~rankwell.core.shards.Job`. Tokenises the documents, once for all workers."""
        encoder = open_encoder(self.encoder, replace(self.computing, device="cpu"))
        store = DocumentStore.open(self.store)
        shards = vector_shards(store, encoder)
        if shards.pending() and encoder.takes_tokens:
            StoredTokens.open(store.documents, encoder.tokenizer)
        return shards

    def work(self, shards: Shards) -> None:
        """See :class:`~rankwell.core.shards.Job`."""
        compute_vectors(DocumentStore.open(self.store), open_encoder(self.encoder, self.computing), shards)
