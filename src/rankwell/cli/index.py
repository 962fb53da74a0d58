"""``rankwell index``: from a collection to a searchable folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankwell.cli.cluster import RayOption, WorkersOption, cluster_of
from rankwell.cli.needs import excludes, needs
from rankwell.cli.options import IdField, TextField, TitleField
from rankwell.cli.outputs import output_file, output_folder

if TYPE_CHECKING:
    from rankwell.corpus.records import Document
    from rankwell.retrieve.index import Index
    from rankwell.scale.workers import Cluster


def index(
    context: typer.Context,
    collection: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTION",
            help="A csv, tsv, jsonl, json, parquet or Arrow file, a file of lines, a folder of text files, or an "
            "id like irds:msmarco-passage or hf:owner/name.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", callback=output_folder, help="Folder of the index.")],
    id_field: IdField = None,
    text_field: TextField = None,
    title_field: TitleField = None,
    passages: Annotated[
        int,
        typer.Option(
            "--passages",
            metavar="WORDS",
            min=0,
            show_default=False,
            help="Split documents into passages of at most this many words, with the ids ID#1, ID#2 and so on.",
        ),
    ] = 0,
    append: Annotated[bool, typer.Option("--append", help="Add to the index in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the index in --out.")] = False,
    store: Annotated[
        bool, typer.Option("--store/--no-store", help="Store the texts too, for re-ranking and display.")
    ] = True,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            metavar="FILE|MODEL",
            help='Term frequencies to use instead of counts: jsonl of {"id", "vector": {word: weight}}, or a model '
            "(DeepCT) that weighs the words now.",
        ),
    ] = None,
    scaling: Annotated[
        str, typer.Option("--scaling", help="Scale of a model's weights: linear, or root, which raises small ones.")
    ] = "linear",
    weights_out: Annotated[
        Path | None,
        typer.Option(
            "--weights-out", metavar="FILE", callback=output_file, help="Also write the model's weights as jsonl."
        ),
    ] = None,
    show: Annotated[
        Path | None,
        typer.Option(
            "--show",
            metavar="PAGE.html",
            callback=output_file,
            help="Write a page of the first passages, words shaded by weight.",
        ),
    ] = None,
    expansions: Annotated[
        Path | None,
        typer.Option(
            "--expansions", metavar="FILE", help="Queries to index with each passage, as `rankwell expand` writes them."
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", metavar="MODEL", help="Also tokenise the texts for this model, to re-rank faster."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Torch device of --weights MODEL: cpu, cuda, cuda:1 or mps. Default: a GPU if there is one.",
        ),
    ] = None,
    stemmer: Annotated[str, typer.Option("--stemmer", help="A Snowball stemmer, or none.")] = "porter",
    stop_words: Annotated[
        str, typer.Option("--stop-words", help="lucene, none, or a file with one word per line.")
    ] = "lucene",
    cjk_pairs: Annotated[
        bool,
        typer.Option(
            "--cjk-pairs",
            help="Index runs of Chinese, Japanese and Korean characters as overlapping pairs of characters.",
        ),
    ] = False,
    ray: RayOption = None,
    workers: WorkersOption = 0,
    segment_documents: Annotated[
        int, typer.Option("--segment-documents", min=1, help="With --ray: documents per segment.")
    ] = 1_000_000,
) -> None:
    """Build a BM25 index.

    If a build is interrupted, the old index stays usable.

    **Examples**

        rankwell index collection.tsv --out my-index

        rankwell index corpus.jsonl.gz --out my-index --append

        rankwell index products.csv --id sku --text description --out my-index

        rankwell index notes --passages 150 --out my-index

        rankwell index irds:beir/scifact --out scifact --no-store

        rankwell index collection.tsv --out my-index --tokens model

        rankwell index collection.tsv --out weighted --weights deepct/stages/01-deepct-HASH/model

        rankwell index collection.tsv --out expanded --expansions expansions.jsonl.gz

        rankwell index collection.tsv --out my-index --ray local --workers 4 --segment-documents 250000

        rankwell index collection.tsv --out weighted --weights deepct/stages/01-deepct-HASH/model --ray 10.0.0.1:6379

    If interrupted while a model weighs the words, rerun the same command to resume, with or without --ray. Processes
    that run the same command at once share the work.
    """
    from rankwell.core.files import folder_size
    from rankwell.corpus.analyser import analyzer_from_options
    from rankwell.corpus.formats.fields import Columns
    from rankwell.corpus.sources import resolve_documents
    from rankwell.scale.index import IndexJob, build_index

    begin = time.monotonic()
    by_model = weights is not None and weights.is_dir()
    cluster = _check(context, by_model)
    tokenise = None if tokens is None else _tokeniser(tokens)
    analyzer = analyzer_from_options(stemmer, stop_words, cjk_pairs=cjk_pairs)
    columns = Columns(id_field, text_field, title_field)
    if weights is not None and by_model:
        from rankwell.enrich.deepct import WeightedIndexRequest, WeightOptions

        scale = WeightOptions(scaling)
        device = device if cluster is None else device or "cpu"
        request = WeightedIndexRequest(collection, out, weights, scale, store, overwrite, weights_out, show, device)
        made = request.run(cluster)
    elif cluster is not None:
        job = IndexJob(collection, out.absolute(), segment_documents, analyzer, store, columns, passages)
        made = build_index(job, cluster)
    else:
        how = {"analyzer": analyzer, "store": store, "append": append, "overwrite": overwrite}
        documents = resolve_documents(collection, columns, passages=passages)
        made = _build(documents, out, weights, expansions, **how)
    if tokenise is not None:
        tokenise(made)
    size, seconds = folder_size(out) / 1e6, time.monotonic() - begin
    print(f"{out}: {len(made):,} documents, {made.terms:,} terms, {size:,.1f} MB, {seconds:.1f} s")


def _check(context: typer.Context, by_model: bool) -> Cluster | None:
    """The cluster to build on, if any. Raises for options that do not go together."""
    from rankwell.core.errors import RankwellError

    options = context.params
    present = {"weights MODEL": by_model}
    needs(context, dict.fromkeys(("scaling", "weights_out", "show", "device"), "weights MODEL"), present)
    needs(context, {"tokens": "store", "segment_documents": "ray"})
    fields = ("id_field", "text_field", "title_field", "passages")
    cluster = cluster_of(context, "append", "expansions", *(() if by_model else ("overwrite", "weights")))
    if by_model:
        excludes(context, "--weights MODEL; use the file that --weights-out writes", "expansions")
        excludes(context, "--weights MODEL", "append", *fields)
        if (options["stemmer"], options["stop_words"]) != ("porter", "lucene"):
            raise RankwellError("--weights MODEL needs the default --stemmer and --stop-words")
    return cluster


def _build(
    documents: Iterable[Document], out: Path, weights: Path | None, expansions: Path | None, **how: Any
) -> Index:
    """Build an index in this process, from files."""
    from rankwell.corpus.formats import read_weights
    from rankwell.corpus.formats.expansions import read_expansions
    from rankwell.retrieve.index import Index

    queries = read_expansions(expansions) if expansions else None
    vectors = read_weights(weights) if weights else None
    if vectors is not None and queries is not None:
        from rankwell.enrich.doc2query import combine_weights

        vectors, queries = combine_weights(vectors, queries, analyzer=how["analyzer"]), None
    return Index.build(documents, out, weights=vectors, expansions=queries, **how)


def _tokeniser(model: str) -> Callable[[Index], None]:
    """A function that tokenises the texts of an index for ``model``. A model that does not exist raises at once."""
    from rankwell.inputs.tokenizer import Tokenizer
    from rankwell.models.checkpoints.config import read_ranker_config
    from rankwell.models.checkpoints.names import find_model
    from rankwell.rank.texts import make_tokens

    folder = find_model(model)
    tokenizer, config = Tokenizer.open(folder), read_ranker_config(folder)
    return lambda index: make_tokens(index, tokenizer, stems=config is not None and config.template.markers)
