"""Term weights as a page: the words of passages shaded by weight."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwell.corpus.analyser import Analyzer
from rankwell.plots.pictures import words_and_gaps, write_page

SHADE = (31, 119, 180)


@dataclass(frozen=True)
class WeighedText:
    """A passage with its words' weights; ``notes``, such as queries it answers, are shown below its id."""

    docid: str
    text: str
    weights: Mapping[str, float]
    notes: tuple[str, ...] = ()


def fragments(passage: WeighedText) -> list[tuple[str, float | None]]:
    """The text in order: words with the weight of their stem (0 if it has none), other characters with ``None``.

    >>> fragments(WeighedText("d", "Bees make honey.", {"honey": 93, "bee": 40}))
    [('Bees', 40.0), (' ', None), ('make', 0.0), (' ', None), ('honey', 93.0), ('.', None)]
    """
    analyzer = Analyzer.english()
    by_term: dict[str, float] = {}
    terms = analyzer.stems([form.lower() for form in passage.weights])
    for term, weight in zip(terms, passage.weights.values(), strict=True):
        if term is not None:
            by_term[term] = max(by_term.get(term, 0.0), float(weight))
    parts = words_and_gaps(passage.text, analyzer)
    return [(text, None if word is None else by_term.get(word.term or "", 0.0)) for text, word in parts]


def write_terms_page(passages: Sequence[WeighedText], path: str | Path, *, title: str = "Term weights") -> None:
    """Write a page of passages, heavier words shaded darker."""
    body = [
        "<p class=q>The darker a word, the higher its term frequency in the index; point at it to read the number.</p>"
    ]
    for passage in passages:
        highest = max([*map(float, passage.weights.values()), 1.0])
        body.append(f"<h2>{html.escape(passage.docid)}</h2>")
        body += [f"<p class=q>{html.escape(note)}</p>" for note in passage.notes]
        body.append(f"<p>{''.join(_span(text, weight, highest) for text, weight in fragments(passage))}</p>")
    write_page(path, title, body)


def _span(text: str, weight: float | None, highest: float) -> str:
    if not weight or weight <= 0:
        return html.escape(text)
    depth = min(1.0, weight / highest)
    ink = "; color: #fff" if depth > 0.6 else ""
    red, green, blue = SHADE
    style = f"background: rgba({red}, {green}, {blue}, {depth:.2f}){ink}"
    return f'<span class=w style="{style}" title="{weight:g}">{html.escape(text)}</span>'
