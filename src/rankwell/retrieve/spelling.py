"""Spelling: the known word nearest to one that no document has, by one edit and by how many documents have it.

An edit is a letter left out, put in, replaced, or exchanged with the next, but not the first. All words with one are
made and stemmed, so that an error in an ending is seen, too. The index has stems alone: whether a word is one of the
collection's is looked up in the texts of some documents that have its stem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import pack_strings
from rankwell.corpus.analyser import Analyzer, Word
from rankwell.retrieve.segment import Segment

SHORTEST, LONGEST = 5, 30
"""Letters of a word that is corrected."""
HEAD, ENDING = 3, 5
"""Bytes by which words are known to begin as a term does, and letters at the end that stemming may change."""
MOST = 8
"""A text with more unknown words than these is not corrected: it is in another language, or no text."""
TRIED, READ = 4, 20
"""Likeliest words that are looked up, and documents that are read for each."""


class Correction(NamedTuple):
    """A word of a query that no document has, the known word it was probably meant to be, and the term of that."""

    word: Word
    known: str
    term: str


def find_corrections(
    segments: Sequence[Segment],
    analyzer: Analyzer,
    texts: Sequence[str],
    terms: Sequence[Sequence[str]],
    known: dict[str, tuple[str, str] | None],
    rare: float = 0,
) -> dict[int, list[Correction]]:
    """The corrections of those texts that need any, by their places; ``terms`` are those of the texts.

    Texts with a term of fewer than ``rare`` documents are left alone. ``known`` remembers corrections of words.
    """
    distinct = list(dict.fromkeys(term for own in terms for term in own))
    counts = dict(zip(distinct, document_frequencies(segments, distinct).tolist(), strict=True))
    missing = {term for term, count in counts.items() if not count}
    clear = {term for term, count in counts.items() if 0 < count < rare}
    places = [place for place, own in enumerate(terms) if not missing.isdisjoint(own) and clear.isdisjoint(own)]
    found = {}
    for place, words in zip(places, analyzer.words_batch([texts[place] for place in places]), strict=True):
        unknown = [word for word in words if word.term in missing]
        if len(unknown) <= MOST:
            for text in {word.text for word in unknown} - known.keys():
                known[text] = correct(text, segments, analyzer)
            found[place] = [Correction(word, *pair) for word in unknown if (pair := known[word.text]) is not None]
    return {place: some for place, some in found.items() if some}


def unknown_words(segments: Sequence[Segment], analyzer: Analyzer, texts: Sequence[str]) -> list[list[str]]:
    """The words of each text that no document has."""
    words = analyzer.words_batch(texts)
    terms = list({word.term for some in words for word in some if word.term is not None})
    known = {term for term, count in zip(terms, document_frequencies(segments, terms).tolist(), strict=True) if count}
    return [[word.text for word in some if word.term is not None and word.term not in known] for some in words]


def suggest(segments: Sequence[Segment], analyzer: Analyzer, text: str) -> str | None:
    """A query with its unknown words corrected; None if there is nothing to correct."""
    found = find_corrections(segments, analyzer, [text], [analyzer.terms(text)], {})
    for word, known, _ in reversed(found.get(0, [])):
        text = text[: word.begin] + known + text[word.end :]
    return text if found else None


def correct(word: str, segments: Sequence[Segment], analyzer: Analyzer) -> tuple[str, str] | None:
    """The known word that a lower-cased one was probably meant to be, and its term; None if there is none."""
    if not (SHORTEST <= len(word) <= LONGEST and word.isalpha()) or analyzer.cjk_pairs or analyzer.segmenter:
        return None
    heads = None if analyzer.fold else _heads(segments)
    near = list(dict.fromkeys(_edited(word, segments[0].letters, heads)))
    stems = analyzer.stems(near)
    terms = list({stem for stem in stems if stem})
    known = zip(terms, document_frequencies(segments, terms).tolist(), strict=True)
    counts = {term: count for term, count in known if count}
    # Of words with the same stem, the shortest.
    likely = sorted(
        (-counts[stem], len(other), other, stem) for other, stem in zip(near, stems, strict=True) if stem in counts
    )
    return next(((other, stem) for *_, other, stem in likely[:TRIED] if _occurs(other, stem, segments)), None)


def _occurs(word: str, term: str, segments: Sequence[Segment]) -> bool:
    """Whether a word is in one of the first documents with its term; true if texts are not stored."""
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    return any(
        not segment.store.has_texts or any(map(pattern.search, segment.store.texts_at(segment.first_with(term, READ))))
        for segment in segments
    )


def _edited(word: str, letters: str, heads: frozenset[bytes] | None) -> Iterator[str]:
    """All words with one edit but those that begin as no term does, whose ``heads`` are given if endings alone are
    stemmed."""
    stays = 0 if heads is None else len(word) - ENDING
    for place in range(1, len(word) + 1):
        before, after = word[:place], word[place:]
        begun = before[:stays].encode()[:HEAD]
        if heads is not None and begun and begun not in heads:
            return
        made = [before + letter + after for letter in letters]
        if after:
            made += [before + after[1:], *(before + letter + after[1:] for letter in letters)]
        if len(after) > 1:
            made.append(before + after[1] + after[0] + after[2:])
        if heads is None or len(begun) == HEAD or place >= stays:
            yield from made
        else:
            yield from (other for other in made if other[:stays].encode()[:HEAD] in heads)


def _heads(segments: Sequence[Segment]) -> frozenset[bytes]:
    heads = [segment.heads for segment in segments]
    return heads[0] if len(heads) == 1 else frozenset().union(*heads)


def document_frequencies(segments: Sequence[Segment], terms: list[str]) -> NDArray[np.int64]:
    """In how many documents each term occurs."""
    packed = pack_strings(terms)
    counts = [segment.document_frequencies(segment.find_terms(*packed)) for segment in segments]
    total: NDArray[np.int64] = np.sum(counts, axis=0, dtype=np.int64)
    return total
