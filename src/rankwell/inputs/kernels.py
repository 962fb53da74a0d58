"""Native code: matches stems for markers, lays out templates without padding, joins occurrences of split words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwell.core.native import native


@native()
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


@native()
def _room(needs: NDArray[np.int64], caps: NDArray[np.int64], available: int, rooms: NDArray[np.int64]) -> None:
    """Share ``available`` places: fields with a cap get what they need up to it, the others a fair share.

    What the others leave over goes to fields that need more than their cap.
    """
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
    for f in range(len(needs)):
        if caps[f] > 0:
            extra = min(needs[f] - rooms[f], available)
            rooms[f] += extra
            available -= extra


@native()
def lay_out(
    ids: NDArray[np.int32],
    continues: NDArray[np.bool_],
    marks: NDArray[np.int32],
    opens: NDArray[np.bool_],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    caps: NDArray[np.int64],
    segments: NDArray[np.int8],
    alone: NDArray[np.bool_],
    cls: int,
    sep: int,
    first_marker: int,
    between: int,
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

    ``begins`` and ``ends`` (pairs, fields) are the places of a pair's fields in the piece arrays; a field with begin -1
    is left out together with its ``[SEP]``. There are ``between`` separators between two fields. A field that is
    ``alone`` begins with its own ``[CLS]``, from which its positions are counted. A marked word becomes
    ``[ek] pieces [/ek]``, with the ids ``first_marker + 2(k - 1)`` and the next. If room runs out, it keeps both
    markers and at least one piece, or is left out. ``cut[pair, field]`` counts the pieces left out. Returns the number
    of tokens.
    """
    fields = begins.shape[1]
    needs = np.empty(fields, np.int64)
    rooms = np.empty(fields, np.int64)
    marked = len(marks) > 0
    at = 0
    for pair in range(len(begins)):
        start = at
        separators, final = 0, 0
        for f in range(fields):
            needs[f] = 0
            if begins[pair, f] < 0:
                continue
            separators += (1 if separators == 0 else between) + alone[f]
            final = f
            needs[f] = ends[pair, f] - begins[pair, f]
            if marked:
                # A window may begin within a word: its rest is marked like a whole word.
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
            opened = at
            if alone[f]:
                for j in range(start, at):
                    positions[j] = j - start
                word += 1
                tokens[at], words[at], last[at] = cls, word, True
                at += 1
                start = opened
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
            for _ in range(between if f < final else 1):
                word += 1
                tokens[at], words[at], last[at] = sep, word, True
                at += 1
            for j in range(opened, at):
                token_segments[j] = segments[f]
        for j in range(start, at):
            positions[j] = j - start
        sequence_ends[pair] = at
    return at


@native()
def join_equal_words(tokens: NDArray[np.int32], words: NDArray[np.int32], ends: NDArray[np.int64]) -> NDArray[np.int32]:
    """Word ids in which all occurrences of a split word within a sequence have the id of the first.

    ``tokens`` and ``words`` are (T,), ``ends`` (B,). A word is split if two or more tokens share its id; two words
    are equal if they have the same tokens in the same order.
    """
    joined = words.copy()
    # The distinct split words of one sequence: where each begins, how long it is, and a hash to compare first.
    starts = np.empty(len(tokens), np.int64)
    sizes = np.empty(len(tokens), np.int64)
    hashes = np.empty(len(tokens), np.uint64)
    begin = 0
    for end in ends:
        count = 0
        i = begin
        while i < end:
            stop = i + 1
            code = np.uint64(tokens[i])
            while stop < end and words[stop] == words[i]:
                code = code * np.uint64(0x9E3779B97F4A7C15) + np.uint64(tokens[stop])
                stop += 1
            if stop - i > 1:
                known = -1
                for k in range(count):
                    if hashes[k] == code and sizes[k] == stop - i:
                        same = True
                        for j in range(stop - i):
                            if tokens[starts[k] + j] != tokens[i + j]:
                                same = False
                                break
                        if same:
                            known = k
                            break
                if known < 0:
                    starts[count], sizes[count], hashes[count] = i, stop - i, code
                    count += 1
                else:
                    joined[i:stop] = words[starts[known]]
            i = stop
        begin = end
    return joined
