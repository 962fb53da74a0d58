"""Answers: the documents of a ranking with titles, texts and the words to highlight, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rankwell.corpus.analyser import Analyzer, Match, match_texts
from rankwell.corpus.records import Document, Ranking
from rankwell.rank.texts import Texts
from rankwell.retrieve.index import Index


@dataclass(frozen=True, slots=True)
class Answer:
    """A document that answers a question; ``title`` and ``text`` are empty if the index stores no texts."""

    docid: str
    score: float
    text: str = ""
    title: str = ""

    @property
    def contents(self) -> str:
        """What was indexed and ranked: the title, if any, and the text."""
        return Document(self.docid, self.text, self.title).contents


class AnswerMatches(NamedTuple):
    """The words of an answer that the query has, too."""

    title: Sequence[Match]
    text: Sequence[Match]


def read_answers(ranking: Ranking, texts: Texts) -> list[Answer]:
    """The documents of a ranking with their titles and texts."""
    if isinstance(texts, Index) and not texts.has_texts:
        return [Answer(docid, score) for docid, score in ranking]
    documents = texts.read(ranking.docids)
    scores = ranking.scores.tolist()
    return [Answer(d.docid, score, d.text, d.title) for d, score in zip(documents, scores, strict=True)]


def match_answers(query: str, answers: Sequence[Answer], texts: Texts) -> list[AnswerMatches]:
    """The words of each answer that the query has, too, by the index's analyser."""
    analyzer = texts.analyzer if isinstance(texts, Index) else Analyzer.english()
    found = match_texts(analyzer, query, [*(a.title for a in answers), *(a.text for a in answers)])
    return list(map(AnswerMatches, found[: len(answers)], found[len(answers) :]))


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
