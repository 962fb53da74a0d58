"""The papers' pages: their tables are those of the kept values, their sentences say what the tables do."""

from __future__ import annotations

import json
import re

import pytest
from tests.paper_tables import PAGES, ROOT, table
from tests.test_results import figures_of, tables_of

DOCS = ROOT / "docs"
PUBLISHED = {".007", ".167", ".243", ".053", ".420", ".367", ".198", ".365", ".302", ".328", ".026", ".184", ".221"}
PUBLISHED |= {".037", ".237", ".278", ".390", ".076", ".413", ".030", ".015", ".005"}
PUBLISHED |= {".999"}
"""The papers' own figures, and a threshold that was tried."""
OVERVIEW = ("papers.md",)


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_a_page_are_those_of_the_files(page: str) -> None:
    shown = tables_of((DOCS / page).read_text(encoding="utf-8"))
    for name in PAGES[page]:
        assert table(name) in shown, f"python -m tests.paper_tables prints {name}"


@pytest.mark.parametrize("page", PAGES)
def test_figures_in_sentences_are_in_the_tables(page: str) -> None:
    known = figures_of(
        "\n".join(line for name in {n for names in PAGES.values() for n in names} for line in table(name))
    )
    known |= {figure.lstrip("+−") for figure in known} | PUBLISHED | {f"+{figure}" for figure in PUBLISHED}
    text = re.sub(r"(?ms)^```.*?^```", "", (DOCS / page).read_text(encoding="utf-8"))
    lines = text.splitlines() if page in OVERVIEW else [line for line in text.splitlines() if line[:1] != "|"]
    said = {figure for figure in figures_of("\n".join(lines)) if figure.startswith((".", "+", "−"))}
    assert said <= known


def test_the_share_that_noise_reduction_drops_is_that_of_the_file() -> None:
    path = DOCS / "results" / "papers" / "noise-rates.insuranceqa.json"
    (rows,) = json.loads(path.read_text(encoding="utf-8")).values()
    shares = [share for row in rows.values() for share in row]
    said = f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % of the unjudged"
    assert said in " ".join((DOCS / "drbert.md").read_text(encoding="utf-8").split())
    assert min(shares) > 0.02  # the limit that the page names


def test_the_shares_above_each_threshold_are_those_of_the_file() -> None:
    path = DOCS / "results" / "papers" / "noise-rates.insuranceqa-aside.json"
    (rows,) = json.loads(path.read_text(encoding="utf-8")).values()
    page = " ".join((DOCS / "drbert.md").read_text(encoding="utf-8").split())
    assert f"while .9 drops {100 * min(rows['0.9']):.1f} to {100 * max(rows['0.9']):.1f} %" in page
    assert set(rows["0.99"]) == set(rows["0.999"]) == {0.0}
    assert "there .99 and .999 drop nothing" in page


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_short(page: str) -> None:
    assert len((DOCS / page).read_text(encoding="utf-8").split()) <= 1500
