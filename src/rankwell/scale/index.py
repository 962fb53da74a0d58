"""Building an index by document shards.

The collection is read once and cut into parts; workers turn each part into a segment; the index is then the list of its
segments. BM25 joins the statistics of all segments when a query is asked, so the index finds what one built by one
process finds, whatever it was cut into.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder, atomic_text, disk_errors
from rankwell.core.manifest import Manifest, digest, file_digest
from rankwell.core.progress import track
from rankwell.core.shards import Shards, map_shards
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.datasets import open_dataset, resolve_documents
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore, document_batches
from rankwell.retrieve.builder import SegmentBuilder
from rankwell.retrieve.index import Index, analyzer_json, locked, refuse_foreign_folder, write_description
from rankwell.scale.workers import Cluster, do

PART_DOCUMENTS = 1_000_000


@dataclass(frozen=True)
class IndexJob:
    """``rankwell index`` in shards of ``documents`` each. ``OUT.parts`` beside the index holds the parts meanwhile."""

    collection: str
    out: Path
    documents: int = PART_DOCUMENTS
    analyzer: Analyzer = field(default_factory=Analyzer.english)
    store: bool = True

    @property
    def parts(self) -> Path:
        """Where the parts are until the index is made."""
        return self.out.with_name(f"{self.out.name}.parts")

    def prepare(self) -> Shards:
        """Read the collection once and cut it into parts."""
        if self.documents < 1:
            raise RankwellError(f"parts of {self.documents} documents")
        if (self.out / "index.json").exists():
            raise RankwellError(f"{self.out} holds an index already; remove it or choose another name")
        refuse_foreign_folder(self.out)
        config = {
            "collection": _collection_digest(self.collection),
            "documents a part": self.documents,
            "analyzer": digest(analyzer_json(self.analyzer)),
            "store": self.store,
        }
        folder = self.parts / digest(config)
        receipt = folder / "parts.json"
        if not receipt.exists():
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            count = _cut(resolve_documents(self.collection), folder, self.documents)
            with atomic_text(receipt) as file:
                json.dump({"parts": count}, file)
        count = int(json.loads(receipt.read_text(encoding="utf-8"))["parts"])
        self.out.mkdir(parents=True, exist_ok=True)
        return Shards(folder / "segments", count, 1, config, ".json")

    def work(self, shards: Shards) -> None:
        """Turn parts into segments until none is left; a shard's file is the segment's description."""

        def build(items: range, file: IO[bytes]) -> None:
            for number in items:
                segment = self.out / _segment_name(number)
                if not segment.exists():  # else a worker was lost between the segment and its description
                    part = DocumentStore.open(shards.folder.parent / _part_name(number))
                    with atomic_folder(segment) as temporary:
                        builder = SegmentBuilder(temporary, self.analyzer, store=self.store)
                        for docids, texts in document_batches(iter(part)):
                            builder.add_texts(docids, texts)
                        builder.finish()
                file.write((segment / "segment.json").read_bytes())

        map_shards(shards, build, description="indexing")

    def finish(self, shards: Shards) -> Index:
        """Make the segments one index, and remove the parts."""
        shards.check()
        found = [json.loads(path.read_text(encoding="utf-8")) for path in shards.paths()]
        names = [_segment_name(number) for number in range(len(found))]
        manifest = Manifest(
            "index",
            config={
                "analyzer": analyzer_json(self.analyzer),
                "store": self.store,
                "weighted": False,
                "expanded": False,
            },
            data={name: str(info["data_hash"]) for name, info in zip(names, found, strict=True)},
        )
        with disk_errors(self.out), locked(self.out):
            write_description(self.out, self.analyzer, names, manifest)
        shutil.rmtree(self.parts, ignore_errors=True)
        return Index.open(self.out)


def build_index(job: IndexJob, cluster: Cluster | None = None) -> Index:
    """Build an index by shards, in this process or on a cluster."""
    return job.finish(do(job, cluster, description="indexing"))


def _cut(documents: Iterable[Document], folder: Path, size: int) -> int:
    """Write the documents as stores of ``size`` each; returns how many. Parts that are there are not written again."""
    stream, known, count = iter(track(documents, "cutting the collection", unit="documents")), Lexicon(), 0
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
            raise RankwellError(f"document id {twice!r} comes twice in the collection; ids must be unique")
        count += 1
    if count == 0:
        raise RankwellError("the collection holds no documents")
    return count


def _part_name(number: int) -> str:
    return f"part-{number:06d}"


def _segment_name(number: int) -> str:
    return f"segment-{number + 1:04d}"


def _collection_digest(source: str) -> str:
    path = Path(source)
    if path.is_dir():
        path = open_dataset(source).collection_path or path
    return file_digest(path) if path.is_file() else digest({"collection": source})
