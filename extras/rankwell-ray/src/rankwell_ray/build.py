"""Building an index in shards of documents.

The collection is read once and split into parts; workers turn each part into a segment; the index is the list of its
segments. BM25 adds up the statistics of all segments at search time, so the results are the same as those of an index
built by one process, however the collection was split.

Until the index is complete, parts and segments are in a folder named by everything they depend on, so that a build
resumes its own work and never that of another.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder, link_tree, remove_leftovers
from rankwell.core.locks import SharedFolder, lock
from rankwell.core.manifest import digest, read_object, write_json
from rankwell.core.progress import track
from rankwell.core.shards import Shards, do, map_shards, shards_folder
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document
from rankwell.corpus.sources import collection_digest, resolve_documents
from rankwell.corpus.store import DocumentStore, RepeatedIdError, document_batches
from rankwell.retrieve.builder import SEGMENT_VERSION, SegmentBuilder
from rankwell.retrieve.description import analyzer_json, write_description
from rankwell.retrieve.index import Index, refuse_foreign_folder
from rankwell_ray.workers import Cluster

PART_DOCUMENTS = 1_000_000


@dataclass(frozen=True)
class IndexJob:
    """``rankwell index`` in shards of ``documents`` each. ``OUT.shards`` holds them until the index is complete."""

    collection: str
    out: Path
    documents: int = PART_DOCUMENTS
    analyzer: Analyzer = field(default_factory=Analyzer.english)
    store: bool = True
    columns: Columns | None = None
    passages: int = 0

    def config(self) -> dict[str, Any]:
        """Everything the segments depend on."""
        return {
            "collection": collection_digest(self.collection, self.columns),
            "documents a part": self.documents,
            "analyzer": digest(analyzer_json(self.analyzer)),
            "store": self.store,
            "segment version": SEGMENT_VERSION,
            **({"passages": self.passages} if self.passages else {}),
        }

    def prepare(self) -> Shards:
        """Read the collection once and split it into parts."""
        if self.documents < 1:
            raise RankwellError(f"documents per shard is {self.documents}, expected 1 or more")
        self.refuse_taken()
        config = self.config()
        folder = shards_folder(self.out) / digest(config)
        receipt = folder / "parts.json"
        with lock(folder, wait=True):
            if not receipt.exists():
                documents = resolve_documents(self.collection, self.columns, passages=self.passages)
                write_json(receipt, {"parts": _split(documents, folder, self.documents)})
        count = int(read_object(receipt)["parts"])
        return Shards(folder / "segments", count, 1, config, ".json")

    def work(self, shards: Shards) -> None:
        """Turn parts into segments until none is left. A shard's file is the description of its segment."""

        def build(items: range, file: IO[bytes]) -> None:
            for number in items:
                segment = shards.folder / _segment_name(number)
                if not segment.exists():  # it may: a worker can be lost before it writes the shard's file
                    part = DocumentStore.open(shards.folder.parent / _part_name(number))
                    with atomic_folder(segment) as temporary:
                        builder = SegmentBuilder(temporary, self.analyzer, store=self.store)
                        for batch in document_batches(iter(part)):
                            builder.add_texts(batch)
                        builder.finish()
                file.write((segment / "segment.json").read_bytes())

        map_shards(shards, build, description="indexing")

    def finish(self, shards: Shards) -> Index:
        """Combine the segments into one index."""
        shards.check()
        hashes = {_segment_name(n): str(read_object(path)["data_hash"]) for n, path in enumerate(shards.paths())}
        with lock(self.out, wait=False):
            remove_leftovers(self.out)
            self.refuse_taken()
            for stale in self.out.glob("segment-*"):  # left by a build that was killed
                shutil.rmtree(stale)
            for name in hashes:
                # Linked, not moved: if this process is killed, the next one needs the segments where they were made.
                with atomic_folder(self.out / name, checksums=False) as temporary:
                    link_tree(shards.folder / name, temporary)
            columns = asdict(self.columns) if self.columns and self.columns.named else None
            kept: dict[str, Any] = {"store": self.store, "columns": columns}
            write_description(self.out, self.analyzer, hashes, weighted=False, expanded=False, **kept)
        return Index.open(self.out)

    def refuse_taken(self) -> None:
        """Raise if the output folder already holds an index or anything else."""
        if (self.out / "index.json").exists():
            raise RankwellError(f"{self.out} holds an index already; remove it or choose another name")
        refuse_foreign_folder(self.out)


def build_index(job: IndexJob, cluster: Cluster | None = None) -> Index:
    """Build an index by shards, in this process or on a cluster."""
    job.refuse_taken()
    work = {name: str(value) for name, value in job.config().items()}
    with SharedFolder.enter(shards_folder(job.out), work) as shared:
        shards = do(job, cluster, description="indexing")
        if not shared.alone(wait=True):  # another process with the same command built the index
            return Index.open(job.out)
        index = job.finish(shards)
        shared.remove()
        return index


def _split(documents: Iterable[Document], folder: Path, size: int) -> int:
    """Write the documents as stores of ``size`` each and return their number. Existing parts are not rewritten."""
    stream, known, count = iter(track(documents, "splitting the collection", unit="documents")), Lexicon(), 0
    while (first := next(stream, None)) is not None:
        part = folder / _part_name(count)
        rest = chain([first], islice(stream, size - 1))
        if part.exists():
            docids = [document.docid for document in rest]
        else:
            docids = DocumentStore.build(rest, part).docids.strings(range(len(DocumentStore.open(part))))
        before = len(known)
        numbers = known.add(docids)
        if len(known) != before + len(docids):
            twice = next(docid for docid, number in zip(docids, numbers.tolist(), strict=True) if number < before)
            raise RepeatedIdError(twice)
        count += 1
    if count == 0:
        raise RankwellError("the collection has no documents")
    return count


def _part_name(number: int) -> str:
    return f"part-{number:06d}"


def _segment_name(number: int) -> str:
    return f"segment-{number + 1:04d}"
