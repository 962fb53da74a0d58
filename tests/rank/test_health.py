"""Five lines that say whether a search is doing as it did."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rankwell.corpus.records import Document
from rankwell.corpus.searches import DAY, WEEK, LoggedSearch, Searches
from rankwell.rank.health import health
from rankwell.retrieve.index import Index

NOW = 100 * DAY


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.build([Document("a", "bees make honey"), Document("b", "the tea is warm")], tmp_path / "index")


def week(
    ago: int, count: int, query: str = "bees", *, found: int = 2, clicked: int = 0, **more: Any
) -> list[LoggedSearch]:
    """Searches of a week, the first of which are clicked."""
    times = [NOW - ago * WEEK - number * WEEK / count for number in range(count)]
    return [
        LoggedSearch(
            when,
            query,
            **{"docids": ("a", "b")[:found], "begin": 0, "candidates": found, "special": False} | more,
            clicked={"a"} if n < clicked else set(),
        )
        for n, when in enumerate(times)
    ]


def lines(index: Index, *weeks: list[LoggedSearch]) -> list[str]:
    searches = sorted((search for own in weeks for search in own), key=lambda search: search.time)
    return health(Searches(Path("log"), searches, Counter()), index)


def test_the_last_week_stands_beside_the_four_before(index: Index) -> None:
    last = [week(0, 60, clicked=60), week(0, 20, "beees and wax", found=0), week(0, 20, "the tea")]
    before = [week(ago, 40, clicked=30) for ago in (1, 2, 3, 4)]
    too_old = week(6, 500, found=0)
    assert lines(index, *last, *before, too_old) == [
        "searches: 100 in the last week; 40 a week before",
        "without results: 20.0% [13.3%, 28.9%]; 0.0% before",
        "without a click: 40.0% [30.9%, 49.8%]; 25.0% before",
        "below min-relevance: not calibrated",
        "with words that the index lacks: 20.0% [13.3%, 28.9%]; 0.0% before; beees (20), wax (20)",
    ]


def test_a_young_log_is_beside_the_weeks_that_it_has(index: Index) -> None:
    assert lines(index, week(0, 10), week(1, 30), week(2, 30))[0] == "searches: 10 in the last week; 30 a week before"
    assert lines(index, week(0, 10))[:2] == [
        "searches: 10 in the last week; 0 a week before",
        "without results: 0.0% [0.0%, 27.8%]",
    ]


def test_searches_are_counted_whose_answers_have_all_too_little_relevance(index: Index) -> None:
    low, high = week(0, 30, docids=()), week(0, 10, rated=True)
    assert lines(index, low, high)[3].startswith("below min-relevance: 75.0% [")
    assert lines(index, low, high)[1].startswith("without results: 0.0% [")
    assert lines(index, high, week(0, 30, docids=(), begin=10))[3].startswith("below min-relevance: 0.0% [")


def test_hashes_have_no_words(index: Index) -> None:
    assert lines(index, week(0, 3, "sha256:0"))[4].endswith("not known, the log has hashes of the queries")
