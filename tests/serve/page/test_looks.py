"""The page's looks in a real browser: colours, widths, names for those who do not see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
    page.click("#fold > summary")
    page.until("document.querySelector('canvas')")
    assert page.run("document.querySelector('#panel').scrollWidth <= document.querySelector('#panel').clientWidth")


def test_controls_have_names_and_the_page_has_landmarks(searched: Opened, site: Any) -> None:
    page = searched(site, doc="bogue", by="tiny", why=1)
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
