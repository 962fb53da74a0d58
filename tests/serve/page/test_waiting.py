"""The page while the re-ranker computes, when it fails, and before anything is typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
from tests.serve.page.test_page import QUERY, rank_free, shown

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
    page.send("Page.addScriptToEvaluateOnNewDocument", source=HELD_BACK)
    page.open(site.at(q=QUERY))
    page.until("document.querySelector('.waiting') && window.answer")
    return page


def test_the_first_stage_answers_at_once_and_the_re_ranker_when_it_is_done(new_page: Opened, site: Any) -> None:
    said = site.answer("/search", query=QUERY, type="auto")
    page = held_back(new_page, site)
    assert rank_free(shown(page, 0)) == [row["docid"] for row in said["bm25"]]
    assert shown(page, 1) == []
    assert page.text(".waiting") == "Re-ranking the top 25 …"
    page.run("document.querySelector('.card .name').focus()")
    focused = "document.activeElement.closest('.card')?.dataset.docid"
    page.run("answer(200)")
    page.loaded("!document.querySelector('.waiting')")
    assert rank_free(shown(page, 1)) == [row["docid"] for row in said["rerank"]]
    assert page.run(focused) == said["bm25"][0]["docid"]


def test_a_re_ranker_that_is_too_slow_leaves_the_first_stage_and_offers_less(new_page: Opened, site: Any) -> None:
    said = site.answer("/search", query=QUERY, depth=20)
    page = held_back(new_page, site)
    page.run("answer(504)")
    page.until("document.querySelector('.notice.error')")
    assert "Re-ranking failed" in page.text(".notice.error")
    assert rank_free(shown(page, 0)) == [row["docid"] for row in said["bm25"]]
    assert page.texts(".notice.error button") == ["Re-rank the top 50", "Try again"]
    page.open(site.at(q=QUERY, depth=21))
    page.until("document.querySelector('.waiting') && window.answer")
    page.run("answer(504)")
    page.until("document.querySelector('.notice.error')")
    page.click(".notice.error button.primary")
    page.loaded("!document.querySelector('.notice.error')")
    assert page.state() == {"q": QUERY, "depth": "20"}
    assert rank_free(shown(page, 1)) == [row["docid"] for row in said["rerank"]]


def test_the_start_suggests_queries_that_find_something(new_page: Opened, site: Any) -> None:
    page = new_page(site.address)
    page.until("document.querySelector('.examples a')")
    examples = page.texts(".examples a")
    assert 1 <= len(examples) <= 4
    for example in examples:
        assert site.answer("/search", query=example, stages="bm25")["candidates"] > 0
    page.click(".examples a")
    page.loaded()
    assert page.state() == {"q": examples[0]}
