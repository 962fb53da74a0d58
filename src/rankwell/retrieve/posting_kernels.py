"""Native code that builds postings: collecting, sorting and joining them, and cutting them into chunks.

A segment's documents are numbered 0, 1, 2, … and split into *windows* of ``2**bits`` documents. A term's postings are
in document order; those within one window are a *chunk*. A posting holds the 16 low bits of the document's number,
which identify it within its window, and the term frequency. A chunk holds its largest tf and its largest
tf / document length, which bound its BM25 scores for any k1 and b.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwell.core.native import kernel


@kernel
def collect_postings(
    words: NDArray[np.int32],
    uncounted: NDArray[np.bool_],
    word_counts: NDArray[np.int64],
    term_of_word: NDArray[np.int32],
    word_weights: NDArray[np.float32],
    first_document: int,
    latest: NDArray[np.int64],
    terms: NDArray[np.uint32],
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.float32],
    count: int,
    lengths: NDArray[np.float32],
) -> int:
    """Append one posting for each distinct term of each text; fill ``lengths`` with the texts' numbers of terms.

    A word counts as often as ``word_weights`` says; if that is empty, once. Those ``uncounted`` add no
    length. ``latest[term]`` is the position of the term's newest posting, so a repeated term is found without a table.
    """
    begin = 0
    for i in range(len(word_counts)):
        first_posting = count
        length = np.float32(0)
        for j in range(begin, word_counts[i]):
            term = term_of_word[words[j]]
            if term < 0:
                continue
            weight = word_weights[j] if len(word_weights) else np.float32(1)
            length += weight * np.float32(not uncounted[j])
            at = latest[term]
            if at >= first_posting:
                frequencies[at] += weight
            else:
                latest[term] = count
                terms[count] = term
                documents[count] = first_document + i
                frequencies[count] = weight
                count += 1
        lengths[i] = length
        begin = word_counts[i]
    return count


@kernel
def sort_postings(
    terms: NDArray[np.uint32],
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.float32],
    begins: NDArray[np.int64],
    sorted_documents: NDArray[np.uint32],
    sorted_frequencies: NDArray[np.float32],
) -> None:
    """Stable counting sort by term; ``begins[term]`` is where the term's postings go (and is used up)."""
    for i in range(len(terms)):
        to = begins[terms[i]]
        begins[terms[i]] = to + 1
        sorted_documents[to] = documents[i]
        sorted_frequencies[to] = frequencies[i]


@kernel
def place_postings(
    terms: NDArray[np.uint32],
    counts: NDArray[np.uint32],
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.float32],
    first_term: int,
    cursors: NDArray[np.int64],
    merged_documents: NDArray[np.uint32],
    merged_frequencies: NDArray[np.float32],
) -> None:
    """Copy one sorted run's postings behind those of earlier runs; ``cursors`` holds each term's next free place."""
    begin = 0
    for i in range(len(terms)):
        to = cursors[terms[i] - first_term]
        size = np.int64(counts[i])
        for j in range(size):
            merged_documents[to + j] = documents[begin + j]
            merged_frequencies[to + j] = frequencies[begin + j]
        cursors[terms[i] - first_term] = to + size
        begin += size


@kernel
def cut_into_chunks(
    documents: NDArray[np.uint32],
    frequencies: NDArray[np.float32],
    term_ends: NDArray[np.int64],
    lengths: NDArray[np.float32],
    window_bits: int,
    low_bits: NDArray[np.uint16],
    windows: NDArray[np.uint16],
    offsets: NDArray[np.uint32],
    largest_tf: NDArray[np.float32],
    largest_ratio: NDArray[np.float32],
    chunk_ends: NDArray[np.int64],
) -> int:
    """Split whole terms' postings into chunks; returns their number."""
    mask = np.uint32((1 << window_bits) - 1)
    chunk = -1
    begin = 0
    for term in range(len(term_ends)):
        current = -1
        for i in range(begin, term_ends[term]):
            document = documents[i]
            window = np.int64(document >> np.uint32(window_bits))
            low_bits[i] = document & mask
            if window != current:
                current = window
                chunk += 1
                windows[chunk] = window
                offsets[chunk] = i - begin
                largest_tf[chunk] = 0
                largest_ratio[chunk] = 0
            tf = frequencies[i]
            ratio = tf / lengths[document]
            if tf > largest_tf[chunk]:
                largest_tf[chunk] = tf
            if ratio > largest_ratio[chunk]:
                largest_ratio[chunk] = ratio
        chunk_ends[term] = chunk + 1
        begin = term_ends[term]
    return chunk + 1


@kernel
def count_postings(
    terms: NDArray[np.int64],
    posting_begins: NDArray[np.int64],
    chunk_begins: NDArray[np.int64],
    low_bits: NDArray[np.uint16],
    windows: NDArray[np.uint16],
    offsets: NDArray[np.uint32],
    window_bits: int,
    wanted: NDArray[np.bool_],
    wanted_windows: NDArray[np.bool_],
    counts: NDArray[np.int64],
) -> None:
    """Fill ``counts`` with the number of each term's postings whose documents are ``wanted``.

    Windows without a wanted document are skipped.
    """
    for t in range(len(terms)):
        term = terms[t]
        count = 0
        for chunk in range(chunk_begins[term], chunk_begins[term + 1]):
            if not wanted_windows[windows[chunk]]:
                continue
            base = np.int64(windows[chunk]) << window_bits
            last = chunk + 1 == chunk_begins[term + 1]
            end = posting_begins[term + 1] if last else posting_begins[term] + offsets[chunk + 1]
            for i in range(posting_begins[term] + offsets[chunk], end):
                count += wanted[base + low_bits[i]]
        counts[t] = count
