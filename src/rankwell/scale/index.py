"""Building an index by document shards.

The collection is read once and cut into parts; workers turn each part into a segment; the index is then the list of its
segments. BM25 joins the statistics of all segments when a query is asked, so the index finds what one built by one
process finds, whatever it was cut into.

Until the index is made, parts and segments lie in a folder named by all that they depend on, so that a build goes on
with what it made itself, not with what another left.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder, atomic_text, disk_errors, remove_leftovers
from rankwell.core.locks import lock
from rankwell.core.manifest import Manifest, digest
from rankwell.core.progress import track
from rankwell.core.shards import Shards, map_shards
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.datasets import collection_digest, resolve_documents
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore, document_batches
from rankwell.retrieve.builder import SEGMENT_VERSION, SegmentBuilder
from rankwell.retrieve.index import Index, analyzer_json, refuse_foreign_folder, write_description
from rankwell.scale.workers import Cluster, do

PART_DOCUMENTS = 1_000_000


@dataclass(frozen=True)
class IndexJob:
    """``rankwell index`` in shards of ``documents`` each. Meanwhile ``OUT.parts`` beside the index holds all of it."""

    collection: str
    out: Path
    documents: int = PART_DOCUMENTS
    analyzer: Analyzer = field(default_factory=Analyzer.english)
    store: bool = True

    @property
    def parts(self) -> Path:
        """Where parts and segments are until the index is made."""
        return self.out.with_name(f"{self.out.name}.parts")

    def prepare(self) -> Shards:
        """Read the collection once and cut it into parts."""
        if self.documents < 1:
            raise RankwellError(f"parts of {self.documents} documents")
        self._refuse_taken()
        config = {
            "collection": collection_digest(self.collection),
            "documents a part": self.documents,
            "analyzer": digest(analyzer_json(self.analyzer)),
            "store": self.store,
            "segment version": SEGMENT_VERSION,
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
        return Shards(folder / "segments", count, 1, config, ".json")

    def work(self, shards: Shards) -> None:
        """Turn parts into segments until none is left; a shard's file is the segment's description."""

        def build(items: range, file: IO[bytes]) -> None:
            for number in items:
                segment = shards.folder / _segment_name(number)
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
        with lock(self.out, wait=False):
            remove_leftovers(self.out)
            self._refuse_taken()
            for stale in self.out.glob("segment-*"):  # of a build that was killed
                shutil.rmtree(stale)
            for name in names:
                # Not moved: killed before the index is whole, this build must find its segments where it made them.
                with atomic_folder(self.out / name) as temporary:
                    _link_files(shards.folder / name, temporary)
            write_description(self.out, self.analyzer, names, manifest)
        shutil.rmtree(self.parts, ignore_errors=True)
        return Index.open(self.out)

    def _refuse_taken(self) -> None:
        if (self.out / "index.json").exists():
            raise RankwellError(f"{self.out} holds an index already; remove it or choose another name")
        refuse_foreign_folder(self.out)


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


def _link_files(source: Path, target: Path) -> None:
    """Give all files below a folder a second name below another, or copy them where the disk cannot do that."""
    for path in sorted(source.rglob("*")):
        twin = target / path.relative_to(source)
        if path.is_dir():
            twin.mkdir()
            continue
        try:
            os.link(path, twin)
        except OSError:
            shutil.copyfile(path, twin)
