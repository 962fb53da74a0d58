"""The terms of passages by stem, with their frequencies and the words that they stand for.

A file of term weights contains words, not stems: an index stems its input, and stemming a stem may change it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rankwell.core.arrays import pack_strings
from rankwell.core.errors import RankwellError
from rankwell.core.types import Rows
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.lexicon import Lexicon
from rankwell.inputs.tokenizer import Tokenizer

STEM_BITS = 31
"""A stem's number has at most this many bits, so that row and stem fit in one integer."""


@dataclass(frozen=True, eq=False)
class TermFrequencies:
    """The terms of passages, sorted by passage and by their first occurrence in it: (P,) each."""

    rows: Rows
    stems: Rows
    frequencies: Rows


@dataclass(frozen=True, eq=False)
class WordsOfTexts:
    """The stems of texts, each with the first word that it occurs in."""

    keys: Rows
    """Text and stem as one number, ascending."""
    forms: Rows
    """The word's number."""

    def of(self, terms: TermFrequencies) -> Rows:
        """The word's number for each term."""
        wanted = (terms.rows << STEM_BITS) | terms.stems
        places = np.minimum(np.searchsorted(self.keys, wanted), max(0, len(self.keys) - 1))
        if len(wanted) and not (len(self.keys) and (self.keys[places] == wanted).all()):
            raise RankwellError("the stored tokens do not belong to the texts; remove them to have them made again")
        return self.forms[places] if len(wanted) else np.empty(0, np.int64)


class StemWords:
    """Finds the words of texts by stem. Each distinct word is stemmed once, however many texts contain it."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._analyzer = Analyzer.english()
        self._forms = Lexicon(fold_case=True)
        self._stems = np.empty(0, np.int64)

    def read(self, texts: Sequence[str]) -> WordsOfTexts:
        """The lower-cased words of texts."""
        packed, ends = pack_strings(list(texts))
        spans, counts = self._analyzer.spans(packed, ends)
        forms = self._forms.intern(packed, spans).astype(np.int64)
        self._stem_new_forms()
        rows = np.repeat(np.arange(len(texts)), np.diff(counts, prepend=0))
        stems = self._stems[forms]
        known = stems >= 0
        keys, first = np.unique((rows[known] << STEM_BITS) | stems[known], return_index=True)
        return WordsOfTexts(keys, forms[known][first])

    def strings(self, words: WordsOfTexts, terms: TermFrequencies) -> list[str]:
        """The word of each term."""
        used, inverse = np.unique(words.of(terms), return_inverse=True)
        return [] if not len(used) else list(np.array(self._forms.strings(used), object)[inverse])

    def lines(self, docids: Sequence[str], words: WordsOfTexts, terms: TermFrequencies) -> Iterator[str]:
        """The documents' terms as lines of a file of weights (:mod:`rankwell.corpus.formats.weights`)."""
        used, inverse = np.unique(words.of(terms), return_inverse=True)
        names = [f"{json.dumps(word, ensure_ascii=False)}: " for word in self._forms.strings(used)]
        numbers, tf_of = np.unique(terms.frequencies, return_inverse=True)
        # Only distinct words and numbers are formatted; each term is then a concatenation of two strings.
        members = np.array([*names, ""], object)[inverse] + np.array([*map(str, numbers.tolist()), ""], object)[tf_of]
        members = members.tolist()
        ends = np.searchsorted(terms.rows, np.arange(len(docids)), side="right").tolist()
        begin = 0
        for docid, end in zip(docids, ends, strict=True):
            yield f'{{"id": {json.dumps(docid, ensure_ascii=False)}, "vector": {{{", ".join(members[begin:end])}}}}}\n'
            begin = end

    def _stem_new_forms(self) -> None:
        known = len(self._stems)
        if known == len(self._forms):
            return
        pieces = self._tokenizer.encode(self._forms.strings(range(known, len(self._forms))), stems=True)
        stems = np.full(len(pieces), -1, np.int64)
        rows = np.repeat(np.arange(len(pieces)), pieces.lengths())
        stems[rows[pieces.opens][::-1]] = pieces.stems[pieces.opens][::-1]  # if there are several, the first one counts
        self._stems = np.concatenate([self._stems, stems])
