"""Character classes for word breaking, after Unicode's UAX #29, as one table that native code can index.

The rules of UAX #29 that matter for search are kept: letters and digits run together, ``can't``, ``U.S``, ``3.14`` and
``1,000`` are one word each, an underscore joins, combining marks stay with their letter, and every ideograph or
Hiragana letter is a word of its own. Scripts that need a dictionary (Thai, Khmer, …) are taken as letter runs. For
an analyser that indexes pairs of characters, Katakana and Hangul count as ideographs.
"""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np
from numpy.typing import NDArray

# The order matters to the kernels: everything from LETTER to KATAKANA can begin a word.
OTHER, LETTER, DIGIT, JOINER, KATAKANA, IDEOGRAPH, MID_LETTER, MID_NUMBER, MID_BOTH, MARK = range(10)

TABLE_SIZE = 0x20000
"""Planes 0 and 1. Beyond them every character is an ideograph (planes 2 and 3) or ignored."""

_MID_LETTER = ":··՟״‧︓﹕："
_MID_NUMBER = ",;;։،؍٬߸⁄︐︔﹐﹔，；"
_MID_BOTH = ".'‘’․﹒＇．"
_IDEOGRAPHS = ((0x3041, 0x309F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x1B001, 0x1B11F))
_KATAKANA = ((0x3031, 0x3035), (0x309B, 0x309C), (0x30A0, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F))

_HANGUL = ((0x1100, 0x11FF), (0x3131, 0x318E), (0xA960, 0xA97C), (0xAC00, 0xD7FB), (0xFFA0, 0xFFDC))


_CATEGORIES = {"L": LETTER, "Nl": LETTER, "Nd": DIGIT, "Pc": JOINER, "M": MARK, "Cf": MARK}
"""Classes by general category, or by its first letter."""


@cache
def class_table(cjk_pairs: bool = False) -> NDArray[np.uint8]:
    """The class of each character below :data:`TABLE_SIZE`."""
    names = "".join(map(unicodedata.category, map(chr, range(TABLE_SIZE)))).encode()
    first, second = np.frombuffer(names, np.uint8).reshape(TABLE_SIZE, 2).T
    table = np.full(TABLE_SIZE, OTHER, np.uint8)
    for name, kind in _CATEGORIES.items():
        table[(first == ord(name[0])) & (second == ord(name[1]) if name[1:] else True)] = kind
    paired = ((_KATAKANA, IDEOGRAPH), (_HANGUL, IDEOGRAPH)) if cjk_pairs else ((_KATAKANA, KATAKANA),)
    for ranges, kind in ((_IDEOGRAPHS, IDEOGRAPH), *paired):
        for first, last in ranges:
            inside = table[first : last + 1]
            inside[inside == LETTER] = kind
    for characters, kind in ((_MID_LETTER, MID_LETTER), (_MID_NUMBER, MID_NUMBER), (_MID_BOTH, MID_BOTH)):
        table[[ord(character) for character in characters]] = kind
    return table


@cache
def lower_table() -> NDArray[np.int32]:
    """The lower-case form of each character below :data:`TABLE_SIZE`, where it is one character."""
    # Spaces between them, as the lower case of a sigma depends on its neighbours.
    text = " ".join(map(chr, range(TABLE_SIZE))).replace("İ", "i").lower()
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)[::2].copy()
