"""The vectors of a store's documents, stored beside its texts in fp16 under the name of the model that computed them.

If word vectors are wanted, too, they are computed in the same pass, and stored beside the documents' vectors in codes.
Both are computed in shards (:mod:`rankwell.core.shards`), so interrupted work can be resumed, and memory-mapped. Many
small shards are merged when all are done, because every mapped file takes one of the process's file descriptors.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from rankwell.core.arrays import Array, Rows, gather
from rankwell.core.checksums import BLOCK
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import checked_binary
from rankwell.core.mapped import MappedArray
from rankwell.core.shards import Shards, map_shards, open_shards, recorded_size
from rankwell.corpus.store import DocumentStore
from rankwell.corpus.stored_vectors import MERGED, VECTORS, WORDS, Half, WordShard, known_folder, known_vectors
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.models.compute import map_lanes
from rankwell.rank.vector_records import Codes
from rankwell.rank.vector_search import has_kernel
from rankwell.rank.word_codes import (
    CODE_BYTES,
    LEVELS,
    RESTS,
    compare_codes,
    encode_words,
    word_directions,
    word_integers,
    word_panels,
)

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
        shards = vector_shards(store, encoder, shard_size)
        if shards.pending():
            compute_vectors(store, encoder, shards)
            _remove_known(store, encoder.name)
        width = encoder.width
        return cls(merge_shards(shards, partial(vector_blocks, width=width)) if store.writable else shards, width)

    @staticmethod
    def is_complete(store: DocumentStore, encoder: BiEncoder) -> bool:
        """Whether all vectors are stored."""
        return not vector_shards(store, encoder).pending()

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

    def products(self, numbers: Rows, query: Vectors, parts: int = 1) -> Vectors:
        """The products (N,) of a query (H,) with the vectors of these documents, whose numbers ascend.

        Threads share the rows, divided into ``parts``. The kernel's products do not depend on how they are divided.
        """
        if not has_kernel(self.width):
            return self.at(numbers).astype(np.float32) @ query
        from rankwell.rank.vector_kernels import row_products  # imports numba

        self._check(numbers)
        scores = np.empty(len(numbers), np.float32)
        shared = list(zip(np.array_split(numbers, parts), np.array_split(scores, parts), strict=True))
        map_lanes(lambda part: row_products(self._addresses, self._size, part[0], query, part[1]), shared)
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


class PassageWords:
    """The word vectors of all documents of a store, numbered as the store numbers them."""

    def __init__(self, shards: Shards, vectors: PassageVectors, device: torch.device):
        shards.check()
        self.folder, self._size = shards.folder, shards.size
        self.vectors, self._device = vectors, device
        self._parts = [WordShard(shards, number, CODE_BYTES) for number in range(len(shards))]

    @classmethod
    def open(cls, store: DocumentStore, encoder: BiEncoder) -> PassageWords:
        """Open the word vectors stored beside the store's texts; missing ones are computed first.

        If the documents' own vectors are missing, too, both are computed in one pass. Dense layers do not change words.
        """
        encoder = encoder.base or encoder
        shards = vector_shards(store, encoder, words=True)
        if shards.pending():
            compute_vectors(store, encoder, vector_shards(store, encoder), shards)
            _remove_known(store, encoder.name + WORDS)
        shards = merge_shards(shards, _word_blocks) if store.writable else shards
        return cls(shards, PassageVectors.open(store, encoder), encoder.device)

    @staticmethod
    def is_complete(store: DocumentStore, encoder: BiEncoder) -> bool:
        """Whether all word vectors are stored."""
        return not vector_shards(store, encoder.base or encoder, words=True).pending()

    def matches(self, numbers: Rows, query: Vectors) -> tuple[Vectors, Rows]:
        """For each of these documents the word that is most similar to each word of a query (Q, W).

        Returns their similarities and their numbers among the document's words, both (N, Q).
        """
        directions = word_directions(torch.from_numpy(self.vectors.at(numbers)).float(), query.shape[1]).numpy()
        along = np.einsum("nw,qw->nq", directions, query)
        similarities, places = np.empty(along.shape, np.float32), np.empty(along.shape, np.int64)
        shard_of, local = np.divmod(numbers, self._size)
        rows_of = {shard: np.flatnonzero(shard_of == shard) for shard in np.unique(shard_of)}
        begins, ends = np.empty_like(local), np.empty_like(local)
        for shard, rows in rows_of.items():
            part = self._parts[shard]
            begins[rows], ends[rows] = part.begins[local[rows]], part.ends[local[rows]]
            part.check(begins[rows], ends[rows])
        if self._device.type != "cpu" and rows_of:
            order, lengths = np.concatenate(list(rows_of.values())), ends - begins
            codes = [self._parts[shard].rows[gather(begins[rows], lengths[rows])] for shard, rows in rows_of.items()]
            whole = np.concatenate(codes), lengths[order], along[order]
            similarities[order], places[order] = compare_codes(*whole, query, self._device)
            return similarities, places
        from rankwell.rank.vector_kernels import best_matches  # imports numba

        integers, factors = word_integers(query)
        panels, count = word_panels(integers), len(query)
        missing = len(panels) * panels.shape[2] - count
        along, factors = np.pad(along, ((0, 0), (0, missing))), np.pad(factors, (0, missing))
        for shard, rows in rows_of.items():
            shape = len(rows), len(factors)
            best, which = np.empty(shape, np.float32), np.empty(shape, np.int64)
            words = self._parts[shard].rows, begins[rows], ends[rows]
            best_matches(*words, along[rows], LEVELS, RESTS, panels, factors, best, which)
            similarities[rows], places[rows] = best[:, :count], which[:, :count]
        return similarities, places


def compute_vectors(store: DocumentStore, encoder: BiEncoder, shards: Shards, words: Shards | None = None) -> None:
    """Compute the shards that are not done, of the documents' vectors or of their ``words``. Those kept are copied.

    With words, the documents' vectors that are missing are stored in the same pass.
    """
    if not store.writable:
        lacks = f"read-only, and without the {'vectors' if words is None else 'word vectors'} of this bi-encoder"
        raise InputError(store.folder, None, f"{lacks}; make them with `rankwell index` where it can be written")
    wants = words is None or (bool(shards.pending()) and shards.size == words.size)
    known, _, kept = known_vectors(store, encoder.name, encoder.width, np.float16)
    word_rows, word_lengths, codes = known_vectors(store, encoder.name + WORDS, CODE_BYTES, np.uint8)
    has_vector, has_words = np.full(len(store), not wants), np.full(len(store), words is None)
    has_vector[known] = has_words[word_rows] = True
    skipped = has_vector & has_words
    usable = skipped[word_rows]
    codes = codes[np.repeat(usable, word_lengths)]
    word_rows, word_lengths = word_rows[usable], word_lengths[usable]
    # Dense layers are applied to stored vectors, which are much more expensive to compute.
    base = None if encoder.base is None or skipped.all() else PassageVectors.open(store, encoder.base)
    reads = base is None and encoder.takes_tokens and not skipped.all()
    tokens = StoredTokens.open(store.documents, encoder.tokenizer) if reads else None

    def encode(numbers: Rows, fresh: list[Codes] | None) -> Vectors:
        if not len(numbers):
            return np.empty((0, encoder.width), np.float32)
        if base is not None:
            return encoder.map_documents(base.at(numbers))
        if tokens is not None:
            return encoder.encode_tokens(tokens, numbers, fresh, encode_words)
        return encoder.encode_documents(store.texts_at(numbers), fresh, encode_words)

    def write_vectors(items: range, numbers: Rows, vectors: Vectors, file: IO[bytes]) -> None:
        half = np.zeros((len(items), encoder.width), np.float16)
        half[numbers - items.start] = vectors.astype(np.float16)
        here = slice(*np.searchsorted(known, [items.start, items.stop]))
        half[known[here] - items.start] = kept[here]
        if (wrong := ~np.isfinite(half).all(axis=1)).any():
            docid = store.docids[items.start + int(wrong.argmax())]
            raise RankwellError(f"the vector of document {docid!r} has numbers that are not finite in 16 bits")
        file.write(half.data)

    def write_words(items: range, numbers: Rows, fresh: list[Codes], file: IO[bytes]) -> None:
        here = slice(*np.searchsorted(word_rows, [items.start, items.stop]))
        begin, end = (int(word_lengths[:row].sum()) for row in (here.start, here.stop))
        owners = np.concatenate([word_rows[here], numbers])
        lengths = np.concatenate([word_lengths[here], np.array([len(words) for words in fresh], np.int64)])
        joined = np.concatenate([codes[begin:end], *fresh])
        order = np.argsort(owners)
        file.write(np.cumsum(lengths[order]).data)
        file.write(joined[gather((np.cumsum(lengths) - lengths)[order], lengths[order])].data)

    def work(items: range, file: IO[bytes]) -> None:
        numbers = items.start + np.flatnonzero(~skipped[items.start : items.stop])
        fresh: list[Codes] | None = None if words is None else []
        vectors = encode(numbers, fresh)
        if fresh is None:
            write_vectors(items, numbers, vectors, file)
            return
        write_words(items, numbers, fresh, file)
        path = shards.path(items.start // shards.size)
        if wants and not path.exists():
            with checked_binary(path) as beside:
                write_vectors(items, numbers, vectors, beside)

    precision = " in int8" if encoder.precision == "int8" else ""
    if words is not None and wants:
        open_shards(shards)
    map_shards(words or shards, work, description=f"computing {'vectors' if wants else 'word vectors'}{precision}")


def vector_shards(store: DocumentStore, encoder: BiEncoder, size: int | None = None, *, words: bool = False) -> Shards:
    """The shards of the encoder's vectors, or of its word vectors.

    Those of the exact ones if they are complete, made on a GPU, say.
    """
    if not encoder.name:
        raise RankwellError("this bi-encoder has no name to store its vectors under")
    exact, others = (_shards_named(name, store, encoder, size, words) for name in (encoder.exact_name, encoder.name))
    return exact if exact.folder.is_dir() and not exact.pending() else others


def _shards_named(name: str, store: DocumentStore, encoder: BiEncoder, size: int | None, words: bool) -> Shards:
    folder = store.folder / f"{VECTORS}{name}"
    # Shards of words have the size of those of the vectors, so that one pass makes both.
    size = size or recorded_size(folder)
    width, suffix = encoder.width, ".f16"
    if words:
        name, folder = name + WORDS, folder.with_name(folder.name + WORDS)
        size, width, suffix = recorded_size(folder) or size, CODE_BYTES, ".cosine-signs"  # the form of the codes
    config = {"model": name, "tokens": encoder.tokenizer.digest, "width": width}
    return stored_shards(Shards(folder, len(store), size or shard_size(encoder), config, suffix=suffix))


def _remove_known(store: DocumentStore, name: str) -> None:
    if store.writable:
        shutil.rmtree(known_folder(store, name), ignore_errors=True)


def stored_shards(shards: Shards) -> Shards:
    """The shards into which these were merged; these themselves if they were not."""
    merged = _merged(shards)
    return merged if merged.folder.is_dir() and not merged.pending() else shards


def _merged(shards: Shards) -> Shards:
    return replace(shards, folder=shards.folder.with_name(shards.folder.name + MERGED), size=MERGED_SHARD)


Blocks = Callable[[Shards, range], Iterable[Array]]
"""The contents of a shard made of these shards, in parts."""


def vector_blocks(shards: Shards, numbers: range, width: int) -> Iterator[Array]:
    """The vectors of these shards."""
    for number in numbers:
        yield shards.map(number, np.float16, (len(shards.items(number)), width)).whole()


def _word_blocks(shards: Shards, numbers: range) -> Iterator[Array]:
    base, parts = 0, [WordShard(shards, number, CODE_BYTES) for number in numbers]
    for part in parts:
        yield part.ends + base
        base += len(part.rows)
    for part in parts:
        yield part.whole()


def merge_shards(shards: Shards, blocks: Blocks) -> Shards:
    """Write many small shards again as few large ones, and remove the small ones."""
    folder = shards.folder
    if folder.name.endswith(MERGED):
        shutil.rmtree(folder.with_name(folder.name.removesuffix(MERGED)), ignore_errors=True)  # left by a kill
        return shards
    if len(shards) <= MANY_SHARDS or MERGED_SHARD % shards.size:
        return shards
    merged = _merged(shards)

    def work(items: range, file: IO[bytes]) -> None:
        for block in blocks(shards, range(items.start // shards.size, -(-items.stop // shards.size))):
            file.write(block.data)

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
