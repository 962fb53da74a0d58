"""The page of passages with the queries written for them."""

from __future__ import annotations

from pathlib import Path

from rankwell.papers.doc2query.stage import beside_queries, mark_new_words
from rankwell.papers.shared.examples import write_examples


def test_words_that_the_passage_does_not_have_are_marked() -> None:
    marked = mark_new_words("Is honey <safe> for babies?", "Honeys are made by bees; a baby must not eat it.")
    # "Is" and "for" are stop words, honey and babies are there under another form.
    assert marked == "Is honey &lt;<span class=n>safe</span>&gt; for babies?"


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    shown = [beside_queries("Bees & honey", ("what do bees eat", "honey")), beside_queries("tea \ud800", ())]
    write_examples(tmp_path / "page.html", "A & B", "", {"d<1>": ("do bees eat honey",), "d2": ()}, shown)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>A &amp; B</title>" in text
    assert "<h2>d&lt;1&gt;</h2>" in text
    assert "<p class=q>do bees eat honey</p>" in text
    assert "<p>Bees &amp; honey</p><ul><li>" in text
    assert text.count("<li>") == 2
    assert "http" not in text
    assert "src=" not in text
