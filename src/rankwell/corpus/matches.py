"""Which words of a text have the stem of a word of the query: what a page or a terminal highlights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rankwell.corpus.analyser import Analyzer, Word


class Match(NamedTuple):
    """A word of a text, by its characters, that has the stem of the query's ``term``, counted from 0."""

    begin: int
    end: int
    term: int


def match_texts(analyzer: Analyzer, query: str, texts: Sequence[str]) -> list[list[Match]]:
    """The matches of each text.

    >>> match_texts(Analyzer.english(), "keeping bees", ["A bee keeps warm."])
    [[Match(begin=2, end=5, term=1), Match(begin=6, end=11, term=0)]]
    """
    return match_words(analyzer.words_batch([query, *texts]))[1:]


def match_words(words: Sequence[Sequence[Word]]) -> list[list[Match]]:
    """The matches of a query, whose words come first, and of each text."""
    numbers: dict[str, int] = {}
    for word in words[0]:
        if word.term is not None:
            numbers.setdefault(word.term, len(numbers))
    return [list(_matches(text_words, numbers)) for text_words in words]


def _matches(words: Sequence[Word], numbers: Mapping[str, int]) -> Iterator[Match]:
    end = 0
    for word in words:
        if word.term is not None and word.term in numbers:
            # Pairs of ideographs overlap; what is highlighted does not.
            yield Match(max(word.begin, end), word.end, numbers[word.term])
            end = word.end
