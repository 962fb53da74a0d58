"""Native code that scores postings: the best k documents of each query. The layout is that of `posting_kernels`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.native import helper, kernel

# A bound is rounded up by more than float32 sums of a few hundred terms can be off.
_SLACK = np.float32(1.0001)
_SCAN_BLOCK = 256
# Finding one document's posting by bisection takes as long as scoring about this many postings in a row.
_LOOKUP_COST = 32
_SMALLEST = np.float32(1e-38)


Workspace = tuple[NDArray[Any], ...]


def make_workspace(window_bits: int, k: int, terms: int) -> Workspace:
    """The memory of a :func:`search` for the best ``k`` documents of queries of at most so many terms.

    It can be used again by one search after the other.
    """
    scores, values = np.zeros(1 << window_bits, np.float32), np.empty(1 << window_bits, np.float32)
    floors = np.zeros(2, np.float32)
    return (
        scores,
        scores.view(np.uint32),
        np.empty(len(scores), np.uint16),
        values,
        values.view(np.uint32),
        np.empty(2 * k + 512, np.uint64),
        np.empty(2 * k + 512, np.uint64),
        np.empty(terms + 1, np.float32),
        *(np.empty(terms, np.int64) for _ in range(4)),
        floors,
        floors.view(np.uint32),
    )


@helper
def _keep_largest(keys: NDArray[np.uint64], count: int, k: int, scratch: NDArray[np.uint64]) -> int:
    """Move the ``k`` largest of the distinct ``keys[:count]`` to the front, in any order; return the smallest of them.

    Quickselect whose partition has no branch on the keys: a wrong guess of the processor costs more than two stores.
    """
    left, right = 0, count
    while right - left > 2:
        a, b, c = keys[left], keys[(left + right) >> 1], keys[right - 1]
        low, high = (a, b) if a < b else (b, a)
        pivot = low if c < low else (high if c > high else c)
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
        if keys[i] < smallest:
            smallest = keys[i]
    return smallest


@helper
def _accumulate(
    documents: NDArray[np.uint16],
    frequencies: Any,
    begin: np.uint64,
    end: np.uint64,
    weight: float,
    norms: NDArray[np.float32],
    base: np.uint64,
    scores: NDArray[np.float32],
) -> None:
    """Add the scores of one term in one window: those of postings ``begin … end - 1``."""
    for i in range(begin, end):
        document = documents[i]
        tf = np.float32(frequencies[i])
        scores[document] += weight * (tf / (tf + norms[base + document]))


@helper
def _look_up(
    documents: NDArray[np.uint16],
    frequencies: Any,
    begin: np.uint64,
    end: np.uint64,
    weight: float,
    norms: NDArray[np.float32],
    base: np.uint64,
    scores: NDArray[np.float32],
    listed: NDArray[np.uint16],
    first: np.uint64,
    last: np.uint64,
) -> None:
    """Add one term's scores in one window to the documents ``listed[first:last]``, each found by bisection."""
    for i in range(first, last):
        document = listed[i]
        low, high = begin, end
        while low < high:
            middle = (low + high) >> np.uint64(1)
            if documents[middle] < document:
                low = middle + np.uint64(1)
            else:
                high = middle
        if low < end and documents[low] == document:
            tf = np.float32(frequencies[low])
            scores[document] += weight * (tf / (tf + norms[base + document]))


@helper
def _complete(
    documents: NDArray[np.uint16],
    frequencies: Any,
    begin: np.uint64,
    end: np.uint64,
    weight: float,
    norms: NDArray[np.float32],
    base: np.uint64,
    scores: NDArray[np.float32],
    candidates: NDArray[np.uint16],
    count: int,
) -> None:
    """Add one term's scores in one window to the candidates alone (the documents whose score is not 0)."""
    if np.uint64(count * _LOOKUP_COST) > end - begin:
        for i in range(begin, end):
            document = documents[i]
            if scores[document] > 0:
                tf = np.float32(frequencies[i])
                scores[document] += weight * (tf / (tf + norms[base + document]))
        return
    _look_up(
        documents, frequencies, begin, end, weight, norms, base, scores, candidates, np.uint64(0), np.uint64(count)
    )


@helper
def _drop_candidates(candidates: NDArray[np.uint16], count: int, scores: NDArray[np.float32], floor: float) -> int:
    """Keep the candidates that score at least ``floor``, in order; reset the scores of the others to 0."""
    kept = 0
    for c in range(count):
        document = candidates[c]
        high = scores[document] >= floor
        candidates[kept] = document
        kept += high
        scores[document] *= np.float32(high)
    return kept


@helper
def _take_candidates(
    documents: NDArray[np.uint16],
    begin: np.uint64,
    end: np.uint64,
    scores: NDArray[np.float32],
    floor: float,
    candidates: NDArray[np.uint16],
    values: NDArray[np.float32],
    count: int,
) -> int:
    """Append the documents that score at least ``floor``; reset all scores to 0, so that none is taken twice."""
    for i in range(begin, end):
        document = documents[i]
        score = scores[document]
        if score > 0:
            scores[document] = 0
            if score >= floor:
                candidates[count] = document
                values[count] = score
                count += 1
    return count


@helper
def _count_high(bits: NDArray[np.uint32], begin: np.uint64, end: np.uint64, lowest: np.uint32) -> int:
    """How many scores are at least ``lowest``; positive floats compare like their bits, and this is vectorised."""
    count = np.uint32(0)
    for i in range(begin, end):
        count += np.uint32(bits[i] >= lowest)
    return np.int64(count)


@helper
def _take_candidates_of_window(
    scores: NDArray[np.float32],
    bits: NDArray[np.uint32],
    lowest: np.uint32,
    candidates: NDArray[np.uint16],
    values: NDArray[np.float32],
) -> int:
    """:func:`_take_candidates` over a whole window, for when many of its documents were touched."""
    count = 0
    for begin in range(0, len(bits), _SCAN_BLOCK):
        if _count_high(bits, np.uint64(begin), np.uint64(begin + _SCAN_BLOCK), lowest) > 0:
            for document in range(begin, begin + _SCAN_BLOCK):
                if bits[document] >= lowest:
                    candidates[count] = document
                    values[count] = scores[document]
                    count += 1
    for document in range(len(scores)):
        scores[document] = 0
    return count


def _steps(query_ends: NDArray[np.int64], terms: NDArray[np.int32], *others: Any) -> int:
    """How long a search takes: the postings of its terms, none of term -1, and something for each query."""
    begins = others[2]
    return 1000 * len(query_ends) + int(np.maximum(begins[terms + 1] - begins[terms], 0).sum())


@partial(kernel, work=_steps)
def search(
    query_ends: NDArray[np.int64],
    terms: NDArray[np.int32],
    weights: NDArray[np.float32],
    lowest: NDArray[np.uint64],
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
    selected: NDArray[np.uint16],
    selected_ends: NDArray[np.int64],
    window_bits: int,
    k: int,
    prune: bool,
    scores: NDArray[np.float32],
    score_bits: NDArray[np.uint32],
    candidates: NDArray[np.uint16],
    values: NDArray[np.float32],
    value_bits: NDArray[np.uint32],
    best: NDArray[np.uint64],
    scratch: NDArray[np.uint64],
    bounds: NDArray[np.float32],
    next_chunks: NDArray[np.int64],
    active_terms: NDArray[np.int64],
    active_begins: NDArray[np.int64],
    active_ends: NDArray[np.int64],
    floors: NDArray[np.float32],
    floor_bits: NDArray[np.uint32],
    best_keys: NDArray[np.uint64],
) -> None:
    """Fill ``best_keys`` (queries, k), initially zero, with the keys of each query's best documents, in any order.

    Those of ``lowest`` and below are left out.
    A key is the score's 32 bits above the document's place in the order of ids, so that one comparison is THE order.
    A query's terms are sorted by descending weight and sums are always taken in that order, so that pruning changes no
    bit of any score. ``norms[d] = flat_norm + length_norm * length(d)``. The arrays after ``prune`` are those of
    :func:`make_workspace`, one by one, since numba takes long to recognise a tuple at each call; ``…_bits`` are the
    same memory as unsigned integers, ``floors`` the k-th best score so far and what a candidate must score at least.

    Pruning is MaxScore by window. The last terms of a query, those whose bounds together stay below the k-th best score
    so far, cannot add a document; they only complete the scores of documents that earlier terms added.

    Documents that were deleted or that a filter excludes have an infinite norm, so they score 0. If a filter selects
    few documents, ``selected`` lists them window by window (the 16 low bits of their numbers, up to
    ``selected_ends[window]``), and they are looked up where that is faster; without such a list both are empty.
    """
    width = 1 << window_bits
    listed = len(selected_ends) > 0
    begin_term = 0
    for query in range(len(query_ends)):
        end_term = query_ends[query]
        for t in range(begin_term, end_term):
            next_chunks[t - begin_term] = chunk_begins[terms[t]]
        count = np.int64(0)
        threshold = lowest[query]
        floor_bits[0] = np.uint32(threshold >> np.uint64(32))
        while True:
            window = np.int64(-1)
            for t in range(begin_term, end_term):
                chunk = next_chunks[t - begin_term]
                if chunk < chunk_begins[terms[t] + 1] and (window < 0 or chunk_windows[chunk] < window):
                    window = np.int64(chunk_windows[chunk])
            if window < 0:
                break

            active = 0
            for t in range(begin_term, end_term):
                chunk = next_chunks[t - begin_term]
                term = terms[t]
                if chunk < chunk_begins[term + 1] and chunk_windows[chunk] == window:
                    next_chunks[t - begin_term] = chunk + 1
                    active_terms[active] = t
                    active_begins[active] = posting_begins[term] + chunk_offsets[chunk]
                    active_ends[active] = posting_begins[term + 1]
                    if chunk + 1 < chunk_begins[term + 1]:
                        active_ends[active] = posting_begins[term] + chunk_offsets[chunk + 1]
                    active += 1
            bounds[active] = 0
            for a in range(active - 1, -1, -1):
                chunk = next_chunks[active_terms[a] - begin_term] - 1
                damping = np.float32(1) + flat_norm / largest_tf[chunk] + length_norm / largest_ratio[chunk]
                bounds[a] = bounds[a + 1] + _SLACK * weights[active_terms[a]] / damping
            essential = active
            if prune:
                while essential > 0 and bounds[essential - 1] < floors[0]:
                    essential -= 1
            if essential == 0:
                continue
            first_listed, last_listed = np.uint64(0), np.uint64(0)
            if listed:
                first_listed = np.uint64(selected_ends[window - 1]) if window > 0 else np.uint64(0)
                last_listed = np.uint64(selected_ends[window])
                if first_listed == last_listed:
                    continue

            first = window << window_bits
            base = np.uint64(first)
            postings, rest = 0, 0
            for a in range(active):
                begin, end = np.uint64(active_begins[a]), np.uint64(active_ends[a])
                weight = weights[active_terms[a]]
                if listed and (last_listed - first_listed) * np.uint64(_LOOKUP_COST) <= end - begin:
                    span = first_listed, last_listed
                    _look_up(documents, frequencies, begin, end, weight, norms, base, scores, selected, *span)
                elif listed or a < essential:
                    postings += np.int64(end - begin)
                    _accumulate(documents, frequencies, begin, end, weight, norms, base, scores)
                else:
                    rest += np.int64(end - begin)
            # A little lower than the bounds say: the subtraction is rounded too.
            floor = floors[0] * np.float32(0.99999) - bounds[essential]
            floors[1] = floor if floor > _SMALLEST else _SMALLEST
            dense = 8 * postings > width
            if listed:
                essential = active
            if dense and essential < active:
                high = _count_high(score_bits, np.uint64(0), np.uint64(width), floor_bits[1])
                if _LOOKUP_COST * high > rest:
                    # Too many documents to look up one by one: score the rest of the postings too.
                    for a in range(essential, active):
                        begin, end = np.uint64(active_begins[a]), np.uint64(active_ends[a])
                        _accumulate(documents, frequencies, begin, end, weights[active_terms[a]], norms, base, scores)
                    essential = active
                    floors[1] = floors[0] if floors[0] > _SMALLEST else _SMALLEST
            survivors = np.int64(0)
            if listed:
                span = first_listed, last_listed
                survivors = _take_candidates(selected, *span, scores, floors[0], candidates, values, survivors)
            elif dense:
                survivors = _take_candidates_of_window(scores, score_bits, floor_bits[1], candidates, values)
            else:
                for a in range(essential):
                    begin, end = np.uint64(active_begins[a]), np.uint64(active_ends[a])
                    survivors = _take_candidates(documents, begin, end, scores, floor, candidates, values, survivors)
            if essential < active and survivors > 0:
                for c in range(survivors):
                    scores[candidates[c]] = values[c]
                for a in range(essential, active):
                    begin, end = np.uint64(active_begins[a]), np.uint64(active_ends[a])
                    weight = weights[active_terms[a]]
                    _complete(documents, frequencies, begin, end, weight, norms, base, scores, candidates, survivors)
                    floor = floors[0] * np.float32(0.99999) - bounds[a + 1]
                    survivors = _drop_candidates(candidates, survivors, scores, floor)
                for c in range(survivors):
                    values[c] = scores[candidates[c]]
                    scores[candidates[c]] = 0
            for c in range(survivors):
                key = (np.uint64(value_bits[c]) << np.uint64(32)) | np.uint64(ties[first + candidates[c]])
                if key > threshold:
                    best[count] = key
                    count += 1
                    if count == len(best):
                        threshold = _keep_largest(best, count, k, scratch)
                        floor_bits[0] = np.uint32(threshold >> np.uint64(32))
                        count = k
            # A first threshold as soon as there are k documents lets the next windows be pruned; later ones can wait.
            if count > k and (threshold == lowest[query] or count > 2 * k):
                threshold = _keep_largest(best, count, k, scratch)
                floor_bits[0] = np.uint32(threshold >> np.uint64(32))
                count = k
        if count > k:
            _keep_largest(best, count, k, scratch)
            count = k
        for i in range(count):
            best_keys[query, i] = best[i]
        begin_term = end_term
