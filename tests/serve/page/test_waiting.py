"""The page while the re-ranker computes, when it fails, and before anything is typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serve.page.test_page import QUERY, rank_free, shown

from rankwell.corpus.records import Document
from rankwell.retrieve.index import Index

Opened = Callable[..., Any]

HELD_BACK = """(() => {
  const send = window.fetch;
  window.fetch = async (path, options) => {
    const held = path === 'search' && JSON.parse(options.body).stages === 'both' && JSON.parse(options.body).depth > 20;
    if (!held) return send(path, options);
    const gone = new Promise((_, fail) => options.signal.addEventListener('abort', () => fail(options.signal.reason)));
    const status = await Promise.race([new Promise((done) => { window.answer = done; }), gone]);
    if (status === 200) return send(path, options);
    return new Response(JSON.stringify({ error_type: 'deadline', message: 'the deadline has passed' }), { status });
  };
})()"""
"""Holds re-ranking of more than 20 candidates back until ``answer(status)`` is called."""


def held_back(new_page: Opened, site: Any) -> Any:
    page = new_page("about:blank")
    page.add_script(HELD_BACK)
    page.open(site.at(q=QUERY))
    page.until("document.querySelector('.waiting') && window.answer")
    return page


def test_the_first_stage_answers_at_once_and_the_re_ranker_when_it_is_done(new_page: Opened, site: Any) -> None:
    said = site.answer("/search", query=QUERY)
    page = held_back(new_page, site)
    assert rank_free(shown(page, 0)) == [row["id"] for row in said["first"]]
    assert shown(page, 1) == []
    assert page.text(".waiting") == "Re-ranking the top 25 …"
    page.run("document.querySelector('.card .name').focus()")
    focused = "document.activeElement.closest('.card')?.dataset.id"
    page.run("answer(200)")
    page.loaded("!document.querySelector('.waiting')")
    assert rank_free(shown(page, 1)) == [row["id"] for row in said["results"]]
    assert page.run(focused) == said["first"][0]["id"]


def test_a_re_ranker_that_is_too_slow_leaves_the_first_stage_and_offers_less(new_page: Opened, site: Any) -> None:
    said = site.answer("/search", query=QUERY, depth=20)
    page = held_back(new_page, site)
    page.run("answer(504)")
    page.until("document.querySelector('.notice.error')")
    assert "Re-ranking failed" in page.text(".notice.error")
    assert rank_free(shown(page, 0)) == [row["id"] for row in said["first"]]
    assert page.texts(".notice.error button") == ["Re-rank the top 50", "Try again"]
    page.open(site.at(q=QUERY, depth=21))
    page.until("document.querySelector('.waiting') && window.answer")
    page.run("answer(504)")
    page.until("document.querySelector('.notice.error')")
    page.click(".notice.error button.primary")
    page.loaded("!document.querySelector('.notice.error')")
    assert page.state() == {"q": QUERY, "depth": "20"}
    assert rank_free(shown(page, 1)) == [row["id"] for row in said["results"]]


TITLED = [Document(str(n), "They shiver.", f"Bees in winter, part {n}") for n in range(9)]
ASKING = [Document("0", "Do bees sleep in winter? They do not. It is 5 or is it? Yes."), Document("1", "Bees shiver.")]


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        (TITLED, [f"Bees in winter, part {n}" for n in (0, 2, 4, 6)]),
        (ASKING, ["Do bees sleep in winter?"]),
    ],
    ids=["titles", "questions"],
)
def test_the_start_suggests_titles_or_questions(
    new_page: Opened, start_site: Opened, tmp_path: Path, documents: list[Document], expected: list[str]
) -> None:
    Index.build(documents, tmp_path / "index")
    page = new_page(start_site(index=tmp_path / "index").address)
    page.until("document.querySelector('.examples a')")
    examples = page.texts(".examples a")
    assert examples == expected
    page.click(".examples a")
    page.loaded()
    assert page.state() == {"q": examples[0]}
