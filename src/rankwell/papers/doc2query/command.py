"""``rankwell expand``: queries that each passage of a collection answers, for an index or for training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rankwell.cli.options import (
    COMMANDS,
    Device,
    IdField,
    RayOption,
    Result,
    TextField,
    TitleField,
    need_file,
    output_file,
    output_folder,
)
from rankwell.papers.shared.command import Collection, run_job


@COMMANDS.register("expand")
def expand(
    context: typer.Context,
    collection: Collection,
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="MODEL", help="Folder of a query writer, as `rankwell train doc2query` makes it."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", callback=output_file, help='Output file: jsonl of {"docid", "queries"}; .gz too.'),
    ],
    id_field: IdField = None,
    text_field: TextField = None,
    title_field: TitleField = None,
    n: Annotated[int, typer.Option("--n", help="Queries per passage.")] = 5,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Sampling temperature; higher is more varied.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of sampling.")] = 1,
    judge: Annotated[
        str | None, typer.Option("--judge", metavar="MODEL", help="A ranker that drops off-topic queries.")
    ] = None,
    threshold: Annotated[
        float, typer.Option("--threshold", min=0, max=1, help="Lowest probability of relevance that the judge accepts.")
    ] = 0.5,
    queries: Annotated[
        Path | None,
        typer.Option(
            "--queries",
            metavar="FOLDER",
            callback=output_folder,
            help="Also write the queries as training data: split `generated`.",
        ),
    ] = None,
    device: Device = None,
    ray: RayOption = None,
) -> Result:
    """Write queries for every passage of a collection (doc2query).

    If interrupted, rerun the same command to resume, with or without --ray. Processes that run the same command at
    once share the work.

    Examples:

        rankwell expand collection.tsv --model writer --n 5 --out expansions.jsonl.gz

        rankwell expand collection.tsv --model writer --judge monobert/model --out expansions.jsonl.gz

        rankwell expand my-data --model writer --out expansions.jsonl.gz --queries my-data

        rankwell expand collection.tsv --model writer --out expansions.jsonl.gz --ray local,4
    """
    from rankwell.corpus.formats.fields import Columns
    from rankwell.corpus.formats.texts import read_expansions
    from rankwell.corpus.sources import resolve_documents
    from rankwell.papers.doc2query.checkpoints import read_writer_config
    from rankwell.papers.doc2query.decoding import WritingOptions
    from rankwell.papers.doc2query.expansion import (
        COUNTED,
        ExpandJob,
        count_expansions,
        find_judge,
        find_writer,
        write_generated,
    )

    begin = time.monotonic()
    need_file(out, str(context.info_name))
    folder, columns = find_writer(model).absolute(), Columns(id_field, text_field, title_field)
    writing = WritingOptions(n, temperature=temperature, max_query=read_writer_config(folder).max_query, seed=seed)
    judged_by = None if judge is None else find_judge(judge).absolute()
    job = ExpandJob(folder, writing, device, judge=judged_by, threshold=threshold)
    count = run_job(context, job, collection, columns, out)
    per_passage, new = count_expansions(resolve_documents(collection, columns), out).values()
    counted = f"{per_passage:.2f} queries per passage, {new:.0%} of their terms new"
    print(f"{out}: {counted} ({min(count, COUNTED):,} passages counted), {time.monotonic() - begin:.1f} s")
    splits: dict[str, int] = {}
    if queries is not None:
        splits = write_generated(list(read_expansions(out)), queries)
        print("\n".join(f"{queries}: {count:,} queries in the split {split}" for split, count in splits.items()))
    return {"out": str(out), "passages": count, "queries_per_passage": per_passage, "new": new, "splits": splits}
