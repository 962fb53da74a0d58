"""``rankwell search``: from queries to a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rankwell.cli.cluster import RayOption, WorkersOption, cluster_of, for_workers
from rankwell.cli.encoders import EncoderOption, PrecisionOption, check_encoder, open_encoder
from rankwell.cli.outputs import check_output
from rankwell.models.checkpoints.names import DEFAULT

BM25 = "BM25"


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
    tag: Annotated[
        str | None, typer.Option("--tag", help="The run's name in its last column; else BM25, hybrid or dense.")
    ] = None,
    hybrid: Annotated[
        float | None,
        typer.Option(
            "--hybrid",
            metavar="SHARE",
            help="Search by meaning, too: SHARE of a bi-encoder's similarity, 1 for it alone.",
        ),
    ] = None,
    encoder: EncoderOption = None,
    device: Annotated[str | None, typer.Option("--device", help="Of --hybrid: cpu, cuda, cuda:1.")] = None,
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

    With --hybrid both find 1,000 documents, and what either found is ranked by the sum of their standardised scores.
    The vectors of all documents are made the first time and kept beside the index; rankwell tune --hybrid finds the
    share. With --ray each worker holds some of the index's segments, and their vectors; the run is the same.
    """
    from rankwell.core.manifest import Manifest, file_digest
    from rankwell.corpus.formats import read_queries, write_run
    from rankwell.corpus.records import Run
    from rankwell.rank.fusion import check_hybrid
    from rankwell.retrieve.index import Index
    from rankwell.scale.runs import remove_shards, shards_folder
    from rankwell.scale.search import ShardedIndex, search_in_shards

    cluster = cluster_of(ray, workers, device)
    check_encoder({"--encoder": encoder, "--device": device}, {"--hybrid": hybrid})
    check_hybrid(hybrid)
    opened = Index.open(index)
    asked = read_queries(queries)
    check_output(out, tag)
    bm25: dict[str, Any] = {"k1": k1, "b": b, "k2": k2}
    config = {"k": k, **bm25, "index": opened.manifest["config_hash"]}
    data = {"index": opened.manifest["data_hash"], "queries": file_digest(queries)}
    if hybrid is not None:
        similar = open_encoder(encoder or DEFAULT, "cpu" if cluster else device, precision)
        from rankwell.rank.dense import DenseRanker
        from rankwell.rank.hybrid import search_hybrid

        if cluster is None:
            every = threads or os.cpu_count() or 1
            run = search_hybrid(opened, DenseRanker(similar), asked, hybrid, k=k, threads=every, **bm25)
        else:
            from rankwell.scale.hybrid import EncoderSource, search_hybrid_on

            source = EncoderSource(for_workers(encoder or DEFAULT), device or "cpu", precision)
            one = threads or 1
            run = search_hybrid_on(cluster, opened, similar, asked, hybrid, source, k=k, threads=one, **bm25)
        run = Run(run, name=tag or run.name)
        config |= {"hybrid": hybrid}
        data |= similar.identity
    elif cluster is None:
        run = opened.search(asked, k=k, name=tag or BM25, threads=threads or os.cpu_count() or 1, **bm25)
    else:
        place = shards_folder(out)
        with ShardedIndex.on(cluster, index, shards=workers) as held:
            run = search_in_shards(held, asked, place, k=k, name=tag or BM25, threads=threads or 1, **bm25)
    write_run(run, out, format=format)
    if cluster is not None:
        remove_shards(out)
    Manifest("run", config, data).write_beside(out)
    found = sum(map(len, run.values()))
    print(f"{out}: {len(run):,} of {len(asked):,} queries, {found:,} documents")
