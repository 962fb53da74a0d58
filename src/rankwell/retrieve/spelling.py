"""Spelling: the known word nearest to one that no document has, by edits and by how many documents have it.

An edit is a letter left out, put in, replaced, or exchanged with the next. Words with one edit are made and stemmed, so
that an error in an ending is seen, too; for long words without such a neighbour, stems two edits away are looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import pack_strings
from rankwell.corpus.analyser import Analyzer, Word
from rankwell.retrieve.segment import Segment

SHORTEST, LONG, LONGEST = 4, 8, 30
"""Letters of a word that is corrected, and of one that may have two errors."""
RARE = 20
"""A neighbour that fewer documents have may be an error itself."""
ENDING, MOST = 5, 20
"""Letters of an ending, and stems that are compared at most."""
FAR = 0.01
"""How much less likely two errors are than one."""
FIRST = 0.1
"""How much less likely an error in the first letter is."""


class Correction(NamedTuple):
    """A word of a query that no document has, the known word it was probably meant to be, and the term of that."""

    word: Word
    known: str
    term: str


def find_corrections(
    segments: Sequence[Segment], analyzer: Analyzer, texts: Sequence[str], terms: Sequence[Sequence[str]]
) -> dict[int, list[Correction]]:
    """The corrections of those texts that need any, by their places; ``terms`` are those of the texts."""
    distinct = list(dict.fromkeys(term for own in terms for term in own))
    counts = zip(distinct, _frequencies(segments, distinct).tolist(), strict=True)
    missing = {term for term, count in counts if not count}
    places = [place for place, own in enumerate(terms) if not missing.isdisjoint(own)] if missing else []
    found = {}
    for place, words in zip(places, analyzer.words_batch([texts[place] for place in places]), strict=True):
        unknown = [(word, correct(word.text, segments, analyzer)) for word in words if word.term in missing]
        found[place] = [Correction(word, *known) for word, known in unknown if known is not None]
    return {place: some for place, some in found.items() if some}


def suggest(segments: Sequence[Segment], analyzer: Analyzer, text: str) -> str | None:
    """A query with its unknown words corrected; None if there is nothing to correct."""
    found = find_corrections(segments, analyzer, [text], [analyzer.terms(text)])
    for word, known, term in reversed(found.get(0, [])):
        shown = known if known != term else _spelled(segments, analyzer, term)
        text = text[: word.begin] + shown + text[word.end :]
    return text if found else None


def _spelled(segments: Sequence[Segment], analyzer: Analyzer, term: str) -> str:
    """A term as a word of the first document that has it."""
    for segment in segments if all(segment.store.has_texts for segment in segments) else ():
        for number in np.flatnonzero(segment.documents_with([term]))[:1]:
            words = analyzer.words(segment.store.texts_at(np.array([number]))[0])
            return next((word.text for word in words if word.term == term), term)
    return term


def correct(word: str, segments: Sequence[Segment], analyzer: Analyzer) -> tuple[str, str] | None:
    """The known word that a lower-cased one was probably meant to be, and its term; None if there is none."""
    if not (SHORTEST <= len(word) <= LONGEST and word.isalpha()) or analyzer.cjk_pairs or analyzer.segmenter:
        return None
    near = list(dict.fromkeys(_edited(word, segments[0].letters)))
    stems = analyzer.stems(near)
    terms = list({stem for stem in stems if stem})
    counts = {term: count for term, count in zip(terms, _frequencies(segments, terms).tolist(), strict=True) if count}
    likely = [
        (counts[stem] * (1 if other[0] == word[0] else FIRST), other, stem)
        for other, stem in zip(near, stems, strict=True)
        if stem in counts
    ]
    if len(word) >= LONG and max(likely, default=(0,))[0] < RARE:
        likely += _far(word, segments)
    # Of words with the same term, the shortest.
    return max(likely, key=lambda item: (item[0], -len(item[1])))[1:] if likely else None


def _far(word: str, segments: Sequence[Segment]) -> Iterator[tuple[float, str, str]]:
    """The stems that are two edits from a beginning of a word, the rest of which may be an ending."""
    own = _mask(word.encode())
    for segment in segments:
        lengths, firsts, masks = segment.spellings
        rest = len(word) - lengths
        missing = masks & ~own
        for _ in range(2):
            missing &= missing - np.uint32(1)  # takes the lowest bit away
        near = (firsts == word.encode()[0]) & (rest >= -2) & (rest <= ENDING) & (lengths > SHORTEST)
        numbers = np.flatnonzero(near & (missing == 0))
        counts = np.diff(segment.posting_begins)[numbers]
        for place in np.argsort(-counts, kind="stable")[:MOST].tolist():
            stem = segment.terms[int(numbers[place])]
            if _edits(stem, word) <= 2:
                yield float(counts[place]) * FAR, stem, stem


def _edits(stem: str, word: str) -> int:
    """The fewest edits between a stem and any beginning of a word."""
    before, row = list[int](), list(range(len(word) + 1))
    for i, letter in enumerate(stem, 1):
        before, last, row = row, before, [i]
        for j, other in enumerate(word, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == word[j - 2] and stem[i - 2] == other:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return min(row)


def _mask(word: bytes) -> np.uint32:
    bits: np.uint32 = np.bitwise_or.reduce(np.uint32(1) << (np.frombuffer(word, np.uint8) & 31).astype(np.uint32))
    return bits


def _edited(word: str, letters: str) -> Iterator[str]:
    """All words with one edit."""
    for place in range(len(word) + 1):
        before, after = word[:place], word[place:]
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
        if after:
            yield before + after[1:]
            yield from (before + letter + after[1:] for letter in letters)
        yield from (before + letter + after for letter in letters)


def _frequencies(segments: Sequence[Segment], terms: list[str]) -> NDArray[np.int64]:
    packed = pack_strings(terms)
    counts = [segment.document_frequencies(segment.find_terms(*packed)) for segment in segments]
    total: NDArray[np.int64] = np.sum(counts, axis=0, dtype=np.int64)
    return total
