"""Vectors that are kept when documents move to another store, so that only changed texts are encoded again.

A bi-encoder's vectors are stored beside the texts they were computed from, in shards (:mod:`rankwell.core.shards`),
under ``vectors-NAME``, those of words under ``vectors-NAME-words``. If some documents of a new store have the texts of
documents with vectors, ``vectors-NAME-known`` holds theirs until those of the whole store are computed.

A shard of vectors has a row for each document. A shard of words has a row for each word: it begins with the number of
the row at which each document ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rankwell.core.arrays import Array, Rows, gather, save_array
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_folder
from rankwell.core.mapped import ArrayFolder, MappedArray
from rankwell.core.shards import MANIFEST, Shards, read_plan
from rankwell.corpus.store import DocumentStore, NumberedDocuments

VECTORS, WORDS, MERGED, KNOWN = "vectors-", "-words", "-merged", "-known"
_AT_A_TIME = 4096
Half = NDArray[np.float16]


class WordShard:
    """The rows (T, ``width``) of some documents' words in a shard, memory-mapped and verified when they are read."""

    def __init__(self, shards: Shards, number: int, width: int):
        path, documents = shards.path(number), len(shards.items(number))
        begin = 8 * documents
        self._file = shards.map(number, np.uint8, (path.stat().st_size,))
        self._file.check(np.zeros(1, np.int64), np.full(1, min(begin, len(self._file.values))))
        self._begin, self.path = begin, path
        rows, rest = divmod(len(self._file.values) - begin, width)
        whole = rows >= 0 and not rest
        self.ends: Rows = self._file.values[: begin if whole else 0].view(np.int64)
        self.begins: Rows = np.concatenate([np.zeros(1, np.int64), self.ends])[:-1]
        # The ends are addresses in the kernels. Every document has a word.
        if not whole or not (self.begins < self.ends).all() or (documents and self.ends[-1] != rows):
            raise InputError(path, None, "damaged: not the word vectors of the shard's documents")
        self.rows: NDArray[np.uint8] = self._file.values[begin:].reshape(rows, width)

    def check(self, begins: Rows, ends: Rows) -> None:
        """Verify these rows."""
        width = self.rows.shape[1]
        self._file.check(self._begin + begins * width, self._begin + ends * width)

    def whole(self) -> NDArray[np.uint8]:
        """All rows, verified."""
        self._file.whole()
        return self.rows


def keep_vectors(before: NumberedDocuments, store: DocumentStore, *, renamed: bool = False) -> None:
    """Copy the vectors of those documents of a new store that were stored before with the same id and text.

    With ``renamed``, the text alone counts, which reads all texts that were stored before.
    """
    sources = {other: _complete_vectors(other) for other in before.stores}
    names = sorted({name for known in sources.values() for name in known})
    if not names or not store.has_texts or not all(other.has_texts for other in before.stores):
        return
    numbers: dict[int, int] = {}  # of hashes of texts; whether texts are equal is seen below
    live = before.live_numbers() if renamed else np.empty(0, np.int64)
    for begin in range(0, len(live), _AT_A_TIME):
        some = live[begin : begin + _AT_A_TIME]
        numbers |= zip(map(hash, before.texts(some)), some.tolist(), strict=True)
    same: list[tuple[Rows, Rows]] = []
    for begin in range(0, len(store), _AT_A_TIME):
        rows = np.arange(begin, min(begin + _AT_A_TIME, len(store)))
        if renamed:
            old = np.array([numbers.get(hash(text), -1) for text in store.texts_at(rows)], np.int64)
        else:
            old = before.find(store.docids.strings(rows))
        rows, old = rows[old >= 0], old[old >= 0]
        pairs = zip(store.texts_at(rows), before.texts(old), strict=True)
        equal = np.fromiter((new == text for new, text in pairs), bool, len(rows))
        same.append((rows[equal], old[equal]))
    new, old = (np.concatenate(parts) for parts in zip(*same, strict=True))
    for name in names:
        parts = [
            (rows[places], *part)
            for other, rows, local in before.split(old)
            if name in sources[other]
            for places, *part in _read(*sources[other][name], local)
        ]
        if not parts:
            continue
        order, vectors, lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        turns = np.argsort(order)
        begins = np.cumsum(lengths) - lengths
        with atomic_folder(known_folder(store, name)) as temporary:
            save_array(temporary / "rows.npy", new[order[turns]])
            save_array(temporary / "lengths.npy", lengths[turns])
            save_array(temporary / "vectors.npy", vectors[gather(begins[turns], lengths[turns])].ravel())


def known_vectors(store: DocumentStore, name: str, width: int, dtype: DTypeLike) -> tuple[Rows, Rows, Array]:
    """The documents whose vectors were kept, in ascending order, how many vectors each has, and all these vectors."""
    folder = known_folder(store, name)
    if not folder.is_dir():
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, width), dtype)
    arrays = ArrayFolder(folder)
    rows, lengths = (arrays.map(part, np.int64).whole() for part in ("rows", "lengths"))
    vectors = arrays.map("vectors", dtype).whole()
    if len(rows) != len(lengths) or len(vectors) != lengths.sum() * width:
        raise InputError(folder, None, f"damaged: not vectors of {width} numbers")
    return rows, lengths, vectors.reshape(-1, width)


def known_folder(store: DocumentStore, name: str) -> Path:
    """The folder of the vectors that were kept."""
    return store.folder / f"{VECTORS}{name}{KNOWN}"


def _complete_vectors(store: DocumentStore) -> dict[str, tuple[Shards, int]]:
    """The complete vectors of a store by the name of their model, and their widths."""
    found = {}
    for folder in () if store.in_memory else store.folder.glob(f"{VECTORS}*"):
        try:
            plan = read_plan(folder / MANIFEST)
            count, size, suffix, width = (plan.pop(key) for key in ("items", "shard size", "suffix", "width"))
            shards = Shards(folder, int(count), int(size), plan, str(suffix))
            if shards.count == len(store) and not shards.pending():
                found[folder.name.removeprefix(VECTORS).removesuffix(MERGED)] = shards, int(width)
        except (OSError, KeyError, ValueError, TypeError, RankwellError):
            continue  # vectors that cannot be read are computed again
    return found


def _read(shards: Shards, width: int, rows: Rows) -> Iterator[tuple[Rows, Array, Rows]]:
    """Shard by shard: which of some documents it has, their vectors, and how many each has."""
    owners = rows // shards.size
    for number in np.unique(owners).tolist():
        places = np.flatnonzero(owners == number)
        local = rows[places] - number * shards.size
        if WORDS in shards.folder.name:
            words = WordShard(shards, number, width)
            begins, ends = words.begins[local], words.ends[local]
            words.check(begins, ends)
            yield places, words.rows[gather(begins, ends - begins)], ends - begins
        else:
            part: MappedArray = shards.map(number, np.float16, (len(shards.items(number)), width))
            part.check(local, local + 1)
            yield places, part.values[local], np.ones(len(local), np.int64)
