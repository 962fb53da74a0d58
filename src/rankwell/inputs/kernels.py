"""Native code of the inputs: matching stems for markers, and laying templates out as unpadded sequences."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def match_stems(
    query_stems: NDArray[np.int32],
    query_ends: NDArray[np.int64],
    document_stems: NDArray[np.int32],
    document_ends: NDArray[np.int64],
    limit: int,
    mark_unmatched: bool,
    query_marks: NDArray[np.int32],
    document_marks: NDArray[np.int32],
) -> None:
    """Number the matching words of each pair: the k-th distinct stem of the query has mark k, 0 is no mark.

    A query word whose stem is not in the document stays unmarked unless ``mark_unmatched``; stems after the
    ``limit``-th are never marked.
    """
    known = np.empty(limit, np.int32)
    occurs = np.empty(limit, np.bool_)
    query_begin, document_begin = 0, 0
    for pair in range(len(query_ends)):
        count = 0
        for i in range(query_begin, query_ends[pair]):
            stem = query_stems[i]
            query_marks[i] = 0
            if stem < 0:
                continue
            for k in range(count):
                if known[k] == stem:
                    query_marks[i] = k + 1
                    break
            if query_marks[i] == 0 and count < limit:
                known[count] = stem
                occurs[count] = mark_unmatched
                count += 1
                query_marks[i] = count
        for i in range(document_begin, document_ends[pair]):
            document_marks[i] = 0
            if document_stems[i] >= 0:
                for k in range(count):
                    if known[k] == document_stems[i]:
                        document_marks[i] = k + 1
                        occurs[k] = True
                        break
        for i in range(query_begin, query_ends[pair]):
            if query_marks[i] > 0 and not occurs[query_marks[i] - 1]:
                query_marks[i] = 0
        query_begin, document_begin = query_ends[pair], document_ends[pair]


@njit(cache=True, nogil=True)
def _room(needs: NDArray[np.int64], caps: NDArray[np.int64], available: int, rooms: NDArray[np.int64]) -> None:
    """Share ``available`` places: a field with a cap takes what it needs up to it, the others share the rest fairly."""
    sharing = 0
    for f in range(len(needs)):
        if caps[f] > 0:
            rooms[f] = min(needs[f], caps[f])
            available -= rooms[f]
        else:
            rooms[f] = -1
            sharing += 1
    available = max(available, 0)
    # The field that needs least first: what it leaves over goes to the others.
    while sharing > 0:
        least = -1
        for f in range(len(needs)):
            if rooms[f] < 0 and (least < 0 or needs[f] < needs[least]):
                least = f
        rooms[least] = min(needs[least], available // sharing)
        available -= rooms[least]
        sharing -= 1


@njit(cache=True, nogil=True)
def lay_out(
    ids: NDArray[np.int32],
    continues: NDArray[np.bool_],
    marks: NDArray[np.int32],
    opens: NDArray[np.bool_],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    caps: NDArray[np.int64],
    segments: NDArray[np.int8],
    cls: int,
    sep: int,
    first_marker: int,
    max_length: int,
    tokens: NDArray[np.int32],
    token_segments: NDArray[np.int8],
    positions: NDArray[np.int32],
    words: NDArray[np.int32],
    last: NDArray[np.bool_],
    sequence_ends: NDArray[np.int64],
    cut: NDArray[np.int64],
) -> int:
    """Write ``[CLS] field [SEP] field [SEP] …`` for each pair, one after the other without padding.

    ``begins`` and ``ends`` (pairs, fields) say where a pair's fields lie in the piece arrays; an empty field with begin
    -1 vanishes together with its ``[SEP]``. A marked word is written ``[ek] pieces [/ek]`` with the ids
    ``first_marker + 2(k - 1)`` and one more; where room runs out, it keeps both markers and a piece or more, or goes.
    ``cut[pair, field]`` counts the pieces left out. Returns the number of tokens.
    """
    fields = begins.shape[1]
    needs = np.empty(fields, np.int64)
    rooms = np.empty(fields, np.int64)
    marked = len(marks) > 0
    at = 0
    for pair in range(len(begins)):
        start = at
        separators = 0
        for f in range(fields):
            needs[f] = 0
            if begins[pair, f] < 0:
                continue
            separators += 1
            needs[f] = ends[pair, f] - begins[pair, f]
            if marked:
                # A window may begin within a word: what is left of it is marked like a whole one.
                for i in range(begins[pair, f], ends[pair, f]):
                    if marks[i] > 0 and (opens[i] or i == begins[pair, f] or marks[i - 1] != marks[i]):
                        needs[f] += 2
        _room(needs, caps, max_length - 1 - separators, rooms)

        word = 0
        tokens[at], token_segments[at], words[at], last[at] = cls, segments[0], word, True
        at += 1
        for f in range(fields):
            if begins[pair, f] < 0:
                cut[pair, f] = 0
                continue
            limit = at + rooms[f]
            joined = False
            i = begins[pair, f]
            while i < ends[pair, f] and at < limit:
                mark = marks[i] if marked else 0
                stop = i + 1
                if mark > 0:
                    while stop < ends[pair, f] and marks[stop] == mark and not opens[stop]:
                        stop += 1
                    if limit - at < 3:
                        break
                    word += 1
                    tokens[at], words[at], last[at] = first_marker + 2 * (mark - 1), word, True
                    at += 1
                    stop = min(stop, i + limit - at - 1)
                    joined = False
                for j in range(i, stop):
                    if continues[j] and joined:
                        last[at - 1] = False
                    else:
                        word += 1
                    tokens[at], words[at], last[at] = ids[j], word, True
                    at += 1
                    joined = True
                if mark > 0:
                    word += 1
                    tokens[at], words[at], last[at] = first_marker + 2 * (mark - 1) + 1, word, True
                    at += 1
                    joined = False
                i = stop
            cut[pair, f] = ends[pair, f] - i
            word += 1
            tokens[at], words[at], last[at] = sep, word, True
            at += 1
            for j in range(limit - rooms[f], at):
                token_segments[j] = segments[f]
        for j in range(start, at):
            positions[j] = j - start
        sequence_ends[pair] = at
    return at
