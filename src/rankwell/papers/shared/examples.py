"""A page of passages that answer held-out queries, as examples of what a system makes of them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rankwell.plots.pictures import write_page


def write_examples(
    path: Path, title: str, about: str, questions: Mapping[str, Sequence[str]], shown: Iterable[str]
) -> None:
    """Write a page. ``questions`` are queries that each passage answers, by its id; ``shown`` is its text as HTML."""
    body = [f"<p class=q>{about}</p>"]
    for (docid, texts), passage in zip(questions.items(), shown, strict=True):
        body.append(f"<h2>{html.escape(docid)}</h2>")
        body += [f"<p class=q>{html.escape(text)}</p>" for text in texts]
        body.append(passage)
    write_page(path, title, body)
