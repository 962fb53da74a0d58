"""A model reads every passage of a collection, and what it writes becomes a file for an index (DeepCT, doc2query).

A subclass of :class:`PassageJob` says what is written; :func:`write_collection` makes the file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rankwell.core.errors import RankwellError
from rankwell.core.locks import SharedFolder
from rankwell.core.manifest import digest
from rankwell.core.shards import Shards, ShardWork, Workers, do, map_shards, open_shards, shards_folder
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.sources import collection_digest, resolve_documents
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.names import model_digest
from rankwell.models.devices import chosen_device


@dataclass(frozen=True)
class PassageJob(ABC):
    """Writes something about each document of a store with a model; shards of jsonl in ``folder``."""

    model: Path
    options: Any
    device: str | None = None
    shard_size: int = 1024
    store: Path = Path()
    folder: Path = Path()

    shards: ClassVar[str]
    """What the shards hold, as their folder beside an output file is called."""
    description: ClassVar[str]
    """What is done, for a progress bar."""
    stems: ClassVar[bool] = False
    """Whether the model needs tokens with the stems of their words."""

    @abstractmethod
    def open(self, store: DocumentStore) -> ShardWork:
        """Load the model; returns what writes the lines of some documents of the store."""

    def models(self) -> dict[str, str | None]:
        """Digests of the models that the result depends on."""
        return {"model": model_digest(self.model)}

    def settings(self) -> dict[str, Any]:
        """Everything else that the result depends on, besides the documents."""
        return asdict(self.options)

    def prepare(self) -> Shards:
        """Tokenise the texts once, for all workers."""
        store = DocumentStore.open(self.store)
        StoredTokens.open(store.documents, Tokenizer.open(self.model), stems=self.stems)
        return Shards(self.folder, len(store), self.shard_size, {**self.models(), **self.settings()})

    def work(self, shards: Shards) -> None:
        """Load the model and do shards until none is left."""
        open_shards(shards)
        if shards.pending():
            map_shards(shards, self.open(DocumentStore.open(self.store)), description=self.description)


def write_collection(
    job: PassageJob, collection: str, out: Path, *, columns: Columns | None = None, workers: Workers | None = None
) -> int:
    """Write what a job makes of a collection to the file ``out`` and return the number of passages.

    ``columns`` are the fields of the collection, if it is a file; ``workers``, if any, do the work. Until the file is
    complete, ``OUT.shards`` holds the texts, their tokens and the finished shards; they become the job's store and
    folder. The same work resumes from them. Processes with the same work share the shards.
    """
    if out.exists():
        raise RankwellError(f"{out} exists already; remove it or choose another name")
    if workers is None:
        chosen_device(job.device)  # raises if it is not here
    source = collection_digest(collection, columns)
    named = {f"setting of {name}": value for name, value in job.settings().items()}
    made_by = {name: str(value) for name, value in {"collection": source, **job.models(), **named}.items()}
    with SharedFolder.enter(shards_folder(out), made_by) as shared:
        documents = resolve_documents(collection, columns)
        texts = DocumentStore.build_once(documents, shared.path / f"documents-{source}")
        folder = shared.path / f"{job.shards}-{digest(made_by)}"
        do(replace(job, store=texts.folder, folder=folder), workers, description=job.description).join(out)
        if shared.alone(wait=False):  # every process joins the same bytes; the last removes the folder
            shared.remove()
        return len(texts)
