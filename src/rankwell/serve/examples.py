"""Example queries for the page: what a visitor could type who does not know the collection."""

from __future__ import annotations

import re

import numpy as np

from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

QUERIES, WORDS = 4, 3
READ = 2000
"""Characters of a document that are looked at."""


def example_queries(index: Index) -> list[str]:
    """A phrase from each of a few documents: neighbouring words, as rare as possible, that other documents have too."""
    if not index.has_texts or not len(index):
        return []
    numbers = np.unique(np.linspace(0, len(index) - 1, QUERIES).astype(np.int64))
    examples = (_rarest_phrase(index, text[:READ]) for text in index.documents.texts(numbers))
    return list(dict.fromkeys(filter(None, examples)))


def _rarest_phrase(index: Index, text: str) -> str:
    words = index.analyzer.words(text)
    terms = [word.term if word.term and text[word.begin : word.end].isalpha() else "" for word in words]
    frequencies = np.zeros(len(words), np.int64)
    for segment in index.segments:
        frequencies += segment.document_frequencies(segment.terms.find(terms))
    # Words of one document only are left out: most are misspelt, or names that lead nowhere else.
    rarity = np.where(frequencies > 1, BM25().idf(len(index), frequencies), 0.0)
    best, phrase = 0.0, ""
    for first in range(len(words)):
        for last in range(first, min(first + WORDS, len(words))):
            span = text[words[first].begin : words[last].end]
            if not all(terms[first : last + 1]) or not re.fullmatch(r"[\w' -]+", span):
                break
            value = float(rarity[first : last + 1].min()) * (last - first + 1)
            if value > best:
                best, phrase = value, span
    return phrase
