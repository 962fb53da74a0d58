"""A lexicon numbers distinct strings 0, 1, 2, …: words, stems and document ids alike.

The strings lie end to end in one byte array with a hash table of 32-bit slots, so millions of them take little memory,
whole batches are looked up in native code, and a saved lexicon is used directly from its memory-mapped files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import pack_strings, save_array
from rankwell.core.errors import InputError
from rankwell.core.mapped import ArrayFolder, MappedArray, Ragged
from rankwell.corpus.characters import lower_table
from rankwell.corpus.word_kernels import find_interned, grow_table, intern_words

_KEEP_CASE = np.zeros(0, np.int32)
SMALL = 1 << 16  # strings; a saved lexicon of so few is verified as a whole, which takes a millisecond


class Lexicon:
    """Strings and their numbers. ``fold_case`` lower-cases what is added (not what is looked up)."""

    def __init__(self, *, fold_case: bool = False):
        self._lower = lower_table() if fold_case else _KEEP_CASE
        self._count = 0
        self._slots = np.full(1 << 12, -1, np.int32)
        self._keys = np.empty(len(self._slots), np.uint64)
        self._arena = np.empty(1 << 14, np.uint8)
        self._ends = np.empty(1 << 11, np.int64)
        self._saved: tuple[Ragged, MappedArray] | None = None
        self._bounded = self._checked = False

    @classmethod
    def open(cls, arrays: ArrayFolder, name: str) -> Lexicon:
        """Map a saved lexicon; it can be read, not added to."""
        strings, slots = Ragged.open(arrays, name, np.uint8), arrays.map(f"{name}.slots", np.int32)
        lexicon = cls.__new__(cls)
        lexicon._lower = _KEEP_CASE
        lexicon._saved = strings, slots
        lexicon._slots, lexicon._arena, lexicon._ends = slots.values, strings.values, strings.ends
        lexicon._count = len(strings)
        lexicon._bounded = lexicon._checked = False
        return lexicon

    def check(self) -> None:
        """Verify all of a saved lexicon once. Raises if it is damaged."""
        if self._saved is None or self._checked:
            return
        strings, slots = self._saved
        strings.check()
        slots.whole()
        self._check_bounds()
        self._checked = True

    def _check_bounds(self) -> None:
        """Make sure that native code cannot leave a saved lexicon's arrays. Raises if it is damaged."""
        if self._saved is None:
            return
        strings, slots = self._saved
        strings.check_size()
        slots.check_size()
        if self._bounded:
            return
        strings.check_ends()
        table, size = self._slots, len(self._slots)
        # Without an empty slot (-1) the search for an unknown string would never end.
        if size == 0 or size & (size - 1) or table.min() != -1 or table.max() >= self._count:
            raise InputError(slots.path, None, "damaged: not a hash table of these strings")
        self._bounded = True

    def save(self, folder: Path, name: str) -> None:
        """Write the lexicon as the files ``NAME.npy``, ``NAME.ends.npy`` and ``NAME.slots.npy``."""
        ends = self._ends[: self._count]
        save_array(folder / f"{name}.npy", self._arena[: int(ends[-1]) if self._count else 0])
        save_array(folder / f"{name}.ends.npy", ends)
        save_array(folder / f"{name}.slots.npy", self._slots)

    def intern(self, text: NDArray[np.uint8], spans: NDArray[np.int64]) -> NDArray[np.int32]:
        """The number of each ``text[begin:end]``, adding those not seen before."""
        numbers = np.empty(len(spans), np.int32)
        word = np.empty(2 * int((spans[:, 1] - spans[:, 0]).max(initial=0)) + 4, np.uint8)
        done = 0
        while done < len(spans):
            needed = 2 * int(spans[done, 1] - spans[done, 0]) + 4
            self._make_room(needed)
            tables = self._slots, self._keys, self._arena, self._ends
            self._count, done = intern_words(text, spans, done, self._lower, *tables, self._count, word, numbers)
        return numbers

    def add(self, strings: list[str]) -> NDArray[np.int32]:
        """The number of each string, adding those not seen before."""
        text, ends = pack_strings(strings)
        spans = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1) if strings else np.empty((0, 2), np.int64)
        return self.intern(text, spans.astype(np.int64))

    def add_all(self, other: Lexicon) -> None:
        """Add the strings of another lexicon."""
        other.check()
        ends = other._ends[: other._count]
        self.intern(other._arena, np.stack([np.concatenate([[0], ends])[:-1], ends], axis=1).astype(np.int64))

    def find(self, strings: list[str]) -> NDArray[np.int32]:
        """The number of each string, -1 for those that are not here."""
        return self.find_packed(*pack_strings(strings))

    def find_packed(self, text: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int32]:
        """Like :meth:`find`, for strings that lie end to end."""
        self._check_bounds()
        numbers = np.empty(len(ends), np.int32)
        find_interned(text, ends, self._slots, self._arena, self._ends, numbers)
        if self._saved is None or self._checked or not len(numbers):
            return numbers
        if self._count > SMALL and numbers.min() >= 0:
            # They are the strings with these numbers, if the bytes that were compared are right.
            self._saved[0].spans(numbers.astype(np.int64))
            return numbers
        self.check()  # a damaged table could hide a string
        return self.find_packed(text, ends)

    def with_prefix(self, prefix: str) -> NDArray[np.int64]:
        """The numbers of the strings that begin with ``prefix``."""
        self.check()
        ends = self._ends[: self._count]
        begins = np.concatenate([[0], ends])[:-1]
        start = prefix.encode("utf-8", "surrogatepass")
        numbers = np.flatnonzero(ends - begins >= len(start))
        for place, byte in enumerate(start):
            numbers = numbers[self._arena[begins[numbers] + place] == byte]
        return numbers

    def heads(self, size: int) -> frozenset[bytes]:
        """The first bytes of the strings: one, two, … ``size`` (at most 4)."""
        self.check()
        ends = self._ends[: self._count]
        begins, keys = np.concatenate([[0], ends])[:-1], np.zeros(self._count, ">u4")
        for byte in range(size):
            inside = begins + byte < ends
            keys[inside] |= self._arena[begins[inside] + byte].astype(np.uint32) << np.uint32(24 - 8 * byte)
        return frozenset(head[:n] for head in np.unique(keys).view("S4").tolist() for n in range(1, size + 1))

    def number(self, string: str) -> int:
        """The number of one string, or -1."""
        return int(self.find([string])[0])

    def strings(self, numbers: NDArray[np.integer] | range) -> list[str]:
        """The strings with these numbers."""
        rows = self._saved[0] if self._saved else Ragged(self._arena, self._ends)
        return rows.strings(np.asarray(numbers, np.int64))

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self.strings(range(number, number + 1))[0]

    def __contains__(self, string: object) -> bool:
        return isinstance(string, str) and self.number(string) >= 0

    def __len__(self) -> int:
        return self._count

    def ascending(self) -> NDArray[np.int64]:
        """The numbers in the byte order of their strings, which is also Python's order of them."""
        ends = self._ends[: self._count]
        lengths = np.diff(ends, prepend=0)
        widest = int(lengths.max(initial=0))
        if widest > 64:
            return np.array(sorted(range(self._count), key=self.strings(range(self._count)).__getitem__), np.int64)
        # Eight bytes at a time as one big-endian number, padded with zeros; of equal ones the shorter comes first.
        begins = ends - lengths
        columns = []
        for offset in range(0, max(widest, 1), 8):
            key = np.zeros(self._count, np.uint64)
            for byte in range(offset, offset + 8):
                inside = byte < lengths
                at = np.where(inside, begins + byte, 0)
                key = (key << np.uint64(8)) | np.where(inside, self._arena[at] if len(self._arena) else 0, 0).astype(
                    np.uint64
                )
            columns.append(key)
        return np.lexsort([lengths, *columns[::-1]])

    def _make_room(self, needed: int) -> None:
        used = int(self._ends[self._count - 1]) if self._count else 0
        if used + needed > len(self._arena):
            self._arena = np.concatenate([self._arena, np.empty(max(len(self._arena) // 2, needed), np.uint8)])
        if self._count >= len(self._ends):
            self._ends = np.concatenate([self._ends, np.empty(len(self._ends) // 2, np.int64)])
        if 2 * self._count >= len(self._slots):
            slots, keys = np.full(2 * len(self._slots), -1, np.int32), np.empty(2 * len(self._slots), np.uint64)
            grow_table(self._slots, self._keys, slots, keys)
            self._slots, self._keys = slots, keys
