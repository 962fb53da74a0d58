"""Term weights drawn: pages that need nothing else, pictures, distributions."""

from __future__ import annotations

import re
from pathlib import Path

from rankwell.papers.deepct.stage import fragments, shade_words
from rankwell.papers.shared.examples import write_examples

TEXT, WEIGHTS = "Bees make honey & <b>wax</b>; the bee flies.", {"honey": 93, "bees": 40, "flies": 2.5}


def test_every_word_has_the_weight_of_its_stem_and_the_text_is_whole() -> None:
    parts = fragments(TEXT, WEIGHTS)
    assert "".join(text for text, _ in parts) == TEXT
    weights = {text: weight for text, weight in parts if weight}
    assert weights == {"Bees": 40, "honey": 93, "bee": 40, "flies": 2.5}
    assert dict(parts)["the"] == 0
    assert dict(parts)[" & <"] is None


def test_a_page_loads_nothing_and_spells_out_what_the_text_has(tmp_path: Path) -> None:
    write_examples(tmp_path / "page.html", "a & b", "", {"d<1>": ()}, [shade_words(TEXT, WEIGHTS)])
    page = (tmp_path / "page.html").read_text()
    assert "&lt;" in page
    assert "<b>" not in page
    assert "d&lt;1&gt;" in page
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)
    found = {word: title for title, word in re.findall(r'title="([^"]+)">([^<]+)<', page)}
    assert found == {"Bees": "40", "honey": "93", "bee": "40", "flies": "2.5"}
    shades = {word: float(a) for a, word in re.findall(r"rgba\(31, 119, 180, ([\d.]+)\)[^>]*>([^<]+)<", page)}
    assert shades == {"Bees": 0.43, "honey": 1.0, "bee": 0.43, "flies": 0.03}
