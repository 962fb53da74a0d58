"""``rankwell rerank``: from a run to a better one."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankwell.cli.cluster import RayOption, WorkersOption, cluster_of, for_workers
from rankwell.cli.encoders import EncoderOption, open_encoder, shares_of
from rankwell.cli.needs import needs
from rankwell.cli.options import Attention, BackendOption, Device, Format, Markers, Model, Normalise, RunOut
from rankwell.cli.outputs import check_output
from rankwell.models.checkpoints.names import BACKBONE, DEFAULT

if TYPE_CHECKING:
    from rankwell.inputs.windows import Windows


def rerank(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="Candidates: a TREC or MS MARCO run.", metavar="RUN")],
    queries: Annotated[Path, typer.Option("--queries", help="Queries: tsv (id, text) or jsonl, optionally gzipped.")],
    collection: Annotated[
        str,
        typer.Option(
            "--collection",
            help="The documents: an index, a document store, a tsv or jsonl file, a folder with one, or an "
            "ir_datasets id such as irds:msmarco-passage.",
        ),
    ],
    out: RunOut,
    model: Model = DEFAULT,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Candidates to re-rank per query.")] = 1000,
    backend: BackendOption = "torch",
    device: Device = None,
    precision: Annotated[
        Literal["auto", "fp32", "bf16"] | None,
        typer.Option(
            "--precision",
            help="Torch precision. Default: bf16 on a GPU, and exact fp32 on a CPU; auto uses bf16 also on a CPU with "
            "AMX, where it is twice as fast.",
        ),
    ] = None,
    types: Annotated[
        Path | None, typer.Option("--types", help="Query types (qid, tab, label), for the template typed.")
    ] = None,
    template: Annotated[
        Literal["mono", "typed", "nli"] | None, typer.Option("--template", help="Input template. Default: the model's.")
    ] = None,
    attention: Attention = None,
    markers: Markers = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            help="Maximum sequence length in tokens; only the document is truncated. Default: the model's.",
        ),
    ] = None,
    windows: Annotated[
        str | None,
        typer.Option(
            "--windows",
            metavar="WORDS|sentences[:WORDS]",
            help="Window size in words, or windows of whole sentences of at most WORDS words (100). 0 truncates long "
            "documents. Default: the model's.",
        ),
    ] = None,
    stride: Annotated[
        int | None, typer.Option("--stride", help="Words from the start of one window to the next.")
    ] = None,
    aggregate: Annotated[
        str | None,
        typer.Option(
            "--aggregate",
            help="How window scores become a document's: max, mean, first, topN, or weighted, as in top3:0.5,0.3,0.2.",
        ),
    ] = None,
    fuse: Annotated[
        float | None,
        typer.Option("--fuse", metavar="SHARE", help="The share of RUN's scores in the result."),
    ] = None,
    blend: Annotated[
        float | None,
        typer.Option(
            "--blend",
            metavar="SHARE",
            help="The bi-encoder's share in the result. The model has what --fuse and --blend leave.",
        ),
    ] = None,
    encoder: EncoderOption = None,
    normalise: Normalise = "min-max",
    duo: Annotated[
        str | None, typer.Option("--duo", help="A duoBERT, which compares the top documents pairwise.")
    ] = None,
    duo_depth: Annotated[int, typer.Option("--duo-depth", min=1, help="Number of documents that --duo compares.")] = 30,
    duo_aggregate: Annotated[
        Literal["sum", "binary", "min", "max", "sample"],
        typer.Option("--duo-aggregate", help="How a document's comparisons become its score."),
    ] = "sum",
    cache: Annotated[Path | None, typer.Option("--cache", help="Cache scores in this file.")] = None,
    keep_tokens: Annotated[
        bool | None,
        typer.Option(
            "--keep-tokens/--no-keep-tokens",
            help="Tokenise all documents of an index or store and cache the tokens there. Default: if RUN needs at "
            "least a twentieth of them.",
        ),
    ] = None,
    format: Format = "trec",
    tag: Annotated[str, typer.Option("--tag", help="Run name.")] = "rankwell",
    ray: RayOption = None,
    workers: WorkersOption = 0,
) -> None:
    """Re-rank a run with a cross-encoder or an SDNet.

    Template, attention, markers and length are the checkpoint's unless given.

    **Examples**

        rankwell rerank bm25.run --queries queries.tsv --collection my-index --model model --out mono.run

        rankwell rerank bm25.run --queries q.tsv --collection c.tsv --model model --depth 100 --fuse 0.3 --out fused.run

        rankwell rerank bm25.run --queries q.tsv --collection my-index --model model --depth 100 --blend 0.3 --fuse 0.1
        --normalise z-score --out blended.run

        rankwell rerank bm25.run --queries q.tsv --collection docs.jsonl.gz --model model --windows 100 --stride 50
        --aggregate top3 --cache scores.db --out windows.run

        rankwell rerank bm25.run --queries q.tsv --collection docs.jsonl.gz --model model --windows sentences:150
        --aggregate top3 --out sentences.run

        rankwell rerank bm25.run --queries q.tsv --collection my-index --model mono --duo duo --out duo.run

        rankwell rerank bm25.run --queries q.tsv --collection my-index --model model --ray local --workers 4
        --out mono.run

    With --ray, scores equal those of a single process with as many threads as a worker (OMP_NUM_THREADS), bit for bit;
    --device cuda gives each worker a GPU. --duo runs in this process.
    """
    from rankwell.core.errors import InputError, RankwellError
    from rankwell.core.manifest import Manifest, file_digest
    from rankwell.core.shards import remove_shards, shards_folder
    from rankwell.corpus.formats import read_queries, read_run, read_types, write_run
    from rankwell.inputs.windows import parse_windows
    from rankwell.models.checkpoints.identity import model_digest
    from rankwell.models.checkpoints.names import find_model
    from rankwell.rank.cache import ScoreCache
    from rankwell.rank.engines.engine import engine_options
    from rankwell.rank.pipeline import Duo, Fuse, Given, Rerank
    from rankwell.rank.ranker import Ranker
    from rankwell.rank.rankers import AnyRanker, kind_of, open_ranker
    from rankwell.rank.texts import digest_texts, open_texts, worth_keeping
    from rankwell.scale.rerank import ClusterRanker, RerankJob
    from rankwell.scale.workers import local_device

    # What can be wrong is found before the work begins, the quickest to check first.
    check_output(out, tag)
    if device is not None and backend != "torch":
        raise RankwellError(f"--device is for the backend torch, not {backend}")
    needs(context, {"encoder": "blend", "duo_depth": "duo", "duo_aggregate": "duo", "normalise": ("fuse", "blend")})
    cluster = cluster_of(ray, workers, device, cache=cache)
    shares = shares_of(fuse, blend, normalise)
    if windows is not None:
        parse_windows(windows)
    candidates = read_run(run).head(depth)
    labels = read_types(types) if types else {}
    asked = {query.qid: replace(query, type=labels.get(query.qid)) for query in read_queries(queries)}
    lost = next((qid for qid in candidates if qid not in asked), None)
    if lost is not None:
        raise InputError(queries, None, f"no query {lost!r}, for which {run} has results")
    reading = {"windows": windows, "stride": stride, "aggregate": aggregate, "keep_tokens": keep_tokens}
    kind_of(model).check(model, types=types, cache=cache, ray=ray, **reading)
    kept = ScoreCache(cache) if cache else None
    computing = engine_options(backend, device, precision)
    options: dict[str, Any] = {"backend": backend, "cache": kept, "engine": computing}
    parts = _given(name=template, max_length=max_length, markers=markers)
    changes = _given(attention=attention, template=parts or None)
    here = local_device(cluster, device) if backend == "torch" else device
    ranker = open_ranker(model, backend=backend, device=here, precision=precision, cache=kept, **changes)
    ranker.windows = _windows(ranker.windows, windows, stride, aggregate)
    if labels and not ranker.takes_types:
        raise RankwellError(f"{model}: its template has no place for --types; add --template typed")
    second = Ranker.from_pretrained(duo, **options) if duo else None
    similar = None if blend is None else open_encoder(encoder or BACKBONE, local_device(cluster, device), precision)
    texts = open_texts(collection, candidates)
    if worth_keeping(texts, candidates) if keep_tokens is None else keep_tokens:
        for reader in (ranker, second):
            if reader is not None:
                reader.store_tokens(texts)

    scorer: AnyRanker | ClusterRanker = ranker
    if cluster is not None:
        engine = {"device": "cpu", **computing} if backend == "torch" else {}
        job = RerankJob(
            run.absolute(),
            queries.absolute(),
            for_workers(collection),
            for_workers(model),
            shards_folder(out),
            depth,
            types=types.absolute() if types else None,
            ranker={"backend": backend, "engine": engine, **changes},
            windows=ranker.windows,
            keep_tokens=keep_tokens,
        )
        scorer = ClusterRanker(job, cluster)
    pipeline = Given(candidates) >> Rerank(scorer, texts) % depth
    if shares is not None:
        if similar is None:
            pipeline >>= Fuse(shares)
        else:
            from rankwell.rank.hybrid import Blend  # which needs torch

            pipeline >>= Blend(similar, shares, texts, depth)
    if second is not None:
        pipeline >>= Duo(second, texts, duo_depth, duo_aggregate)
    begin = time.monotonic()
    found = pipeline.run([asked[qid] for qid in candidates], name=tag)
    seconds = time.monotonic() - begin
    write_run(found, out, format=format)
    if cluster is not None:
        remove_shards(out)
    config = {
        "depth": depth,
        "backend": backend,
        "device": device,
        "precision": precision,
        "attention": attention,
        "template": asdict(ranker.template) if ranker.template else None,
        "windows": asdict(ranker.windows) if ranker.windows else None,
        "fuse": None if fuse is None else [fuse, normalise],
        "blend": None if blend is None else [blend, normalise],
        "duo": None if duo is None else [duo_depth, duo_aggregate],
    }
    data = {"run": file_digest(run), "queries": file_digest(queries), "texts": digest_texts(texts, candidates)}
    data |= {"types": file_digest(types)} if types else {}
    data |= {name: model_digest(find_model(folder)) for name, folder in (("model", model), ("duo", duo)) if folder}
    data |= similar.identity if similar is not None else {}
    Manifest("run", config, data).write_beside(out)
    pairs = sum(map(len, candidates.values()))
    report = [
        f"{out}: {pairs:,} pairs, {seconds:.1f} s, {pairs / max(seconds, 1e-9):,.0f} pairs/s",
        f"{scorer.truncation}",
    ]
    report += [f"duo: {second.truncation}"] if second else []
    report += [f"{kept.hits:,} scores from {cache}"] if kept else []
    print("; ".join(report))


def _windows(default: Windows | None, size: str | None, stride: int | None, aggregate: str | None) -> Windows | None:
    """The model's windows, changed as the user asks."""
    from rankwell.core.errors import RankwellError
    from rankwell.inputs.windows import Windows, parse_windows

    windows = default if size is None else parse_windows(size)
    if size is not None and windows is None and (stride is not None or aggregate is not None):
        raise RankwellError("--windows 0 truncates documents; --stride and --aggregate need windows")
    if stride is not None:
        if windows is None or windows.size is None:
            raise RankwellError("--stride needs --windows")
        windows = replace(windows, stride=stride)
    return replace(windows or Windows(), aggregate=aggregate) if aggregate else windows


def _given(**options: Any) -> dict[str, Any]:
    """The options the user gave."""
    return {name: value for name, value in options.items() if value is not None}
