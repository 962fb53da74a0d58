"""The page's looks in a real browser: colours, widths, names for those who do not see it; and its experiments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

Opened = Callable[..., Any]


def luminance(colour: list[float]) -> float:
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour[:3])]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


COLOUR = """((names) => { const canvas = document.createElement('canvas');
const c = canvas.getContext('2d', {willReadFrequently: true});
const style = getComputedStyle(document.documentElement); return names.map((name) => {
c.fillStyle = style.getPropertyValue(name).trim(); c.fillRect(0, 0, 1, 1);
return [...c.getImageData(0, 0, 1, 1).data] }) })"""


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
def test_nothing_sticks_out_at_any_width(searched: Opened, site: Any, width: int) -> None:
    page = searched(site, width=width)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.querySelector('#search').offsetHeight") < 70
    columns = "[...document.querySelectorAll('.column')].filter((c) => c.offsetParent).map((c) => c.dataset.side)"
    assert page.run(columns) == (["1"] if width < 700 else ["0", "1"])
    if width < 700:
        page.click(".switcher button:first-child")
        assert page.run(columns) == ["0"]
    page.run("document.querySelector('.column:not([hidden]) .card .name').click()")
    page.until("document.querySelector('canvas')")
    assert page.run("document.querySelector('#panel').scrollWidth <= document.querySelector('#panel').clientWidth")


def test_controls_have_names_and_the_page_has_landmarks(searched: Opened, site: Any) -> None:
    page = searched(site, doc="bogue", by="tiny")
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
    page = new_page(site.at(view="experiments"))  # a service without experiments: a file can be opened
    page.until("document.querySelector('#results-file')")
    assert page.run("document.querySelector('table')") is None

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


def test_experiments_of_the_service_can_be_chosen(new_page: Opened, site: Any) -> None:
    def experiment(name: str, figure: float) -> dict[str, Any]:
        mean = {name: {"RR@10": figure, "AP": figure / 2}}
        table = {"baseline": name, "queries": 1, "test": "t", "level": 0.05, "contrasts": [], "mean": mean}
        return {"name": name, "results": {"tables": {"dev": table}, "failures": {}}, "plots": ["icon.svg"]}

    both = {"experiments": [experiment("first", 0.5), experiment("second", 0.25)]}
    site.faults["/experiments"] = (200, {"content-type": "application/json"}, both)
    page = new_page(site.at(view="experiments", set="second"))
    page.until("document.querySelector('h1')?.innerText === 'second' && document.querySelector('.plot img').complete")
    assert page.texts("tbody td") == ["", "0.2500", "0.1250"]
    page.choose("Plot of", "AP")
    page.until("document.querySelector('.plot .value').innerHTML === '0.1250'")
    page.choose("Experiment", "first")
    page.until("document.querySelector('h1').innerText === 'first'")
    assert page.state() == {"view": "experiments", "set": "first", "measure": "AP"}
