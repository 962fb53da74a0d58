"""The vectors of a store's documents, stored beside its texts in fp16 under the name of the model that computed them.

They are computed in shards (:mod:`rankwell.core.shards`), so interrupted work can be resumed, and memory-mapped. Many
small shards are merged when all are done, because every mapped file takes one of the process's file descriptors.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows
from rankwell.core.checksums import BLOCK
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.mapped import MappedArray
from rankwell.core.shards import Shards, map_shards, recorded_size
from rankwell.corpus.store import DocumentStore
from rankwell.corpus.stored_vectors import MERGED, VECTORS, Half, known_folder, known_vectors
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.models.devices import DEFAULT_COMPUTING, Computing
from rankwell.rank.rankers import open_encoder
from rankwell.rank.vector_search import has_kernel

SMALLEST_SHARD, LARGEST_SHARD = 1 << 5, 1 << 14
SHARD_OPERATIONS = 1.4e12
"""Arithmetic operations of a shard on a CPU. If interrupted, at most a shard's work is lost."""
MERGED_SHARD, MANY_SHARDS = 1 << 20, 64
"""More shards than this are merged; processes may often open no more than 256 or 1,024 files."""


class PassageVectors:
    """The vectors of all documents of a store, numbered as the store numbers them."""

    def __init__(self, shards: Shards, width: int):
        shards.check()
        self.width = width
        self.folder = shards.folder
        self._parts = [
            shards.map(number, np.float16, (len(shards.items(number)), width)) for number in range(len(shards))
        ]
        self._count, self._size = shards.count, shards.size
        self._finite: set[MappedArray] = set()
        """Those whose numbers have been looked at."""

    @classmethod
    def open(cls, store: DocumentStore, encoder: BiEncoder, *, shard_size: int | None = None) -> PassageVectors:
        """Open the vectors stored beside the store's texts, after computing those that are missing."""
        shards = _shards(store, encoder, shard_size)
        if shards.pending():
            _compute(store, encoder, shards)
            if store.writable:
                shutil.rmtree(known_folder(store, encoder.name), ignore_errors=True)
        return cls(merge_shards(shards, encoder.width) if store.writable else shards, encoder.width)

    @staticmethod
    def is_complete(store: DocumentStore, encoder: BiEncoder) -> bool:
        """Whether all vectors are stored."""
        return not _shards(store, encoder).pending()

    def __len__(self) -> int:
        return self._count

    def at(self, numbers: Rows) -> Half:
        """The vectors (N, H) of these documents."""
        vectors = np.empty((len(numbers), self.width), np.float16)
        shard_of = numbers // self._size
        for shard in np.unique(shard_of):
            rows = shard_of == shard
            part, local = self._parts[shard], numbers[rows] - shard * self._size
            part.check(local, local + 1)
            vectors[rows] = part.values[local]
        if not np.isfinite(vectors).all():
            raise InputError(self.folder, None, "damaged: a vector has numbers that are not finite")
        return vectors

    def products(self, numbers: Rows, query: Vectors) -> Vectors:
        """The products (N,) of a query (H,) with the vectors of these documents, whose numbers ascend."""
        if not has_kernel(self.width):
            return self.at(numbers).astype(np.float32) @ query
        from rankwell.rank.vector_kernels import row_products  # imports numba

        self._check(numbers)
        scores = np.empty(len(numbers), np.float32)
        row_products(self._addresses, self._size, numbers, query, scores)
        if not np.isfinite(scores).all():
            raise InputError(self.folder, None, "damaged: a vector has numbers that are not finite")
        return scores

    def _check(self, numbers: Rows) -> None:
        """Verify the blocks of these documents' vectors."""
        # Asking each of many shards takes longer than computing the products, so only those with new blocks are asked.
        shard_of, local = np.divmod(numbers, self._size)
        for shard in np.unique(shard_of):
            self._parts[shard].check_size()
        bytes_each, blocks = 2 * self.width, -(-2 * self.width * self._size // BLOCK)
        first = shard_of * blocks + local * bytes_each // BLOCK
        last = shard_of * blocks + ((local + 1) * bytes_each - 1) // BLOCK
        new = np.flatnonzero(~(self._verified[first] & self._verified[last]))
        for shard in np.unique(shard_of[new]):
            rows = new[shard_of[new] == shard]
            self._parts[shard].check(local[rows], local[rows] + 1)
            self._verified[first[rows]] = self._verified[last[rows]] = True

    @cached_property
    def _verified(self) -> NDArray[np.bool_]:
        """Which blocks of the shards have been verified."""
        return np.zeros(len(self._parts) * -(-2 * self.width * self._size // BLOCK), np.bool_)

    @cached_property
    def _addresses(self) -> Rows:
        """Where the shards lie in memory."""
        return np.array([part.values.ctypes.data for part in self._parts], np.int64)

    def blocks(self) -> Iterator[Half]:
        """All vectors, in the documents' order."""
        for part in self._parts:
            block = part.whole()
            if part not in self._finite:
                if not np.isfinite(block).all():
                    raise InputError(part.path, None, "damaged: a vector has numbers that are not finite")
                self._finite.add(part)
            yield block


@dataclass(frozen=True)
class VectorsJob:
    """Computing the vectors of a store's documents, for the workers of a cluster."""

    store: Path
    encoder: str
    computing: Computing = DEFAULT_COMPUTING

    def prepare(self) -> Shards:
        """See :class:`~rankwell.core.shards.Job`. Tokenises the documents, once for all workers."""
        encoder = open_encoder(self.encoder, replace(self.computing, device="cpu"))
        store = DocumentStore.open(self.store)
        shards = _shards(store, encoder)
        if shards.pending() and encoder.takes_tokens:
            StoredTokens.open(store.documents, encoder.tokenizer)
        return shards

    def work(self, shards: Shards) -> None:
        """See :class:`~rankwell.core.shards.Job`."""
        _compute(DocumentStore.open(self.store), open_encoder(self.encoder, self.computing), shards)


def _compute(store: DocumentStore, encoder: BiEncoder, shards: Shards) -> None:
    """Compute the shards that are not done. Vectors that were kept are copied."""
    known, kept = known_vectors(store, encoder.name, encoder.width)
    skipped = np.zeros(len(store), bool)
    skipped[known] = True
    # Dense layers are applied to stored vectors, which are much more expensive to compute.
    base = None if encoder.base is None or skipped.all() else PassageVectors.open(store, encoder.base)
    reads = base is None and encoder.takes_tokens and not skipped.all()
    tokens = StoredTokens.open(store.documents, encoder.tokenizer) if reads else None

    def work(items: range, file: IO[bytes]) -> None:
        half = np.zeros((len(items), encoder.width), np.float16)
        numbers = items.start + np.flatnonzero(~skipped[items.start : items.stop])
        here = slice(*np.searchsorted(known, [items.start, items.stop]))
        half[known[here] - items.start] = kept[here]
        if not len(numbers):
            vectors = np.empty((0, encoder.width), np.float32)
        elif base is not None:
            vectors = encoder.map_documents(base.at(numbers))
        elif tokens is not None:
            vectors = encoder.encode_tokens(tokens, numbers)
        else:
            vectors = encoder.encode_documents(store.texts_at(numbers))
        half[numbers - items.start] = vectors.astype(np.float16)
        if (wrong := ~np.isfinite(half).all(axis=1)).any():
            docid = store.docids[items.start + int(wrong.argmax())]
            raise RankwellError(f"the vector of document {docid!r} has numbers that are not finite in 16 bits")
        file.write(half.data)

    how = " in int8" if encoder.precision == "int8" else ""
    map_shards(shards, work, description=f"computing vectors{how}")


def _shards(store: DocumentStore, encoder: BiEncoder, size: int | None = None) -> Shards:
    """The shards of the encoder's vectors; those of the exact ones if they are complete, made on a GPU, say."""
    if not encoder.name:
        raise RankwellError("this bi-encoder has no name to store its vectors under")
    exact, own = (_shards_named(name, store, encoder, size) for name in (encoder.exact_name, encoder.name))
    return exact if exact.folder.is_dir() and not exact.pending() else own


def _shards_named(name: str, store: DocumentStore, encoder: BiEncoder, size: int | None) -> Shards:
    folder = store.folder / f"{VECTORS}{name}"
    config = {"model": name, "tokens": encoder.tokenizer.digest, "width": encoder.width}
    size = size or recorded_size(folder) or shard_size(encoder)
    return stored_shards(Shards(folder, len(store), size, config, suffix=".f16"))


def stored_shards(shards: Shards) -> Shards:
    """The shards into which these were merged; these themselves if they were not."""
    merged = _merged(shards)
    return merged if merged.folder.is_dir() and not merged.pending() else shards


def _merged(shards: Shards) -> Shards:
    return replace(shards, folder=shards.folder.with_name(shards.folder.name + MERGED), size=MERGED_SHARD)


def merge_shards(shards: Shards, width: int) -> Shards:
    """Write many small shards again as few large ones, and remove the small ones."""
    folder = shards.folder
    if folder.name.endswith(MERGED):
        shutil.rmtree(folder.with_name(folder.name.removesuffix(MERGED)), ignore_errors=True)  # left by a kill
        return shards
    if len(shards) <= MANY_SHARDS or MERGED_SHARD % shards.size:
        return shards
    merged = _merged(shards)

    def work(items: range, file: IO[bytes]) -> None:
        for number in range(items.start // shards.size, -(-items.stop // shards.size)):
            part = shards.map(number, np.float16, (len(shards.items(number)), width))
            file.write(part.whole().data)

    map_shards(merged, work, description="merging vectors")
    shutil.rmtree(folder, ignore_errors=True)
    return merged


def shard_size(encoder: BiEncoder) -> int:
    """The documents of a shard: a power of two with some 20 seconds of work for two cores in fp32."""
    if encoder.device.type != "cpu" or encoder.base is not None:
        return LARGEST_SHARD
    config, tokens = encoder.encoder.config, encoder.reader.template.max_length / 2
    operations = 24 * config.num_hidden_layers * config.hidden_size**2 * tokens
    fitting = int(SHARD_OPERATIONS / operations)
    return min(LARGEST_SHARD, max(SMALLEST_SHARD, 1 << max(0, fitting.bit_length() - 1)))
