"""A page that shows expansions: passages with the queries generated for them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwell.corpus.analyser import Analyzer
from rankwell.plots.pictures import words_and_gaps, write_page


@dataclass(frozen=True)
class ExpandedText:
    """A passage with the queries generated for it; ``asked`` are real queries that it answers."""

    docid: str
    text: str
    queries: tuple[str, ...]
    asked: tuple[str, ...] = ()


def mark_new_words(query: str, passage: str, analyzer: Analyzer | None = None) -> str:
    """The query as HTML; words whose stem the passage does not have are marked.

    >>> mark_new_words("do bees sleep", "Bees rest at night.")
    '<span class=n>do</span> bees <span class=n>sleep</span>'
    """
    analyzer = analyzer or Analyzer.english()
    known = {None, *analyzer.terms(passage)}
    parts = [(html.escape(text), word) for text, word in words_and_gaps(query, analyzer)]
    return "".join(t if word is None or word.term in known else f"<span class=n>{t}</span>" for t, word in parts)


def write_expansions_page(passages: Sequence[ExpandedText], path: str | Path, *, title: str = "Expansions") -> None:
    """Write a page of passages, each beside the queries generated for it."""
    analyzer = Analyzer.english()
    body = ["<p class=q>Marked words are not in the passage: an index without them could not find it by them.</p>"]
    for passage in passages:
        items = "".join(f"<li>{mark_new_words(query, passage.text, analyzer)}</li>" for query in passage.queries)
        body.append(f"<h2>{html.escape(passage.docid)}</h2>")
        body += [f"<p class=q>{html.escape(query)}</p>" for query in passage.asked]
        body.append(f"<div class=row><p>{html.escape(passage.text)}</p><ul>{items}</ul></div>")
    write_page(path, title, body)
