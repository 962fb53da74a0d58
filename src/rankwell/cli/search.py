"""``rankwell search``: from queries to a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from rankwell.cli.cluster import RayOption, WorkersOption, cluster_of


def search(
    index: Annotated[Path, typer.Argument(help="A folder made by `rankwell index`.")],
    queries: Annotated[Path, typer.Argument(help="Queries: tsv (id, text) or jsonl; .gz too.")],
    out: Annotated[Path, typer.Option("--out", help="The run to write; .gz compresses it.")],
    k: Annotated[int, typer.Option("--k", help="Documents a query.")] = 1000,
    k1: Annotated[float, typer.Option("--k1", help="How slowly a repeated term saturates.")] = 0.9,
    b: Annotated[float, typer.Option("--b", help="How much long documents are discounted, 0 to 1.")] = 0.4,
    k2: Annotated[float | None, typer.Option("--k2", help="How slowly a term repeated in the query saturates.")] = None,
    threads: Annotated[int, typer.Option("--threads", help="0 takes every core.")] = 0,
    format: Annotated[Literal["trec", "msmarco"], typer.Option("--format", help="Of the run.")] = "trec",
    tag: Annotated[str, typer.Option("--tag", help="The run's name in its last column.")] = "BM25",
    ray: RayOption = None,
    workers: WorkersOption = 0,
) -> None:
    """Rank documents for each query with BM25.

    **Examples**

        rankwell search my-index queries.tsv --out bm25.run

        rankwell search my-index queries.dev.tsv --k 100 --k1 0.82 --b 0.68 --out bm25.run.gz

        rankwell search my-index queries.tsv --ray local --workers 4 --out bm25.run

    With --ray each worker holds some of the index's segments; the run is the same.
    """
    from rankwell.core.manifest import Manifest, file_digest
    from rankwell.corpus.formats import read_queries, write_run
    from rankwell.retrieve.index import Index
    from rankwell.scale.runs import remove_shards, shards_folder
    from rankwell.scale.search import ShardedIndex, search_in_shards

    cluster = cluster_of(ray, workers)
    opened = Index.open(index)
    asked = read_queries(queries)
    if cluster is None:
        run = opened.search(asked, k=k, name=tag, k1=k1, b=b, k2=k2, threads=threads or os.cpu_count() or 1)
    else:
        place = shards_folder(out)
        with ShardedIndex.on(cluster, index, shards=workers) as held:
            run = search_in_shards(held, asked, place, k=k, name=tag, threads=threads or 1, k1=k1, b=b, k2=k2)
    write_run(run, out, format=format)
    if cluster is not None:
        remove_shards(out)
    config = {"k": k, "k1": k1, "b": b, "k2": k2, "index": opened.manifest["config_hash"]}
    data = {"index": opened.manifest["data_hash"], "queries": file_digest(queries)}
    Manifest("run", config, data).write_beside(out)
    found = sum(map(len, run.values()))
    print(f"{out}: {len(run):,} of {len(asked):,} queries, {found:,} documents")
