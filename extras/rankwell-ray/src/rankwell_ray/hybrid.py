"""Hybrid search by actors: each also holds the vectors of its segments and finds the nearest ones.

One actor encodes all queries, and every actor compares them with its own vectors. The products are the same as in one
process, and so are the lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from rankwell.core.arrays import Rows
from rankwell.core.shards import do
from rankwell.corpus.filters import Filter
from rankwell.corpus.records import Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.rank.dense import DenseRanker, EncodedQueries, search_hybrid
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.rank.rankers import open_encoder
from rankwell.rank.requests import SearchRequest
from rankwell.retrieve.index import Index
from rankwell_ray.search import Shard, ShardedIndex
from rankwell_ray.vectors import VectorsJob
from rankwell_ray.workers import Cluster, for_workers


class HybridShard(Shard):
    """Some segments of an index, with the vectors of their documents."""

    def __init__(self, folder: Path, data_hash: str, names: Sequence[str], request: SearchRequest):
        super().__init__(folder, data_hash, names)
        self.encoder = open_encoder(request.encoder, request.computing)
        self.dense = DenseRanker(self.encoder, vectors=request.vectors)

    def encode(self, texts: list[str]) -> Vectors:
        """The vectors of queries."""
        return self.encoder.encode_queries(texts)

    def nearest(self, queries: Vectors, k: int, filter: Filter | None) -> list[tuple[Rows, Vectors]]:
        """The ``k`` nearest documents of each segment: their numbers within it, and their similarities."""
        compressed = self.dense.vector_search == "compressed"
        stores = [segment.filtered(filter).store for segment in self.segments]
        return [self.dense.nearest(queries, store, k, compressed=compressed) for store in stores]


class ShardedDense(DenseRanker):
    """A bi-encoder whose document vectors are held by actors."""

    def __init__(self, encoder: BiEncoder, index: ShardedIndex):
        super().__init__(encoder)
        self._index = index

    def encode(
        self, queries: Sequence[Query], *, words: bool = False, instruction: str | None = None
    ) -> EncodedQueries:
        """See :meth:`DenseRanker.encode`; one actor does it."""
        vectors = self._index.ask_one("encode", [query.text for query in queries])
        return EncodedQueries([query.qid for query in queries], vectors)

    def _nearest(self, queries: Vectors, stores: Sequence[DocumentStore], k: int) -> Iterable[tuple[Rows, Vectors]]:
        return chain.from_iterable(self._index.ask("nearest", queries, k, stores[0].filter))


def search_hybrid_on(
    cluster: Cluster, request: SearchRequest, index: Index, queries: Sequence[Query], encoder: BiEncoder
) -> Run:
    """Hybrid search by the workers of a cluster, who compute missing vectors.

    ``encoder`` tokenises, and names the stored vectors.
    """
    share = request.hybrid
    assert share is not None
    # All workers compute the vectors that ``encoder`` names, whatever each would choose on its own machine.
    computing = replace(request.computing, device=request.computing.device or "cpu")
    if computing.device == "cpu":
        computing = replace(computing, precision=encoder.precision)  # type: ignore[arg-type]
    # Likewise, a worker with few of the documents searches as one process with all of them would.
    compressed = DenseRanker(encoder, vectors=request.vectors).compresses(len(index)) and computing.device == "cpu"
    request = replace(
        request,
        encoder=for_workers(request.encoder),
        computing=computing,
        vectors="compressed" if compressed else "exact",
    )
    with cluster.connected():
        for store in index.documents.stores:
            if not PassageVectors.is_complete(store, encoder):
                job = VectorsJob(store.folder.absolute(), request.encoder, computing)
                do(job, cluster, description="computing vectors")
        held = ShardedIndex.on(
            cluster,
            index.folder,
            shards=cluster.workers,
            shard=HybridShard,
            shard_options=(request,),
        )
        with held as sharded:
            dense, threads = ShardedDense(encoder, sharded), request.threads or 1
            index = sharded.filtered(request.filter)
            return search_hybrid(index, dense, queries, share, request.bm25, k=request.k, threads=threads)
