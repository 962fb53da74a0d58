"""A segment: an immutable inverted index over some of the documents, memory-mapped."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Array, gather, pack_strings
from rankwell.core.errors import InputError, wrong_version
from rankwell.core.mapped import ArrayFolder, MappedArray
from rankwell.corpus.filters import Filter
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.store import DocumentStore
from rankwell.retrieve.builder import SEGMENT_VERSION
from rankwell.retrieve.posting_kernels import count_postings
from rankwell.retrieve.scoring_kernels import Workspace, search

CHECKED_POSTINGS = 1 << 16
MERGED_POSTINGS = 1_000_000
SPELLED, RARE_LETTER = 5000, 1000
"""Terms that are read for the letters of a language, and letters of which one is rare."""
KNOWN_NORMS = 4
"""Parameters whose norms are remembered. Not by functools: a segment in a circle of references would stay open."""
FEW_SELECTED = 1 / 64
"""If a filter selects a smaller share of the documents, they are listed for the kernel."""
_FREQUENCY_DTYPES = (np.uint8, np.uint16, np.float32)
_CHUNK_DTYPES: dict[str, type] = {
    "chunk_windows": np.uint16,
    "chunk_offsets": np.uint32,
    "largest_tf": np.float32,
    "largest_ratio": np.float32,
}
Norms = tuple[NDArray[np.float32], np.float32, np.float32]


@dataclass(eq=False)
class Segment:
    """The postings and documents of one segment folder.

    Opening verifies lengths and descriptions. The arrays that every search reads are verified by the first one, the
    postings of a term when it is first searched for. So a damaged file is an error before it can change a ranking, and
    no kernel leaves its arrays.
    """

    folder: Path
    data_hash: str
    window_bits: int
    store: DocumentStore
    terms: Lexicon
    _arrays: ArrayFolder
    _whole_length: float
    _lengths: MappedArray
    _posting_begins: MappedArray
    _chunk_ends: MappedArray
    _tie_documents: MappedArray
    _ties: MappedArray
    _postings: MappedArray
    _frequencies: MappedArray
    _chunks: Sequence[MappedArray]
    chunk_begins: NDArray[np.int64]
    _checked_terms: NDArray[np.bool_]
    """Which terms' postings were verified; the last, term -1, has none."""
    _deleted_counts: NDArray[np.int64]
    """In how many of the deleted documents each term occurs; -1 if that was not counted yet."""
    _known_norms: dict[tuple[float, float, float], Norms] = field(default_factory=dict, init=False)

    @classmethod
    def open(cls, folder: Path) -> Segment:
        """Open a segment. Everything is mapped now, so an index that is replaced while it is open stays readable."""
        try:
            arrays = ArrayFolder(folder)
            info = json.loads(arrays.read_bytes("segment.json"))
            if (version := info["version"]) != SEGMENT_VERSION:
                raise wrong_version(folder, "an index", version, SEGMENT_VERSION, "build it again")
            length, data_hash, bits = float(info["total_length"]), str(info["data_hash"]), int(info["window_bits"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise InputError(folder, None, "not a segment of an index (no readable segment.json)") from None
        terms, ends = Lexicon.open(arrays, "terms"), arrays.map("chunk_ends", np.int64)
        checked = np.zeros(len(terms) + 1, bool)
        checked[-1] = True
        segment = cls(
            folder,
            data_hash,
            bits,
            store=DocumentStore.open(folder / "documents"),
            terms=terms,
            _arrays=arrays,
            _whole_length=length,
            _lengths=arrays.map("lengths", np.float32),
            _posting_begins=arrays.map("posting_begins", np.int64),
            _chunk_ends=ends,
            _tie_documents=arrays.map("tie_documents", np.uint32),
            _ties=arrays.map("ties", np.uint32),
            _postings=arrays.map("postings", np.uint16),
            _frequencies=arrays.map("frequencies"),
            _chunks=[arrays.map(name, dtype) for name, dtype in _CHUNK_DTYPES.items()],
            chunk_begins=np.concatenate([np.zeros(1, np.int64), ends.values]),
            _checked_terms=checked,
            _deleted_counts=np.empty(0, np.int64),
        )
        segment._check_lengths()
        return segment

    @property
    def posting_begins(self) -> NDArray[np.int64]:
        """Where the postings of each term begin, and at last where they end."""
        begins: NDArray[np.int64] = self._posting_begins.values
        return begins

    def without(self, deleted: NDArray[np.bool_] | None) -> Segment:
        """The same segment, sharing its files, with these documents marked as deleted."""
        counts = self._deleted_counts
        if deleted is not None:
            counts = np.full(len(self.terms) + 1, -1, np.int64)
            counts[-1] = 0
        return replace(self, store=self.store.view(deleted, None), _deleted_counts=counts)

    @cached_property
    def total_length(self) -> float:
        """The sum of the lengths of the documents that are not deleted, counted when it is first needed."""
        return self._whole_length if self.store.deleted is None else float(self.live_lengths().sum(dtype=np.float64))

    def filtered(self, filter: Filter | None) -> Segment:
        """The same segment; only documents that the filter selects are found, by the statistics of all."""
        return replace(self, store=self.store.view(self.store.deleted, filter))

    def masked(self, mask: NDArray[np.bool_]) -> Segment:
        """The same segment; only documents of the mask are found, by the statistics of all."""
        return replace(self, store=self.store.view(self.store.deleted, self.store.filter, mask))

    def _check_lengths(self) -> None:
        """Raise unless the arrays have types and lengths that go together."""
        if self._frequencies.values.dtype not in _FREQUENCY_DTYPES:
            raise InputError(self._frequencies.path, None, f"unexpected type {self._frequencies.values.dtype}")
        terms, documents = len(self.terms) + 1, len(self)
        same: list[tuple[int, list[Sized]]] = [
            (terms, [self.posting_begins, self.chunk_begins]),
            (documents, [self.store, self._ties.values, self._tie_documents.values]),
            (int(self.posting_begins[-1]), [self._postings.values, self._frequencies.values]),
            (int(self.chunk_begins[-1]), [chunks.values for chunks in self._chunks]),
        ]
        numbers = math.isfinite(self._whole_length) and self._whole_length >= 0 and 0 < self.window_bits <= 16
        if not (numbers and documents and all(len(array) == size for size, arrays in same for array in arrays)):
            raise InputError(self.folder, None, "damaged: the files of this segment do not belong together")

    def __len__(self) -> int:
        return len(self._lengths.values)

    @property
    def live(self) -> int:
        """The number of documents that are not deleted."""
        return self.store.live

    def find_terms(self, text: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int32]:
        """The number of each packed term, -1 if no document has it. Raises if its postings are damaged."""
        numbers = self.terms.find_packed(text, ends)
        if not self._checked_terms[numbers].all():
            self._check_terms(np.unique(numbers[~self._checked_terms[numbers]]).astype(np.int64))
        return numbers

    def _check_terms(self, terms: NDArray[np.int64]) -> None:
        """Verify the postings of some terms."""
        self._posting_begins.check(terms, terms + 2)
        self._chunk_ends.check(np.maximum(terms - 1, 0), terms + 1)
        for begins, files in (
            (self.posting_begins, [self._postings, self._frequencies]),
            (self.chunk_begins, self._chunks),
        ):
            first, last = begins[terms], begins[terms + 1]
            if first.min() < 0 or (first > last).any() or last.max() > len(files[0].values):
                raise InputError(self.folder, None, "damaged: postings lie outside their file")
            for file in files:
                file.check(first, last)
        # Some terms at a time, which bounds the memory; a frequent term alone is not even copied.
        parts = np.cumsum(self.posting_begins[terms + 1] - self.posting_begins[terms]) // CHECKED_POSTINGS
        for some in np.split(terms, np.flatnonzero(np.diff(parts)) + 1):
            if not self._are_in_order(some):
                raise InputError(self.folder, None, "damaged: the postings of a term are not in order")
        self._checked_terms[terms] = True

    def _are_in_order(self, terms: NDArray[np.int64]) -> bool:
        """Whether the postings of these terms can be scored without leaving an array.

        Their chunks must follow each other, lie in ascending windows and hold ascending documents of the segment.
        """
        begins, ends = self.posting_begins[terms], self.posting_begins[terms + 1]
        first, last = self.chunk_begins[terms], self.chunk_begins[terms + 1]
        if not ((first < last) == (begins < ends)).all():
            return False
        if not len(windows := _rows(self._chunks[0].values, first, last).astype(np.int64)):
            return True
        opens = np.zeros(len(windows) + 1, bool)  # where a term's first chunk is, and the end
        opens[np.cumsum(last - first) - (last - first)] = opens[-1] = True
        offsets = _rows(self._chunks[1].values, first, last).astype(np.int64)
        # Where chunks begin among the postings of these terms.
        starts = np.append(offsets + np.repeat(np.cumsum(ends - begins) - (ends - begins), last - first), 0)
        starts[-1] = (ends - begins).sum()
        if offsets[opens[:-1]].any() or not (np.diff(starts) > 0).all():
            return False
        documents = _rows(self._postings.values, begins, ends)
        ascends = documents[1:] > documents[:-1]
        ascends[starts[1:-1] - 1] = True
        frequencies = _rows(self._frequencies.values, begins, ends)
        limits = np.minimum(1 << self.window_bits, len(self) - (windows << self.window_bits))
        return bool(
            ascends.all()
            and (documents[starts[1:] - 1] < limits).all()
            and ((np.diff(windows) > 0) | opens[1:-1]).all()
            and frequencies.min() > 0
            and frequencies.max() < np.inf
        )

    def check(self) -> None:
        """Read the whole segment. Raises if a file is damaged."""
        if len(self.terms):
            self._check_terms(np.arange(len(self.terms)))
        self.norms(0.9, 0.4, 1.0)
        if self._tie_documents.whole().max() >= len(self):
            raise InputError(self._tie_documents.path, None, "damaged: a number above that of the documents")
        self.terms.check()
        self.store.check()

    def document_frequencies(self, terms: NDArray[np.int32]) -> NDArray[np.int64]:
        """The number of documents each term occurs in, deleted ones not counted; 0 for term -1."""
        begins = self.posting_begins
        counts: NDArray[np.int64] = np.maximum(begins[terms + 1] - begins[terms], 0)
        if self.store.deleted is not None:
            counts -= self._count_deleted(self.store.deleted, terms)
        return counts

    def _count_deleted(self, deleted: NDArray[np.bool_], terms: NDArray[np.int32]) -> NDArray[np.int64]:
        """The number of deleted documents each term occurs in, counted when a term is first searched for."""
        counts = self._deleted_counts[terms]
        if counts.min(initial=0) < 0:
            new = np.unique(terms[counts < 0]).astype(np.int64)
            if not self._checked_terms[new].all():
                self._check_terms(new[~self._checked_terms[new]])
            windows = np.zeros(((len(self) - 1) >> self.window_bits) + 1, bool)
            windows[np.flatnonzero(deleted) >> self.window_bits] = True
            counts = np.empty(len(new), np.int64)
            chunks = self._chunks[0].values, self._chunks[1].values
            begins = self.posting_begins, self.chunk_begins
            count_postings(new, *begins, self._postings.values, *chunks, self.window_bits, deleted, windows, counts)
            self._deleted_counts[new] = counts
            counts = self._deleted_counts[terms]
        return counts

    def score(
        self,
        queries: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32], NDArray[np.uint64]],
        norms: Norms,
        workspace: Workspace,
        keys: NDArray[np.uint64],
        *,
        prune: bool = True,
    ) -> None:
        """Fill ``keys`` (queries, k), initially zero, with those of each query's best documents, in any order.

        The queries are where each ends, their terms, the terms' weights, and a key that documents must exceed.
        """
        self._arrays.check_sizes()
        begins = self.posting_begins, self.chunk_begins
        postings = self._postings.values, self._frequencies.values, *(chunks.values for chunks in self._chunks)
        limits = *norms, self._ties.values, *self._selected
        search(*queries, *begins, *postings, *limits, self.window_bits, keys.shape[1], prune, *workspace, keys)

    def read_keys(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Documents and scores in THE order, as wide as the longest row; the rest of a row is -1 and 0."""
        keys = np.sort(keys, axis=1)[:, ::-1]
        keys = keys[:, : np.count_nonzero(keys.any(axis=0))]
        scores = (keys >> np.uint64(32)).astype(np.uint32).view(np.float32)
        ties = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
        self._tie_documents.check(ties.ravel(), ties.ravel() + 1)
        documents = self._tie_documents.values[ties].astype(np.int64)
        if documents.max(initial=0) >= len(self):
            raise InputError(self._tie_documents.path, None, "damaged: a number above that of the documents")
        return np.where(keys > 0, documents, -1), scores

    @cached_property
    def letters(self) -> str:
        """The letters of its terms, without those that are rare."""
        counts = Counter("".join(self.terms.strings(range(min(len(self.terms), SPELLED)))))
        return "".join(letter for letter, n in counts.items() if letter.isalpha() and n * RARE_LETTER > counts.total())

    @cached_property
    def heads(self) -> frozenset[bytes]:
        """The first bytes of its terms: one, two and three."""
        return self.terms.heads(3)

    def live_lengths(self) -> NDArray[np.float32]:
        """The lengths of the documents that are not deleted."""
        lengths = self._lengths.whole()
        return lengths if self.store.deleted is None else lengths[~self.store.deleted]

    def live_postings(self) -> Iterator[tuple[list[str], NDArray[np.int64], NDArray[np.int64], Array]]:
        """All postings but those of deleted documents, some terms at a time.

        Each item has the terms, the number of postings of each, their documents, counted without deleted ones, and the
        term frequencies.
        """
        kept = np.ones(len(self), bool) if self.store.deleted is None else ~self.store.deleted
        places = np.cumsum(kept) - 1
        first = 0
        while first < len(self.terms):
            limit = self.posting_begins[first] + MERGED_POSTINGS
            last = max(first + 1, int(np.searchsorted(self.posting_begins, limit, side="right")) - 1)
            some = np.arange(first, last)
            if len(new := some[~self._checked_terms[some]]):
                self._check_terms(new)
            documents = self._documents(first, last)
            begin, end = self.posting_begins[first], self.posting_begins[last]
            wanted = kept[documents]
            owners = np.repeat(some - first, np.diff(self.posting_begins[first : last + 1]))[wanted]
            counts = np.bincount(owners, minlength=len(some))
            terms = self.terms.strings(some[counts > 0])
            yield terms, counts[counts > 0], places[documents[wanted]], self._frequencies.values[begin:end][wanted]
            first = last

    def documents_with(self, terms: list[str]) -> NDArray[np.bool_]:
        """Which documents have at least one of these terms, deleted ones too."""
        mask = np.zeros(len(self), bool)
        for term in self.find_terms(*pack_strings(terms)).tolist():
            if term >= 0:
                mask[self._documents(term, term + 1)] = True
        return mask

    def first_with(self, term: str, most: int) -> NDArray[np.int64]:
        """Some of the first documents with a term, deleted ones too."""
        number = int(self.find_terms(*pack_strings([term]))[0])
        begin, end = self.posting_begins[number : number + 2].tolist() if number >= 0 else (0, 0)
        if begin == end:
            return np.empty(0, np.int64)
        chunk, last = self.chunk_begins[number : number + 2].tolist()
        if chunk + 1 < last:
            end = begin + int(self._chunks[1].values[chunk + 1])
        low = self._postings.values[begin : min(begin + most, end)].astype(np.int64)
        return low | int(self._chunks[0].values[chunk]) << self.window_bits

    def _documents(self, first: int, last: int) -> NDArray[np.int64]:
        """The documents of all postings of terms ``first … last - 1``, which must be verified."""
        begin, end = self.posting_begins[first], self.posting_begins[last]
        chunks = slice(self.chunk_begins[first], self.chunk_begins[last])
        windows, offsets = (self._chunks[part].values[chunks].astype(np.int64) for part in range(2))
        starts = offsets + np.repeat(self.posting_begins[first:last], np.diff(self.chunk_begins[first : last + 1]))
        documents = np.repeat(windows << self.window_bits, np.diff(starts, append=end))
        documents |= self._postings.values[begin:end]
        return documents

    @cached_property
    def _selected(self) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
        """The documents that may be found, as the kernel takes them, if they are few; else empty arrays."""
        allowed = self.store.allowed
        if allowed is None or np.count_nonzero(allowed) >= FEW_SELECTED * len(self):
            return np.empty(0, np.uint16), np.empty(0, np.int64)
        numbers = np.flatnonzero(allowed)
        windows = np.arange(((len(self) - 1) >> self.window_bits) + 1)
        ends = np.searchsorted(numbers >> self.window_bits, windows, side="right")
        return (numbers & ((1 << self.window_bits) - 1)).astype(np.uint16), ends.astype(np.int64)

    def norms(self, k1: float, b: float, mean_length: float) -> Norms:
        """BM25's length normalisation: ``flat + by_length * length(d)`` of each document, and its two parameters.

        It is infinite for documents that may not be found.
        """
        if (known := self._known_norms.get((k1, b, mean_length))) is not None:
            return known
        # Computed before the first search: what else all searches read is verified with it.
        lengths, count = self._lengths.whole(), len(self)
        if not (np.isfinite(lengths).all() and lengths.min() >= 0):
            raise InputError(self._lengths.path, None, "damaged: a length is not a number of at least 0")
        if self._ties.whole().max() >= count:
            raise InputError(self._ties.path, None, "damaged: a number above that of the documents")
        flat, by_length = np.float32(k1 * (1 - b)), np.float32(k1 * b / mean_length if mean_length else 0.0)
        norms = flat + by_length * lengths
        if self.store.allowed is not None:
            norms[~self.store.allowed] = np.inf
        if len(self._known_norms) == KNOWN_NORMS:
            self._known_norms.clear()
        self._known_norms[k1, b, mean_length] = norms, flat, by_length
        return norms, flat, by_length


def _rows(values: Array, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Array:
    """The values of several spans, end to end; a view if the spans follow each other."""
    if (begins[1:] == ends[:-1]).all():
        return values[begins[0] : ends[-1]]
    return values[gather(begins, ends - begins)]
