"""Enriching a collection: a model reads every passage, and what it writes becomes a file with a manifest beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankwell.core.errors import RankwellError
from rankwell.core.locks import SharedFolder
from rankwell.core.manifest import Manifest, digest
from rankwell.core.shards import Job, Workers, do, shards_folder
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.sources import collection_digest, resolve_documents
from rankwell.corpus.store import DocumentStore


def check_output(out: Path, device: str | None, workers: Workers | None) -> None:
    """Raise before anything is written: if the file exists, or if there is no such device here."""
    from rankwell.models.devices import chosen_device

    if out.exists():
        raise RankwellError(f"{out} exists already; remove it or choose another name")
    if workers is None:
        chosen_device(device)


def enrich(
    collection: str,
    columns: Columns | None,
    out: Path,
    job: Callable[[Path, Path], Job],
    *,
    kind: str,
    shards: str,
    models: Mapping[str, str | None],
    settings: Mapping[str, Any],
    seed: int | None = None,
    workers: Workers | None = None,
    description: str,
) -> int:
    """Write the file ``out`` of the given kind and return the number of passages; ``workers``, if any, do the work.

    ``job`` is made of the folder of the texts and the folder of the shards. Until the file is complete, ``OUT.shards``
    holds the texts, their tokens and the finished shards. The same work resumes from them. Processes with the same
    work share the shards.
    """
    source = collection_digest(collection, columns)
    named = {f"setting of {name}": value for name, value in settings.items()}
    made_by = {name: str(value) for name, value in {"collection": source, **models, **named}.items()}
    with SharedFolder.enter(shards_folder(out), made_by) as shared:
        documents = resolve_documents(collection, columns)
        texts = DocumentStore.build_once(documents, shared.path / f"documents-{source}")
        folder = shared.path / f"{shards}-{digest(made_by)}"
        do(job(texts.folder, folder), workers, description=description).join(out)
        Manifest(kind, {**models, **settings}, {"collection": source}, seed).write_beside(out)
        if shared.alone(wait=False):  # every process joins the same bytes; the last removes the folder
            shared.remove()
        return len(texts)
