"""Answers: the documents of a ranking with titles, texts and the words to highlight, for people to read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rankwell.corpus.analyser import Analyzer, Word
from rankwell.corpus.filters import FilterSource
from rankwell.corpus.records import Document, Metadata, Ranking
from rankwell.rank.texts import Texts
from rankwell.retrieve.index import Index
from rankwell.retrieve.spelling import suggest

_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*\n?", re.MULTILINE)
_LINE = re.compile(r"^(?:[ \t]*(?:#{1,6}[ \t]+|>[ \t]?)+|[ \t|:=*_-]{3,}(?:\n|\Z))", re.MULTILINE)
"""Marks of headings and quotations, and rules."""
_MARKED = re.compile(
    r"`([^`\n]+)`|\[\[(?:[^][|\n]*\|)?([^][|\n]+)]]|!?\[([^][\n]*)]\((?:[^()\n]|\([^()\n]*\))*\)"
    r"|(\*{1,3}|~~)(?=\S)([^*~\n]+)(?<=\S)\4"
)


def plain_text(docid: str, text: str) -> str:
    """A text to show: without marks, addresses of links and rules if it is of a Markdown file.

    >>> plain_text("tea.md", "## Tea\\nis **[hot](https://tea.example)**, `x*y*z`")
    'Tea\\nis hot, x*y*z'
    """
    if not re.search(r"\.(?:md|markdown)(?:#\d+)?$", docid, re.IGNORECASE):
        return text
    parts = _FENCE.split(text)  # those between two fences are code
    parts[::2] = [_MARKED.sub(_unmarked, _LINE.sub("", part)) for part in parts[::2]]
    return "".join(parts)


def _unmarked(found: re.Match[str]) -> str:
    code, page, link, _, words = found.groups()
    return code or page or _MARKED.sub(_unmarked, words or link or "")


# Which words of a text have the stem of a word of the query: what a page or a terminal highlights


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
    return match_words(analyzer.words_batch([query, *texts], codes=True))[1:]


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
        if word.term is not None and word.term in numbers and word.end > end:
            # Pairs of ideographs, and codes and their parts, overlap; what is highlighted does not.
            yield Match(max(word.begin, end), word.end, numbers[word.term])
            end = word.end


# Documents as answers


@dataclass(frozen=True, slots=True)
class Answer:
    """A document that answers a question; ``title`` and ``text`` are empty if the index stores no texts.

    ``relevance`` is the probability that it is relevant; None if the system was not fitted to enough judged queries.
    """

    docid: str
    score: float
    text: str = ""
    title: str = ""
    metadata: Metadata = field(default_factory=dict, hash=False)
    relevance: float | None = None

    @property
    def contents(self) -> str:
        """What was indexed and ranked: the title, if any, and the text."""
        return Document(self.docid, self.text, self.title).contents


class AnswerMatches(NamedTuple):
    """The words of an answer that the query has, too."""

    title: Sequence[Match]
    text: Sequence[Match]


def read_answers(ranking: Ranking, texts: Texts, relevance: Mapping[str, float] | None = None) -> list[Answer]:
    """The documents of a ranking with their titles and texts, and with their relevance, if it is known."""
    if isinstance(texts, Index) and not texts.has_texts:
        metadata = texts.documents.metadata(texts.documents.numbers(ranking.docids))
        return [Answer(docid, score, metadata=m) for (docid, score), m in zip(ranking, metadata, strict=True)]
    documents, rated = texts.read(ranking.docids), relevance or {}
    scores = ranking.scores.tolist()
    return [
        Answer(d.docid, score, d.text, d.title, d.metadata or {}, rated.get(d.docid))
        for d, score in zip(documents, scores, strict=True)
    ]


def match_answers(query: str, answers: Sequence[Answer], texts: Texts) -> list[AnswerMatches]:
    """The words of each answer that the query has, too, by the index's analyser."""
    analyzer = texts.analyzer if isinstance(texts, Index) else Analyzer.english()
    matches = match_texts(analyzer, query, [*(a.title for a in answers), *(a.text for a in answers)])
    return list(map(AnswerMatches, matches[: len(answers)], matches[len(answers) :]))


def did_you_mean(texts: Texts, query: str) -> str | None:
    """A query with its unknown words corrected, if an index has words near them."""
    return suggest(texts.segments, texts.analyzer, query) if isinstance(texts, Index) else None


def explain_nothing(texts: Texts, query: str, filter: FilterSource | None = None) -> str:
    """Why a search found nothing."""
    index = texts if isinstance(texts, Index) else None
    if index is not None and not index.analyzer.terms(query):
        return "the question has only words that are not searched, such as the"
    if index is not None and filter is not None and (found := len(index.search(query))):
        parsed = index.documents.resolve_filter(filter)
        near = "; ".join(index.documents.explain_filter(parsed)) if parsed is not None else ""
        return f"{found:,} found, none passes the filter{near and f' ({near})'}"
    return "no document has a word of this question"


def snippet(text: str, matches: Sequence[Match], length: int) -> tuple[int, int]:
    """Where to begin and end an excerpt of at most ``length`` characters: from the start, or around the first matches.

    >>> text = "One two three four five six seven eight nine ten"
    >>> begin, end = snippet(text, [Match(28, 33, 0)], 20)
    >>> text[begin:end]
    'seven eight nine ten'
    """
    if len(text) <= length or not matches:
        return 0, _word_end(text, length)
    # The window of this length that has the most different words of the query; the first of equal ones.
    best, begin = -1, 0
    for first in matches:
        start = 0 if first.end <= length else max(0, first.begin - length // 5)
        terms = len({match.term for match in matches if start <= match.begin and match.end <= start + length})
        if terms > best:
            best, begin = terms, start
    if begin:
        begin = text.find(" ", begin) + 1 or begin
    return begin, _word_end(text, begin + length)


def _word_end(text: str, end: int) -> int:
    """The end of the last whole word before ``end``."""
    if end >= len(text):
        return len(text)
    space = text.rfind(" ", 0, end + 1)
    return space if space > end // 2 else end
