"""``rankwell expand``: queries that each passage of a collection answers, for an index or for training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwell.cli.cluster import RayOption, WorkersOption, cluster_of, for_workers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def expand(
    collection: Annotated[
        str,
        typer.Argument(help="A tsv or jsonl file (.gz too), a folder with one, or an id like irds:msmarco-passage."),
    ],
    model: Annotated[str, typer.Option("--model", help="A query writer's folder (recipes/doc2query.yaml).")],
    out: Annotated[Path, typer.Option("--out", help='The file to make: jsonl of {"docid", "queries"}; .gz too.')],
    n: Annotated[int, typer.Option("--n", help="Queries a passage.")] = 5,
    method: Annotated[str, typer.Option("--method", help="sample or beam.")] = "sample",
    top_k: Annotated[int, typer.Option("--top-k", help="Sampling draws from so many of the likeliest pieces.")] = 10,
    temperature: Annotated[float, typer.Option("--temperature", help="Sampling is the bolder the higher it is.")] = 1.0,
    beams: Annotated[int, typer.Option("--beams", help="Width of the beam.")] = 5,
    seed: Annotated[int, typer.Option("--seed", help="Decides what is drawn.")] = 1,
    judge: Annotated[
        str | None, typer.Option("--judge", help="A ranker's folder: drops queries that are off the topic.")
    ] = None,
    threshold: Annotated[
        float, typer.Option("--threshold", help="Off the topic is what the judge gives a lower probability.")
    ] = 0.5,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Keep queries of the same words as an earlier one of the passage.")
    ] = False,
    queries: Annotated[
        Path | None,
        typer.Option("--queries", metavar="FOLDER", help="Also write them as training data, the split `generated`."),
    ] = None,
    show: Annotated[int, typer.Option("--show", help="Print so many passages with their queries.")] = 0,
    device: Annotated[str | None, typer.Option("--device", help="A torch device: cpu, cuda, cuda:1.")] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", help="Tokens that are read at once; less needs less memory.")
    ] = None,
    ray: RayOption = None,
    workers: WorkersOption = 0,
) -> None:
    """Write queries for every passage of a collection (doc2query).

    A run that was killed goes on where it was: give the same command again. Given several times at once, the
    processes share the work.

    **Examples**

        rankwell expand collection.tsv --model writer --n 5 --out expansions.jsonl.gz

        rankwell expand collection.tsv --model writer --judge monobert/model --out expansions.jsonl.gz

        rankwell expand my-data --model writer --out expansions.jsonl.gz --queries my-data

        rankwell expand collection.tsv --model writer --out expansions.jsonl.gz --ray local --workers 4
    """
    from itertools import islice

    from rankwell.core.errors import InputError, RankwellError
    from rankwell.core.manifest import Manifest
    from rankwell.corpus.datasets import collection_digest, resolve_documents
    from rankwell.corpus.formats.expansions import read_expansions
    from rankwell.enrich.expansion import Filtering, count_expansions, expand_collection
    from rankwell.enrich.generated import write_generated
    from rankwell.models.checkpoints.config import read_model_type
    from rankwell.models.checkpoints.identity import model_digest
    from rankwell.models.checkpoints.names import find_model
    from rankwell.models.doc2query.checkpoints import load_writer
    from rankwell.models.doc2query.decoding import Writer, Writing
    from rankwell.scale.enrich import expand_on

    if out.is_dir():
        raise InputError(out, None, "is a folder, expected the file to write")
    if method not in ("sample", "beam"):
        raise RankwellError(f"--method {method}: expected sample or beam")
    cluster = cluster_of(ray, workers, device, judge=judge, budget=budget)
    begin = time.monotonic()
    place = find_model(model)
    if read_model_type(place) != "encoder-decoder":
        raise InputError(place, None, "not a query writer; recipes/doc2query.yaml trains one")
    loaded, tokenizer, config = load_writer(place)
    options = Writing(
        n,
        "beam" if method == "beam" else "sample",
        top_k,
        temperature,
        beams,
        max_query=config.max_query,
        seed=seed,
    )
    filtering = Filtering(duplicates=not duplicates, threshold=None if judge is None else threshold)
    judged_by = None if judge is None else model_digest(find_model(judge))
    source, written_by = collection_digest(collection), model_digest(place)
    if cluster is not None:
        expand_on(cluster, for_workers(collection), out, place, options, filtering, device=device or "cpu")
    else:
        expand_collection(
            resolve_documents(collection),
            out,
            Writer(loaded, tokenizer, config.max_length, options, device=device, budget=budget),
            filtering,
            source=source,
            model=written_by,
            judge=None if judge is None else _probability_by(find_model(judge), device),
            judged_by=judged_by,
        )
    settings = {"model": written_by, "judge": judged_by, **vars(options), **vars(filtering)}
    Manifest("expansions", settings, {"collection": source}, seed).write_beside(out)
    found = count_expansions(resolve_documents(collection), out).as_dict()
    seconds = time.monotonic() - begin
    print(
        f"{out}: {found['queries a passage']:.2f} queries a passage, {found['share of new terms']:.0%} of their terms "
        f"new to it (first 2,000 passages), {seconds:.1f} s"
    )
    if queries is not None:
        counts = write_generated(list(read_expansions(out)), queries)
        print("\n".join(f"{queries}: {count:,} queries of the split {split}" for split, count in counts.items()))
    for document, expansion in islice(zip(resolve_documents(collection), read_expansions(out), strict=False), show):
        print(f"\n{document.docid}: {document.contents}")
        print("\n".join(f"  - {query}" for query in expansion.queries))


def _probability_by(model: Path, device: str | None) -> Callable[[Sequence[tuple[str, str]]], NDArray[np.float32]]:
    """p(relevant) by a trained ranker."""
    from rankwell.rank.ranker import Ranker

    ranker = Ranker.from_pretrained(model, engine={} if device is None else {"device": device})
    return lambda pairs: ranker.predict(pairs, activation="probability")
