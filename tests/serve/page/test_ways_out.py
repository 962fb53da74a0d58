"""No key, address or click leaves the page stuck, and what it then says is true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

QUERY = "how do bees keep warm in winter"
FIELD = "document.querySelector('input[type=password]')"
Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def closed(start_site: Callable[..., Any], tiny_checkpoint: Path) -> Any:
    return start_site(tiny_checkpoint, key="open sesame")


@pytest.mark.parametrize("key", ["schl€ssel", "schlüssel", "tab\tkey"])
def test_a_key_that_cannot_be_sent_is_refused_and_another_can_be_typed(new_page: Opened, closed: Any, key: str) -> None:
    page = new_page(closed.at(q=QUERY))
    page.until(FIELD)
    page.run(f"{FIELD}.focus()")
    page.type(key)
    page.press("Enter")
    page.until("document.querySelector('.notice .wrong').innerText.includes('ASCII')")
    assert page.run("sessionStorage.length") == 0
    page.type("open sesame")  # in place of what was typed before
    page.press("Enter")
    page.loaded()


def test_a_stored_key_that_cannot_be_sent_locks_nobody_out(new_page: Opened, closed: Any) -> None:
    page = new_page(closed.address)
    page.until(FIELD)
    page.run("sessionStorage.setItem('rankwell-key', 'schl€ssel')")
    page.open(closed.at(q=QUERY))
    page.until(FIELD)
    assert page.text(".notice .wrong") == ""


def test_a_wrong_key_is_called_so_and_the_next_can_be_typed_at_once(new_page: Opened, closed: Any) -> None:
    page = new_page(closed.at(q=QUERY))
    page.until(FIELD)
    assert page.text(".notice .wrong") == ""
    page.run(f"{FIELD}.focus()")
    page.type("wrong")
    page.press("Enter")
    page.until("document.querySelector('.notice .wrong').innerText === 'That was not the right key.'")
    page.type("open sesame")
    page.press("Enter")
    page.loaded()


def slow_down(page: Any, milliseconds: int) -> None:
    conditions = {"offline": False, "latency": milliseconds, "downloadThroughput": -1, "uploadThroughput": -1}
    page.send("Network.emulateNetworkConditions", conditions)


def test_the_progress_bar_ends_with_a_search_that_was_left(new_page: Opened, site: Any) -> None:
    page = new_page(site.address)
    page.until("document.querySelector('.start h1')")
    slow_down(page, 20_000)
    page.type(QUERY)
    page.press("Enter")
    page.until("!document.querySelector('#progress').hidden")
    page.click(".brand")
    page.until("document.querySelector('.start h1') && !location.search")
    still = "[document.querySelector('#progress').hidden, document.querySelector('#results').ariaBusy]"
    assert page.run(still) == [True, "false"]


def test_the_progress_bar_stays_for_a_search_that_replaces_another(new_page: Opened, site: Any) -> None:
    page = new_page(site.address)
    page.until("document.querySelector('.start h1')")
    slow_down(page, 1_000)
    for query in ("bees", "honey"):
        page.run("document.querySelector('#query').select()")
        page.type(query)
        page.press("Enter")
        page.until(f"location.search === '?q={query}'")
    assert page.run("document.querySelector('#progress').hidden") is False
    page.loaded("document.title === 'honey · rankwell'")


def test_any_depth_of_an_address_is_the_one_shown(searched: Opened, site: Any) -> None:
    page = searched(site, depth=7)
    depth = 'select[aria-label="How many candidates are re-ranked"]'
    assert page.run(f"document.querySelector('{depth}').selectedOptions[0].text") == "top 7"
    assert page.texts(f"{depth} option")[:3] == ["top 7", "top 10", "top 20"]


@pytest.mark.parametrize(("layer", "head"), [("99", "mean"), ("2", "99"), ("-1", "0"), ("1.5", "1e0")])
def test_a_layer_or_head_that_is_not_there_gives_the_usual_one(
    new_page: Opened, site: Any, layer: str, head: str
) -> None:
    page = new_page(site.at(q=QUERY, doc="bogue", by="tiny", why=1, layer=layer, head=head))
    page.until("document.querySelector('canvas')")
    chosen = """['Layer', 'Head'].map((name) => document.querySelector(`#panel select[aria-label="${name}"]`).value)"""
    assert page.run(chosen) == ["2", "mean"]


def test_a_page_beyond_all_results_is_the_first_and_the_last_one_may_be_short(searched: Opened, site: Any) -> None:
    page = searched(site, page=500)
    assert page.text(".pages span") == "Page 1 of 3"
    page = searched(site, k=600, depth=1000)
    page.open(site.at(q=QUERY, k=600, depth=1000, page=2))
    page.until("document.querySelector('.start h2')?.innerText === 'There is no such page.'")
