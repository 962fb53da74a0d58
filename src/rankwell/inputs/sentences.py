"""Finds where sentences begin, from tokens alone, so that it also works on stored tokens.

A vocabulary like BERT's has neither spaces nor line ends, and an uncased one no capitals. These rules remain:

    it came . " go ! " she left         a sentence ends after . ! ? and the marks of other scripts, with what closes
    3 . 5    no . 7    u . s . army     not within numbers, nor after initials and abbreviations
    www . example . com    etc . ,      nor within addresses, nor before a comma
    1 . wash 2 . dry    • soap          an item of a list begins with its number or bullet

If the vocabulary has capitals or spaces, a full stop before a small letter, or without a space after it, does not end a
sentence. When in doubt, two sentences are taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rankwell.inputs.pieces import Pieces
from rankwell.inputs.tokenizer import Tokenizer

_STOPS = ".…"
# Latin; Chinese and Japanese; Arabic and Urdu; Hindi; Ethiopic; Armenian; Tibetan; Burmese; Khmer.
_ENDS = "!?‼⁇⁈⁉" + "。．｡！？" + "؟۔" + "।॥" + "።፧" + "։" + "།༎" + "။" + "។៕"
_CLOSING = "'”’»›)]}」』）】〉》"
_JOINING = ",;:،，、；："
_BULLETS = "•●▪■◦‣⁃"
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof rev hon gen sen capt cmdr col lt sgt st mt ft vs cf viz al approx ca www".split()
)
_BEFORE_NUMBERS = frozenset(
    "no nos vol vols pp fig figs eq eqs sec ch art para jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
_AFTER_POINTS = frozenset("com org edu gov io co uk html htm php asp pdf jpg png gif xml".split())
_LARGEST_ITEM = 99

# The role of a piece in a sentence.
_STOP, _END, _CLOSE, _QUOTE, _JOIN, _BULLET, _NUMBER, _SHORT, _BEFORE_NUMBER, _AFTER_POINT, _INNER = (
    1 << bit for bit in range(11)
)
# A piece may be several characters: `."`
_END_PIECE = re.compile(rf"[\"{re.escape(_STOPS + _ENDS + _CLOSING)}]+")
_CLOSING_PIECE = re.compile(rf"[\"{re.escape(_CLOSING)}]+")


Marks = tuple[NDArray[np.uint16], NDArray[np.uint8]]
"""The roles of a vocabulary's pieces in sentences: flags (V,), and the numbers of list items (V,), else 0."""


def marks_of(names: Sequence[str]) -> Marks:
    """The marks of a vocabulary, by the names of its pieces."""
    texts = _spelled(names)
    cased = any(len(text) > 2 and text.isalpha() and text.istitle() for text in texts)
    spaced = any(text.startswith(" ") for text in texts)
    flags = [
        _flags(word) | (_INNER if (cased and word[:1].islower()) or (spaced and not text.startswith(" ")) else 0)
        for text, word in ((text, text.strip()) for text in texts)
    ]
    numbers = [
        int(text) if flag & _NUMBER and int(text) <= _LARGEST_ITEM else 0
        for text, flag in zip(texts, flags, strict=True)
    ]
    return np.array(flags, np.uint16), np.array(numbers, np.uint8)


@lru_cache(maxsize=8)
def sentence_marks(tokenizer: Tokenizer) -> Marks:
    """The marks of a tokenizer's vocabulary."""
    return marks_of(tokenizer.token_names(range(len(tokenizer))))


def sentence_starts(pieces: Pieces, marks: Marks) -> NDArray[np.bool_]:
    """Whether a sentence begins with a piece (T,): always between words, and at the beginning of each text."""
    flags_of, numbers_of = marks
    flags = flags_of[pieces.ids]
    starts = flags & _BULLET > 0
    starts[pieces.begins[pieces.lengths() > 0]] = True

    at = np.flatnonzero(flags & (_STOP | _END))
    text = np.searchsorted(pieces.ends, at, side="right")
    begin, end = pieces.begins[text], pieces.ends[text]

    def near(by: int) -> NDArray[np.uint16]:
        """The flags of the pieces ``by`` places from the marks, 0 outside the text."""
        inside = (at + by >= begin) & (at + by < end)
        return np.where(inside, flags[np.where(inside, at + by, 0)], np.uint16(0))

    def has(values: NDArray[np.uint16], flag: int) -> NDArray[np.bool_]:
        return (values & np.uint16(flag)) > 0

    before, after = near(-1), near(1)
    begun = ~pieces.continues[at - 1]  # whether the piece before the mark begins its word
    whole = ~pieces.continues[np.minimum(at + 2, end - 1)]  # and whether that after it ends one
    decimal = has(before & after, _NUMBER)
    # The last letter of a longer word is no initial, nor that of "don't", but that of "e.g." is, also within a word.
    short = has(before, _SHORT) & (begun | has(near(-2), _STOP)) & ~has(near(-2), _CLOSE)
    short |= has(before, _BEFORE_NUMBER) & begun & has(after, _NUMBER)
    ends = ~has(flags[at], _STOP) | ~(decimal | short | (has(after, _AFTER_POINT) & whole))

    ended = np.zeros(len(flags), np.bool_)
    ended[at[ends]] = True
    numbers = np.where(
        has(flags[at], _STOP) & has(before, _NUMBER) & begun & ~decimal, numbers_of[pieces.ids[at - 1]], 0
    )
    items = np.flatnonzero(numbers)
    opening = (at[items] - 1 == begin[items]) | ended[at[items] - 2]
    items = items[opening | _counted(numbers[items], text[items])]
    ends[items] = False
    starts[at[items] - 1] = True

    # The first piece after a mark that is neither a mark nor closes anything.
    words = np.append(np.flatnonzero(~_tail(flags, pieces)), len(flags))
    place = words[np.searchsorted(words, at)]
    inside = ends & (place < end)
    place, last = place[inside], flags[at[inside]]
    starts[place[~has(flags[place], _JOIN) & (~has(flags[place], _INNER) | has(last, _END))]] = True
    return starts & ~pieces.continues


def _tail(flags: NDArray[np.uint16], pieces: Pieces) -> NDArray[np.bool_]:
    """Whether a piece goes with the mark before it: another, and what closes; a plain " closes where one is open."""
    tail = flags & (_STOP | _END | _CLOSE) > 0
    quotes = np.flatnonzero(flags & _QUOTE)
    before = np.searchsorted(quotes, pieces.begins[np.searchsorted(pieces.ends, quotes, side="right")])
    tail[quotes[(np.arange(len(quotes)) - before) % 2 > 0]] = True
    return tail


def _counted(numbers: NDArray[np.integer], text: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which numbers count on from 1 or 0 in their text, two or more of them: lists begin there, ages do not."""
    if not len(numbers):
        return np.zeros(0, np.bool_)
    fresh = np.ones(len(numbers), np.bool_)  # where a run of numbers, each one more than the last, begins
    fresh[1:] = (np.diff(numbers.astype(np.int64)) != 1) | (np.diff(text) != 0)
    run = np.cumsum(fresh) - 1
    several = np.bincount(run) > 1
    counts = several & (numbers[fresh] <= 1)
    items: NDArray[np.bool_] = counts[run]
    return items


def _flags(word: str) -> int:
    """The role of a piece by its text; a single letter is an initial."""
    if word.isalpha():
        word, initial = word.lower(), len(word) == 1 and word.lower() != word.upper()
        return (
            _SHORT * (initial or word in _ABBREVIATIONS)
            | _BEFORE_NUMBER * (word in _BEFORE_NUMBERS)
            | _AFTER_POINT * (word in _AFTER_POINTS)
        )
    if word.isdecimal():
        return _NUMBER
    flags = _QUOTE * (word.count('"') % 2)
    if _CLOSING_PIECE.fullmatch(word):
        return flags | _CLOSE * (word != '"')
    if _END_PIECE.fullmatch(word):
        return flags | (_END if set(word) & set(_ENDS) else _STOP)
    return flags | _JOIN * (word[:1] in set(_JOINING)) | _BULLET * (word in set(_BULLETS))


def _spelled(names: Sequence[str]) -> list[str]:
    """The texts of pieces: WordPiece's without their ##, with a space before those that others write after a space."""
    if any(name.startswith("##") for name in names):
        return [name.removeprefix("##") for name in names]
    if not any(name.startswith("Ġ") for name in names):
        return [name.replace("▁", " ") for name in names]
    # Byte-level vocabularies write each byte as a letter: those that print as they are, the others from 256 on.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    byte_of = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
    return [bytes(byte_of.get(letter, 63) for letter in name).decode(errors="replace") for name in names]
