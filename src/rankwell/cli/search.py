"""``rankwell search``: from queries to a run."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from rankwell.cli.cluster import RayOption, WorkersOption, cluster_of, for_workers
from rankwell.cli.needs import needs
from rankwell.cli.options import (
    Device,
    EncoderOption,
    Format,
    Hybrid,
    IndexArgument,
    PrecisionOption,
    Queries,
    RunOut,
    Threads,
)
from rankwell.cli.outputs import check_output
from rankwell.models.checkpoints.names import DEFAULT


def search(
    context: typer.Context,
    index: IndexArgument,
    queries: Queries,
    out: RunOut,
    k: Annotated[int, typer.Option("--k", help="Results per query.")] = 1000,
    k1: Annotated[float, typer.Option("--k1", help="BM25's k1: higher values saturate repeated terms later.")] = 0.9,
    b: Annotated[float, typer.Option("--b", help="BM25's b, 0 to 1: how much long documents are penalised.")] = 0.4,
    k2: Annotated[
        float | None, typer.Option("--k2", help="Saturation of terms that are repeated in the query. Default: none.")
    ] = None,
    threads: Threads = 0,
    format: Format = "trec",
    tag: Annotated[str | None, typer.Option("--tag", help="Run name. Default: BM25, hybrid or dense.")] = None,
    hybrid: Hybrid = None,
    encoder: EncoderOption = None,
    device: Device = None,
    precision: PrecisionOption = "auto",
    ray: RayOption = None,
    workers: WorkersOption = 0,
) -> None:
    """Rank documents for each query with BM25, or with BM25 and a bi-encoder.

    **Examples**

        rankwell search my-index queries.tsv --out bm25.run

        rankwell search my-index queries.dev.tsv --k 100 --k1 0.82 --b 0.68 --out bm25.run.gz

        rankwell search my-index queries.tsv --ray local --workers 4 --out bm25.run

        rankwell search my-index queries.tsv --hybrid 0.7 --k 100 --out hybrid.run

    With --hybrid, BM25 and the bi-encoder each find 1,000 documents, which are ranked by the weighted sum of their
    standardised scores. Document vectors are computed on first use and cached beside the index; rankwell tune --hybrid
    finds the share. With --ray, each worker holds some of the index's segments and their vectors; the run is the same.
    """
    from rankwell.core.manifest import Manifest, file_digest
    from rankwell.core.shards import remove_shards, shards_folder
    from rankwell.corpus.formats import read_queries, write_run
    from rankwell.corpus.records import Run
    from rankwell.rank.fusion import Shares
    from rankwell.rank.rankers import open_encoder
    from rankwell.retrieve.bm25 import BM25
    from rankwell.retrieve.index import Index
    from rankwell.scale.search import ShardedIndex, search_in_shards
    from rankwell.scale.workers import local_device

    cluster = cluster_of(ray, workers, device)
    needs(context, dict.fromkeys(("encoder", "device", "precision"), "hybrid"))
    if hybrid is not None:
        Shares.hybrid(hybrid)  # raises before anything is opened
    bm25 = BM25(k1, b, k2)
    opened = Index.open(index)
    records = read_queries(queries)
    check_output(out, tag)
    config = {"k": k, **asdict(bm25), "index": opened.manifest["config_hash"]}
    data = {"index": opened.manifest["data_hash"], "queries": file_digest(queries)}
    if hybrid is not None:
        bi_encoder = open_encoder(encoder or DEFAULT, local_device(cluster, device), precision)
        from rankwell.rank.dense import DenseRanker
        from rankwell.rank.hybrid import search_hybrid

        if cluster is None:
            cores = threads or os.cpu_count() or 1
            run = search_hybrid(opened, DenseRanker(bi_encoder), records, hybrid, bm25, k=k, threads=cores)
        else:
            from rankwell.scale.hybrid import EncoderSource, search_hybrid_on

            source = EncoderSource(for_workers(encoder or DEFAULT), device or "cpu", precision)
            run = search_hybrid_on(
                cluster, opened, bi_encoder, records, hybrid, source, bm25, k=k, threads=threads or 1
            )
        run = Run(run, name=tag or run.name)
        config |= {"hybrid": hybrid}
        data |= bi_encoder.identity
    elif cluster is None:
        run = opened.search(records, bm25, k=k, name=tag or "BM25", threads=threads or os.cpu_count() or 1)
    else:
        place = shards_folder(out)
        with ShardedIndex.on(cluster, index, shards=workers) as sharded:
            run = search_in_shards(sharded, records, place, bm25, k=k, name=tag or "BM25", threads=threads or 1)
    write_run(run, out, format=format)
    if cluster is not None:
        remove_shards(out)
    Manifest("run", config, data).write_beside(out)
    results = sum(map(len, run.values()))
    print(f"{out}: {len(run):,} of {len(records):,} queries, {results:,} documents")
