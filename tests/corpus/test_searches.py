"""Logs of searches are read, whatever is in them, and what cannot be used is counted by its reason."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rankwell.core.errors import InputError
from rankwell.corpus.searches import judge_searches, read_searches

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def stamp(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")


def search(query_id: str, docids: str, minutes: float = 0, query: str = "bees", **attributes: Any) -> dict[str, Any]:
    """A line of a search; its documents are the letters of ``docids``."""
    own = {"from": 0, "candidates": 20, "special": False, **attributes}
    when = stamp(NOON + timedelta(minutes=minutes))
    hits = {"query_response_hit_ids": list(docids), "query_attributes": own}
    return {"query_id": query_id, "user_query": query, "timestamp": when, **hits}


def click(query_id: str, docid: str, minutes: float = 1, action: str = "click") -> dict[str, Any]:
    when = stamp(NOON + timedelta(minutes=minutes))
    about = {"event_attributes": {"object": {"object_id": docid}}}
    return {"query_id": query_id, "action_name": action, "timestamp": when, **about}


def write(folder: Path, searches: list[Any], events: list[Any], day: str = "2026-03-02") -> Path:
    folder.mkdir(exist_ok=True)
    for kind, lines in (("queries", searches), ("events", events)):
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (folder / f"{kind}-{day}.jsonl").write_text("".join(f"{text}\n" for text in texts))
    return folder


def test_clicks_are_those_of_their_searches(tmp_path: Path) -> None:
    events = [click("s2", "b", 6), click("s2", "b", 6), click("s1", "a", 7, action="hover")]
    log = read_searches(write(tmp_path, [search("s1", "ac", 2), search("s2", "ab", 5)], events))
    assert [(own.docids, own.clicked) for own in log.searches] == [(("a", "c"), set()), (("a", "b"), {"b"})]
    assert log.describe() == f"{tmp_path}: 2 searches"


def test_what_cannot_be_used_is_counted_and_named(tmp_path: Path) -> None:
    to_come = stamp(datetime.now(UTC) + timedelta(days=400))
    searches = [
        search("s1", "ab", 5),
        search("s2", "ab", 3),
        '{"query_id": "s3", "user_q',
        "\0\0\0",
        "[" * 100_000,
        {"query_id": "s4"},
        "7",
        {**search("s5", "ab"), "timestamp": to_come},
    ]
    events = [click("made-up", "a"), click("s1", "z"), click("s1", "a", 1), {**click("s1", "b"), "event_attributes": 1}]
    log = read_searches(write(tmp_path, searches, events))
    assert [own.clicked for own in log.searches] == [set(), {"a"}]
    assert dict(log.problems) == {
        "lines older than the one before (the clock was set back)": 1,
        "incomplete lines": 3,
        "lines without the fields of a log": 3,
        "lines with a time to come": 1,
        "clicks for unknown searches": 1,
        "clicks on documents that were not shown": 1,
        "clicks before their search (the clock was set back)": 1,
    }
    assert log.describe().startswith(f"{tmp_path}: 2 searches; 1 clicks before their search")


def test_a_log_of_another_system_is_an_error_that_says_so(tmp_path: Path) -> None:
    log = read_searches(write(tmp_path, [search("s1", "abc")], []))
    log.check_documents({"a", "b"}.__contains__, "my-system")
    with pytest.raises(InputError, match="2 of the 3 documents that it shows are not in my-system, such as b; is it"):
        log.check_documents({"a"}.__contains__, "my-system")


@pytest.mark.parametrize(
    ("names", "problem"),
    [((), "has no searches; expected files such as queries-"), (("queries-2026-03-02.jsonl",), "has no searches$")],
)
def test_a_folder_without_searches_is_no_log(tmp_path: Path, names: tuple[str, ...], problem: str) -> None:
    (tmp_path / "queries-2026-13-02.jsonl").write_text("{}")
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=problem):
        read_searches(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read_searches(tmp_path / "missing")


def test_the_last_days_alone_can_be_read(tmp_path: Path) -> None:
    for day in ("01", "05", "09"):
        write(tmp_path, [search(f"s{day}", "ab", query=day)], [], f"2026-03-{day}")
    assert [own.query for own in read_searches(tmp_path, days=4).searches] == ["05", "09"]
    assert len(read_searches(tmp_path).searches) == 3
    (tmp_path / "queries-2099-01-01.jsonl").touch()  # the clock was ahead for a while
    (tmp_path / "queries-2026-03-09.jsonl").rename(tmp_path / f"queries-{datetime.now(UTC):%Y-%m-%d}.jsonl")
    assert [own.query for own in read_searches(tmp_path, days=1).searches] == ["09"]
    assert read_searches(tmp_path).end < time.time()


def test_searches_with_the_same_words_are_judged_together(tmp_path: Path) -> None:
    """On twenty searches each, b is clicked at the second place, and a at the first is not."""
    searches, events = list[Any](), list[Any]()
    for number in range(20):
        for query, docids in (("bees", "ab"), (" Bees", "ab"), ("tea", "cd"), ("sha256:1", "ef")):
            searches.append(search(f"{query}{number}", docids, query=query))
            events += [click(f"{query}{number}", docids[1])] if number % 2 else []
        searches.append(search(f"x{number}", "gh", query="filtered", special=True))
        events.append(click(f"x{number}", "g"))
    log = read_searches(write(tmp_path, searches, events))
    queries, qrels, line = judge_searches(log.searches, "week")
    assert [query.text for query in queries] == ["bees", "tea"]
    assert [dict(qrels[query.qid]) for query in queries] == [{"a": 0, "b": 1}, {"c": 0, "d": 1}]
    assert all(query.qid.startswith("week-") for query in queries)
    assert line.startswith("clicks on 4 pairs of query and document: 4 used")


def test_positions_count_from_the_first_page(tmp_path: Path) -> None:
    """What is clicked a little on the third page is relevant, as hardly anybody looks there; on the first it is not."""
    searches, events = list[Any](), list[Any]()
    for number in range(100):
        for query, begin in (("first", 0), ("third", 20)):
            searches.append(search(f"{query}{number}", "ab", query=query, **{"from": begin}))
        searches.append(search(f"best{number}", "ab", query="best"))
        events += [click(f"best{number}", "a")] if number % 2 else []
        events += [click(f"first{number}", "a"), click(f"third{number}", "a")] if number % 25 == 0 else []
    queries, _, _ = judge_searches(read_searches(write(tmp_path, searches, events)).searches, "q")
    assert {query.text for query in queries} == {"best", "third"}


def test_without_clicks_nothing_is_judged(tmp_path: Path) -> None:
    assert judge_searches([], "week")[:2] == ([], {})
