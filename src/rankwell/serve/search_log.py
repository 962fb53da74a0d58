"""The log of searches and clicks, in the fields of User Behavior Insights (UBI 1.3), a file a day and kind.

    queries-2026-11-19.jsonl    query_id, user_query, query_response_hit_ids, query_attributes, timestamp
    events-2026-11-19.jsonl     action_name, query_id, event_attributes, timestamp

A thread writes what requests hand over, and flushes it to the disk, twice a second: a kill or a power cut loses less
than the last second. A full disk stops the log until there is room, never a request. Clients cannot fill the disk: a
file ends at a ceiling, texts are bounded by the service's limits, and events need a query id of the last hours.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from rankwell.core.errors import RankwellError, system_reason
from rankwell.core.files import disk_errors, sync_folder
from rankwell.corpus.searches import EVENTS, HASHED, NAME, QUERIES
from rankwell.serve.bodies import LOG
from rankwell.serve.engine import Metrics
from rankwell.serve.formats import Answer, Event, Search

PAUSE = 0.5
"""Seconds between two writes."""
MOST_HITS, MOST_HIT_BYTES = 100, 1 << 12
"""Hits of a search that are logged, and the bytes that their ids may have together."""
MOST_WAITING = 32 << 20
"""Bytes that may wait to be written."""
KNOWN_SECONDS, MOST_KNOWN = 6 * 3600, 50_000
"""How long, and for how many searches, events are taken."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Where searches and clicks are logged, and what of them.

    Without ``texts`` there are hashes of the queries. Files are removed after ``keep_days``, and have up to ``day_mb``
    megabytes.
    """

    folder: Path
    texts: bool = True
    keep_days: int = 90
    day_mb: int = 256


class SearchLog:
    """Logs searches and events between :meth:`start` and :meth:`stop`."""

    def __init__(self, options: LogOptions, metrics: Metrics):
        self.options, self._metrics = options, metrics
        with disk_errors(options.folder):
            options.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(options.folder, os.W_OK):
            raise RankwellError(f"cannot write {options.folder}: permission denied")
        self._lock = threading.Lock()
        self._waiting: dict[str, list[bytes]] = {}
        self._bytes = 0
        self._known: OrderedDict[str, tuple[float, str, set[str]]] = OrderedDict()
        """For each query id when it was given, the ids of its hits, a line each, and which were clicked."""
        self._problem = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankwell-log", daemon=True)
        metrics.logging.set(1)

    def start(self) -> None:
        """Start to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, and end."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def search(self, body: Search, answer: Answer, *, lacking: bool = False) -> str:
        """Log a search and its answer; returns the id by which events name it. The index may be lacking its words."""
        rows, query_id = answer["results"], uuid.uuid4().hex
        docids, size = list[str](), 0
        for row in rows[:MOST_HITS]:
            if (size := size + len(row["id"].encode(errors="replace"))) > MOST_HIT_BYTES:
                break
            docids.append(row["id"])
        special = body.filter is not None or body.syntax or body.instruction is not None
        attributes = {"from": body.offset, "candidates": answer["candidates"], "special": special}
        if rows and rows[0].get("relevance") is not None:
            attributes["relevance"] = rows[0]["relevance"]
        hashed = HASHED + hashlib.sha256(body.query.encode(errors="replace")).hexdigest()
        shown = body.query if self.options.texts else hashed
        record: Answer = {"query_id": query_id, "user_query": shown, "object_id_field": "id"}
        record |= {"query_response_hit_ids": docids, "query_attributes": attributes}
        with self._lock:
            now = time.monotonic()
            self._known[query_id] = now, "\n".join(docids), set[str]()
            while len(self._known) > MOST_KNOWN or now - next(iter(self._known.values()))[0] > KNOWN_SECONDS:
                self._known.popitem(last=False)
        for kind in ("all", "lacking") if lacking else ("all",):
            self._metrics.searches.labels(kind).inc()
        if not rows and not body.offset:
            self._metrics.searches.labels("below" if answer["candidates"] else "empty").inc()
        self._add(QUERIES, record)
        return query_id

    def event(self, event: Event) -> bool:
        """Log an event; False if its search is not known, or did not show the document."""
        docid, position = event.event_attributes.object.object_id, event.event_attributes.position
        with self._lock:
            begun, shown, clicked = self._known.get(event.query_id, (0.0, "", set[str]()))
            known = time.monotonic() - begun <= KNOWN_SECONDS and docid in shown.split("\n") and bool(shown)
            first = known and event.action_name == "click" and not clicked
            clicked |= {docid} if first else set()
        self._metrics.events.labels("logged" if known else "unknown").inc()
        if first:
            self._metrics.searches.labels("clicked").inc()
        if known:
            attributes: Answer = {"object": {"object_id": docid, "object_id_field": "id"}}
            attributes |= {"position": {"ordinal": position.ordinal}} if position and position.ordinal else {}
            record = {"action_name": event.action_name, "query_id": event.query_id, "event_attributes": attributes}
            self._add(EVENTS, record)
        return known

    def _add(self, kind: str, record: Mapping[str, Any]) -> None:
        now = datetime.now(UTC)
        stamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"application": "rankwell", **record, "timestamp": stamp}).encode() + b"\n"
        with self._lock:
            if self._bytes + len(line) > MOST_WAITING:
                self._metrics.dropped.inc()
                return
            self._bytes += len(line)
            self._waiting.setdefault(f"{kind}-{now:%Y-%m-%d}.jsonl", []).append(line)

    def _run(self) -> None:
        last, stopped = None, False
        while not stopped:
            stopped = self._stopping.wait(PAUSE)
            if (today := datetime.now(UTC).date()) != last:
                last = today
                self._remove_old(today)
            with self._lock:
                waiting, self._waiting, self._bytes = self._waiting, {}, 0
            problem = ""
            for name, lines in waiting.items():
                try:
                    written = self._write(self.options.folder / name, lines)
                    problem = problem if written == len(lines) else f"{name} has {self.options.day_mb:,} MB"
                except OSError as error:
                    written, problem = 0, f"cannot write {name}: {system_reason(error)}"
                self._metrics.dropped.inc(len(lines) - written)
            if waiting and problem != self._problem:  # said once, and when it is over
                self._problem = problem
                self._metrics.logging.set(not problem)
                about = {"outcome": "stopped", "error": problem} if problem else {"outcome": "writes again"}
                (LOG.error if problem else LOG.info)("log", extra={"about": about})

    def _write(self, path: Path, lines: list[bytes]) -> int:
        """Append lines, up to the ceiling, and flush them to the disk; returns how many."""
        fresh = not path.exists()
        with path.open("ab+") as file:
            if size := file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # what was written last was cut off
                    file.write(b"\n")
            count = 0
            for line in lines:
                if (size := size + len(line)) > self.options.day_mb * 1_000_000:
                    break
                file.write(line)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            sync_folder(self.options.folder)
        return count

    def _remove_old(self, today: date) -> None:
        first = (today - timedelta(days=self.options.keep_days)).isoformat()
        with suppress(OSError):  # tried again tomorrow
            for path in self.options.folder.iterdir():
                if (match := NAME.fullmatch(path.name)) and match["day"] < first:
                    path.unlink()
