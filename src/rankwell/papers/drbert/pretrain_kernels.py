"""Native code of pre-training: choosing spans of passages and masking their pieces.

Random numbers are a hash of a pair's key and a counter, not a stream: a pair is the same whichever batch and process
draws it, and nothing has to be kept to draw it again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwell.core.native import native

NEXT, OTHER, NEITHER = 0, 1, -1
"""Labels of a second span, with the numbers BERT's own head uses: it continues the first, or comes from elsewhere."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Counters of a pair's random numbers; those of its masks follow the last.
_IS_OTHER, _IS_SHORT, _ROOM, _WINDOW, _SPLIT, _PLACE, _OTHERS = 0, 1, 2, 3, 4, 5, 6
_MASKS = 64


@native(inline="always")
def _hash(key: np.uint64) -> np.uint64:
    """SplitMix64's mixing of one number."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


@native(inline="always")
def _uniform(key: np.uint64, counter: int) -> float:
    """The ``counter``-th random number of a key, in [0, 1)."""
    mixed = _hash(key + np.uint64(counter + 1) * _GOLDEN)
    return np.float64(mixed >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@native(inline="always")
def _below(key: np.uint64, counter: int, limit: int) -> int:
    """A random whole number from 0 to ``limit`` - 1."""
    return np.int64(_uniform(key, counter) * limit)


@native()
def make_keys(seed: int, epoch: int, items: NDArray[np.int64], keys: NDArray[np.uint64]) -> None:
    """The key of each item's random numbers in this epoch."""
    base = _hash(_hash(np.uint64(seed) + _GOLDEN) + np.uint64(epoch) * _GOLDEN)
    for i in range(len(items)):
        keys[i] = _hash(base + np.uint64(items[i] + 1) * _GOLDEN)


@native()
def choose_others(
    keys: NDArray[np.uint64],
    items: NDArray[np.int64],
    count: int,
    share: float,
    is_other: NDArray[np.bool_],
    others: NDArray[np.int64],
) -> None:
    """Say which pairs get a second span from elsewhere, and draw the items, of ``count``, that it may come from.

    ``others`` is (pairs, tries); none of a row is the pair's own item.
    """
    for i in range(len(keys)):
        is_other[i] = _uniform(keys[i], _IS_OTHER) < share
        for j in range(others.shape[1]):
            drawn = _below(keys[i], _OTHERS + j, count - 1)
            others[i, j] = drawn + 1 if drawn >= items[i] else drawn


@native()
def _whole_words(
    continues: NDArray[np.bool_], begin: int, end: int, size: int, first: int, skip: int
) -> tuple[int, int]:
    """Whole words of ``begin … end`` from the one at ``first`` on, at most ``size`` pieces.

    A word that does not fit is passed over, forwards or backwards as ``skip`` is 1 or -1; nothing (``begin``,
    ``begin``) where none fits from there to the end of the text or its begin.
    """
    while begin <= first < end:
        while first > begin and continues[first]:
            first -= 1
        last = min(first + size, end)
        while last > first and last < end and continues[last]:
            last -= 1
        if last > first:
            return first, last
        if skip > 0:
            first += 1
            while first < end and continues[first]:
                first += 1
        else:
            first -= 1
    return begin, begin


@native()
def _window(
    continues: NDArray[np.bool_], begin: int, end: int, size: int, key: np.uint64, counter: int
) -> tuple[int, int]:
    """Whole words of ``begin … end``, at most ``size`` pieces, from a random place; of a longer word, its begin."""
    if end - begin <= size:
        return begin, end
    place = begin + _below(key, counter, end - begin - size + 1)
    first, last = _whole_words(continues, begin, end, size, place, 1)
    if last == first:
        first, last = _whole_words(continues, begin, end, size, place, -1)
    return first, last if last > first else first + size


@native()
def _tail(continues: NDArray[np.bool_], begin: int, end: int, size: int) -> tuple[int, int]:
    """The last whole words of ``begin … end``, at most ``size`` pieces; of a longer word, its begin."""
    first = max(begin, end - size)
    while first < end and first > begin and continues[first]:
        first += 1
    if first < end:
        return first, end
    first, last = _whole_words(continues, begin, end, size, end - 1, -1)
    return first, last if last > first else min(first + size, end)


@native()
def _exact(continues: NDArray[np.bool_], begin: int, end: int, size: int, at_end: bool, key: np.uint64) -> int:
    """Where whole words of just ``size`` pieces begin, at the text's end or from a random place on; -1 for nowhere."""
    places = end - begin - size + 1
    if places < 1 or size < 1:
        return -1
    skipped = places - 1 if at_end else _below(key, _PLACE, places)
    for i in range(1 if at_end else places):
        first = begin + (skipped + i) % places
        last = first + size
        if not continues[first] and (last == end or not continues[last]):
            return first
    return -1


@native()
def _elsewhere(
    continues: NDArray[np.bool_],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
    size: int,
    at_end: bool,
    key: np.uint64,
) -> tuple[int, int]:
    """A span of one of these rows: of ``size`` pieces and, ``at_end``, the last of its text, as far as there is one.

    A random span is to be like the true continuation in both, else a model could tell them apart without reading.
    """
    longest = rows[0]
    for row in rows:
        first = _exact(continues, begins[row], ends[row], size, at_end, key)
        if first >= 0:
            return first, first + size
        if ends[row] - begins[row] > ends[longest] - begins[longest]:
            longest = row
    if at_end:
        return _tail(continues, begins[longest], ends[longest], size)
    return _window(continues, begins[longest], ends[longest], size, key, _PLACE)


@native()
def choose_spans(
    continues: NDArray[np.bool_],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    keys: NDArray[np.uint64],
    other_rows: NDArray[np.int64],
    room: int,
    short_share: float,
    spans: NDArray[np.int64],
    following: NDArray[np.int64],
) -> None:
    """Choose two spans of whole words for each pair: ``spans`` (pairs, 4) is begin and end of the first and the second.

    Pair ``i`` is row ``i`` of the pieces. ``other_rows`` (pairs, tries) are the rows a second span may come from, -1
    where it is to continue the first. ``following`` is the label.
    """
    for i in range(len(keys)):
        key = keys[i]
        size = room
        if _uniform(key, _IS_SHORT) < short_share:
            size = 2 + _below(key, _ROOM, room - 1)
        begin, end = _window(continues, begins[i], ends[i], size, key, _WINDOW)
        boundaries = 0
        for j in range(begin + 1, end):
            boundaries += not continues[j]
        middle = end
        if boundaries > 0:
            left = _below(key, _SPLIT, boundaries)
            middle = begin + 1
            while continues[middle] or left > 0:
                left -= not continues[middle]
                middle += 1
        spans[i, 0], spans[i, 1] = begin, middle
        spans[i, 2], spans[i, 3] = middle, end
        following[i] = NEXT if boundaries > 0 else NEITHER
        if other_rows[i, 0] < 0:
            continue
        wanted = end - middle if boundaries > 0 else size - (end - begin)
        spans[i, 2], spans[i, 3] = _elsewhere(continues, begins, ends, other_rows[i], wanted, end == ends[i], key)
        if boundaries > 0:
            following[i] = OTHER


@native()
def mask_pieces(
    tokens: NDArray[np.int32],
    ends: NDArray[np.int64],
    keys: NDArray[np.uint64],
    ordinary: NDArray[np.bool_],
    ordinary_ids: NDArray[np.int32],
    mask: int,
    share: float,
    targets: NDArray[np.int32],
) -> None:
    """Mask ``tokens`` in place; ``targets`` is what stood where something is to be predicted, -1 elsewhere.

    Of a sequence's pieces the ``share`` is chosen, rounded at random and at least one, each set equally likely. Of
    those chosen, 80 % become ``mask``, 10 % random pieces, 10 % stay. What is not ``ordinary`` (special tokens, unknown
    words) is never chosen.
    """
    begin = 0
    for i in range(len(ends)):
        key, counter, end = keys[i], _MASKS, ends[i]
        pieces = 0
        for j in range(begin, end):
            targets[j] = -1
            pieces += ordinary[tokens[j]]
        left = min(pieces, max(1, np.int64(pieces * share + _uniform(key, counter))))
        for j in range(begin, end):
            if left == 0:
                break
            if ordinary[tokens[j]]:
                counter += 1
                if _uniform(key, counter) * pieces < left:
                    left -= 1
                    counter += 1
                    fate = _uniform(key, counter)
                    targets[j] = tokens[j]
                    if fate < 0.8:
                        tokens[j] = mask
                    elif fate < 0.9:
                        counter += 1
                        tokens[j] = ordinary_ids[_below(key, counter, len(ordinary_ids))]
                pieces -= 1
        begin = end
