"""Weighing and expanding a collection on a cluster: the work of ``enrich/``, which is in shards already."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rankwell.core.errors import RankwellError
from rankwell.core.shards import Shards
from rankwell.corpus.datasets import collection_digest, resolve_documents
from rankwell.corpus.store import DocumentStore
from rankwell.enrich.expansion import SHARD_SIZE as EXPANSION_SIZE
from rankwell.enrich.expansion import Filtering, expand_store, writing_work
from rankwell.enrich.shared import SharedFolder
from rankwell.enrich.term_weights import TermWeigher, WeightOptions
from rankwell.enrich.weighing import SHARD_SIZE as WEIGHT_SIZE
from rankwell.enrich.weighing import read_shards, weigh_collection
from rankwell.enrich.weighted_index import weighing_work
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.identity import model_digest
from rankwell.models.checkpoints.names import find_model
from rankwell.models.doc2query.checkpoints import load_writer
from rankwell.models.doc2query.decoding import Writer, Writing
from rankwell.retrieve.index import Index
from rankwell.scale.runs import shards_folder
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
    source = collection_digest(collection)
    work = weighing_work(source, model_digest(model), options, store)
    with SharedFolder.enter(shards_folder(out), work) as shared:
        texts = shared.store(resolve_documents(collection), source)
        folder = shared.path / f"weights-{source}"
        job = WeighJob(texts.folder, str(model.absolute()), folder, options, device, shard_size)
        shards = do(job, cluster, description="weighing terms")
        if not shared.alone(wait=True):  # the same command was given elsewhere, too, and has made the index
            return Index.open(out)
        if weights_out is not None:
            shards.join(weights_out)
        index = Index.build(iter(texts), out, weights=read_shards(shards), store=store)
        shared.remove()
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
    source = collection_digest(collection)
    with SharedFolder.enter(
        shards_folder(out), writing_work(source, model_digest(model), options, filtering)
    ) as shared:
        texts = shared.store(resolve_documents(collection), source)
        folder = shared.path / f"queries-{source}"
        job = ExpandJob(texts.folder, str(model.absolute()), folder, options, filtering, device, shard_size=shard_size)
        do(job, cluster, description="writing queries").join(out)
        if shared.alone(wait=False):
            shared.remove()
