"""Weighing and expanding a collection on a cluster: the work of ``enrich/``, which is in shards already."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rankwell.core.errors import RankwellError
from rankwell.core.shards import Shards
from rankwell.corpus.datasets import collection_digest, resolve_documents
from rankwell.corpus.store import DocumentStore
from rankwell.enrich.expansion import SHARD_SIZE as EXPANSION_SIZE
from rankwell.enrich.expansion import Filtering, expand_store
from rankwell.enrich.term_weights import TermWeigher, WeightOptions
from rankwell.enrich.weighing import SHARD_SIZE as WEIGHT_SIZE
from rankwell.enrich.weighing import model_digest, read_shards, weigh_collection
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.names import find_model
from rankwell.models.writing.checkpoints import load_writer
from rankwell.models.writing.decoding import Writer, Writing
from rankwell.retrieve.index import Index
from rankwell.scale.runs import remove_shards, shards_folder
from rankwell.scale.workers import Cluster, do


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


def weigh_and_index_on(
    cluster: Cluster | None,
    collection: str,
    out: Path,
    model: Path,
    options: WeightOptions,
    *,
    store: bool = True,
    weights_out: Path | None = None,
    device: str | None = None,
    shard_size: int = WEIGHT_SIZE,
) -> Index:
    """``rankwell index COLLECTION --weights MODEL`` with the words weighed by workers; the index is the same."""
    if (out / "index.json").exists():
        raise RankwellError(f"{out} holds an index already; remove it or choose another name")
    texts = _texts_of(collection, out)
    job = WeighJob(texts, str(model.absolute()), shards_folder(out) / "weights", options, device, shard_size)
    shards = do(job, cluster, description="weighing terms")
    if weights_out is not None:
        shards.join(weights_out)
    index = Index.build(iter(DocumentStore.open(texts)), out, weights=read_shards(shards), store=store)
    remove_shards(out)
    return index


def expand_on(
    cluster: Cluster | None,
    collection: str,
    out: Path,
    model: Path,
    options: Writing,
    filtering: Filtering,
    *,
    device: str | None = None,
    shard_size: int = EXPANSION_SIZE,
) -> None:
    """``rankwell expand COLLECTION`` without a judge, the queries written by workers; the file is the same."""
    if out.exists():
        raise RankwellError(f"{out} exists already; remove it or choose another name")
    place = shards_folder(out) / "queries"
    job = ExpandJob(
        _texts_of(collection, out), str(model.absolute()), place, options, filtering, device, shard_size=shard_size
    )
    do(job, cluster, description="writing queries").join(out)
    remove_shards(out)


def _texts_of(collection: str, out: Path) -> Path:
    """The collection as a store that all workers read."""
    texts = shards_folder(out) / f"documents-{collection_digest(collection)}"
    if not texts.exists():
        DocumentStore.build(resolve_documents(collection), texts)
    return texts
