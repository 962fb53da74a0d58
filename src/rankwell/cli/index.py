"""``rankwell index``: from a collection to a searchable folder."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rankwell.cli.cluster import RayOption, WorkersOption, cluster_of, for_workers


def index(
    collection: Annotated[
        str,
        typer.Argument(help="A tsv or jsonl file (.gz too), a folder with one, or an id like irds:msmarco-passage."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to make.")],
    append: Annotated[bool, typer.Option("--append", help="Add to the index in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the index in --out.")] = False,
    store: Annotated[
        bool, typer.Option("--store/--no-store", help="Keep the texts too, for re-ranking and display.")
    ] = True,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            metavar="FILE|MODEL",
            help='Term frequencies to use instead of counting: jsonl of {"id", "vector": {word: weight}}, or a model '
            "(DeepCT) that weighs the words now.",
        ),
    ] = None,
    scaling: Annotated[
        str, typer.Option("--scaling", help="Of a model's weights: linear, or root, which raises small ones.")
    ] = "linear",
    weights_out: Annotated[
        Path | None, typer.Option("--weights-out", metavar="FILE", help="Keep the weights a model gave as jsonl.")
    ] = None,
    show: Annotated[
        Path | None,
        typer.Option("--show", metavar="PAGE.html", help="The first passages, their words shaded by weight."),
    ] = None,
    expansions: Annotated[
        Path | None,
        typer.Option(
            "--expansions", metavar="FILE", help="Queries to index with each passage, as `rankwell expand` writes them."
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens", metavar="MODEL", help="Tokenise the texts for this model too, so re-ranking need not."
        ),
    ] = None,
    stemmer: Annotated[str, typer.Option("--stemmer", help="A Snowball stemmer, or none.")] = "porter",
    stop_words: Annotated[
        str, typer.Option("--stop-words", help="lucene, none, or a file with one word a line.")
    ] = "lucene",
    ray: RayOption = None,
    workers: WorkersOption = 0,
    segment_documents: Annotated[
        int, typer.Option("--segment-documents", min=1, help="Of --ray: documents a worker makes a segment of.")
    ] = 1_000_000,
) -> None:
    """Build a BM25 index.

    Killing a build at any moment leaves the old index usable.

    **Examples**

        rankwell index collection.tsv --out my-index

        rankwell index corpus.jsonl.gz --out my-index --append

        rankwell index irds:beir/scifact --out scifact --no-store

        rankwell index collection.tsv --out my-index --tokens model

        rankwell index collection.tsv --out weighted --weights deepct/stages/01-deepct-HASH/model

        rankwell index collection.tsv --out expanded --expansions expansions.jsonl.gz

        rankwell index collection.tsv --out my-index --ray local --workers 4 --segment-documents 250000

        rankwell index collection.tsv --out weighted --weights deepct/stages/01-deepct-HASH/model --ray 10.0.0.1:6379

    Weighing goes on where it was killed; the same command given several times at once shares the work.
    """
    from rankwell.core.errors import MissingExtraError, RankwellError
    from rankwell.corpus.analyser import analyzer_from_options
    from rankwell.corpus.datasets import resolve_documents
    from rankwell.corpus.formats import read_weights
    from rankwell.corpus.formats.expansions import read_expansions
    from rankwell.enrich.expansion import combine_weights
    from rankwell.retrieve.index import Index

    begin = time.monotonic()
    by_model = weights is not None and weights.is_dir()
    cluster = cluster_of(
        ray,
        workers,
        append=append,
        overwrite=overwrite,
        weights=weights is not None and not by_model,
        expansions=expansions is not None,
        show=show is not None,
    )
    if tokens is not None:
        from rankwell.inputs.tokenizer import Tokenizer
        from rankwell.models.checkpoints.config import read_ranker_config
        from rankwell.models.checkpoints.names import find_model
        from rankwell.rank.texts import make_tokens

        if not store:
            raise RankwellError("--tokens needs the texts: leave --no-store out")
        folder = find_model(tokens)
        tokenizer, config = Tokenizer.open(folder), read_ranker_config(folder)
    if not by_model and (weights_out is not None or show is not None or scaling != "linear"):
        raise RankwellError("--weights-out, --show and --scaling are for --weights MODEL, the folder of a model")
    if by_model and expansions is not None:
        raise RankwellError("--expansions goes with a file of weights, which --weights MODEL --weights-out FILE makes")
    if by_model:
        if append or (stemmer, stop_words) != ("porter", "lucene"):
            raise RankwellError("--weights MODEL goes with the default analyser, and not with --append")
        if find_spec("torch") is None:
            raise MissingExtraError("torch", "models", "weighing terms with a model")
        from rankwell.enrich.weighted_index import weigh_and_index

        assert weights is not None
        if cluster is not None:
            from rankwell.enrich.term_weights import WeightOptions
            from rankwell.scale.enrich import weigh_and_index_on

            options = WeightOptions(scaling)
            made = weigh_and_index_on(cluster, collection, out, weights, options, store=store, weights_out=weights_out)
        else:
            made = weigh_and_index(
                collection, out, weights, scaling, store=store, overwrite=overwrite, weights_out=weights_out, show=show
            )
    elif cluster is not None:
        from rankwell.scale.index import IndexJob, build_index

        analyzer = analyzer_from_options(stemmer, stop_words)
        job = IndexJob(for_workers(collection), out.absolute(), segment_documents, analyzer, store)
        made = build_index(job, cluster)
    else:
        analyzer = analyzer_from_options(stemmer, stop_words)
        queries = read_expansions(expansions) if expansions else None
        vectors = read_weights(weights) if weights else None
        if vectors is not None and queries is not None:
            vectors, queries = combine_weights(vectors, queries, analyzer=analyzer), None
        made = Index.build(
            resolve_documents(collection),
            out,
            analyzer=analyzer,
            weights=vectors,
            expansions=queries,
            store=store,
            append=append,
            overwrite=overwrite,
        )
    if tokens is not None:
        make_tokens(made, tokenizer, stems=config is not None and config.template.markers)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    seconds = time.monotonic() - begin
    print(f"{out}: {len(made):,} documents, {made.terms:,} terms, {size / 1e6:,.1f} MB, {seconds:.1f} s")
