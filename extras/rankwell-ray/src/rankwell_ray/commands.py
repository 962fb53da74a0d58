"""What the commands of rankwell do with ``--ray``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwell.core.shards import shards_folder
from rankwell_ray.workers import Cluster

if TYPE_CHECKING:
    from rankwell.rank.requests import RerankRequest, RunResult, SearchRequest
    from rankwell.retrieve.index import Index
    from rankwell_ray.rerank import ClusterRanker


class CommandCluster(Cluster):
    """A cluster that does the work of a command. It imports no more than the command needs."""

    def build_index(self, collection: str, out: Path, **options: Any) -> Index:
        """``rankwell index``; the ``options`` are those of :class:`~rankwell_ray.build.IndexJob`."""
        from rankwell_ray.build import IndexJob, build_index

        return build_index(IndexJob(collection, out, **options), self)

    def search(self, request: SearchRequest, out: Path, name: str | None) -> RunResult:
        """``rankwell search --out``. The workers have the GPUs, and this process computes on the CPU."""
        from rankwell.corpus.sources import read_questions

        request.check()
        computing = request.computing
        # Workers with GPUs compute exact vectors, whatever this machine would choose.
        exact = computing.device not in (None, "cpu")
        computing = replace(computing, device="cpu", precision="fp32" if exact else computing.precision)
        system, queries = replace(request, computing=computing).open(), read_questions(request.queries, request.columns)
        first, index = system.first_stage, system.index
        deeper = replace(request, k=max(request.depth, first.words_depth) if request.words else request.depth)
        if request.hybrid is None:
            from rankwell_ray.search import search_on

            run = search_on(self, shards_folder(out), deeper, index, queries)
        else:
            from rankwell_ray.hybrid import search_hybrid_on

            run = search_hybrid_on(self, deeper, index, queries, first.dense.encoder)
        return request.result(first.add_words(run, queries).head(request.depth), queries, index, name)

    def ranker(self, out: Path, request: RerankRequest) -> ClusterRanker:
        """The ranker of ``rankwell rerank --out``."""
        from rankwell_ray.rerank import ClusterRanker, RerankJob

        return ClusterRanker(RerankJob.of(request, shards_folder(out)), self)
