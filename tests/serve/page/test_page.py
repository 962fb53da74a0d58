"""The page in a real browser, before a real service: what a user sees is what the service says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankwell.corpus.records import Document
from rankwell.rank.fusion import Shares
from rankwell.retrieve.index import Index

from ..conftest import wait_until

QUERY = "how do bees keep warm in winter"
Opened = Callable[..., Any]


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
    page.loaded()
    said = site.answer("/search", query=QUERY)
    assert rank_free(shown(page, 0)) == [row["id"] for row in said["first"]]
    assert rank_free(shown(page, 1)) == [row["id"] for row in said["results"]]
    assert page.texts('.column[data-side="1"] .rank') == [str(row["rank"]) for row in said["results"]]
    arrows = {1: "▲ ", -1: "▼ ", 0: "="}
    moved = [row["moved"] for row in said["results"]]
    expected = [arrows[(m > 0) - (m < 0)] + (str(abs(m)) if m else "") for m in moved]
    assert len(set(expected)) > 2
    assert page.texts('.column[data-side="1"] .moved') == expected
    assert page.texts('.column[data-side="0"] .moved') == [f"→ {row['after']}" for row in said["first"]]
    on_the_left = {row["id"] for row in said["first"]}
    in_both = sum(row["id"] in on_the_left for row in said["results"])
    assert 0 < in_both < len(said["results"])
    assert page.texts('.column[data-side="0"] .score') == [f"{row['score']:.2f}" for row in said["first"]]
    assert page.run("document.querySelectorAll('.lines path').length") == in_both
    assert "25 candidates" in page.text("#said")
    assert page.state() == {"q": QUERY}


def test_a_re_ranker_that_nobody_asked_for_can_be_chosen_above_the_list(
    start_site: Opened, searched: Opened, tiny_checkpoint: Path, tiny_bi_encoder: Path
) -> None:
    search = {"hybrid": 0.7, "encoder": tiny_bi_encoder}
    site = start_site(tiny_checkpoint, search=search, reranks=False)
    page = searched(site, QUERY)
    said = site.answer("/search", query=QUERY)
    assert (said["stages"], said["first"]) == ("hybrid", None)
    assert page.run("document.querySelectorAll('.column').length") == 1
    assert rank_free(page.texts(".column .name")) == [row["id"] for row in said["results"]]
    page.run(
        "(() => { const which = document.querySelector('.which'); which.value = 'tiny';"
        " which.dispatchEvent(new Event('change', { bubbles: true })); })()"
    )
    page.until("document.querySelectorAll('.column').length === 2")
    page.loaded()
    both = site.answer("/search", query=QUERY, stages="both")
    assert rank_free(shown(page, 1)) == [row["id"] for row in both["results"]]


def test_a_title_stands_above_its_text(start_site: Opened, searched: Opened, tmp_path: Path) -> None:
    documents = [Document("x", "They live in a hive.", "Bees <b>in</b> winter"), Document("y", "A hive in winter.")]
    Index.build(documents, tmp_path / "titled")
    page = searched(start_site(index=tmp_path / "titled"), "winter hive")
    assert page.texts(".card .heading") == ["Bees <b>in</b> winter"]
    assert page.texts(".card .heading mark.match") == ["winter"]
    assert page.run("document.querySelector('.card[data-id=x] .text').textContent") == "They live in a hive."
    page.run("document.querySelector('.card[data-id=x] .name').click()")
    page.until("document.querySelector('#panel .heading')")
    assert page.texts("#panel h2 mark.match") == ["winter"]


def test_an_opened_document_shows_text_link_and_fields_and_explains_when_asked(
    start_site: Opened, searched: Opened, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    text, fields = "A hive in winter.", {"url": "https://example.org/hive", "home": "javascript:alert(1)", "lang": "en"}
    Index.build([Document("x", text, "On bees", metadata=fields), Document("y", "Winter.")], tmp_path / "linked")
    site = start_site(tiny_checkpoint, index=tmp_path / "linked")
    page = searched(site, "winter hive", doc="x", by="bm25")
    page.until("document.querySelector('#panel').open")
    assert page.text("#panel h2") == "On bees"
    assert page.text("#panel .passage") == text
    links = "[...document.querySelectorAll('#panel .fields a')].map((one) => [one.href, one.innerText])"
    assert page.run(links) == [["https://example.org/hive", "example.org/hive ↗"]]
    assert sorted(page.texts("#panel .fields button")) == ["home: javascript:alert(1)", "lang: en"]
    assert page.text("#why") == ""
    assert "/explain" not in site.asked
    page.click("#fold > summary")
    page.until("document.querySelector('canvas')")
    page.click("#fold > summary")
    page.until("!document.querySelector('#fold').open && !location.search.includes('why')")
    page.click("#panel .fields button")
    page.until("!document.querySelector('#panel').open && location.search.includes('filter')")


def test_a_single_list_stands_in_the_middle(searched: Opened, start_site: Opened) -> None:
    page = searched(start_site())
    left, right = page.run(
        "(({ left, right }) => [left, innerWidth - right])(document.querySelector('.columns').getBoundingClientRect())"
    )
    assert abs(left - right) < 2
    assert left > 150


def test_a_click_on_a_value_filters_by_it(start_site: Opened, searched: Opened, tmp_path: Path) -> None:
    documents = [
        Document(docid, "A hive in winter.", metadata={"lang": lang, "year": year})
        for docid, lang, year in (("x", "de", 2014), ("y", "it's", 2015), ("z", "it's", 2016))
    ]
    Index.build(documents, tmp_path / "fields")
    site = start_site(index=tmp_path / "fields")
    page = searched(site, "winter hive")
    assert sorted(rank_free(shown(page, 0))) == ["x", "y", "z"]
    for value, docids, filter in (
        ("it's", ["y", "z"], "lang = 'it''s'"),
        ("2016", ["z"], "(lang = 'it''s') and year = 2016"),
    ):
        page.run(f"[...document.querySelectorAll('.card button')].find((b) => b.innerText.includes({value!r})).click()")
        page.until(f"document.querySelectorAll('.column[data-side=\"0\"] .card').length === {len(docids)}")
        assert sorted(rank_free(shown(page, 0))) == docids
        assert page.state()["filter"] == filter
    page.run("document.querySelector('.chip[aria-label^=Remove]').click()")
    page.until("document.querySelectorAll('.column[data-side=\"0\"] .card').length === 3")
    page.open(site.at(q="winter", filter="prize > 3"))
    page.until("document.querySelector('.notice.error .actions button')")
    page.run("document.querySelector('.notice.error .actions button').click()")
    page.until("document.querySelectorAll('.column[data-side=\"0\"] .card').length === 3")
    assert "filter" not in page.state()


def test_matches_and_split_words_are_marked_where_the_service_says(searched: Opened, site: Any) -> None:
    said = site.answer("/search", query="bees winter", k=25)
    said = {row["id"]: row for row in [*said["first"], *said["results"]]}
    page = searched(site, "bees winter", k=25)
    for docid in ("emoji", "bogue", "html"):
        text, card = list(said[docid]["text"]), f'.column[data-side="0"] .card[data-id="{docid}"]'
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
    assert page.text('[data-id="long"] .text').startswith("…")
    assert page.texts('.column[data-side="0"] [data-id="long"] mark') == ["winter", "bees"]


def test_everything_can_be_done_with_the_keyboard(searched: Opened, site: Any) -> None:
    page = searched(site)
    focused = "document.activeElement.closest('.card')"
    page.run("document.activeElement.blur()")
    page.press("/")
    assert page.run("document.activeElement.id") == "query"
    page.press("ArrowDown")
    assert page.run(f"{focused}.dataset.side + {focused}.querySelector('.rank').innerText") == "11"
    both = set(rank_free(shown(page, 0))) & set(rank_free(shown(page, 1)))
    for _ in range(next(n for n, docid in enumerate(rank_free(shown(page, 1))) if docid in both)):
        page.press("ArrowDown")
    docid = page.run(f"{focused}.dataset.id")
    page.press("ArrowLeft")
    assert page.run(f"[{focused}.dataset.side, {focused}.dataset.id]") == ["0", docid]
    page.press("Enter")
    page.until("document.querySelector('#panel').open")
    assert page.state() == {"q": QUERY, "doc": docid, "by": "bm25"}
    page.press("Tab")
    page.press("Enter")
    page.until("document.querySelector('canvas')")
    assert page.state()["why"] == "1"
    page.press("Escape")
    page.until("!document.querySelector('#panel').open && !location.search.includes('doc=')")
    assert page.state() == {"q": QUERY}
    assert page.run(f"{focused}?.dataset.id") == docid


def test_two_models_are_compared_by_their_own_ranks(searched: Opened, site: Any) -> None:
    models = [
        site.answer("/search", query=QUERY, stages="rerank", k=25, model=name)["results"] for name in ("tiny", "other")
    ]
    ranks = [{row["id"]: row["rank"] for row in rows} for rows in models]
    assert ranks[0] != ranks[1]
    page = searched(site)
    page.choose("Left ranking", "other")
    page.loaded("document.querySelector('.column[data-side=\"0\"] select').value === 'other'")
    page.choose("Left ranking", "tiny")  # the other side has it: the two change places
    page.loaded("document.querySelector('.column[data-side=\"0\"] select').value === 'tiny'")
    assert page.state() == {"q": QUERY, "left": "tiny", "right": "other"}
    for side, rows in enumerate(models):
        assert rank_free(shown(page, side)) == [row["id"] for row in rows[:10]]
    moves = [ranks[0][row["id"]] - row["rank"] for row in models[1][:10]]
    expected = [f"▲ {m}" if m > 0 else f"▼ {-m}" if m < 0 else "=" for m in moves]
    assert page.texts('.column[data-side="1"] .moved') == expected


def test_the_address_holds_the_state_and_back_undoes(new_page: Opened, searched: Opened, site: Any) -> None:
    page = searched(site, k=5, page=2)
    said = site.answer("/search", query=QUERY, **{"k": 5, "from": 5})
    assert rank_free(shown(page, 1)) == [row["id"] for row in said["results"]]
    page.click(".pages button:last-child")
    page.loaded("document.querySelector('.pages span').innerText === 'Page 3 of 5'")
    assert page.state() == {"q": QUERY, "k": "5", "page": "3"}
    page.run("history.back()")
    page.loaded("document.querySelector('.pages span').innerText === 'Page 2 of 5'")
    assert rank_free(shown(page, 1)) == [row["id"] for row in said["results"]]
    shared = new_page(site.at(q=QUERY, doc="bogue", by="tiny", why=1, layer=1, head=2, rule="strm"))
    shared.until("document.querySelector('canvas')")
    values = """['Attention', 'Layer', 'Head'].map((name) =>
        document.querySelector(`#panel select[aria-label="${name}"]`).value)"""
    assert shared.run(values) == ["strm", "1", "2"]


def test_the_explanation_shows_tokens_words_and_the_attention_of_each_cell(new_page: Opened, site: Any) -> None:
    page = new_page(site.at(q="bogue fish", doc="bogue", by="tiny", why=1))
    page.until("document.querySelector('canvas')")
    said = site.answer("/explain", query="bogue fish", id="bogue", model="tiny")
    pieces = [token["piece"].removeprefix("##") for token in said["tokens"]]
    assert page.texts(".flow .token i") == pieces
    split = [word for word in said["words"] if len(word["positions"]) > 1]
    assert page.run("document.querySelectorAll('.flow .several').length") == len(split) > 1
    assert page.texts(".flow .several .stands") == [pieces[word["stands"]] for word in split]
    assert f"{100 * said['probability']:.1f} %" in page.text(".facts")
    assert f"{100 * said['probability']:.1f} percent" in page.text("#explained")

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
    painted = """(() => { const c = document.querySelector('canvas');
        const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);
        return new Set(new Uint32Array(data.buffer)).size })()"""
    assert page.run(painted) > 20
    page.choose("Layer", "1")
    layer = """document.querySelector('#panel select[aria-label="Layer"]').value"""
    page.until(f"{layer} === '1' && !document.querySelector('#why[aria-busy]')")
    first = site.answer("/explain", query="bogue fish", id="bogue", model="tiny", layer=1)
    assert cell() == expected(first) != expected(said)
    assert page.state()["layer"] == "1"
    x, y = page.run(
        "(() => { const c = document.querySelector('canvas'); c.scrollIntoView({block: 'center'});"
        "const at = c.getBoundingClientRect(); return [at.right - 6, at.bottom - 6] })()"
    )
    page.point(min(x, 1200), y)
    last = [token["piece"] for token in said["tokens"] if token["field"] == "query"][-1]
    page.until(f"document.querySelector('.cell').innerText.startsWith('{last} →')")


def test_arrow_keys_begin_at_the_first_cell_and_keep_the_chosen_one_in_sight(new_page: Opened, site: Any) -> None:
    page = new_page(site.at(q="bogue winter", doc="long", by="tiny", why=1), 900, 500)
    page.until("document.querySelector('canvas')")
    tokens = site.answer("/explain", query="bogue winter", id="long", model="tiny")["tokens"]
    rows, columns = ([token["piece"] for token in tokens if token["field"] == f] for f in ("query", "document"))

    def cell() -> str:
        return str(page.text(".cell").split(":")[0])

    page.run("document.querySelector('canvas').focus()")
    page.press("ArrowDown")
    assert cell() == f"{rows[0]} → {columns[0]}"
    # Keys go on from the cell that was pointed at, and a resting pointer has no say while cells move below it.
    x, y = page.run(
        "(() => { const at = document.querySelector('.map').getBoundingClientRect();"
        "return [at.left + at.width / 2, at.bottom - 24] })()"
    )
    page.point(x, y)
    page.until(f"document.querySelector('.cell').innerText.startsWith('{rows[-1]} →')")
    for _ in columns:
        page.press("ArrowRight")
    page.run("new Promise((done) => setTimeout(done, 300))")
    assert cell().endswith(f"→ {columns[-1]}")
    hidden = "(({ scrollLeft, scrollWidth, clientWidth }) => [scrollLeft, scrollWidth - clientWidth - scrollLeft])"
    left, right = page.run(f"{hidden}(document.querySelector('.map'))")
    assert left > 0
    assert right < 30
    for _ in columns:
        page.press("ArrowLeft")
    assert cell().endswith(f"→ {columns[0]}")
    assert page.run(f"{hidden}(document.querySelector('.map'))")[0] < 30


def test_a_busy_service_is_asked_again_when_it_said(new_page: Opened, site: Any) -> None:
    busy = {
        "error": "the queue is full",
        "error_type": "overloaded",
        "message": "the queue is full",
        "request_id": "r1",
    }
    site.faults["/search"] = (429, {"Retry-After": "2"}, busy)
    page = new_page(site.at(q=QUERY))
    page.until("document.querySelector('.notice.error .clock')?.innerText === 'again in 2 s'")
    assert "The service is busy" in page.text(".notice.error")
    assert "The queue is full." in page.text(".notice.error")
    page.until("document.querySelector('.clock').innerText === 'again in 1 s'")
    site.faults.clear()
    page.loaded()
    assert page.run("document.querySelector('.notice.error')") is None


def test_refusals_and_a_lost_connection_are_said_and_mended(new_page: Opened, site: Any) -> None:
    late = {"error": "x", "error_type": "deadline", "message": "the deadline has passed", "request_id": "r7"}
    site.faults["/search"] = (504, {}, late)
    page = new_page(site.at(q=QUERY))
    page.until("document.querySelector('.notice.error')")
    assert "That took too long. The deadline has passed." in page.text(".notice.error")
    assert "r7" in page.text(".notice.error")
    site.faults["/search"] = (500, {"content-type": "text/html"}, None)
    page.click(".notice.error button")
    page.until("document.querySelector('.notice.error').innerText.includes('Something went wrong')")
    site.faults.clear()
    page.go_offline(True)
    page.click(".notice.error button")
    page.until("document.querySelector('.notice.error').innerText.includes('No connection')")
    page.go_offline(False)  # being online again is enough
    page.loaded()
    assert page.run("document.querySelector('.notice')") is None


def test_nothing_found_and_what_is_not_taken_are_told_apart(new_page: Opened, site: Any) -> None:
    page = new_page(site.at(q="zebra"))
    page.until("document.querySelector('.start h2')?.innerText === 'Nothing found.'")
    assert page.text("#said") == "Nothing found."
    page = new_page(site.at(q="bees " * 1000))
    page.until("document.querySelector('.notice.error')")
    assert "the limit is 4,000" in page.text(".notice.error")
    assert page.run("document.querySelector('.notice.error button')") is None  # trying again would not help


def test_without_a_model_the_page_says_so_and_shows_one_list(searched: Opened, start_site: Callable[..., Any]) -> None:
    bare = start_site()
    page = searched(bare)
    assert "BM25 only." in page.text(".notice")
    assert page.run(
        "[document.querySelectorAll('.column').length, document.querySelectorAll('.moved, meter').length]"
    ) == [1, 0]
    page.click(".card")
    page.until("document.querySelector('#panel').open")
    assert page.run("document.querySelector('#panel details')") is None
    assert "/explain" not in bare.asked


def test_a_blend_is_called_one_and_says_its_shares(
    searched: Opened, site: Any, start_site: Callable[..., Any], tiny_checkpoint: Path
) -> None:
    units = "[...document.querySelectorAll('.unit')].map((one) => [one.innerText.toLowerCase(), one.title])"
    (first, of_first), (model, of_model) = searched(site).run(units)
    assert (first, model) == ("score", "model score")
    assert "within one query" in of_first
    assert "logit" in of_model
    blended = start_site(tiny_checkpoint, search={"shares": Shares(model=0.7, first=0.3)})
    assert searched(blended).run(units)[1] == ["blended score", "30 % BM25, 70 % model"]


def test_hybrid_search_is_called_so_and_says_its_shares(
    searched: Opened, start_site: Callable[..., Any], tiny_checkpoint: Path, tiny_bi_encoder: Path
) -> None:
    hybrid = start_site(tiny_checkpoint, search={"encoder": tiny_bi_encoder, "hybrid": 0.6})
    page = searched(hybrid)
    assert page.run("document.querySelector('.unit').title") == "40 % BM25, 60 % similarity"
    assert page.run("document.querySelector('select.which').selectedOptions[0].text") == "Hybrid"
    assert page.run("document.querySelector('select.which').value") == "hybrid"
    # An address of a time when BM25 found the candidates.
    page = searched(hybrid, left=tiny_checkpoint.name, right="bm25")
    chosen = "[...document.querySelectorAll('select.which')].map((one) => one.value)"
    assert page.run(chosen) == [tiny_checkpoint.name, "hybrid"]


def test_hybrid_search_without_a_model_is_not_called_bm25(
    searched: Opened, start_site: Callable[..., Any], tiny_bi_encoder: Path
) -> None:
    page = searched(start_site(search={"encoder": tiny_bi_encoder, "hybrid": 0.6}))
    assert page.texts(".column h2") == ["Hybrid"]
    said = page.text(".notice")
    assert said.startswith("Hybrid search only.")
    assert "40 % BM25, 60 % similarity" in said
    assert "BM25 only" not in said


def test_without_an_index_the_page_says_what_the_service_is_for(new_page: Opened, site: Any) -> None:
    ready = {"status": "ready", "reranker": True, "note": None, "index": None, "models": ["tiny"], "stages": []}
    site.faults["/ready"] = (200, {"content-type": "application/json"}, ready)
    site.asked.clear()
    page = new_page(site.at(q=QUERY))
    page.until("document.querySelector('.notice')?.innerText.startsWith('No index here.')")
    assert page.run("document.querySelector('#query').disabled")
    assert "/search" not in site.asked


def test_a_key_is_asked_for_once(new_page: Opened, start_site: Callable[..., Any], tiny_checkpoint: Path) -> None:
    closed = start_site(tiny_checkpoint, key="open sesame")
    page = new_page(closed.at(q=QUERY))
    page.until("document.querySelector('input[type=password]')")
    assert page.run("document.querySelectorAll('.card').length") == 0
    for key in ("wrong", "open sesame"):
        page.run("document.querySelector('input[type=password]').focus()")
        page.type(key)
        before = len(closed.asked)
        page.press("Enter")
        page.until("document.querySelector('.card') || document.querySelector('input[type=password]')?.value === ''")
        assert len(closed.asked) > before
    page.loaded()
    page.open(closed.at(q="honey"))
    page.loaded()


def test_a_click_on_the_list_that_users_get_is_logged(
    start_site: Opened, searched: Opened, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    from rankwell.serve.search_log import LogOptions

    site = start_site(tiny_checkpoint, log=LogOptions(tmp_path))
    page = searched(site, QUERY)
    for side, place in ((0, 2), (1, 3)):
        page.click(f'.column[data-side="{side}"] .card:nth-child({place}) .name')
        page.until("document.querySelector('#panel').open")
        page.press("Escape")
        page.until("!document.querySelector('#panel').open")
    wait_until(lambda: any(tmp_path.glob("events-*")) and any(tmp_path.glob("queries-*")))
    [query, event] = [
        json.loads(path.read_text()) for kind in ("queries", "events") for path in tmp_path.glob(f"{kind}-*")
    ]
    assert query["query_response_hit_ids"] == rank_free(shown(page, 1))
    assert event["query_id"] == query["query_id"]
    assert event["event_attributes"]["object"]["object_id"] == query["query_response_hit_ids"][2]
    assert event["event_attributes"]["position"] == {"ordinal": 3}
