"""Splitting long documents into passages that are indexed and found by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document

_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+")


def split_passages(documents: Iterable[Document], words: int) -> Iterator[Document]:
    """The passages of each document, ``ID#1``, ``ID#2``, …, each with the document's title.

    A passage is as many whole paragraphs as fit into ``words`` words. A longer paragraph is split between sentences,
    and a longer sentence between words. Documents that fit are also called ``ID#1``.
    """
    if words < 1:
        raise RankwellError(f"passages must have at least 1 word, not {words}")
    for document in documents:
        for number, text in enumerate(_passages(document.text, words) or [""], 1):
            yield Document(f"{document.docid}#{number}", text, document.title)


def _passages(text: str, words: int) -> list[str]:
    passages: list[str] = []
    room = 0
    for paragraph in _PARAGRAPH.split(text.strip()):
        for separator, piece in _pieces(paragraph, words):
            size = len(piece.split())
            if passages and size <= room:
                passages[-1] += separator + piece
                room -= size
            elif size:
                passages.append(piece)
                room = words - size
    return passages


def _pieces(paragraph: str, words: int) -> Iterator[tuple[str, str]]:
    """A paragraph in pieces of at most ``words`` words, each with what separates it from the piece before."""
    if len(paragraph.split()) <= words:
        yield "\n\n", paragraph
        return
    separator = "\n\n"
    for sentence in _SENTENCE.split(paragraph):
        parts = sentence.split()
        for begin in range(0, len(parts), words):
            yield separator, sentence if len(parts) <= words else " ".join(parts[begin : begin + words])
            separator = " "
