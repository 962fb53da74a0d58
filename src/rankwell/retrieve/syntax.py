"""A small query language: ``"a phrase"``, ``+word``, ``-word`` and ``prefix*``; other words are as in any query.

Documents must have the phrases and the words behind ``+``, and must not have those behind ``-``. That is a mask over
the documents, as a filter is. Phrases need no positions in the index: the texts that have all words of one are analysed
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows, pack_strings
from rankwell.core.errors import RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Query, Ranking
from rankwell.corpus.store import NumberedDocuments
from rankwell.corpus.word_kernels import MAX_WORD_BYTES
from rankwell.retrieve.bm25 import BM25, search_segments
from rankwell.retrieve.builder import Vocabulary
from rankwell.retrieve.numbering import join_hits
from rankwell.retrieve.segment import Segment

TEXTS_AT_A_TIME = 2048
MOST_CLAUSES, MOST_SCORED = 32, 64
"""The clauses that a query may have besides plain words, and the words scored that begin with a prefix."""
_CODE = re.compile(r".*(?:\d|_|[a-z][A-Z]|\w[.:]\w).*")
_NUMBER = re.compile(r"[\d.,:-]+")
_CLAUSE = re.compile(r'([+-]?)(?:"([^"]*)("?)|([^\s"]+))')
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of a query: a word, the beginning of one, or a phrase, which documents must (``+``) or must not have."""

    sign: str
    text: str
    kind: str = "word"

    @property
    def masks(self) -> bool:
        """Whether it restricts the documents."""
        return bool(self.sign) or self.kind == "phrase"


def parse_syntax(text: str) -> list[Clause]:
    """The clauses of a query. Raises if a quote is not closed, or if there are too many.

    >>> parse_syntax('bees "keep warm" -wasp* +hive')[1:3]
    [Clause(sign='', text='keep warm', kind='phrase'), Clause(sign='-', text='wasp', kind='prefix')]
    """
    clauses = []
    for match in _CLAUSE.finditer(text):
        sign, phrase, closed, word = match.groups()
        if phrase is not None and not closed:
            raise RankwellError(f"query, character {match.start() + 1}: a quotation mark that is not closed")
        if phrase is not None:
            clauses.append(Clause(sign, phrase, "phrase"))
        else:
            begun = word.rstrip("*")
            clauses.append(Clause(sign, begun or word, "prefix" if begun and begun != word else "word"))
    if (count := len({clause for clause in clauses if clause != Clause("", clause.text)})) > MOST_CLAUSES:
        raise RankwellError(
            f"query: {count} phrases, prefixes, required and excluded words; the limit is {MOST_CLAUSES}"
        )
    return clauses


def plain_text(text: str) -> str:
    """A query of the syntax as models read it: its words, without what documents must not have."""
    return " ".join(clause.text for clause in parse_syntax(text) if clause.sign != "-")


def scored_prefixes(segments: Sequence[Segment], analyzer: Analyzer, clauses: Sequence[Clause]) -> list[str]:
    """The terms that prefixes add to the words of a query."""
    scored: list[str] = []
    for clause in clauses:
        if clause.kind == "prefix" and clause.sign != "-":
            terms = sorted(set(_begun(segments, analyzer, clause.text)) - set(analyzer.terms(clause.text)))
            counts = sum(segment.document_frequencies(segment.find_terms(*pack_strings(terms))) for segment in segments)
            scored += [terms[place] for place in np.argsort(-np.asarray(counts), kind="stable")[:MOST_SCORED]]
    return scored


def allowed_masks(segments: Sequence[Segment], analyzer: Analyzer, clauses: Sequence[Clause]) -> list[Mask]:
    """The documents of each segment that a query allows."""
    masks, vocabulary = [np.ones(len(segment), bool) for segment in segments], Vocabulary(analyzer)
    for clause in dict.fromkeys(clauses):
        groups = [[term] for term in analyzer.terms(clause.text)]
        if clause.kind == "prefix":
            groups = [[*(term for group in groups for term in group), *_begun(segments, analyzer, clause.text)]]
        if not clause.masks or not groups:  # stop words restrict nothing
            continue
        for segment, mask in zip(segments, masks, strict=True):
            having = np.logical_and.reduce([segment.documents_with(group) for group in groups])
            if clause.kind == "phrase" and len(groups) > 1:
                # Documents that others exclude need not be read.
                rows = np.flatnonzero(
                    having & (mask if segment.store.allowed is None else mask & segment.store.allowed)
                )
                having = np.zeros(len(segment), bool)
                for begin in range(0, len(rows), TEXTS_AT_A_TIME):
                    some = rows[begin : begin + TEXTS_AT_A_TIME]
                    having[some] = contain_phrase(vocabulary, segment.store.texts_at(some), clause.text)
            mask &= ~having if clause.sign == "-" else having
    return masks


def find_exact(
    segments: Sequence[Segment],
    documents: NumberedDocuments,
    analyzer: Analyzer,
    queries: Sequence[Query],
    bm25: BM25,
    k: int,
) -> dict[str, Ranking]:
    """For queries of one word: the document with this id, and those that have the whole of a code like SKU-JA-10158.

    A plain word or number is an id only if no document has the word.
    """
    found: dict[str, Ranking] = {}
    for query in queries:
        word = query.text.strip()
        if not word or len(word) > MAX_WORD_BYTES or len(word.split()) > 1:
            continue
        ids = _allowed(documents, [word, word.upper(), word.lower()])
        if not ids and not _CODE.fullmatch(word):
            continue
        masks, best = allowed_masks(segments, analyzer, [Clause("+", word)]), Ranking.of((), ())
        if _CODE.fullmatch(word):
            allowed = [True if segment.store.allowed is None else segment.store.allowed for segment in segments]
            some = [s.masked(mask & also) for s, mask, also in zip(segments, masks, allowed, strict=True)]
            hits = join_hits(documents, search_segments(some, [analyzer.terms(word)], bm25, k=k), k)
            best = Ranking(tuple(documents.docids(hits.numbers[0])), hits.scores[0])
        plain = _NUMBER.fullmatch(word) or not _CODE.fullmatch(word)
        if ids and not (plain and any(mask.any() for mask in masks)):
            best = Ranking.of(ids[:1], [best.scores.max(initial=0) + 1]).before(best).head(k)
        found |= {query.qid: best} if len(best) else {}
    return found


def _allowed(documents: NumberedDocuments, docids: Sequence[str]) -> list[str]:
    """Those of some ids that a search may find."""
    numbers = documents.find(docids)
    known = numbers[numbers >= 0]
    return [
        docid
        for store, _, local in (documents.split(known) if len(known) else ())
        for docid in store.docids.strings(local if store.described is None else local[store.described[local]])
    ]


def _begun(segments: Sequence[Segment], analyzer: Analyzer, prefix: str) -> Iterator[str]:
    """The terms that begin with a prefix, of each segment."""
    prefix = prefix.lower() if analyzer.fold is None else analyzer.fold(prefix.lower())
    for segment in segments:
        yield from segment.terms.strings(segment.terms.with_prefix(prefix))


def contain_phrase(vocabulary: Vocabulary, texts: Sequence[str], phrase: str) -> Mask:
    """Which texts have the words of a phrase in its order, with as many stop words between them."""
    terms, owners = _sequences(vocabulary, [phrase, *texts])
    indexed = np.flatnonzero(terms[owners == 0] >= 0)
    wanted = terms[indexed[0] : indexed[-1] + 1]
    starts = len(terms) - len(wanted) + 1
    hits = owners[:starts] == owners[len(wanted) - 1 :]
    for place, term in enumerate(wanted.tolist()):
        hits &= terms[place : starts + place] == term
    found = np.zeros(len(texts) + 1, bool)
    found[owners[:starts][hits]] = True
    return found[1:]


def _sequences(vocabulary: Vocabulary, texts: Sequence[str]) -> tuple[NDArray[np.int32], Rows]:
    """The term of each word of each text, -1 for stop words, and the texts they are in."""
    packed, ends = pack_strings(list(texts))
    spans, counts = vocabulary.analyzer.spans(packed, ends)
    owners = np.repeat(np.arange(len(texts)), np.diff(counts, prepend=0))
    if vocabulary.analyzer.cjk_pairs:  # single characters, not the pairs that begin with them
        order = np.lexsort([spans[:, 1], spans[:, 0]])
        order = order[np.diff(spans[order, 0], prepend=-1) > 0]
        spans, owners = np.ascontiguousarray(spans[order]), owners[order]
    words = vocabulary.words_of(packed, spans)
    return vocabulary.term_of_word[words], owners
