"""Weighing and expanding a collection on a cluster: the work of ``enrich/``, which is in shards already."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rankwell.core.shards import Shards
from rankwell.corpus.store import DocumentStore
from rankwell.enrich.expansion import SHARD_SIZE as EXPANSION_SIZE
from rankwell.enrich.expansion import Filtering, expand_store
from rankwell.enrich.term_weights import TermWeigher, WeightOptions
from rankwell.enrich.weighing import SHARD_SIZE as WEIGHT_SIZE
from rankwell.enrich.weighing import model_digest, weigh_collection
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.names import find_model
from rankwell.models.writer_checkpoints import load_writer
from rankwell.models.writer_decoding import Writer, Writing


@dataclass(frozen=True)
class WeighJob:
    """The term weights of a document store by a model, as shards of jsonl in ``folder``."""

    store: Path
    model: str
    folder: Path
    options: WeightOptions = field(default_factory=WeightOptions)
    device: str | None = None
    shard_size: int = WEIGHT_SIZE

    def prepare(self) -> Shards:
        """Tokenise the texts once, for all workers."""
        store = DocumentStore.open(self.store)
        StoredTokens.open(store, Tokenizer.open(find_model(self.model)), stems=True)
        return Shards(self.folder, len(store), self.shard_size)

    def work(self, shards: Shards) -> None:
        """Weigh shards until none is left."""
        place = find_model(self.model)
        weigher = TermWeigher.from_pretrained(place, device=self.device)
        store, model = DocumentStore.open(self.store), model_digest(place)
        weigh_collection(store, weigher, self.options, self.folder, model=model, shard_size=self.shard_size)


@dataclass(frozen=True)
class ExpandJob:
    """The queries a model writes for each document of a store, as shards of jsonl in ``folder``, unjudged."""

    store: Path
    model: str
    folder: Path
    options: Writing
    filtering: Filtering = field(default_factory=Filtering)
    device: str | None = None
    shard_size: int = EXPANSION_SIZE

    def prepare(self) -> Shards:
        """Tokenise the texts once, for all workers."""
        store = DocumentStore.open(self.store)
        StoredTokens.open(store, Tokenizer.open(find_model(self.model)))
        return Shards(self.folder, len(store), self.shard_size)

    def work(self, shards: Shards) -> None:
        """Write queries for shards until none is left."""
        place = find_model(self.model)
        loaded, tokenizer, config = load_writer(place)
        writer = Writer(loaded, tokenizer, config.max_length, self.options, device=self.device)
        store, model = DocumentStore.open(self.store), model_digest(place)
        expand_store(store, writer, self.filtering, self.folder, model=model, shard_size=self.shard_size)
