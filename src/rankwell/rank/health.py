"""How a search is doing, by the log of its service: five lines, the last week beside the four before.

What to look for is a change: more searches that find nothing or that nobody clicks, or words that the index lacks, say
that users or documents are no longer those that the system was fitted to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from rankwell.corpus.searches import DAY, HASHED, WEEK, LoggedSearch, Searches
from rankwell.retrieve.index import Index
from rankwell.retrieve.spelling import unknown_words

WEEKS, SHOWN = 4, 5
"""Weeks before the last one, and unknown words that are named."""
Test = Callable[[LoggedSearch], bool]


def health(log: Searches, index: Index) -> list[str]:
    """The five lines."""
    end = log.end + 1
    last, before = log.between(end - WEEK, end), log.between(end - (WEEKS + 1) * WEEK, end - WEEK)
    days = round((end - WEEK - before[0].time) / DAY) if before else 7
    weeks = min(WEEKS, max(1.0, days / 7))
    texts = list({search.query for search in (*last, *before) if not search.query.startswith(HASHED)})
    lacking = dict(zip(texts, unknown_words(index.segments, index.analyzer, texts), strict=True))
    calibrated = any(search.rated or search.below for search in last)
    words = Counter(word for search in last for word in set(lacking.get(search.query, ())))
    named = ", ".join(
        f"{word} ({count:,})" for word, count in sorted(words.items(), key=lambda own: (-own[1], own[0]))[:SHOWN]
    )
    return [
        f"searches: {len(last):,} in the last week; {len(before) / weeks:,.0f} a week before",
        _line("without results", last, before, lambda search: not search.candidates),
        _line("without a click", last, before, lambda search: not search.clicked),
        _line("below min-relevance", last, before, lambda search: search.below)
        if calibrated
        else "below min-relevance: not calibrated",
        _line("with words that the index lacks", last, before, lambda search: bool(lacking.get(search.query)))
        + (f"; {named}" if named else "")
        if texts
        else "with words that the index lacks: not known, the log has hashes of the queries",
    ]


def _line(title: str, last: Sequence[LoggedSearch], before: Sequence[LoggedSearch], test: Test) -> str:
    """The part of the searches that pass a test, with its 95 % interval (Wilson's), beside the part before."""
    count, z2 = len(last), 1.96**2
    part = sum(map(test, last)) / count
    middle = (part + z2 / (2 * count)) / (1 + z2 / count)
    reach = math.sqrt(z2 * (part * (1 - part) + z2 / (4 * count)) / count) / (1 + z2 / count)
    line = f"{title}: {part:.1%} [{max(0.0, middle - reach):.1%}, {min(1.0, middle + reach):.1%}]"
    return line + (f"; {sum(map(test, before)) / len(before):.1%} before" if before else "")
