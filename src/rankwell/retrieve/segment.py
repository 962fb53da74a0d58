"""A segment: an immutable inverted index over some of the documents, memory-mapped."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Array, map_array
from rankwell.core.errors import InputError
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.store import DocumentStore
from rankwell.retrieve.builder import SEGMENT_VERSION
from rankwell.retrieve.scoring_kernels import search

_FREQUENCY_DTYPES = (np.uint8, np.uint16, np.float32)


class Segment:
    """The postings and documents of one segment folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            info = json.loads((folder / "segment.json").read_text(encoding="utf-8"))
            if (version := info["version"]) != SEGMENT_VERSION:
                problem = f"an index of version {version}; this rankwell reads {SEGMENT_VERSION}: build it again"
                raise InputError(folder, None, problem)
            self.total_length = float(info["total_length"])
            self.data_hash = str(info["data_hash"])
            self.window_bits = int(info["window_bits"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise InputError(folder, None, "not a segment of an index (no readable segment.json)") from None
        self.terms = Lexicon.open(folder, "terms")
        self.lengths = self._map("lengths", np.float32)
        self.posting_begins = self._map("posting_begins", np.int64)
        self.chunk_begins = np.concatenate([[0], self._map("chunk_ends", np.int64)])
        # Everything is mapped now, so an index that is replaced while it is open stays readable.
        self.store = DocumentStore.open(folder / "documents")
        self.tie_documents = self._map("tie_documents", np.uint32)
        self._ties = self._map("ties", np.uint32)
        self._postings = self._map_postings()
        self._norms = lru_cache(maxsize=4)(self._compute_norms)
        if len(self.posting_begins) != len(self.terms) + 1 or len(self.chunk_begins) != len(self.terms) + 1:
            raise InputError(folder, None, "the files of this segment do not belong together")

    def __len__(self) -> int:
        return len(self.lengths)

    def document_frequencies(self, terms: NDArray[np.int32]) -> NDArray[np.int64]:
        """The number of documents each term occurs in; 0 for term -1."""
        known = np.maximum(terms, 0)
        counts = (
            self.posting_begins[known + 1] - self.posting_begins[known] if len(self.terms) else np.zeros(len(terms))
        )
        return np.where(terms >= 0, counts, 0).astype(np.int64)

    def search(
        self,
        query_ends: NDArray[np.int64],
        terms: NDArray[np.int32],
        weights: NDArray[np.float32],
        *,
        k: int,
        k1: float,
        b: float,
        mean_length: float,
        prune: bool = True,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Documents and scores ``(queries, k)`` in THE order; the rest of a row is -1 and 0."""
        norms, flat_norm, length_norm = self._norms(k1, b, mean_length)
        postings, frequencies, windows, offsets, largest_tf, largest_ratio = self._postings
        keys = np.zeros((len(query_ends), k), np.uint64)
        search(
            query_ends,
            terms,
            weights,
            self.posting_begins,
            self.chunk_begins,
            postings,
            frequencies,
            windows,
            offsets,
            largest_tf,
            largest_ratio,
            norms,
            flat_norm,
            length_norm,
            self._ties,
            self.window_bits,
            k,
            prune,
            keys,
        )
        keys = np.sort(keys, axis=1)[:, ::-1]
        scores = (keys >> np.uint64(32)).astype(np.uint32).view(np.float32)
        documents = self.tie_documents[(keys & np.uint64(0xFFFFFFFF)).astype(np.int64)].astype(np.int64)
        return np.where(keys > 0, documents, -1), scores

    def _map_postings(self) -> tuple[Array, ...]:
        frequencies = self._map("frequencies", None)
        if frequencies.dtype not in _FREQUENCY_DTYPES:
            raise InputError(self.folder / "frequencies.npy", None, f"unexpected type {frequencies.dtype}")
        return (
            self._map("postings", np.uint16),
            frequencies,
            self._map("chunk_windows", np.uint16),
            self._map("chunk_offsets", np.uint32),
            self._map("largest_tf", np.float32),
            self._map("largest_ratio", np.float32),
        )

    def _compute_norms(
        self, k1: float, b: float, mean_length: float
    ) -> tuple[NDArray[np.float32], np.float32, np.float32]:
        """BM25's length normalisation: ``flat + by_length * length(d)`` of each document, and its two parameters."""
        flat, by_length = np.float32(k1 * (1 - b)), np.float32(k1 * b / mean_length if mean_length else 0.0)
        return flat + by_length * self.lengths, flat, by_length

    def _map(self, name: str, dtype: type | None) -> Array:
        return map_array(self.folder / f"{name}.npy", dtype)
