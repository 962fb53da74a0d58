"""``rankwell rerank``: from a run to a better one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rankwell.cli.answers import SHOWN, AsJson, AsTsv, answer_format, print_answers
from rankwell.cli.options import (
    Attention,
    BackendOption,
    Device,
    EncoderOption,
    Format,
    IdField,
    Label,
    Markers,
    Model,
    Normalise,
    PrecisionOption,
    RayOption,
    RunOut,
    TextField,
    TitleField,
    TrustRemoteCode,
    WorkersOption,
    check_run,
    cluster_of,
    needs,
    output_file,
    write_result,
)
from rankwell.models.checkpoints.names import DEFAULT


def rerank(
    context: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Candidates, a TREC or MS MARCO run; or a question, for which BM25's candidates in an index, or all "
            "documents of a small collection, are re-ranked.",
        ),
    ],
    collection: Annotated[
        str,
        typer.Option(
            "--collection",
            help="The documents: an index, a system, a document store, or a collection as `rankwell index` takes it.",
        ),
    ],
    queries: Annotated[
        str | None,
        typer.Option(
            "--queries",
            help="The run's queries: a file as `rankwell search` takes it, an id like irds:beir/scifact/test, or - for "
            "standard input.",
        ),
    ] = None,
    id_field: IdField = None,
    text_field: TextField = None,
    title_field: TitleField = None,
    docids: Annotated[
        str | None, typer.Option("--docids", metavar="ID,ID,...", help="With a question: the documents to re-rank.")
    ] = None,
    out: RunOut = None,
    model: Model = DEFAULT,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Candidates to re-rank per query.")] = 100,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Answers to print per query.")] = SHOWN,
    backend: BackendOption = "torch",
    device: Device = None,
    precision: PrecisionOption = "auto",
    types: Annotated[
        Path | None, typer.Option("--types", help="Query types (qid, tab, label), for the template typed.")
    ] = None,
    template: Annotated[
        Literal["mono", "typed", "nli"] | None, typer.Option("--template", help="Input template. Default: the model's.")
    ] = None,
    label: Label = None,
    trust_remote_code: TrustRemoteCode = False,
    attention: Attention = None,
    markers: Markers = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            help="Maximum sequence length in tokens; only the document is truncated. Default: the model's.",
        ),
    ] = None,
    max_query: Annotated[
        int | None,
        typer.Option(
            "--max-query",
            min=1,
            help="Query tokens that are kept however long the document is; more if it leaves room. Default: the "
            "model's, usually 64.",
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
    cache: Annotated[
        Path | None, typer.Option("--cache", callback=output_file, help="Cache scores in this file.")
    ] = None,
    keep_tokens: Annotated[
        bool | None,
        typer.Option(
            "--keep-tokens/--no-keep-tokens",
            help="Tokenise all documents of an index or store and cache the tokens there. Default: if RUN needs at "
            "least a twentieth of them.",
        ),
    ] = None,
    format: Format = "trec",
    json: AsJson = False,
    tsv: AsTsv = False,
    tag: Annotated[str, typer.Option("--tag", help="Run name.")] = "rankwell",
    ray: RayOption = None,
    workers: WorkersOption = 0,
) -> None:
    """Re-rank a run, or the candidates for a question, with a ranker of any kind.

    Template, attention rule, markers and length default to what the checkpoint records. Without --out the answers are
    printed. --id, --text and --title name fields of --collection.

    **Examples**

        rankwell rerank "how do bees keep warm in winter" --collection my-index

        rankwell rerank bm25.run --queries queries.tsv --collection my-index --model model --out mono.run

        rankwell rerank bm25.run --queries q.tsv --collection c.tsv --model model --depth 100 --fuse 0.3 --out fused.run

        rankwell rerank bm25.run --queries q.tsv --collection my-index --model model --depth 100 --blend 0.3 --fuse 0.1
        --normalise z-score --out blended.run

        rankwell rerank bm25.run --queries q.tsv --collection docs.jsonl.gz --model model --windows 100 --stride 50
        --aggregate top3 --cache scores.db --out windows.run

        rankwell rerank bm25.run --queries q.tsv --collection docs.jsonl.gz --model model --windows sentences:150
        --aggregate top3 --out sentences.run

        rankwell rerank mono.run --queries q.tsv --collection my-index --model second --depth 30 --out second.run

        rankwell rerank bm25.run --queries q.tsv --collection my-index --model model --ray local --workers 4
        --out mono.run

    With --ray, scores equal those of a single process with as many threads as a worker (OMP_NUM_THREADS), bit for bit;
    --device cuda gives each worker a GPU.
    """
    from rankwell.core.errors import RankwellError
    from rankwell.core.shards import remove_shards, shards_folder
    from rankwell.corpus.formats.fields import Columns
    from rankwell.corpus.sources import is_question
    from rankwell.rank.rerank_request import RerankRequest
    from rankwell.scale.rerank import ClusterRanker, RerankJob

    needs(context, {"encoder": "blend", "normalise": ("fuse", "blend")})
    cluster = cluster_of(context, "cache")
    check_run(out, tag, cluster)
    template_changes = _without_none(name=template, max_length=max_length, max_query=max_query, markers=markers)
    printed = answer_format(context)
    if queries is None and not is_question(run):
        raise RankwellError(f"re-ranking the run {run} needs --queries")
    request = RerankRequest(
        run=None if queries is None else Path(run),
        queries=run if queries is None else queries,
        docids=tuple(docids.split(",")) if docids else (),
        collection=collection,
        columns=Columns(id_field, text_field, title_field),
        model=model,
        depth=depth,
        types=types,
        backend=backend,
        device=device,
        precision=precision,
        changes=_without_none(
            attention=attention, template=template_changes or None, engine=_without_none(label=label) or None
        ),
        windows=windows,
        stride=stride,
        aggregate=aggregate,
        keep_tokens=keep_tokens,
        cache=cache,
        fuse=fuse,
        blend=blend,
        normalise=normalise,
        encoder=encoder,
        trust_remote_code=trust_remote_code,
    )
    request.check(ray=ray)
    on_cluster = None
    if cluster is not None and out is not None:
        folder = shards_folder(out)
        on_cluster = lambda resolved: ClusterRanker(RerankJob.of(resolved, folder), cluster)  # noqa: E731
    result = request.execute(on_cluster, name=tag)
    if out is None:
        print_answers(replace(result, run=result.run.head(k)), printed)
        return
    write_result(result, out, format)
    if cluster is not None:
        remove_shards(out)


def _without_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
