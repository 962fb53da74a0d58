"""The log of a service, read back: what searches showed, what was clicked, and the judgments that this makes.

The files are those that ``rankwell serve --log`` writes, a line of JSON for each search and event, in the fields of
User Behavior Insights. What cannot be used is counted by its reason, because a log is cut off by power failures, its
clock is set back, and its clients send what they like.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from sys import intern
from typing import Any

from rankwell.core.errors import InputError, folder_error
from rankwell.core.manifest import digest
from rankwell.corpus.formats.clicks import Cell, judge_clicks
from rankwell.corpus.records import Qrels, Query

QUERIES, EVENTS, HASHED = "queries", "events", "sha256:"
NAME = re.compile(rf"(?P<kind>{QUERIES}|{EVENTS})-(?P<day>20\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]))\.jsonl")
DAY = 86_400.0
WEEK = 7 * DAY
BACK = 2.0
"""Seconds by which a line may be older than the one before: requests are logged beside each other."""


@dataclass(slots=True)
class LoggedSearch:
    """A search: what was asked, what it showed from position ``begin`` + 1 on, and which of it was clicked."""

    time: float
    query: str
    docids: Sequence[str]
    begin: int
    candidates: int
    special: bool
    """Whether it had a filter, required words or an instruction, so that its query says only a part."""
    rated: bool = False
    """Whether its answers have a relevance."""
    clicked: set[str] = field(default_factory=set)

    @property
    def below(self) -> bool:
        """Whether all that was found has less relevance than an answer needs."""
        return bool(self.candidates) and not self.docids and not self.begin


@dataclass
class Searches:
    """The searches of a log in the order of time, and how many lines could not be used, by the reason."""

    folder: Path
    searches: list[LoggedSearch]
    problems: Counter[str]

    @property
    def end(self) -> float:
        """When the last one was."""
        return self.searches[-1].time

    def between(self, begin: float, end: float) -> list[LoggedSearch]:
        """Those from ``begin`` to before ``end``."""
        return [search for search in self.searches if begin <= search.time < end]

    def describe(self) -> str:
        """The number of searches and what was left out, in one line."""
        left_out = "".join(f"; {count:,} {reason}" for reason, count in sorted(self.problems.items()))
        return f"{self.folder}: {len(self.searches):,} searches{left_out}"

    def check_documents(self, has: Callable[[str], bool], system: object) -> None:
        """Raise if most documents that were shown are not in the system."""
        shown = {docid for search in self.searches for docid in search.docids}
        unknown = sorted(docid for docid in shown if not has(docid))
        if 2 * len(unknown) > len(shown):
            problem = f"{len(unknown):,} of the {len(shown):,} documents that it shows are not in {system}"
            raise InputError(self.folder, None, f"{problem}, such as {unknown[0]}; is it the log of another system?")


def read_searches(folder: Path, days: int | None = None) -> Searches:
    """Read a log, or the last ``days`` of it. Raises if there is no search in it."""
    if not folder.is_dir():
        raise folder_error(folder, "no log")
    problems, searches = Counter[str](), dict[str, LoggedSearch]()
    names = sorted((match["day"], path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name)))
    if days is not None and names:
        newest = min(names[-1][0], f"{datetime.now(UTC):%Y-%m-%d}")  # a clock may have been ahead
        first = (date.fromisoformat(newest) - timedelta(days)).isoformat()
        names = [(day, path) for day, path in names if day >= first]
    latest = time.time() + DAY
    for kind in (QUERIES, EVENTS):
        before = 0.0
        for record in _records([path for _, path in names if path.name.startswith(kind)], problems):
            try:
                when = datetime.fromisoformat(record["timestamp"]).timestamp()
                if when > latest:
                    problems["lines with a time to come"] += 1
                    continue
                problems["lines older than the one before (the clock was set back)"] += when < before - BACK
                before = when
                if kind == QUERIES:
                    searches[str(record["query_id"])] = _search(when, record)
                else:
                    _click(searches.get(str(record["query_id"])), record, when, problems)
            except (KeyError, TypeError, ValueError, AttributeError):
                problems["lines without the fields of a log"] += 1
    if not searches:
        made = "" if names else f"; expected files such as {QUERIES}-2026-11-19.jsonl, as `rankwell serve --log` writes"
        raise InputError(folder, None, f"has no searches{made}")
    ordered = sorted(searches.values(), key=lambda search: search.time)
    return Searches(folder, ordered, +problems)


def _records(paths: Sequence[Path], problems: Counter[str]) -> Iterator[dict[str, Any]]:
    for path in paths:
        with path.open("rb") as file:
            for line in file:
                try:
                    if line.strip():
                        yield json.loads(line)
                except (ValueError, RecursionError):
                    problems["incomplete lines"] += 1


def _search(when: float, record: dict[str, Any]) -> LoggedSearch:
    own, docids = record["query_attributes"], tuple(intern(str(docid)) for docid in record["query_response_hit_ids"])
    query, special = record["user_query"].encode(errors="replace").decode(), bool(own["special"])
    return LoggedSearch(when, query, docids, int(own["from"]), int(own["candidates"]), special, "relevance" in own)


def _click(search: LoggedSearch | None, record: dict[str, Any], when: float, problems: Counter[str]) -> None:
    docid = str(record["event_attributes"]["object"]["object_id"])
    if record["action_name"] != "click":
        return
    if search is None:
        problems["clicks for unknown searches"] += 1
    elif docid not in search.docids:
        problems["clicks on documents that were not shown"] += 1
    else:
        problems["clicks before their search (the clock was set back)"] += when < search.time - BACK
        search.clicked.add(docid)


def judge_searches(searches: Sequence[LoggedSearch], name: str) -> tuple[list[Query], Qrels, str]:
    """Queries with judgments from the clicks of searches, and a line that says how many pairs were used.

    Searches with the same words are one query. Those with a filter and the like are left out, as their clicks depend
    on it. ``name`` is what the ids of the queries begin with.
    """
    queries, shown = dict[str, Query](), dict[tuple[str, str], dict[int, Cell]]()
    for search in searches:
        if search.special or search.query.startswith(HASHED) or not (words := " ".join(search.query.lower().split())):
            continue
        query = queries.setdefault(words, Query(f"{name}-{digest(words)}", search.query))
        for position, docid in enumerate(search.docids, search.begin + 1):
            at = shown.setdefault((query.qid, docid), {})
            times, clicks = at.get(position, (0, 0))
            at[position] = times + 1, clicks + (docid in search.clicked)
    qrels, line = judge_clicks(shown) if shown else (Qrels({}), "no clicks")
    useful = Qrels({qid: grades for qid, grades in qrels.items() if any(grades.values())})
    return [query for query in queries.values() if query.qid in useful], useful, line
