"""Native code for words: finding them in UTF-8 bytes and giving each distinct one a number.

Tokenising in Python is nine tenths of an index build, so both are numba kernels over whole batches. Small functions are
left for LLVM to inline: numba's own inlining makes the code no faster and its compilation longer. A number that begins
as a literal 0 would compile the functions it is passed to twice, so it begins as ``np.int64(0)``.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from rankwell.core.native import helper, kernel
from rankwell.corpus.characters import (
    DIGIT,
    IDEOGRAPH,
    JOINER,
    KATAKANA,
    LETTER,
    MARK,
    MID_BOTH,
    MID_LETTER,
    MID_NUMBER,
    OTHER,
    TABLE_SIZE,
)

MAX_WORD_BYTES = 255
"""Longer runs of letters are cut here, as Lucene does."""

Bytes = NDArray[np.uint8]


@helper
def _decode(text: Bytes, at: int, end: int) -> tuple[int, int]:
    """The character at byte ``at`` and how many bytes it takes; the bytes are valid UTF-8."""
    first = np.int64(text[at])
    if first < 0x80:
        return first, 1
    if first < 0xE0 and at + 1 < end:
        return ((first & 0x1F) << 6) | np.int64(text[at + 1] & 0x3F), 2
    if first < 0xF0 and at + 2 < end:
        return ((first & 0x0F) << 12) | (np.int64(text[at + 1] & 0x3F) << 6) | np.int64(text[at + 2] & 0x3F), 3
    if at + 3 < end:
        high = ((first & 0x07) << 18) | (np.int64(text[at + 1] & 0x3F) << 12)
        return high | (np.int64(text[at + 2] & 0x3F) << 6) | np.int64(text[at + 3] & 0x3F), 4
    return 0, 1


@helper
def _class(code: int, classes: Bytes) -> int:
    if code < TABLE_SIZE:
        return np.int64(classes[code])
    return IDEOGRAPH if code < 0x40000 else OTHER


@helper
def _word_end(text: Bytes, start: int, at: int, end: int, kind: int, classes: Bytes) -> tuple[int, bool]:
    """Where the word ends whose first character, a ``kind``, is ``start … at``; whether it has a letter or digit."""
    limit = start + MAX_WORD_BYTES if end > start + MAX_WORD_BYTES else end
    solid = kind != JOINER
    last = kind
    while at < limit:
        if text[at] < 0x80:
            code, size = np.int64(text[at]), 1
            kind = np.int64(classes[code])
        else:
            code, size = _decode(text, at, end)
            kind = _class(code, classes)
            if at + size > limit:
                break
        if kind == LETTER or kind == DIGIT:
            if last == KATAKANA:
                break
            solid = True
        elif kind == KATAKANA:
            if last == LETTER or last == DIGIT:
                break
            solid = True
        elif kind == MARK:
            at += size
            continue
        elif kind == MID_LETTER or kind == MID_NUMBER or kind == MID_BOTH:
            # It joins only between two letters or two digits: look one character ahead.
            if at + size >= limit:
                break
            next_code, next_size = _decode(text, at + size, end)
            next_kind = _class(next_code, classes)
            letters = last == LETTER and next_kind == LETTER and kind != MID_NUMBER
            digits = last == DIGIT and next_kind == DIGIT and kind != MID_LETTER
            if not (letters or digits) or at + size + next_size > limit:
                break
            at += size + next_size
            continue
        elif kind != JOINER:
            break
        last = kind
        at += size
    return at, solid


@helper
def _without_possessive(text: Bytes, start: int, end: int) -> int:
    """The end of the word without a final ``'s`` (any of the three apostrophes)."""
    if end - start > 2 and (text[end - 1] == 115 or text[end - 1] == 83):
        if text[end - 2] == 39:
            return end - 2
        if end - start > 4:
            typographic = text[end - 4] == 0xE2 and text[end - 3] == 0x80 and text[end - 2] == 0x99
            full_width = text[end - 4] == 0xEF and text[end - 3] == 0xBC and text[end - 2] == 0x87
            if typographic or full_width:
                return end - 4
    return end


@kernel
def find_words(
    text: Bytes,
    text_ends: NDArray[np.int64],
    classes: Bytes,
    drop_possessive: bool,
    cjk_pairs: bool,
    spans: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Fill ``spans`` with the ``(begin, end)`` bytes of each word, ``counts`` with the number of words up to each text.

    ``spans`` has room for as many rows as ``text`` has bytes divided by two, plus one for each text, and for twice as
    many with ``cjk_pairs``. With it each ideograph is a word, after the one that it is together with the next.
    """
    count = 0
    at = np.int64(0)
    for i in range(len(text_ends)):
        end = text_ends[i]
        while at < end:
            start = at
            if text[at] < 0x80:
                kind = np.int64(classes[text[at]])
                at += 1
            else:
                code, size = _decode(text, at, end)
                kind = _class(code, classes)
                at += size
            if kind == IDEOGRAPH:
                if cjk_pairs and at < end:
                    code, size = _decode(text, at, end)
                    if _class(code, classes) == IDEOGRAPH:
                        spans[count, 0] = start
                        spans[count, 1] = at + size
                        count += 1
                spans[count, 0] = start
                spans[count, 1] = at
                count += 1
            elif LETTER <= kind <= KATAKANA:
                at, solid = _word_end(text, start, at, end, kind, classes)
                if solid:
                    spans[count, 0] = start
                    spans[count, 1] = _without_possessive(text, start, at) if drop_possessive else at
                    count += 1
        counts[i] = count


@helper
def _is_mixed(text: Bytes, start: int, end: int) -> bool:
    """Whether there are ASCII digits and letters of any kind."""
    digits, letters = False, False
    for at in range(start, end):
        digits |= 48 <= text[at] <= 57
        letters |= text[at] >= 65
    return digits and letters


@helper
def _splits(text: Bytes, at: int, start: int, end: int) -> bool:
    """Whether a part of a word ends at ``at``: at the ``_`` of ``add_done`` or the L of ``readLine``."""
    byte = text[at]
    if byte == 95:
        return True
    if byte == 46 or byte == 58:
        return at + 1 < end and not (48 <= text[at - 1] <= 57 and 48 <= text[at + 1] <= 57)
    if at == start or not 65 <= byte <= 90:
        return False
    before = text[at - 1]
    if 97 <= before <= 122:
        return True
    return 65 <= before <= 90 and at + 2 < end and 97 <= text[at + 1] <= 122 and 97 <= text[at + 2] <= 122


@kernel
def find_codes(
    text: Bytes,
    spans: NDArray[np.int64],
    counts: NDArray[np.int64],
    joined: NDArray[np.int64],
    uncounted: NDArray[np.bool_],
    joined_counts: NDArray[np.int64],
) -> None:
    """Fill ``joined`` with the words, each followed by its parts if it is like ``add_done`` or ``readLine``.

    Words with one ``-``, ``.`` or ``/`` between them that have letters and digits, such as ``SKU-JA-10158``, are
    followed by all of it. What was not a word before is ``uncounted``.
    """
    count = np.int64(0)
    word = np.int64(0)
    for i in range(len(counts)):
        first = word
        while word < counts[i]:
            start, end = spans[word, 0], spans[word, 1]
            joined[count, 0], joined[count, 1], uncounted[count] = start, end, False
            count += 1
            begin = start
            for at in range(start, end):
                if text[at] < 97 and _splits(text, at, start, end):
                    if at - begin > 1:
                        joined[count, 0], joined[count, 1], uncounted[count] = begin, at, True
                        count += 1
                    begin = at if 65 <= text[at] <= 90 else at + 1
            if start < begin < end - 1:
                joined[count, 0], joined[count, 1], uncounted[count] = begin, end, True
                count += 1
            word += 1
            if word < counts[i] and spans[word, 0] == end + 1 and 45 <= text[end] <= 47:
                continue
            begin = spans[first, 0]
            if first < word - 1 and end - begin <= MAX_WORD_BYTES and _is_mixed(text, begin, end):
                joined[count, 0], joined[count, 1], uncounted[count] = begin, end, True
                count += 1
            first = word
        joined_counts[i] = count


@helper
def _lower_into(text: Bytes, start: int, end: int, lower: NDArray[np.int32], word: Bytes) -> int:
    """Write the lower-case form of ``text[start:end]`` to ``word``; return its length in bytes."""
    size = 0
    at = start
    while at < end:
        if text[at] < 0x80:
            word[size] = lower[text[at]]
            size += 1
            at += 1
            continue
        code, width = _decode(text, at, end)
        low = np.int64(lower[code]) if code < TABLE_SIZE else code
        if low == code:
            for j in range(width):
                word[size + j] = text[at + j]
            size += width
        elif low < 0x80:
            word[size] = low
            size += 1
        elif low < 0x800:
            word[size] = 0xC0 | (low >> 6)
            word[size + 1] = 0x80 | (low & 0x3F)
            size += 2
        elif low < 0x10000:
            word[size] = 0xE0 | (low >> 12)
            word[size + 1] = 0x80 | ((low >> 6) & 0x3F)
            word[size + 2] = 0x80 | (low & 0x3F)
            size += 3
        else:
            word[size] = 0xF0 | (low >> 18)
            word[size + 1] = 0x80 | ((low >> 12) & 0x3F)
            word[size + 2] = 0x80 | ((low >> 6) & 0x3F)
            word[size + 3] = 0x80 | (low & 0x3F)
            size += 4
        at += width
    return size


@helper
def _mix(key: int) -> int:
    """Spread a key over the low bits that index a table."""
    product = key * np.uint64(0x9E3779B97F4A7C15)
    return product ^ (product >> np.uint64(29))


@helper
def _key(word: Bytes, begin: int, size: int) -> int:
    """A short word is its own key; any other has a hash with the top byte 0xFF, which no UTF-8 has.

    Short are words of up to 8 bytes. One that ends in a zero would pass for a shorter one, and is not.
    """
    key = np.uint64(0)
    lane = np.uint64(0)
    for i in range(size):
        lane |= np.uint64(word[begin + i]) << np.uint64(8 * (i & 7))
        if i & 7 == 7 and size > 8:
            key = _mix(key ^ lane)
            lane = np.uint64(0)
    if size <= 8 and (size == 0 or word[begin + size - 1] != 0):
        return lane
    return _mix(key ^ lane ^ np.uint64(size)) | np.uint64(0xFF00000000000000)


@helper
def _is_short(key: int) -> bool:
    """Whether the key says which word it is."""
    return key < np.uint64(0xFF00000000000000)


@helper
def _same(word: Bytes, begin: int, size: int, number: int, arena: Bytes, ends: NDArray[np.int64]) -> bool:
    other = ends[number - 1] if number else np.int64(0)
    if ends[number] - other != size:
        return False
    for j in range(size):
        if arena[other + j] != word[begin + j]:
            return False
    return True


@partial(
    kernel, work=lambda text, spans, first, *_: len(spans) - first + (spans[first:, 1] - spans[first:, 0]).sum() // 16
)
def intern_words(
    text: Bytes,
    spans: NDArray[np.int64],
    first: int,
    lower: NDArray[np.int32],
    slots: NDArray[np.int32],
    keys: NDArray[np.uint64],
    arena: Bytes,
    ends: NDArray[np.int64],
    count: int,
    word: Bytes,
    numbers: NDArray[np.int32],
) -> tuple[int, int]:
    """Number the words from ``first`` on, adding those not seen before; stop where a table is too full for one more.

    Returns the number of distinct words and of the spans done. An empty ``lower`` keeps the case. ``word`` has room for
    twice the bytes of the longest word, and four.
    """
    mask = np.uint64(len(slots) - 1)
    fold = len(lower) > 0
    used = ends[count - 1] if count else np.int64(0)
    for i in range(first, len(spans)):
        start, end = spans[i, 0], spans[i, 1]
        size = end - start
        if 2 * count >= len(slots) or count >= len(ends) or used + 2 * size + 4 > len(arena):
            return count, i
        # Most words are up to 8 ASCII letters: their key is built and compared without touching the arena.
        key = np.uint64(0)
        simple = size <= 8
        for j in range(size if simple else 0):
            byte = text[start + j]
            simple = simple and 0 < byte < 0x80
            key |= np.uint64(lower[byte] if fold else byte) << np.uint64(8 * j)
        if not simple:
            if fold:
                size = _lower_into(text, start, end, lower, word)
            else:
                for j in range(size):
                    word[j] = text[start + j]
            key = _key(word, np.int64(0), size)
        short = _is_short(key)
        slot = _mix(key) & mask
        number = np.int64(slots[slot])
        while number >= 0 and not (
            keys[slot] == key and (short or _same(word, np.int64(0), size, number, arena, ends))
        ):
            slot = (slot + np.uint64(1)) & mask
            number = np.int64(slots[slot])
        if number < 0:
            number = count
            slots[slot] = number
            keys[slot] = key
            for j in range(size):
                arena[used + j] = np.uint8((key >> np.uint64(8 * j)) & np.uint64(0xFF)) if short else word[j]
            used += size
            ends[count] = used
            count += 1
        numbers[i] = number
    return count, len(spans)


@kernel
def find_interned(
    text: Bytes,
    text_ends: NDArray[np.int64],
    slots: NDArray[np.int32],
    arena: Bytes,
    ends: NDArray[np.int64],
    numbers: NDArray[np.int32],
) -> None:
    """Fill ``numbers`` with the number of each word, -1 where it is not in the table."""
    mask = np.uint64(len(slots) - 1)
    begin = np.int64(0)
    for i in range(len(text_ends)):
        size = text_ends[i] - begin
        slot = _mix(_key(text, begin, size)) & mask
        number = np.int64(slots[slot])
        left = len(slots)
        while number >= 0 and not _same(text, begin, size, number, arena, ends):
            slot = (slot + np.uint64(1)) & mask
            left -= 1  # a table that was truncated meanwhile has no empty slot
            number = np.int64(slots[slot]) if left > 0 else np.int64(-1)
        numbers[i] = number
        begin = text_ends[i]


@kernel
def grow_table(
    slots: NDArray[np.int32], keys: NDArray[np.uint64], larger: NDArray[np.int32], larger_keys: NDArray[np.uint64]
) -> None:
    """Enter every word of one table into a larger, empty one."""
    mask = np.uint64(len(larger) - 1)
    for old in range(len(slots)):
        if slots[old] >= 0:
            slot = _mix(keys[old]) & mask
            while larger[slot] >= 0:
                slot = (slot + np.uint64(1)) & mask
            larger[slot] = slots[old]
            larger_keys[slot] = keys[old]
