"""What the commands of rankwell do with ``--ray``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwell.core.shards import shards_folder
from rankwell_ray.workers import Cluster

if TYPE_CHECKING:
    from rankwell.corpus.records import Query, Run
    from rankwell.models.bi_encoder import BiEncoder
    from rankwell.rank.requests import RerankRequest, SearchRequest
    from rankwell.retrieve.index import Index
    from rankwell_ray.rerank import ClusterRanker


class CommandCluster(Cluster):
    """A cluster that does the work of a command. It imports no more than the command needs."""

    def build_index(self, collection: str, out: Path, **options: Any) -> Index:
        """``rankwell index``; the ``options`` are those of :class:`~rankwell_ray.build.IndexJob`."""
        from rankwell_ray.build import IndexJob, build_index

        return build_index(IndexJob(collection, out, **options), self)

    def search(
        self, out: Path, request: SearchRequest, index: Index, queries: Sequence[Query], encoder: BiEncoder | None
    ) -> Run:
        """``rankwell search --out``; ``encoder`` is the request's bi-encoder, if it has one."""
        if request.hybrid is None:
            from rankwell_ray.search import search_on

            return search_on(self, shards_folder(out), request, index, queries)
        from rankwell_ray.hybrid import search_hybrid_on

        return search_hybrid_on(self, request, index, queries, encoder)

    def ranker(self, out: Path, request: RerankRequest) -> ClusterRanker:
        """The ranker of ``rankwell rerank --out``."""
        from rankwell_ray.rerank import ClusterRanker, RerankJob

        return ClusterRanker(RerankJob.of(request, shards_folder(out)), self)
