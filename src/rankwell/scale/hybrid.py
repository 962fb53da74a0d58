"""Hybrid search by actors: each also holds the vectors of its segments and finds the nearest ones.

One actor encodes all queries, and every actor compares them with its own vectors. The products are the same as in one
process, and so are the lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from rankwell.core.errors import RankwellError
from rankwell.core.types import Rows
from rankwell.corpus.records import Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.rank.dense import DenseRanker, PassageVectors, search_vectors
from rankwell.rank.engines.engine import Precision, engine_options
from rankwell.rank.hybrid import search_hybrid
from rankwell.rank.texts import stores_of
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.retrieve.index import Index
from rankwell.scale.search import Shard, ShardedIndex
from rankwell.scale.workers import RETRIES, Cluster


@dataclass(frozen=True)
class EncoderSource:
    """What a worker needs to load a bi-encoder: its name, device and precision."""

    name: str
    device: str = "cpu"
    precision: Precision = "auto"

    def open(self) -> BiEncoder:
        """Load the bi-encoder."""
        return BiEncoder.from_pretrained(self.name, **engine_options("torch", self.device, self.precision))


class HybridShard(Shard):
    """Some segments of an index, with the vectors of their documents."""

    def __init__(self, folders: Sequence[Path], source: EncoderSource):
        super().__init__(folders)
        self.encoder = source.open()

    @cached_property
    def vectors(self) -> list[PassageVectors]:
        """The vectors of each segment, opened on first use because Ray does not report why an actor failed to start."""
        return [PassageVectors.open(segment.store, self.encoder) for segment in self.segments]

    def encode(self, texts: list[str]) -> Vectors:
        """The vectors of queries."""
        return self.encoder.encode_queries(texts)

    def nearest(self, queries: Vectors, k: int) -> list[tuple[Rows, Vectors]]:
        """The ``k`` nearest documents of each segment: their numbers within it, and their similarities."""
        device = self.encoder.device
        return [search_vectors(queries, segment.blocks(), k, device=device) for segment in self.vectors]


class ShardedDense(DenseRanker):
    """A bi-encoder whose document vectors are held by actors."""

    def __init__(self, encoder: BiEncoder, index: ShardedIndex):
        super().__init__(encoder)
        self._index = index

    def _nearest(
        self, queries: Sequence[str], stores: Sequence[DocumentStore], k: int
    ) -> Iterable[tuple[Rows, Vectors]]:
        vectors = self._index.ask_one("encode", queries)
        return chain.from_iterable(self._index.ask("nearest", vectors, k))


def search_hybrid_on(
    cluster: Cluster,
    index: Index,
    encoder: BiEncoder,
    queries: Sequence[Query],
    share: float,
    source: EncoderSource,
    bm25: BM25 = DEFAULT_BM25,
    *,
    k: int = 1000,
    threads: int = 1,
) -> Run:
    """:func:`~rankwell.rank.hybrid.search_hybrid` by the workers of a cluster, which also compute missing vectors.

    ``encoder`` is the bi-encoder of ``source``, loaded in this process to tokenise and to name the stored vectors.
    """
    with cluster.connected() as ray:
        _make_vectors(ray, cluster, index, encoder, source)
        # No timeout: comparing with millions of vectors may take long, and Ray reports a lost actor at once.
        actors = ShardedIndex.on(
            cluster, index.folder, shards=cluster.workers, patience=None, shard=HybridShard, shard_options=(source,)
        )
        with actors as sharded:
            dense = ShardedDense(encoder, sharded)
            return search_hybrid(sharded, dense, queries, share, bm25, k=k, threads=threads)


def _make_vectors(ray: Any, cluster: Cluster, index: Index, encoder: BiEncoder, source: EncoderSource) -> None:
    missing = [store for store in stores_of(index) if not PassageVectors.is_complete(store, encoder)]
    if not missing:
        return
    room = cluster.room(ray)  # raises if there is none; Ray would wait silently
    if encoder.takes_tokens:
        for store in missing:
            StoredTokens.open(store, encoder.tokenizer)  # once, for all workers
    options = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, "max_retries": RETRIES}
    remote = ray.remote(_make).options(scheduling_strategy="SPREAD", **options)
    folders = [store.folder.absolute() for store in missing]
    count = cluster.workers or room
    for problem in ray.get([remote.remote(folders, source) for _ in range(count)]):
        if problem is not None:
            raise RankwellError(problem)


def _make(folders: Sequence[Path], source: EncoderSource) -> str | None:
    """A worker's task: compute the shards that no other worker has taken. Returns an error message, if any."""
    try:
        encoder = source.open()
        for folder in folders:
            PassageVectors.open(DocumentStore.open(folder), encoder)
    except RankwellError as error:
        return str(error)
    return None
