"""Searching an index whose segments are held by actors, on one machine or many.

A batch of queries takes two rounds. First each shard counts in how many of its documents the terms occur; then the sums
are sent with the queries, and each shard ranks its own documents by the statistics of the whole index. Both rounds run
the code of an unsharded search, so the results are the same, to the bit. If an actor is lost, Ray restarts it and asks
it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from rankwell.core.arrays import Rows, pack_strings
from rankwell.core.errors import RankwellError
from rankwell.core.manifest import digest
from rankwell.core.shards import Shards, map_shards
from rankwell.corpus.filters import Filter
from rankwell.corpus.formats import read_run
from rankwell.corpus.formats.runs import trec_lines
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.rank.requests import SearchRequest
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25, Hits, Statistics, search_segments
from rankwell.retrieve.index import Index
from rankwell.retrieve.numbering import join_hits
from rankwell.retrieve.segment import Segment
from rankwell_ray.workers import RETRIES, Cluster


def write_part(run: Run, file: IO[bytes]) -> None:
    """Write the queries of one shard, which may have no results at all."""
    file.writelines(line.encode() for line in trec_lines(run, "a part of the run"))


def read_parts(shards: Shards) -> dict[str, Ranking]:
    """The queries of all shards, in order."""
    shards.check()
    rankings: dict[str, Ranking] = {}
    for path in shards.paths():
        if path.stat().st_size:
            rankings |= read_run(path)
    return rankings


QUERIES_A_SHARD = 4096


class Shard:
    """Some segments of an index, held by one actor."""

    def __init__(self, folder: Path, data_hash: str, names: Sequence[str]):
        index = Index.open(folder)
        if index.manifest["data_hash"] != data_hash:
            raise RankwellError(f"{folder} was changed while it was being opened; try again")
        self.segments = [segment for segment in index.segments if segment.folder.name in names]

    def frequencies(self, terms: list[str]) -> Rows:
        """In how many documents of this shard each term occurs."""
        packed = pack_strings(terms)
        counts = [segment.document_frequencies(segment.find_terms(*packed)) for segment in self.segments]
        total: Rows = np.sum(counts, axis=0, dtype=np.int64)
        return total

    def search(
        self,
        queries: Sequence[Sequence[str]],
        bm25: BM25,
        k: int,
        threads: int,
        statistics: Statistics,
        filter: Filter | None,
    ) -> list[Hits]:
        """The best documents of each segment, by the statistics of the whole index."""
        segments = [segment.filtered(filter) for segment in self.segments]
        return search_segments(segments, queries, bm25, k=k, threads=threads, statistics=statistics)

    def pid(self) -> int:
        """The process id of the actor."""
        return os.getpid()


class ShardedIndex(Index):
    """An index searched by actors; open it with :meth:`on`. This process reads ids and texts from the folder."""

    actors: list[Any]
    """The actor of each shard."""

    @classmethod
    @contextmanager
    def on(
        cls,
        cluster: Cluster,
        folder: str | os.PathLike[str],
        *,
        shards: int = 0,
        shard: type[Shard] = Shard,
        shard_options: tuple[Any, ...] = (),
    ) -> Iterator[ShardedIndex]:
        """Hold an index's segments in ``shards`` actors for as long as the context lasts.

        With 0 there is one for each segment, or as many as the cluster has room for. An actor is a ``shard``, made with
        the folders of its segments and ``shard_options``.
        """
        index = cls.open(folder)
        assert isinstance(index, ShardedIndex)
        if shards < 0:
            raise RankwellError(f"{shards} shards; expected 0 or more")
        with cluster.connected() as ray:
            needs = {"CPU": cluster.cpus, "GPU": cluster.gpus}
            rooms = {kind: ray.cluster_resources().get(kind, 0) for kind, need in needs.items() if need}
            fitting = min(max(1, int(room / needs[kind])) for kind, room in rooms.items())
            count = min(shards or fitting, len(index.segments))
            parts = np.array_split([segment.folder.name for segment in index.segments], count)
            for kind, room in rooms.items():
                if (needed := count * needs[kind]) > room:  # Ray would wait silently for more
                    things = "cores" if kind == "CPU" else "GPUs"
                    raise RankwellError(f"{count} shards need {needed:g} {things}; the cluster has {room:g}")
            retries = {"max_restarts": RETRIES, "max_task_retries": RETRIES}
            options = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, **retries}
            remote = ray.remote(shard).options(scheduling_strategy="SPREAD", **options)
            place = index.folder.absolute(), index.manifest["data_hash"]
            index.actors = [remote.remote(*place, part.tolist(), *shard_options) for part in parts]
            try:
                yield index
            finally:
                for actor in index.actors:
                    ray.kill(actor)

    def _view(self, segments: Sequence[Segment]) -> Self:
        view = super()._view(segments)
        view.actors = self.actors
        return view

    def search_terms(self, queries: Sequence[Sequence[str]], bm25: BM25, *, k: int = 1000, threads: int = 1) -> Hits:
        """See :meth:`Index.search_terms`; ``threads`` is per actor."""
        terms = sorted({term for query in queries for term in query})
        counts: list[Rows] = self.ask("frequencies", terms)
        total: Rows = np.sum(counts, axis=0, dtype=np.int64)
        total_length = sum(segment.total_length for segment in self.segments)
        statistics = Statistics(len(self), total_length, dict(zip(terms, total.tolist(), strict=True)))
        shards = self.ask("search", queries, bm25, k, threads, statistics, self.filter)
        parts = [hits for shard in shards for hits in shard]
        return parts[0] if len(parts) == 1 else join_hits(self.documents, parts, k)

    def ask_one(self, method: str, *arguments: Any) -> Any:
        """Call a method on one shard; use it if all would give the same answer."""
        return self._answers(self.actors[:1], method, arguments)[0]

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every shard and return the answers."""
        return self._answers(self.actors, method, arguments)

    def _answers(self, actors: Sequence[Any], method: str, arguments: tuple[Any, ...]) -> list[Any]:
        import ray

        try:
            answers: list[Any] = ray.get([getattr(actor, method).remote(*arguments) for actor in actors])
        except ray.exceptions.RayActorError:
            raise RankwellError(f"a worker that searches {self.folder} was lost and could not be restarted") from None
        except RankwellError as error:  # Ray's message includes the actor's traceback
            raise RankwellError(str(getattr(error, "cause", error))) from None
        return answers


def search_in_shards(
    index: Index,
    queries: Sequence[Query],
    folder: Path,
    bm25: BM25 = DEFAULT_BM25,
    *,
    k: int,
    threads: int = 1,
    filter: str | None = None,
) -> Run:
    """:meth:`Index.search` that stores shards of the run in ``folder``, so that it can resume an interrupted search."""
    texts = digest([(query.qid, query.text) for query in queries])  # in order, because the order decides the shards
    made = {"index": index.manifest["data_hash"], "index config": index.manifest["config_hash"]}
    config = {**made, "queries": texts, "k": k, **asdict(bm25), **({} if filter is None else {"filter": filter})}
    shards = Shards(folder, len(queries), QUERIES_A_SHARD, config, ".run")

    def write(items: range, file: IO[bytes]) -> None:
        write_part(index.search(queries[items.start : items.stop], bm25, k=k, threads=threads, filter=filter), file)

    map_shards(shards, write, description="searching")
    return Run(read_parts(shards), name="BM25")


def search_on(cluster: Cluster, folder: Path, request: SearchRequest, index: Index, queries: Sequence[Query]) -> Run:
    """BM25 by the workers of a cluster; ``folder`` holds the shards of the run until it is written."""
    with ShardedIndex.on(cluster, index.folder, shards=cluster.workers) as sharded:
        threads = request.threads or 1
        return search_in_shards(
            sharded, queries, folder, request.bm25, k=request.k, threads=threads, filter=request.filter
        )
