"""What the commands share that write a file about a collection's passages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwell.cli.options import cluster_of

if TYPE_CHECKING:
    from rankwell.corpus.formats.fields import Columns
    from rankwell.papers.shared.passages import PassageJob

Collection = Annotated[str, typer.Argument(metavar="COLLECTION", help="A collection as `rankwell index` takes it.")]


def run_job(context: typer.Context, job: PassageJob, collection: str, columns: Columns, out: Path) -> int:
    """Write the command's file, on the cluster that its options name if any; returns the number of passages."""
    from rankwell.papers.shared.passages import write_collection

    cluster = cluster_of(context)
    if cluster is not None and job.device is None:
        job = replace(job, device="cpu")
    return write_collection(job, collection, out, columns=columns, workers=cluster)
