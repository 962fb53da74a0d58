"""``rankwell index``: from a collection to a searchable folder."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from annotated_types import Ge

from rankwell.cli.options import (
    EncoderOption,
    IdField,
    RayOption,
    Result,
    Settings,
    TextFields,
    TitleField,
    cluster_of,
    excludes,
    needs,
    output_folder,
    read_settings,
)
from rankwell.core.errors import Notice, RankwellError

if TYPE_CHECKING:
    from rankwell.corpus.records import Document
    from rankwell.retrieve.index import Index


SEGMENT_DOCUMENTS = 1_000_000
"""Documents of a segment that a worker of a cluster makes."""
SETTINGS: dict[str, Any] = {"stop_words": Path, "segment_documents": Annotated[int, Ge(1)]}


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
    out: Annotated[Path, typer.Option("--out", "-o", callback=output_folder, help="Folder of the index, or a system.")],
    id_field: IdField = None,
    text_field: TextFields = None,
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
    update: Annotated[
        bool, typer.Option("--update", help="Add to the index in --out, replacing documents with the same ids.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the index in --out.")] = False,
    store: Annotated[
        bool, typer.Option("--store/--no-store", help="Store the texts too, for re-ranking and display.")
    ] = True,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            metavar="FILE",
            help='Term frequencies to use instead of counts: jsonl of {"id", "vector": {word: weight}}.',
        ),
    ] = None,
    expansions: Annotated[
        Path | None,
        typer.Option(
            "--expansions", metavar="FILE", help="Queries to index with each passage, as `rankwell expand` writes them."
        ),
    ] = None,
    encoder: EncoderOption = None,
    words: Annotated[
        bool,
        typer.Option("--words", help="Also store the vectors of words, by which `rankwell search --words` re-ranks."),
    ] = False,
    language: Annotated[
        str | None,
        typer.Option(
            "--language",
            metavar="CODE",
            help="The texts' language, such as de. Default: en; none only lower-cases.",
        ),
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(
            "--weight", metavar="title=NUMBER", help="How many times to count the words of titles, as in title=3."
        ),
    ] = None,
    ray: RayOption = None,
    settings: Settings = None,
) -> Result:
    """Build a BM25 index.

    If a build is interrupted, the old index stays usable. Columns that are neither id, text nor title are stored too:
    answers show them, and `rankwell search --filter` filters by them. With --encoder or --words, vectors are computed
    now rather than by the first search that needs them.

    Settings, for --set NAME=VALUE:

    stop_words: a file of stop words, one per line, instead of the language's.

    segment_documents: with --ray, the number of documents per segment. Default: 1,000,000.

    Examples:

        rankwell index collection.tsv --out my-index

        rankwell index changed.jsonl --out my-index --update

        rankwell index products.csv --id sku --text description --out my-index

        rankwell index notes --language de --passages 150 --out my-index

        rankwell index articles.jsonl --weight title=3 --out my-index

        rankwell index collection.tsv --out my-index --encoder rankwell-mini --words

        rankwell index collection.tsv --out my-index --ray local,4 --set segment_documents=250000
    """
    from rankwell.core.files import folder_size, read_lines
    from rankwell.core.native import allow_uncompiled
    from rankwell.corpus.analyser import Analyzer, TitleWeight
    from rankwell.corpus.formats.fields import Columns
    from rankwell.corpus.languages import LANGUAGES
    from rankwell.corpus.sources import resolve_documents
    from rankwell.rank.texts import INDEX, is_system
    from rankwell.retrieve.description import stored_columns
    from rankwell.retrieve.index import is_index

    begin, system = time.monotonic(), None
    allow_uncompiled()
    if is_system(out):
        excludes(context, "a system", "overwrite", "store", "weights", "expansions", "encoder", "words", "language")
        if not (append or update):
            raise RankwellError(f"{out} is a system; --update adds documents to it")
        from rankwell.rank.system import System

        system, out = System.open(out), out / INDEX
    needs(context, {"encoder": "store", "words": "store", "segment_documents": "ray"})
    cluster = cluster_of(context, "append", "expansions", "overwrite", "update", "weights")
    options = read_settings(settings, SETTINGS)
    encode = _vector_maker(encoder, words) if encoder or words else None
    stop_words = None
    if "stop_words" in options:
        stop_words = frozenset(line.strip() for _, line in read_lines(options["stop_words"]) if line.strip())
    title_weight = read_settings(weight and [weight], {"title": TitleWeight}, "--weight").get("title", 1.0)
    analyzer = Analyzer.of(language or "en", stop_words=stop_words, title_weight=title_weight)
    columns = Columns(id_field, text_field, title_field)
    if cluster is not None:
        kept = {"analyzer": analyzer, "store": store, "columns": columns, "passages": passages}
        documents_each = options.get("segment_documents", SEGMENT_DOCUMENTS)
        made = cluster.build_index(collection, out.absolute(), documents=documents_each, **kept)
    else:
        same = (append or update) and not (language or stop_words or weight)
        building: dict[str, Any] = {"analyzer": None if same else analyzer, "store": store}
        building |= {"append": append, "update": update, "overwrite": overwrite}
        if not columns.named and (append or update) and is_index(out) and not Path(collection).is_dir():
            columns = stored_columns(out) or columns
        building["columns"] = columns
        documents = resolve_documents(collection, columns, passages=passages)
        if system is not None:
            (system.update if update else system.add)(documents)
            made = system.index
        else:
            made = _build(documents, out, weights, expansions, **building)
    if encode is not None:
        encode(made)
    texts = made.documents.texts(made.documents.live_numbers()[:50]) if made.has_texts else []
    if (other := made.analyzer.guess(texts)) is not None:
        name = LANGUAGES[other].name if other in LANGUAGES else "English"
        warnings.warn(f"the texts look {name}; --language {other} finds more of them", Notice, stacklevel=1)
    if empty := sum(store.empty for store in made.documents.stores):
        said = f"{empty:,} of {len(made):,} documents {'is' if empty == 1 else 'are'} empty; no search finds"
        warnings.warn(f"{said} {'it' if empty == 1 else 'them'}", Notice, stacklevel=1)
    size, seconds = folder_size(out) / 1e6, time.monotonic() - begin
    print(f"{out}: {len(made):,} documents, {made.terms:,} terms, {size:,.1f} MB, {seconds:.1f} s")
    return {"out": str(out), "documents": len(made), "terms": made.terms, "bytes": round(size * 1e6), "empty": empty}


def _build(
    documents: Iterable[Document], out: Path, weights: Path | None, expansions: Path | None, **building: Any
) -> Index:
    """Build an index in this process, from files."""
    from rankwell.corpus.formats import read_weights
    from rankwell.corpus.formats.texts import read_expansions
    from rankwell.retrieve.builder import combine_weights
    from rankwell.retrieve.index import Index

    queries = read_expansions(expansions) if expansions else None
    vectors = read_weights(weights) if weights else None
    if vectors is not None and queries is not None:
        vectors, queries = combine_weights(vectors, queries, analyzer=building["analyzer"]), None
    return Index.build(documents, out, weights=vectors, expansions=queries, **building)


def _vector_maker(encoder: str | None, words: bool) -> Callable[[Index], object]:
    """A function that computes the vectors of an index. A model that does not exist raises at once."""
    from rankwell.models.checkpoints.names import DEFAULT, find_model
    from rankwell.rank.first_stage import FirstStage

    name = encoder or DEFAULT
    find_model(name)
    return lambda index: FirstStage(index, encoder=name, words=float(words)).prepare()
