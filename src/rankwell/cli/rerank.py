"""``rankwell rerank``: from a run to a better one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from annotated_types import Ge

from rankwell.cli.answers import SHOWN, AsJson, print_answers
from rankwell.cli.options import (
    BackendOption,
    Device,
    EncoderOption,
    Format,
    Hybrid,
    MinRelevance,
    Model,
    PrecisionOption,
    RayOption,
    RunOut,
    Settings,
    TrustRemoteCode,
    check_run,
    cluster_of,
    excludes,
    needs,
    output_file,
    read_settings,
    write_result,
)
from rankwell.core.registry import Normalisation
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.models.spec import AttentionRule

SETTINGS: dict[str, Any] = {
    "attention": AttentionRule,
    "template": Literal["mono", "typed", "nli"],
    "types": Path,
    "markers": bool,
    "max_length": int,
    "max_query": Annotated[int, Ge(1)],
    "stride": int,
    "aggregate": str,
    "normalise": Normalisation,
    "label": str,
    "instruction": str,
    "words": bool,
    "id": str,
    "text": str,
    "title": str,
    "cache": Path,
    "format": Format,
    "tag": str,
}


def rerank(
    context: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Candidates, a TREC or MS MARCO run; or a question, for which what a search of an index finds, or all "
            "documents of a small collection, are re-ranked.",
        ),
    ],
    collection: Annotated[
        str | None,
        typer.Option(
            "--collection",
            help="The documents: an index, a system, a document store, or a collection as `rankwell index` takes it. "
            "Default: those of --model, if that is a system.",
        ),
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(
            "--queries",
            help="The run's queries: a file as `rankwell search` takes it, an id like irds:beir/scifact/test, or - for "
            "standard input.",
        ),
    ] = None,
    out: RunOut = None,
    model: Model = DEFAULT,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth", min=1, help="Candidates to re-rank per query; others follow. Default: 100, or the system's."
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Answers to print per query.")] = SHOWN,
    backend: BackendOption = "torch",
    device: Device = None,
    precision: PrecisionOption = "auto",
    trust_remote_code: TrustRemoteCode = False,
    windows: Annotated[
        int | None, typer.Option(min=0, help="Window size in words; 0 truncates documents. Default: the model's.")
    ] = None,
    fuse: Annotated[
        float | None,
        typer.Option("--fuse", metavar="WEIGHT", help="The weight of RUN's scores in the result."),
    ] = None,
    blend: Annotated[
        float | None,
        typer.Option(
            "--blend",
            metavar="WEIGHT",
            help="The bi-encoder's weight in the result. The model has what --fuse and --blend leave.",
        ),
    ] = None,
    hybrid: Hybrid = None,
    encoder: EncoderOption = None,
    min_relevance: MinRelevance = None,
    json: AsJson = False,
    ray: RayOption = None,
    settings: Settings = None,
) -> None:
    """Re-rank a run, or the candidates for a question, with a ranker of any kind.

    Without --out the answers are printed.

    Settings, for --set NAME=VALUE:

    attention: full, strm, strict or exact_match; template: mono, typed or nli; types: a file of query types (qid, tab,
    label), for the template typed; markers: true or false, whether to mark the words that query and document share;
    max_length, max_query: tokens of the sequence, and of the query that are kept however long the document is. Default:
    as the checkpoint records.

    stride: words from the start of one window to the next; aggregate: how window scores become a document's: max,
    mean, first, topN, or weighted, as in top3:0.5,0.3,0.2.

    normalise: how scores are normalised before --fuse and --blend combine them: min-max (the default), z-score, none.

    label: of several classes, the one that means relevant (default: entailment); instruction: what a language model is
    told to look for, in place of its own; words: true compares texts by the word vectors of --model, a bi-encoder,
    which are computed unless the index stores them. Models like ColBERT always do.

    id, text, title: fields or columns of --collection. Default: recognised by their names.

    cache: a file to cache scores in.

    format: trec (the default) or msmarco; tag: the run's name.

    Examples:

        rankwell rerank "how do bees keep warm in winter" --collection my-index

        rankwell rerank bm25.run --queries queries.tsv --collection my-index --model model --out mono.run

        rankwell rerank my-engine.run --queries q.tsv --model my-system --out better.run

        rankwell rerank bm25.run --queries q.tsv --collection c.tsv --model model --depth 100 --fuse 0.3 --out fused.run

        rankwell rerank bm25.run --queries q.tsv --collection docs.jsonl.gz --model model --windows 100
        --set stride=50 --set aggregate=top3 --set cache=scores.db --out windows.run

        rankwell rerank bm25.run --queries q.tsv --collection my-index --model model --ray local,4
        --out mono.run

    With --ray, scores equal those of a single process with as many threads as a worker (OMP_NUM_THREADS), bit for bit;
    --device cuda gives each worker a GPU.
    """
    from rankwell.core.errors import RankwellError
    from rankwell.core.shards import remove_shards
    from rankwell.corpus.formats.fields import Columns
    from rankwell.corpus.sources import is_question
    from rankwell.models.devices import Computing
    from rankwell.rank.requests import RerankRequest
    from rankwell.rank.system import DEPTH
    from rankwell.rank.texts import is_system

    needs(context, {"encoder": ("blend", "hybrid"), "normalise": ("fuse", "blend")})
    cluster = cluster_of(context, "cache")
    options = read_settings(settings, SETTINGS)
    tag, format = options.pop("tag", "rankwell"), options.pop("format", "trec")
    check_run(out, tag, cluster)
    output_file(options.get("cache"))
    if out is not None:
        excludes(context, "--out, which writes a run", "json")
    if queries is None and not is_question(run):
        raise RankwellError(f"re-ranking the run {run} needs --queries")
    columns = Columns(*(options.pop(name, None) for name in ("id", "text", "title")))
    changed = {"name": "template", "max_length": "max_length", "max_query": "max_query", "markers": "markers"}
    changes: dict[str, Any] = {
        "attention": options.pop("attention", None),
        "instruction": options.pop("instruction", None),
        "template": {field: options.pop(name) for field, name in changed.items() if name in options},
        "engine": {name: options.pop(name) for name in ("label",) if name in options},
    }
    request = RerankRequest(
        run=None if queries is None else Path(run),
        queries=run if queries is None else queries,
        collection=collection or "",
        columns=columns,
        model=model,
        depth=depth or DEPTH,
        computing=Computing(device, precision, backend, trust_remote_code),
        changes={name: value for name, value in changes.items() if value},
        windows=windows,
        fuse=fuse,
        blend=blend,
        encoder=encoder,
        hybrid=hybrid,
        rated=out is None,
        min_relevance=min_relevance,
        **options,
    )
    if is_system(model):
        request = request.of_system(depth)
    elif collection is None:
        raise RankwellError("--collection is missing: the documents, unless --model is a system")
    request.check(ray=ray)
    scorer = None if cluster is None or out is None else partial(cluster.ranker, out)
    result = request.execute(scorer, name=tag)
    if out is None:
        print_answers(replace(result, run=result.run.head(k)), as_json=json)
        return
    write_result(result, out, format)
    if cluster is not None:
        remove_shards(out)
