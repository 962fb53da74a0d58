"""The page in a real browser, before a real service: what a user sees is what the service says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

pytest.importorskip("torch")

QUERY = "how do bees keep warm in winter"
READY = "document.querySelectorAll('.card:not(.ghost)').length && document.querySelector('#progress').hidden"
Opened = Callable[..., Any]


def address(site: Any, **state: Any) -> str:
    return f"{site.address}?{urlencode(state)}"


def state_of(page: Any) -> dict[str, str]:
    found = parse_qs(urlsplit(page.run("location.href")).query)
    return {name: values[0] for name, values in found.items()}


def searched(new_page: Opened, site: Any, q: str = QUERY, **more: Any) -> Any:
    width, dark = more.pop("width", 1280), more.pop("dark", False)
    page = new_page(address(site, q=q, **more), width, dark=dark)
    page.until(READY)
    return page


def shown(page: Any, side: int) -> list[str]:
    return list(page.texts(f'.column[data-side="{side}"] .name'))


def rank_free(names: list[str]) -> list[str]:
    """The ids, without what only a screen reader says."""
    return [name.split("\n")[-1].rsplit(" ", 1)[-1] for name in names]


def test_both_rankings_stand_side_by_side_with_what_moved(new_page: Opened, site: Any) -> None:
    page = new_page(site.address)
    page.until("document.querySelector('.start h1')")
    assert page.run("document.activeElement.id") == "query"
    page.type(QUERY)
    page.press("Enter")
    page.until(READY)
    said = site.post("/search", query=QUERY, type="auto")
    assert rank_free(shown(page, 0)) == [row["docid"] for row in said["bm25"]]
    assert rank_free(shown(page, 1)) == [row["docid"] for row in said["rerank"]]
    assert page.texts('.column[data-side="1"] .rank') == [str(row["rank"]) for row in said["rerank"]]
    arrows = {1: "▲ ", -1: "▼ ", 0: "="}
    moved = [row["moved"] for row in said["rerank"]]
    expected = [arrows[(m > 0) - (m < 0)] + (str(abs(m)) if m else "") for m in moved]
    assert len(set(expected)) > 2
    assert page.texts('.column[data-side="1"] .moved') == expected
    assert page.texts('.column[data-side="0"] .moved') == [f"→ {row['after']}" for row in said["bm25"]]
    on_the_left = {row["docid"] for row in said["bm25"]}
    fresh = [row["docid"] not in on_the_left for row in said["rerank"]]
    assert any(fresh)
    assert (
        page.run(
            "[...document.querySelectorAll('.column[data-side=\"1\"] .card')].map((c) => !!c.querySelector('.fresh'))"
        )
        == fresh
    )
    assert page.texts('.column[data-side="0"] .score') == [f"{row['score']:.2f}" for row in said["bm25"]]
    assert page.text(".chip") == said["type"] == "description"
    assert page.run("document.querySelectorAll('.lines path').length") == fresh.count(False)
    assert "25 candidates" in page.text("#said") and state_of(page) == {"q": QUERY}


def test_matches_and_split_words_are_marked_where_the_service_says(new_page: Opened, site: Any) -> None:
    said = site.post("/search", query="bees winter", k=25)["documents"]
    page = searched(new_page, site, "bees winter", k=25)
    for docid in ("emoji", "bogue", "html"):
        text, card = list(said[docid]["text"]), f'.column[data-side="0"] .card[data-docid="{docid}"]'
        cut = {
            kind: ["".join(text[s["begin"] : s["end"]]) for s in said[docid][kind]]
            for kind in ("matches", "split_words")
        }
        assert cut["matches"]
        assert page.texts(f"{card} mark.match") == cut["matches"]
        assert page.texts(f"{card} .split") == cut["split_words"]
        assert page.run(f"document.querySelector({json.dumps(card)} + ' .text').textContent") == said[docid]["text"]
    assert "bogue" in page.texts(".split")
    assert "bog + ue" in page.run("[...document.querySelectorAll('.split')].find((s) => s.innerText === 'bogue').title")
    assert page.run("[document.querySelector('#injected'), window.injected ?? null]") == [None, None]
    # Of a long text the stretch with the matches is shown, not its beginning.
    assert page.text('[data-docid="long"] .text').startswith("…")
    assert page.texts('.column[data-side="0"] [data-docid="long"] mark') == ["winter", "bees"]


def test_everything_can_be_done_with_the_keyboard(new_page: Opened, site: Any) -> None:
    page = searched(new_page, site)
    focused = "document.activeElement.closest('.card')"
    page.run("document.activeElement.blur()")
    page.press("/")
    assert page.run("document.activeElement.id") == "query"
    page.press("ArrowDown")
    assert page.run(f"{focused}.dataset.side + {focused}.querySelector('.rank').innerText") == "11"
    both = set(rank_free(shown(page, 0))) & set(rank_free(shown(page, 1)))
    for _ in range(next(n for n, docid in enumerate(rank_free(shown(page, 1))) if docid in both)):
        page.press("ArrowDown")
    docid = page.run(f"{focused}.dataset.docid")
    page.press("ArrowLeft")
    assert page.run(f"[{focused}.dataset.side, {focused}.dataset.docid]") == ["0", docid]
    page.press("Enter")
    page.until("document.querySelector('#panel').open && document.querySelector('canvas')")
    assert state_of(page) == {"q": QUERY, "doc": docid, "by": "bm25"}
    page.press("Escape")
    page.until("!document.querySelector('#panel').open")
    assert state_of(page) == {"q": QUERY}
    assert page.run(f"{focused}?.dataset.docid") == docid


def test_two_models_are_compared_by_their_own_ranks(new_page: Opened, site: Any) -> None:
    models = [
        site.post("/search", query=QUERY, stages="rerank", k=25, model=name)["rerank"] for name in ("tiny", "other")
    ]
    ranks = [{row["docid"]: row["rank"] for row in rows} for rows in models]
    assert ranks[0] != ranks[1]
    page = searched(new_page, site)
    page.choose("Left ranking", "other")
    page.until(f"{READY} && document.querySelector('.column[data-side=\"0\"] select').value === 'other'")
    page.choose("Left ranking", "tiny")  # the other side has it: the two change places
    page.until(f"{READY} && document.querySelector('.column[data-side=\"0\"] select').value === 'tiny'")
    assert state_of(page) == {"q": QUERY, "left": "tiny", "right": "other"}
    for side, rows in enumerate(models):
        assert rank_free(shown(page, side)) == [row["docid"] for row in rows[:10]]
    moves = [ranks[0][row["docid"]] - row["rank"] for row in models[1][:10]]
    expected = [f"▲ {m}" if m > 0 else f"▼ {-m}" if m < 0 else "=" for m in moves]
    assert page.texts('.column[data-side="1"] .moved') == expected


def test_the_address_holds_the_state_and_back_undoes(new_page: Opened, site: Any) -> None:
    page = searched(new_page, site, k=5, page=2)
    said = site.post("/search", query=QUERY, k=5, offset=5)
    assert rank_free(shown(page, 1)) == [row["docid"] for row in said["rerank"]]
    page.click(".pages button:last-child")
    page.until(
        "document.querySelector('.pages span').innerText === 'Page 3 of 5' && document.querySelector('#progress').hidden"
    )
    assert state_of(page) == {"q": QUERY, "k": "5", "page": "3"}
    page.run("history.back()")
    page.until(
        "document.querySelector('.pages span').innerText === 'Page 2 of 5' && document.querySelector('#progress').hidden"
    )
    assert rank_free(shown(page, 1)) == [row["docid"] for row in said["rerank"]]
    shared = new_page(address(site, q=QUERY, doc="bogue", by="tiny", layer=1, head=2, rule="strm"))
    shared.until("document.querySelector('canvas')")
    values = "['Attention', 'Layer', 'Head'].map((name) => document.querySelector(`#panel select[aria-label=\"${name}\"]`).value)"
    assert shared.run(values) == ["strm", "1", "2"]


def test_the_explanation_shows_tokens_words_and_the_attention_of_each_cell(new_page: Opened, site: Any) -> None:
    page = new_page(address(site, q="bogue fish", doc="bogue", by="tiny"))
    page.until("document.querySelector('canvas')")
    said = site.post("/explain", query="bogue fish", docid="bogue", model="tiny")
    pieces = [token["piece"].removeprefix("##") for token in said["tokens"]]
    assert page.texts(".flow .token i") == pieces
    split = [word for word in said["words"] if len(word["positions"]) > 1]
    assert page.run("document.querySelectorAll('.flow .several').length") == len(split) > 1
    assert page.texts(".flow .several .stands") == [pieces[word["stands"]] for word in split]
    assert f"{100 * said['probability']:.1f} %" in page.text(".facts")

    def cell() -> str:
        page.run("document.querySelector('canvas').focus()")
        page.press("ArrowRight")
        page.press("ArrowDown")
        page.press("ArrowRight")
        return str(page.text(".cell"))

    def expected(found: dict[str, Any]) -> str:
        query, document = ([t for t in found["tokens"] if t["field"] == f] for f in ("query", "document"))
        weight = found["attention"][query[1]["position"]][document[1]["position"]]
        return f"{query[1]['piece']} → {document[1]['piece']}: {100 * weight:.1f} %"

    assert cell() == expected(said)
    painted = "(() => { const c = document.querySelector('canvas'); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; return new Set(new Uint32Array(d.buffer)).size })()"
    assert page.run(painted) > 20
    page.choose("Layer", "1")
    page.until(
        "document.querySelector('#panel select[aria-label=\"Layer\"]').value === '1' && !document.querySelector('#why[aria-busy]')"
    )
    first = site.post("/explain", query="bogue fish", docid="bogue", model="tiny", layer=1)
    assert cell() == expected(first) != expected(said)
    assert state_of(page)["layer"] == "1"
    x, y = page.run(
        "(() => { const c = document.querySelector('canvas').getBoundingClientRect(); return [c.right - 6, c.bottom - 6] })()"
    )
    if x < 1280 and y < 800:
        page.point(x, y)
        page.until("document.querySelector('.cell').innerText.includes('→')")


def test_a_busy_service_is_asked_again_when_it_said(new_page: Opened, site: Any) -> None:
    busy = {
        "error": "the queue is full",
        "error_type": "overloaded",
        "message": "the queue is full",
        "request_id": "r1",
    }
    site.faults["/search"] = (429, {"Retry-After": "2"}, busy)
    page = new_page(address(site, q=QUERY))
    page.until("document.querySelector('.notice.error .clock')?.innerText === 'again in 2 s'")
    assert "The service is busy" in page.text(".notice.error")
    assert "The queue is full." in page.text(".notice.error")
    page.until("document.querySelector('.clock').innerText === 'again in 1 s'")
    site.faults.clear()
    page.until(READY)
    assert page.run("document.querySelector('.notice.error')") is None


def test_refusals_and_a_lost_connection_are_said_and_mended(new_page: Opened, site: Any) -> None:
    late = {"error": "x", "error_type": "deadline", "message": "the deadline has passed", "request_id": "r7"}
    site.faults["/search"] = (504, {}, late)
    page = new_page(address(site, q=QUERY))
    page.until("document.querySelector('.notice.error')")
    assert "That took too long The deadline has passed." in page.text(".notice.error")
    assert "r7" in page.text(".notice.error")
    site.faults["/search"] = (500, {"content-type": "text/html"}, None)
    page.click(".notice.error button")
    page.until("document.querySelector('.notice.error').innerText.includes('Something went wrong')")
    site.faults.clear()
    lost = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.send("Network.emulateNetworkConditions", offline=True, **lost)
    page.click(".notice.error button")
    page.until("document.querySelector('.notice.error').innerText.includes('No connection')")
    page.send("Network.emulateNetworkConditions", offline=False, **lost)  # being online again is enough
    page.until(READY)
    assert page.run("document.querySelector('.notice')") is None


def test_nothing_found_and_what_is_not_taken_are_told_apart(new_page: Opened, site: Any) -> None:
    page = new_page(address(site, q="zebra"))
    page.until("document.querySelector('.start h2')?.innerText === 'Nothing found.'")
    assert page.text("#said") == "Nothing found."
    page = new_page(address(site, q="bees " * 1000))
    page.until("document.querySelector('.notice.error')")
    assert "at most 4,000 are taken" in page.text(".notice.error")
    assert page.run("document.querySelector('.notice.error button')") is None  # trying again would not help


def test_without_a_model_the_page_says_so_and_shows_one_list(new_page: Opened, start_site: Callable[..., Any]) -> None:
    bare = start_site()
    page = searched(new_page, bare)
    assert "BM25 only." in page.text(".notice")
    assert page.run(
        "[document.querySelectorAll('.column').length, document.querySelectorAll('.moved, meter').length]"
    ) == [1, 0]
    page.click(".card")
    page.until("document.querySelector('#panel').open")
    assert "There is no model here to explain." in page.text("#why")
    assert "/explain" not in bare.asked


def test_a_key_is_asked_for_once(new_page: Opened, start_site: Callable[..., Any], tiny_checkpoint: Path) -> None:
    closed = start_site(tiny_checkpoint, key="open sesame")
    page = new_page(address(closed, q=QUERY))
    page.until("document.querySelector('input[type=password]')")
    assert page.run("document.querySelectorAll('.card').length") == 0
    for key in ("wrong", "open sesame"):
        page.run("document.querySelector('input[type=password]').focus()")
        page.type(key)
        before = len(closed.asked)
        page.press("Enter")
        page.until("document.querySelector('.card') || document.querySelector('input[type=password]')?.value === ''")
        assert len(closed.asked) > before
    page.until(READY)
    page.open(address(closed, q="honey"))
    page.until(READY)


def luminance(colour: list[float]) -> float:
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour[:3])]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


COLOUR = """((names) => { const c = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const style = getComputedStyle(document.documentElement); return names.map((name) => {
c.fillStyle = style.getPropertyValue(name).trim(); c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data] }) })"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read_in_both_schemes_and_the_choice_is_kept(new_page: Opened, site: Any, dark: bool) -> None:
    page = new_page(site.address, dark=dark)
    page.until("document.querySelector('.start h1')")

    def check(is_dark: bool) -> None:
        grounds = page.run(f"{COLOUR}(['--paper', '--surface', '--sunk'])")
        assert (luminance(grounds[0]) < 0.2) == is_dark
        for text in page.run(f"{COLOUR}(['--ink', '--soft', '--muted', '--accent', '--down'])"):
            assert min(contrast(text, ground) for ground in grounds) >= 4.5
        tint, accent, ink, on_accent = page.run(f"{COLOUR}(['--tint', '--accent', '--ink', '--on-accent'])")
        assert min(contrast(tint, accent), contrast(tint, ink), contrast(accent, on_accent)) >= 4.5

    check(dark)
    for _ in range(1 if dark else 2):  # as the system → light → dark
        page.click("#theme")
    check(not dark)
    page.open(site.address)
    page.until("document.querySelector('.start h1')")
    check(not dark)


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_nothing_sticks_out_at_any_width(new_page: Opened, site: Any, width: int) -> None:
    page = searched(new_page, site, width=width)
    assert page.run("document.documentElement.scrollWidth") <= width
    columns = "[...document.querySelectorAll('.column')].filter((c) => c.offsetParent).map((c) => c.dataset.side)"
    assert page.run(columns) == (["1"] if width < 700 else ["0", "1"])
    if width < 700:
        page.click(".switcher button:first-child")
        assert page.run(columns) == ["0"]
    page.run("document.querySelector('.column:not([hidden]) .card .name').click()")
    page.until("document.querySelector('canvas')")
    assert page.run("document.querySelector('#panel').scrollWidth <= document.querySelector('#panel').clientWidth")


def test_controls_have_names_and_the_page_has_landmarks(new_page: Opened, site: Any) -> None:
    page = searched(new_page, site, doc="bogue", by="tiny")
    page.until("document.querySelector('canvas')")
    for selector, roles in (
        ("#panel", {"button", "combobox"}),
        ("body", {"banner", "main", "search", "navigation", "region"}),
    ):
        if selector == "body":
            page.press("Escape")
            page.until("!document.querySelector('#panel').open")
        nodes = [n for n in page.send("Accessibility.getFullAXTree")["nodes"] if not n.get("ignored")]
        found = {n["role"]["value"] for n in nodes}
        assert roles <= found
        control = {"button", "combobox", "textbox", "searchbox", "link", "dialog", "meter"}
        assert [n for n in nodes if n["role"]["value"] in control and not n.get("name", {}).get("value")] == []


def test_an_experiments_tables_and_plot_are_shown(new_page: Opened, site: Any, tmp_path: Path) -> None:
    contrast_ = {
        "run": "strm",
        "measure": "RR@10",
        "difference": 0.05,
        "relative": 0.1,
        "wins": 7,
        "ties": 2,
        "losses": 1,
        "p": 0.01,
        "corrected": 0.02,
        "interval": [0.01, 0.09],
    }
    table = {
        "baseline": "full",
        "queries": 10,
        "test": "t",
        "level": 0.05,
        "contrasts": [contrast_],
        "seeds": {"full": 3, "strm": 3},
        "mean": {"full": {"RR@10": 0.41}, "strm": {"RR@10": 0.46}},
        "sd": {"full": {"RR@10": 0.01}, "strm": {"RR@10": None}},
    }
    good, bad = tmp_path / "results.json", tmp_path / "other.json"
    good.write_text(json.dumps({"tables": {"dev": table}, "failures": {"x, seed 2": "out of room"}}))
    bad.write_text("[1, 2]")
    page = new_page(address(site, view="experiments"))
    page.until("document.querySelector('#results-file')")

    def give(path: Path) -> None:
        root = page.send("DOM.getDocument")["root"]["nodeId"]
        node = page.send("DOM.querySelector", nodeId=root, selector="#results-file")["nodeId"]
        page.send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    give(bad)
    page.until("document.querySelector('#experiments-view .notice.error')")
    give(good)
    page.until("document.querySelector('table')")
    assert page.texts("tbody th") == ["full baseline", "strm"]
    assert page.texts("tbody td") == ["3", "0.4100 ± 0.0100", "3", "0.4600 +0.0500 *"]
    assert page.run("document.querySelectorAll('.plot circle').length") == 2
    assert "out of room" in page.text("#experiments-view .notice")
    page.click("nav a[data-view=search]")
    page.until("!document.querySelector('#search-view').hidden && document.querySelector('.start h1')")
