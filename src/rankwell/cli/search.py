"""``rankwell search``: from queries to a run."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from rankwell.cli.answers import SHOWN, AsJson, print_answers
from rankwell.cli.options import (
    Device,
    EncoderOption,
    Format,
    Hybrid,
    IdField,
    MinRelevance,
    PrecisionOption,
    RayOption,
    RunOut,
    Settings,
    TextField,
    TrustRemoteCode,
    VectorChoice,
    check_run,
    cluster_of,
    excludes,
    needs,
    read_settings,
    write_result,
)
from rankwell.models.checkpoints.names import DEFAULT

RUN_DEPTH = 1000
SETTINGS: dict[str, Any] = {
    "k2": float,
    "threads": int,
    "ignore_identical_ids": bool,
    "vectors": VectorChoice,
    "format": Format,
    "tag": str,
}


def search(
    context: typer.Context,
    index: Annotated[
        Path,
        typer.Argument(
            metavar="INDEX|SYSTEM", help="An index made by `rankwell index`, or a system made by `rankwell fit`."
        ),
    ],
    queries: Annotated[
        str,
        typer.Argument(
            metavar="QUERIES",
            help="A question, a file of queries (csv, tsv, jsonl, json, parquet or lines; .gz too), "
            "or - for standard input.",
        ),
    ],
    out: RunOut = None,
    id_field: IdField = None,
    text_field: TextField = None,
    k: Annotated[
        int | None, typer.Option("--k", "-k", help="Results per query. Default: 1000 in a run, 10 if printed.")
    ] = None,
    k1: Annotated[float, typer.Option("--k1", help="BM25's k1: higher values saturate repeated terms later.")] = 0.9,
    b: Annotated[float, typer.Option("--b", help="BM25's b, 0 to 1: how much long documents are penalised.")] = 0.4,
    json: AsJson = False,
    filter: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="EXPR",
            help="Only documents whose columns match, as in \"year >= 2015 and lang = 'de'\".",
        ),
    ] = None,
    syntax: Annotated[
        bool, typer.Option("--syntax", help='Allow "a phrase", +word, -word and prefix* in queries.')
    ] = False,
    min_relevance: MinRelevance = None,
    hybrid: Hybrid = None,
    words: Annotated[
        float | None,
        typer.Option(
            "--words", metavar="WEIGHT", help="Re-rank the best 100 by word vectors, with this weight in their scores."
        ),
    ] = None,
    encoder: EncoderOption = None,
    device: Device = None,
    precision: PrecisionOption = "auto",
    trust_remote_code: TrustRemoteCode = False,
    ray: RayOption = None,
    settings: Settings = None,
) -> None:
    """Search an index or a system: answer a question, or rank documents for each query of a file.

    Without --out the answers are printed; with it, the rankings are written as a run. An index is searched with BM25
    or, with --hybrid, with BM25 and a bi-encoder. A system searches and re-ranks as it was fitted.

    Settings, for --set NAME=VALUE:

    k2: BM25's saturation of terms that are repeated in the query. Default: none.

    threads: how many to search with. Default: all cores.

    ignore_identical_ids: true leaves out documents that have the id of the query, as BEIR does.

    vectors: how dense search compares them: all (exact), or codes of one bit per number and then the best (compressed).
    Default: auto, which is exact below 200,000 documents and on a GPU.

    format: trec (the default) or msmarco; tag: the run's name. Default: BM25, hybrid or dense.

    Examples:

        rankwell search my-index "how do bees keep warm in winter"

        rankwell search my-index "how do bees keep warm in winter" -k 3 --json

        rankwell search my-index "how do bees keep warm" --filter "year >= 2015 and lang in ('de', 'en')"

        rankwell search my-index '"honey bees" winter* -wasps' --syntax

        rankwell search my-index queries.tsv --out bm25.run

        rankwell search my-index queries.tsv --ray local,4 --out bm25.run

        rankwell search my-index queries.tsv --hybrid 0.7 --k 100 --out hybrid.run

        rankwell search my-index "how do bees keep warm" --hybrid 0.7 --words 0.5

        rankwell search my-system "how do bees keep warm" --min-relevance 0.3

    With --hybrid, BM25 and the bi-encoder each find 1,000 documents, which are ranked by the weighted sum of their
    standardised scores. Document vectors are computed on first use and cached beside the index; rankwell tune --hybrid
    finds the weight. --words re-ranks the best 100 by how similar the most similar word of the document is to each word
    of the query; `rankwell index --words` stores the vectors of words, or else the first such search does. With --ray,
    each worker holds some of the index's segments and their vectors; the run is the same.
    """
    from rankwell.core.errors import RankwellError
    from rankwell.core.native import allow_uncompiled
    from rankwell.core.shards import remove_shards
    from rankwell.corpus.formats.fields import Columns
    from rankwell.models.devices import Computing
    from rankwell.rank.requests import SearchRequest
    from rankwell.rank.texts import is_system
    from rankwell.retrieve.bm25 import BM25
    from rankwell.retrieve.index import is_index

    allow_uncompiled()
    cluster = cluster_of(context, "trust_remote_code", "syntax")
    options = read_settings(settings, SETTINGS)
    check_run(out, options.get("tag"), cluster)
    if out is not None:
        excludes(context, "--out, which writes a run", "json")
    if not index.exists() and (is_system(queries) or is_index(queries)):
        raise RankwellError(f"{queries} comes first: rankwell search {queries} {quote(str(index))}")
    if is_system(index):
        of_an_index = ("k1", "b", "k2", "hybrid", "words", "encoder", "vectors", "trust_remote_code")
        excludes(context, "a system", *of_an_index, "ray")
    else:
        of_encoder = dict.fromkeys(("encoder", "device", "precision", "trust_remote_code"), ("hybrid", "words"))
        needs(context, {**of_encoder, "vectors": "hybrid"})
    request = SearchRequest(
        index=index,
        queries=queries,
        k=(RUN_DEPTH if out is not None else SHOWN) if k is None else k,
        bm25=BM25(k1, b, options.get("k2")),
        threads=options.get("threads", 0),
        hybrid=hybrid,
        words=words,
        encoder=encoder or DEFAULT,
        computing=Computing(device, precision, trust_remote_code=trust_remote_code),
        vectors=options.get("vectors", "auto"),
        columns=Columns(id_field, text_field),
        ignore_identical_ids=options.get("ignore_identical_ids", False),
        filter=filter,
        syntax=syntax,
        rated=out is None,
        min_relevance=min_relevance,
    )
    name = options.get("tag")
    result = request.execute(name=name) if cluster is None or out is None else cluster.search(request, out, name)
    if out is None:
        print_answers(result, as_json=json, filter=filter)
        return
    write_result(result, out, options.get("format", "trec"))
    if cluster is not None:
        remove_shards(out)
