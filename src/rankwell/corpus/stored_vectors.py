"""Vectors that are kept when documents move to another store, so that only changed texts are encoded again.

A bi-encoder's vectors are stored beside the texts they were computed from, in shards (:mod:`rankwell.core.shards`),
under ``vectors-NAME``. If some documents of a new store have the id and the text of documents with vectors,
``vectors-NAME-known`` holds theirs until the vectors of the whole store are computed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows, save_array
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_folder
from rankwell.core.mapped import ArrayFolder, MappedArray
from rankwell.core.shards import MANIFEST, Shards, read_plan
from rankwell.corpus.store import DocumentStore, NumberedDocuments

VECTORS, MERGED, KNOWN = "vectors-", "-merged", "-known"
_AT_A_TIME = 4096
Half = NDArray[np.float16]


def keep_vectors(before: NumberedDocuments, store: DocumentStore) -> None:
    """Copy the vectors of those documents of a new store that were stored before with the same id and text."""
    sources = [_complete_vectors(other) for other in before.stores]
    names = sorted({name for known in sources for name in known})
    if not names or not store.has_texts or not all(other.has_texts for other in before.stores):
        return
    same: list[tuple[Rows, Rows]] = []
    for begin in range(0, len(store), _AT_A_TIME):
        rows = np.arange(begin, min(begin + _AT_A_TIME, len(store)))
        old = before.find(store.docids.strings(rows))
        rows, old = rows[old >= 0], old[old >= 0]
        pairs = zip(store.texts_at(rows), before.texts(old), strict=True)
        equal = np.fromiter((new == text for new, text in pairs), bool, len(rows))
        same.append((rows[equal], old[equal]))
    new, old = (np.concatenate(parts) for parts in zip(*same, strict=True))
    owners = np.searchsorted(before.bases, old, side="right") - 1
    for name in names:
        usable = np.array([name in known for known in sources])[owners]
        if not usable.any():
            continue
        vectors = None
        for owner in np.unique(owners[usable]).tolist():
            here = owners[usable] == owner
            shards, width = sources[owner][name]
            part = _read(shards, width, old[usable][here] - before.bases[owner])
            vectors = np.empty((len(here), part.shape[1]), np.float16) if vectors is None else vectors
            vectors[here] = part
        assert vectors is not None
        with atomic_folder(store.folder / f"{VECTORS}{name}{KNOWN}") as temporary:
            save_array(temporary / "rows.npy", new[usable])
            save_array(temporary / "vectors.npy", vectors.ravel())


def known_vectors(store: DocumentStore, name: str, width: int) -> tuple[Rows, Half]:
    """The documents whose vectors were kept, in ascending order, and these vectors."""
    folder = known_folder(store, name)
    if not folder.is_dir():
        return np.empty(0, np.int64), np.empty((0, width), np.float16)
    arrays = ArrayFolder(folder)
    rows, vectors = arrays.map("rows", np.int64).whole(), arrays.map("vectors", np.float16).whole()
    if len(vectors) != len(rows) * width:
        raise InputError(folder, None, f"damaged: not vectors of {width} numbers")
    return rows, vectors.reshape(-1, width)


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


def _read(shards: Shards, width: int, rows: Rows) -> Half:
    vectors = np.empty((len(rows), width), np.float16)
    owners = rows // shards.size
    for number in np.unique(owners).tolist():
        here = owners == number
        part: MappedArray = shards.map(number, np.float16, (len(shards.items(number)), width))
        local = rows[here] - number * shards.size
        part.check(local, local + 1)
        vectors[here] = part.values[local]
    return vectors
