"""Deleted documents, and merging: segments with many of them, and many small ones, are rewritten as one.

Postings are copied, not computed again, so that term weights and expansions stay, and so do scores, to the bit. Vectors
and tokens that are stored beside the documents are copied, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Array, Rows, gather
from rankwell.core.errors import InputError
from rankwell.core.files import atomic_folder
from rankwell.core.mapped import ArrayFolder, Ragged
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore, NumberedDocuments, document_batches
from rankwell.corpus.stored_vectors import keep_vectors
from rankwell.retrieve.builder import SegmentBuilder
from rankwell.retrieve.segment import Segment

WORN = 0.2
"""A segment is rewritten if a larger share of its documents is deleted."""
TIER, LARGEST = 8, 1_000_000
"""More than ``TIER`` segments of similar size are merged: within this factor, and below ``LARGEST`` documents."""
_TOKENS = "tokens-"


def worth_merging(segments: Sequence[Segment]) -> list[Segment]:
    """The segments that pay for being rewritten as one."""
    worn = [segment for segment in segments if segment.live < (1 - WORN) * len(segment)]
    tiers: dict[int, list[Segment]] = {}
    for segment in segments:
        if 0 < segment.live < LARGEST:
            tiers.setdefault(int(math.log(segment.live, TIER)), []).append(segment)
    many = [segment for tier in tiers.values() if len(tier) > TIER for segment in tier]
    return [segment for segment in segments if segment in worn or segment in many]


def read_deleted(folder: Path, segments: Sequence[Segment]) -> dict[str, NDArray[np.bool_]]:
    """The documents that are marked as deleted, by segment."""
    arrays = ArrayFolder(folder)
    masks = {}
    for segment in segments:
        if f"{segment.folder.name}.npy" in (arrays.checksums or ()):
            bits = arrays.map(segment.folder.name, np.uint8).whole()
            if len(bits) != -(-len(segment) // 8):
                raise InputError(folder, None, f"damaged: {len(bits)} bytes for {len(segment)} documents")
            masks[segment.folder.name] = np.unpackbits(bits, count=len(segment)).astype(bool)
    if not masks:
        raise InputError(folder, None, "damaged: marks no documents as deleted")
    return masks


def merge_segments(segments: Sequence[Segment], folder: Path, analyzer: Analyzer) -> Segment:
    """Write the documents of some segments that are not deleted as one segment, whose ``folder`` must not exist."""
    has_texts = all(segment.store.has_texts for segment in segments)
    fields = {name for segment in segments for name in segment.store.columns}
    with atomic_folder(folder) as temporary:
        builder = SegmentBuilder(temporary, analyzer, store=has_texts, most_fields=len(fields))
        for segment in segments:
            first, lengths, done = builder.documents, segment.live_lengths(), 0
            for batch in document_batches(live_documents(segment.store, has_texts)):
                builder.add_indexed(batch, lengths[done : done + len(batch.docids)])
                done += len(batch.docids)
            for terms, counts, documents, frequencies in segment.live_postings():
                builder.add_postings(terms, counts, documents + first, frequencies)
        builder.finish()
    merged = Segment.open(folder)
    stores = [segment.store for segment in segments]
    _copy_tokens(stores, merged.store)
    keep_vectors(NumberedDocuments(stores, "in these segments"), merged.store)
    return merged


def live_documents(store: DocumentStore, has_texts: bool = True) -> Iterator[Document]:
    """The documents of a store that are not deleted; without texts, only their ids and metadata."""
    rows = store.documents.live_numbers()
    for begin in range(0, len(rows), 4096):
        some = rows[begin : begin + 4096]
        if has_texts:
            yield from store.documents_at(some)
        else:
            for docid, metadata in zip(store.docids.strings(some), store.metadata_at(some), strict=True):
                yield Document(docid, "", metadata=metadata)


def _copy_tokens(stores: Sequence[DocumentStore], merged: DocumentStore) -> None:
    """Copy the tokens that all stores have."""
    names = [{path.name for path in store.folder.glob(f"{_TOKENS}*")} for store in stores]
    for folder in sorted(set.intersection(*names)):
        dtype = ArrayFolder(stores[0].folder / folder).map("tokens").values.dtype
        tokens = [store.tokens(folder.removeprefix(_TOKENS), dtype) for store in stores]
        merged.put_tokens(folder.removeprefix(_TOKENS), _live_rows(stores, tokens), dtype)


def _live_rows(stores: Sequence[DocumentStore], tokens: Sequence[Ragged]) -> Iterator[tuple[Array, Rows]]:
    for store, ragged in zip(stores, tokens, strict=True):
        rows = store.documents.live_numbers()
        for begin in range(0, len(rows), 4096):
            begins, ends = ragged.spans(rows[begin : begin + 4096])
            yield ragged.values[gather(begins, ends - begins)], np.cumsum(ends - begins)
