"""Native code that scores postings: the best k documents of each query. The layout is that of `posting_kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# A bound is rounded up by more than float32 sums of a few hundred terms can be off.
_SLACK = np.float32(1.0001)
_SCAN_BLOCK = 256
# Finding one document's posting by bisection takes as long as scoring about this many postings in a row.
_LOOKUP_COST = 32


@njit(cache=True, nogil=True, error_model="numpy")
def _keep_largest(keys: NDArray[np.uint64], count: int, k: int, scratch: NDArray[np.uint64]) -> int:
    """Move the ``k`` largest of the distinct ``keys[:count]`` to the front, in any order; return the smallest of them.

    Quickselect whose partition has no branch on the keys: a wrong guess of the processor costs more than two stores.
    """
    left, right = 0, count
    while right - left > 2:
        a, b, c = keys[left], keys[(left + right) >> 1], keys[right - 1]
        pivot = max(min(a, b), min(max(a, b), c))
        above, below = left, 0
        for i in range(left, right):
            key = keys[i]
            higher = np.int64(key > pivot)
            keys[above] = key
            scratch[below] = key
            above += higher
            below += 1 - higher
        for i in range(below):
            keys[above + i] = scratch[i]
        if above > k:
            right = above
        elif above < k:
            left = above
        else:
            break
    if right - left == 2 and keys[left] < keys[left + 1]:
        keys[left], keys[left + 1] = keys[left + 1], keys[left]
    smallest = keys[0]
    for i in range(1, k):
        smallest = min(smallest, keys[i])
    return smallest


@njit(cache=True, nogil=True, error_model="numpy")
def _accumulate(
    documents: NDArray[np.uint16],
    frequencies: Any,
    weight: float,
    norms: NDArray[np.float32],
    scores: NDArray[np.float32],
) -> None:
    """Add one term's scores in one window."""
    for i in range(len(documents)):
        document = documents[i]
        tf = np.float32(frequencies[i])
        scores[document] += weight * (tf / (tf + norms[document]))


@njit(cache=True, nogil=True, error_model="numpy")
def _complete(
    documents: NDArray[np.uint16],
    frequencies: Any,
    weight: float,
    norms: NDArray[np.float32],
    scores: NDArray[np.float32],
    candidates: NDArray[np.uint16],
) -> None:
    """Add one term's scores in one window to the candidates alone (the documents whose score is not 0)."""
    size = len(documents)
    if len(candidates) * _LOOKUP_COST > size:
        for i in range(size):
            document = documents[i]
            if scores[document] > 0:
                tf = np.float32(frequencies[i])
                scores[document] += weight * (tf / (tf + norms[document]))
        return
    for candidate in candidates:
        low, high = 0, size
        while low < high:
            middle = (low + high) >> 1
            if documents[middle] < candidate:
                low = middle + 1
            else:
                high = middle
        if low < size and documents[low] == candidate:
            tf = np.float32(frequencies[low])
            scores[candidate] += weight * (tf / (tf + norms[candidate]))


@njit(cache=True, nogil=True, error_model="numpy")
def _drop_candidates(candidates: NDArray[np.uint16], scores: NDArray[np.float32], floor: float) -> int:
    """Keep the candidates that score at least ``floor``, in order; reset the scores of the others to 0."""
    count = 0
    for document in candidates:
        high = scores[document] >= floor
        candidates[count] = document
        count += high
        scores[document] *= np.float32(high)
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _take_candidates(
    documents: NDArray[np.uint16],
    scores: NDArray[np.float32],
    floor: float,
    candidates: NDArray[np.uint16],
    values: NDArray[np.float32],
    count: int,
) -> int:
    """Append the documents that score at least ``floor``; reset all scores to 0, so that none is taken twice."""
    for document in documents:
        score = scores[document]
        if score > 0:
            scores[document] = 0
            if score >= floor:
                candidates[count] = document
                values[count] = score
                count += 1
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _count_high(bits: NDArray[np.uint32], lowest: int) -> int:
    """How many scores are at least ``lowest``; positive floats compare like their bits, and this is vectorised."""
    count = np.uint32(0)
    for i in range(len(bits)):
        count += np.uint32(bits[i] >= lowest)
    return np.int64(count)


@njit(cache=True, nogil=True, error_model="numpy")
def _take_candidates_of_window(
    scores: NDArray[np.float32], lowest: int, candidates: NDArray[np.uint16], values: NDArray[np.float32]
) -> int:
    """:func:`_take_candidates` over a whole window, for when many of its documents were touched."""
    bits = scores.view(np.uint32)
    count = 0
    for begin in range(0, len(bits), _SCAN_BLOCK):
        if _count_high(bits[begin : begin + _SCAN_BLOCK], lowest) > 0:
            for document in range(begin, begin + _SCAN_BLOCK):
                if bits[document] >= lowest:
                    candidates[count] = document
                    values[count] = scores[document]
                    count += 1
    scores[:] = 0
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _bits_of(score: float) -> int:
    """The bits of a score, at least those of the smallest positive one."""
    value = np.empty(1, np.float32)
    value[0] = max(score, np.float32(1e-38))
    return value.view(np.uint32)[0]


@njit(cache=True, nogil=True, error_model="numpy")
def search(
    query_ends: NDArray[np.int64],
    terms: NDArray[np.int32],
    weights: NDArray[np.float32],
    posting_begins: NDArray[np.int64],
    chunk_begins: NDArray[np.int64],
    documents: NDArray[np.uint16],
    frequencies: Any,
    chunk_windows: NDArray[np.uint16],
    chunk_offsets: NDArray[np.uint32],
    largest_tf: NDArray[np.float32],
    largest_ratio: NDArray[np.float32],
    norms: NDArray[np.float32],
    flat_norm: np.float32,
    length_norm: np.float32,
    ties: NDArray[np.uint32],
    window_bits: int,
    k: int,
    prune: bool,
    best_keys: NDArray[np.uint64],
) -> None:
    """Fill ``best_keys`` (queries, k), initially zero, with the keys of each query's best documents, in any order.

    A key is the score's 32 bits above the document's place in the order of ids, so that one comparison is THE order.
    A query's terms are sorted by descending weight and sums are always taken in that order, so that pruning changes no
    bit of any score. ``norms[d] = flat_norm + length_norm * length(d)``.

    Pruning is MaxScore by window. The last terms of a query, those whose bounds together stay below the k-th best score
    so far, cannot add a document; they only complete the scores of documents that earlier terms added.
    """
    width = 1 << window_bits
    longest = 0
    begin_term = 0
    for end_term in query_ends:
        longest = max(longest, end_term - begin_term)
        begin_term = end_term
    scores = np.zeros(width, np.float32)
    score_bits = scores.view(np.uint32)
    candidates = np.empty(width, np.uint16)
    values = np.empty(width, np.float32)
    value_bits = values.view(np.uint32)
    best = np.empty(2 * k + 512, np.uint64)
    scratch = np.empty(len(best), np.uint64)
    floor_bits = np.zeros(1, np.uint32)
    floor_value = floor_bits.view(np.float32)
    next_chunk = np.empty(longest, np.int64)
    active_term = np.empty(longest, np.int64)
    active_begin = np.empty(longest, np.int64)
    active_end = np.empty(longest, np.int64)
    bound_from = np.empty(longest + 1, np.float32)
    begin_term = 0
    for query in range(len(query_ends)):
        end_term = query_ends[query]
        for t in range(begin_term, end_term):
            next_chunk[t - begin_term] = chunk_begins[terms[t]]
        count = np.int64(0)
        threshold = np.uint64(0)
        floor_bits[0] = 0
        while True:
            window = np.int64(-1)
            for t in range(begin_term, end_term):
                chunk = next_chunk[t - begin_term]
                if chunk < chunk_begins[terms[t] + 1] and (window < 0 or chunk_windows[chunk] < window):
                    window = np.int64(chunk_windows[chunk])
            if window < 0:
                break

            active = 0
            for t in range(begin_term, end_term):
                chunk = next_chunk[t - begin_term]
                term = terms[t]
                if chunk < chunk_begins[term + 1] and chunk_windows[chunk] == window:
                    next_chunk[t - begin_term] = chunk + 1
                    active_term[active] = t
                    active_begin[active] = posting_begins[term] + chunk_offsets[chunk]
                    active_end[active] = posting_begins[term + 1]
                    if chunk + 1 < chunk_begins[term + 1]:
                        active_end[active] = posting_begins[term] + chunk_offsets[chunk + 1]
                    active += 1
            bound_from[active] = 0
            for a in range(active - 1, -1, -1):
                chunk = next_chunk[active_term[a] - begin_term] - 1
                damping = np.float32(1) + flat_norm / largest_tf[chunk] + length_norm / largest_ratio[chunk]
                bound_from[a] = bound_from[a + 1] + _SLACK * weights[active_term[a]] / damping
            essential = active
            if prune:
                while essential > 0 and bound_from[essential - 1] < floor_value[0]:
                    essential -= 1
            if essential == 0:
                continue

            base = window << window_bits
            window_norms = norms[base : base + width]
            postings, rest = 0, 0
            for a in range(active):
                begin, end = active_begin[a], active_end[a]
                if a < essential:
                    postings += end - begin
                    _accumulate(
                        documents[begin:end], frequencies[begin:end], weights[active_term[a]], window_norms, scores
                    )
                else:
                    rest += end - begin
            # A little lower than the bounds say: the subtraction is rounded too.
            floor = floor_value[0] * np.float32(0.99999) - bound_from[essential]
            dense = 8 * postings > width
            if dense and essential < active and _LOOKUP_COST * _count_high(score_bits, _bits_of(floor)) > rest:
                # Too many documents to look up one by one: score the rest of the postings too.
                for a in range(essential, active):
                    begin, end = active_begin[a], active_end[a]
                    _accumulate(
                        documents[begin:end], frequencies[begin:end], weights[active_term[a]], window_norms, scores
                    )
                essential = active
                floor = floor_value[0]
            survivors = np.int64(0)
            if dense:
                survivors = _take_candidates_of_window(scores, _bits_of(floor), candidates, values)
            else:
                for a in range(essential):
                    chunk_documents = documents[active_begin[a] : active_end[a]]
                    survivors = _take_candidates(chunk_documents, scores, floor, candidates, values, survivors)
            if essential < active and survivors > 0:
                for c in range(survivors):
                    scores[candidates[c]] = values[c]
                for a in range(essential, active):
                    begin, end = active_begin[a], active_end[a]
                    _complete(
                        documents[begin:end],
                        frequencies[begin:end],
                        weights[active_term[a]],
                        window_norms,
                        scores,
                        candidates[:survivors],
                    )
                    floor = floor_value[0] * np.float32(0.99999) - bound_from[a + 1]
                    survivors = _drop_candidates(candidates[:survivors], scores, floor)
                for c in range(survivors):
                    values[c] = scores[candidates[c]]
                    scores[candidates[c]] = 0
            for c in range(survivors):
                key = (np.uint64(value_bits[c]) << np.uint64(32)) | np.uint64(ties[base + candidates[c]])
                if key > threshold:
                    best[count] = key
                    count += 1
                    if count == len(best):
                        threshold = _keep_largest(best, count, k, scratch)
                        floor_bits[0] = np.uint32(threshold >> np.uint64(32))
                        count = k
            # A first threshold as soon as there are k documents lets the next windows be pruned; later ones can wait.
            if count > k and (threshold == 0 or count > 2 * k):
                threshold = _keep_largest(best, count, k, scratch)
                floor_bits[0] = np.uint32(threshold >> np.uint64(32))
                count = k
        if count > k:
            _keep_largest(best, count, k, scratch)
            count = k
        for i in range(count):
            best_keys[query, i] = best[i]
        begin_term = end_term
