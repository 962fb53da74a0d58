"""``rankwell weigh``: how much each word of each passage matters, for an index."""

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
)
from rankwell.papers.shared.command import Collection, run_job


@COMMANDS.register("weigh")
def weigh(
    context: typer.Context,
    collection: Collection,
    model: Annotated[
        Path,
        typer.Option(
            "--model", metavar="MODEL", help="Folder of a model that weighs words, as `rankwell train deepct` makes it."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", callback=output_file, help='Output file: jsonl of {"id", "vector": {word: weight}}.'
        ),
    ],
    id_field: IdField = None,
    text_field: TextField = None,
    title_field: TitleField = None,
    scaling: Annotated[
        str, typer.Option("--scaling", help="Scale of the weights: linear, or root, which raises small ones.")
    ] = "linear",
    device: Device = None,
    ray: RayOption = None,
) -> Result:
    """Weigh the words of every passage of a collection (DeepCT).

    If interrupted, rerun the same command to resume, with or without --ray. Processes that run the same command at
    once share the work.

    Examples:

        rankwell weigh collection.tsv --model deepct/stages/01-deepct-HASH/model --out weights.jsonl.gz

        rankwell index collection.tsv --weights weights.jsonl.gz --out weighted

        rankwell weigh collection.tsv --model weigher --out weights.jsonl.gz --ray local,4
    """
    from rankwell.corpus.formats.fields import Columns
    from rankwell.papers.deepct.weighing import WeighJob, WeightOptions, find_weigher

    begin = time.monotonic()
    need_file(out, str(context.info_name))
    job = WeighJob(find_weigher(model).absolute(), WeightOptions(scaling), device)
    count = run_job(context, job, collection, Columns(id_field, text_field, title_field), out)
    print(f"{out}: {count:,} passages, {time.monotonic() - begin:.1f} s")
    return {"out": str(out), "passages": count}
