"""Building a segment: texts → postings in memory → sorted runs on disk → one merged, immutable segment.

Memory is bounded by the run size and the vocabulary, whatever the size of the collection: each time the postings in
memory reach ``run_postings`` they are sorted by term and written as a run; at the end the runs, which cover ascending
document numbers, are joined term by term, reading and writing from front to back.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rankwell.core.arrays import HEADER_BYTES, Array, ArrayWriter, Rows, pack_strings, save_array
from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats.texts import Expansion, blame_line
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.metadata import MOST_FIELDS
from rankwell.corpus.records import Document, TermWeights
from rankwell.corpus.store import DocumentBatch, NumberedDocuments, StoreWriter, document_batches
from rankwell.retrieve.description import analyzer_json
from rankwell.retrieve.posting_kernels import collect_postings, cut_into_chunks, place_postings, sort_postings

SEGMENT_VERSION = 1
RUN_POSTINGS = 2_000_000
MERGE_POSTINGS = 1_000_000
LARGEST_WEIGHT, SMALLEST_WEIGHT = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
_RUN_DTYPES: dict[str, DTypeLike] = {"terms": "<u4", "counts": "<u4", "documents": "<u4", "frequencies": "<f4"}


class Vocabulary:
    """Maps the words of texts to terms. Each distinct word is folded, stemmed and looked up once."""

    def __init__(self, analyzer: Analyzer):
        self.analyzer = analyzer
        self.terms = Lexicon()
        self._words = Lexicon(fold_case=True)
        self.term_of_word = np.empty(0, np.int32)

    def words_of(self, text: NDArray[np.uint8], spans: NDArray[np.int64]) -> NDArray[np.int32]:
        """The word numbers of packed texts, given where words are; new ones get their terms."""
        numbers = self._words.intern(text, spans)
        self._stem_new_words()
        return numbers

    def terms_of(self, words: Sequence[str]) -> NDArray[np.int32]:
        """The term number of each word, -1 for stop words."""
        numbers = self._words.add([word.lower() for word in words])
        self._stem_new_words()
        return self.term_of_word[numbers]

    def _stem_new_words(self) -> None:
        known = len(self.term_of_word)
        if known == len(self._words):
            return
        stems = self.analyzer.stems(self._words.strings(range(known, len(self._words))))
        numbers = np.full(len(stems), -1, np.int32)
        indexed = [i for i, stem in enumerate(stems) if stem]
        numbers[indexed] = self.terms.add([stem for stem in stems if stem])
        self.term_of_word = np.concatenate([self.term_of_word, numbers])


class SegmentBuilder:
    """Fill ``folder`` with a segment: :meth:`add_texts` or :meth:`add_weighted` many times, then :meth:`finish`."""

    def __init__(
        self,
        folder: Path,
        analyzer: Analyzer,
        *,
        store: bool = True,
        most_fields: int = MOST_FIELDS,
        run_postings: int = RUN_POSTINGS,
    ):
        self.folder = folder
        self.run_postings = run_postings
        self.postings = 0
        self._store = StoreWriter(folder / "documents", texts=store, most_fields=most_fields)
        self._analyzer = analyzer
        self._vocabulary = Vocabulary(analyzer)
        self._lengths: list[NDArray[np.float32]] = []
        self._digest = hashlib.blake2b(json.dumps(analyzer_json(analyzer)).encode(), digest_size=12)
        self._runs: list[Path] = []
        self._integral, self._largest = True, 0.0
        self._count = 0
        self._terms = np.empty(run_postings, np.uint32)
        self._documents = np.empty(run_postings, np.uint32)
        self._frequencies = np.empty(run_postings, np.float32)
        self._latest = np.empty(0, np.int64)

    @property
    def documents(self) -> int:
        """The number of documents added so far."""
        return len(self._store.docids)

    def data_hash(self) -> str:
        """A hash of the analyser and of all ids, texts, weights and expansions, in order."""
        return self._digest.hexdigest()

    def add_texts(self, batch: DocumentBatch, added: list[str] | None = None) -> None:
        """Add documents, counting term frequencies. Text ``added`` to a document is counted but not stored."""
        first, texts, titles = self.documents, batch.texts, batch.titles
        text, ends = self._add_documents(batch)
        if added is not None:
            text, ends = pack_strings([f"{text} {more}" for text, more in zip(texts, added, strict=True)])
            self._digest.update(text.data)
            self._digest.update(ends.data)
        spans, counts, uncounted = self._analyzer.coded_spans(text, ends)
        words, word_weights = self._vocabulary.words_of(text, spans), np.empty(0, np.float32)
        if self._analyzer.title_weight != 1 and titles:
            heads = [content[:title] for content, title in zip(texts, titles, strict=True)]
            title_ends = np.concatenate([[0], ends[:-1]]) + np.diff(pack_strings(heads)[1], prepend=0)
            in_title = spans[:, 0] < np.repeat(title_ends, np.diff(counts, prepend=0))
            word_weights = np.where(in_title, self._analyzer.title_weight, 1).astype(np.float32)
            self._integral = self._integral and self._analyzer.title_weight.is_integer()
            self._digest.update(word_weights.data)
        self._make_room(len(words))
        lengths, before = np.empty(len(texts), np.float32), self._count
        weighted = words, uncounted, counts, self._vocabulary.term_of_word, word_weights
        postings = self._terms, self._documents, self._frequencies
        self._count = collect_postings(*weighted, first, self._latest, *postings, self._count, lengths)
        self._lengths.append(lengths)
        self._largest = max(self._largest, float(self._frequencies[before : self._count].max(initial=0)))

    def add_weighted(self, batch: DocumentBatch, weights: Sequence[Mapping[str, float]]) -> None:
        """Add documents with given term frequencies, by word, which may be any positive numbers.

        Words with the same stem get the largest weight; weights of 0 or less are dropped.
        """
        first, known, docids = self.documents, len(self._vocabulary.terms), batch.docids
        self._add_documents(batch)
        rows = np.repeat(np.arange(len(docids)), [len(by_word) for by_word in weights])
        terms = self._vocabulary.terms_of([word for by_word in weights for word in by_word]).astype(np.int64)
        values = np.fromiter(chain.from_iterable(by_word.values() for by_word in weights), np.float64, len(rows))
        if (wrong := ~(np.abs(values) <= LARGEST_WEIGHT)).any():
            docid = docids[int(rows[wrong.argmax()])]
            raise RankwellError(f"document {docid!r} has a term weight that is not a finite number")
        indexed = (terms >= 0) & (values > SMALLEST_WEIGHT)
        keys, group = np.unique((rows[indexed] << 32) | terms[indexed], return_inverse=True)
        largest = np.zeros(len(keys))
        np.maximum.at(largest, group, values[indexed])
        lengths = np.bincount(keys >> 32, largest, len(docids))
        if (wrong := lengths > LARGEST_WEIGHT).any():
            raise RankwellError(f"the term weights of document {docids[int(wrong.argmax())]!r} have no finite sum")
        self._lengths.append(lengths.astype(np.float32))
        self._add(keys & 0xFFFFFFFF, first + (keys >> 32), largest)
        # Postings are hashed with term numbers, and each term itself once, when it is new.
        new_terms, ends = pack_strings(self._vocabulary.terms.strings(range(known, len(self._vocabulary.terms))))
        self._digest.update(ends.data)
        self._digest.update(new_terms.data)

    def add_indexed(self, batch: DocumentBatch, lengths: NDArray[np.float32]) -> None:
        """Add documents of another segment, whose postings follow with :meth:`add_postings`."""
        self._add_documents(batch)
        self._lengths.append(lengths)

    def add_postings(
        self, terms: list[str], counts: NDArray[np.int64], documents: NDArray[np.int64], frequencies: Array
    ) -> None:
        """Add postings of documents that were added before: ``counts[i]`` of term i, and so on.

        A term's documents ascend from call to call.
        """
        self._add(np.repeat(self._vocabulary.terms.add(terms), counts), documents, frequencies)

    def _add(self, terms: NDArray[np.integer], documents: NDArray[np.int64], frequencies: Array) -> None:
        self._make_room(len(documents))
        here = slice(self._count, self._count + len(documents))
        self._integral = self._integral and bool((frequencies == np.rint(frequencies)).all())
        self._largest = max(self._largest, float(frequencies.max(initial=0)))
        self._count += len(documents)
        columns = self._terms, self._documents, self._frequencies
        for column, values in zip(columns, (terms, documents, frequencies), strict=True):
            column[here] = values
            self._digest.update(column[here].data)

    def finish(self) -> None:
        """Merge the runs, write the segment and free the builder's memory."""
        if self.documents == 0:
            raise RankwellError("the collection has no documents")
        self._write_run()
        del self._terms, self._documents, self._frequencies, self._latest
        lengths = np.concatenate(self._lengths)
        save_array(self.folder / "lengths.npy", lengths)
        self._write_tie_order()
        window_bits = min(16, max(12, math.ceil(math.log2(self.documents / 48))))
        self._merge(lengths, window_bits)
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        self._vocabulary.terms.save(self.folder, "terms")
        self._store.close()
        info = {
            "version": SEGMENT_VERSION,
            "documents": self.documents,
            "terms": len(self._vocabulary.terms),
            "postings": self.postings,
            "total_length": float(lengths.sum(dtype=np.float64)),
            "window_bits": window_bits,
            "data_hash": self.data_hash(),
        }
        (self.folder / "segment.json").write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")

    def _add_documents(self, batch: DocumentBatch) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        text, ends = self._store.append(batch)
        if any(batch.metadata):
            self._digest.update(repr(batch.metadata).encode("utf-8", "surrogatepass"))
        self._digest.update("\n".join(batch.docids).encode("utf-8", "surrogatepass"))
        self._digest.update(ends.data)
        self._digest.update(text.data)
        return text, ends

    def _make_room(self, postings: int) -> None:
        """Make room for that many more postings and for every known term."""
        if self._count + postings > len(self._terms):
            self._write_run()
            if postings > len(self._terms):
                self._terms = np.empty(postings, np.uint32)
                self._documents = np.empty(postings, np.uint32)
                self._frequencies = np.empty(postings, np.float32)
        missing = len(self._vocabulary.terms) - len(self._latest)
        if missing > 0:
            self._latest = np.concatenate([self._latest, np.full(missing + len(self._latest) // 2, -1, np.int64)])

    def _write_run(self) -> None:
        if self._count == 0:
            return
        terms = self._terms[: self._count]
        counts = np.bincount(terms, minlength=len(self._vocabulary.terms))
        documents, frequencies = np.empty(self._count, np.uint32), np.empty(self._count, np.float32)
        begins = np.cumsum(counts) - counts
        sort_postings(terms, self._documents, self._frequencies, begins, documents, frequencies)
        present = np.flatnonzero(counts)
        folder = self.folder / "runs" / str(len(self._runs))
        folder.mkdir(parents=True)
        for name, values in (
            ("terms", present),
            ("counts", counts[present]),
            ("documents", documents),
            ("frequencies", frequencies),
        ):
            save_array(folder / f"{name}.npy", values.astype(_RUN_DTYPES[name], copy=False))
        self._runs.append(folder)
        self.postings += self._count
        self._count = 0
        self._latest[:] = -1

    def _write_tie_order(self) -> None:
        """``ties[d]`` is document d's place in the ascending order of ids; ``tie_documents`` is its inverse."""
        order = self._store.docids.ascending()
        ties = np.empty(len(order), np.uint32)
        ties[order] = np.arange(len(order), dtype=np.uint32)
        save_array(self.folder / "ties.npy", ties)
        save_array(self.folder / "tie_documents.npy", order.astype(np.uint32))

    def _frequency_dtype(self) -> DTypeLike:
        if self._integral and self._largest <= 0xFF:
            return np.uint8
        return np.uint16 if self._integral and self._largest <= 0xFFFF else np.float32

    def _merge(self, lengths: NDArray[np.float32], window_bits: int) -> None:
        runs = [_RunReader(folder) for folder in self._runs]
        totals = np.zeros(len(self._vocabulary.terms), np.int64)
        for run in runs:
            totals[run.terms] += run.counts
        posting_begins = np.concatenate([[0], np.cumsum(totals)])
        save_array(self.folder / "posting_begins.npy", posting_begins)
        dtypes: dict[str, DTypeLike] = {
            "postings": np.uint16,
            "frequencies": self._frequency_dtype(),
            "chunk_windows": np.uint16,
            "chunk_offsets": np.uint32,
            "largest_tf": np.float32,
            "largest_ratio": np.float32,
            "chunk_ends": np.int64,
        }
        writers = {name: ArrayWriter(self.folder / f"{name}.npy", dtype) for name, dtype in dtypes.items()}
        try:
            first, chunks = 0, 0
            while first < len(totals):
                limit = int(posting_begins[first]) + MERGE_POSTINGS
                last = max(first + 1, int(np.searchsorted(posting_begins, limit, side="right")) - 1)
                chunks += self._merge_terms(runs, first, last, posting_begins, lengths, window_bits, chunks, writers)
                first = last
        finally:
            for writer in writers.values():
                writer.close()

    def _merge_terms(
        self,
        runs: list[_RunReader],
        first: int,
        last: int,
        posting_begins: NDArray[np.int64],
        lengths: NDArray[np.float32],
        window_bits: int,
        chunks_before: int,
        writers: dict[str, ArrayWriter],
    ) -> int:
        """Join the postings of terms ``first … last - 1`` and append them to the segment; returns their chunks."""
        begins = posting_begins[first : last + 1] - posting_begins[first]
        size = int(begins[-1])
        if len(runs) == 1:  # it is sorted already
            _, _, documents, frequencies = runs[0].read_until(last)
        else:
            documents, frequencies = np.empty(size, np.uint32), np.empty(size, np.float32)
            cursors = begins[:-1].copy()
            for run in runs:
                place_postings(*run.read_until(last), first, cursors, documents, frequencies)
        columns: dict[str, Array] = {
            "postings": np.empty(size, np.uint16),
            "chunk_windows": np.empty(size, np.uint16),
            "chunk_offsets": np.empty(size, np.uint32),
            "largest_tf": np.empty(size, np.float32),
            "largest_ratio": np.empty(size, np.float32),
            "chunk_ends": np.empty(last - first, np.int64),
        }
        chunks: int = cut_into_chunks(documents, frequencies, begins[1:], lengths, window_bits, *columns.values())
        for name in ("chunk_windows", "chunk_offsets", "largest_tf", "largest_ratio"):
            columns[name] = columns[name][:chunks]
        columns["chunk_ends"] += chunks_before
        for name, values in {**columns, "frequencies": frequencies}.items():
            writers[name].append(values)
        return chunks


class _RunReader:
    """One sorted run, read once from front to back; only the lists of terms stay in memory."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.terms = self._read("terms", 0, -1)
        self.counts = self._read("counts", 0, -1)
        self._next_term, self._next_posting = 0, 0

    def _read(self, name: str, first: int, count: int) -> Array:
        # Not memory-mapped: pages of a mapping would count towards the build's memory.
        dtype = np.dtype(_RUN_DTYPES[name])
        offset = HEADER_BYTES + first * dtype.itemsize
        return np.fromfile(self._folder / f"{name}.npy", dtype, count, offset=offset)

    def read_until(self, last_term: int) -> tuple[Array, Array, Array, Array]:
        """Terms, counts, documents and frequencies from where the last call ended up to ``last_term``."""
        begin, end = self._next_term, int(np.searchsorted(self.terms, last_term))
        counts = self.counts[begin:end]
        size = int(counts.sum(dtype=np.int64))
        documents = self._read("documents", self._next_posting, size)
        frequencies = self._read("frequencies", self._next_posting, size)
        self._next_term, self._next_posting = end, self._next_posting + size
        return self.terms[begin:end], counts, documents, frequencies


def fill_segment(
    builder: SegmentBuilder,
    documents: Iterable[Document],
    weights: Iterable[TermWeights] | None,
    expansions: Iterable[Expansion] | None,
    known: NumberedDocuments | None,
    replaced: list[Rows] | None,
) -> None:
    """Add all documents to a segment. Numbers of those ``known`` go to ``replaced``, or are an error."""
    weights = None if weights is None else iter(weights)
    expansions = None if expansions is None else iter(expansions)
    for batch in document_batches(track(documents, "indexing", unit="documents")):
        numbers = np.empty(0, np.int64) if known is None else known.find(batch.docids)
        if replaced is not None:
            replaced.append(numbers[numbers >= 0])
        elif (numbers >= 0).any():
            repeated = batch.docids[int((numbers >= 0).argmax())]
            problem = f"document {repeated!r} is in the index already; --update replaces documents"
            raise blame_line(documents, repeated, problem)
        if weights is not None:
            builder.add_weighted(batch, [take_record(weights, docid, "weights").weights for docid in batch.docids])
        elif expansions is not None:
            taken = [take_record(expansions, docid, "expansions").queries for docid in batch.docids]
            builder.add_texts(batch, list(map(" ".join, taken)))
        else:
            builder.add_texts(batch)
    check_end(weights, "weights")
    check_end(expansions, "expansions")


# Records about documents (term weights, expansions) that come in the order of the collection


Enrichment = TypeVar("Enrichment", bound=TermWeights | Expansion)


def take_record(records: Iterator[Enrichment], docid: str, name: str) -> Enrichment:
    """The next record, which must be that of the document ``docid``; ``name`` is what errors call the records."""
    record = next(records, None)
    if record is None:
        raise RankwellError(f"the {name} end before document {docid!r}")
    if record.docid != docid:
        problem = f"{name} of {record.docid!r} where {docid!r} is expected"
        raise RankwellError(f"{problem}; they must be in the collection's order")
    return record


def check_end(records: Iterable[TermWeights | Expansion] | None, name: str) -> None:
    """Raise if records are left after the last document."""
    if (extra := next(iter(records or ()), None)) is not None:
        raise RankwellError(f"the {name} go on after the last document, with {extra.docid!r}")


def combine_weights(
    weights: Iterable[TermWeights],
    expansions: Iterable[Expansion],
    *,
    scale: float = 100.0,
    root: bool = False,
    analyzer: Analyzer | None = None,
) -> Iterator[TermWeights]:
    """Add expansions to term weights: a term gains ``scale`` times the share of queries that contain it.

    Both are on one scale if the weights are 100·y or, with ``root``, 100·√y, where y estimates the same share.
    """
    analyzer = analyzer or Analyzer.english()
    expansions = iter(expansions)
    for document in weights:
        queries = take_record(expansions, document.docid, "expansions").queries
        yield TermWeights(document.docid, _add_shares(document, queries, scale, root, analyzer))
    check_end(expansions, "expansions")


def _add_shares(
    document: TermWeights, queries: Sequence[str], scale: float, root: bool, analyzer: Analyzer
) -> dict[str, float]:
    words = list(document.weights)
    word_of = {stem: word for word, stem in zip(words, analyzer.stems([w.lower() for w in words]), strict=True) if stem}
    total = dict(document.weights)
    counts: Counter[str] = Counter()
    for query in queries:
        in_query = {word.term: word.text for word in analyzer.words(query) if word.term}
        for stem, word in in_query.items():
            counts[word_of.setdefault(stem, word)] += 1
    for word, count in counts.items():
        share = count / len(queries)
        # Whole numbers: an index stores those in one or two bytes.
        total[word] = total.get(word, 0.0) + round(scale * (math.sqrt(share) if root else share))
    return total
