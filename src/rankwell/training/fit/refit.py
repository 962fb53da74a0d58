"""What a fit to the clicks of a service's log is made of: its queries, and the change of places with the old system.

The log is divided by time: its earlier weeks are fitted to, beside the judgments of the data set, and its last week
reports. A random division would let a query of next week help to rank itself. All work is in ``OUT.refit``; a better
system changes places with the old one in a single rename, so that there is a whole one at any time.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from rankwell.core.errors import RankwellError
from rankwell.core.files import disk_errors, exchange, sync_folder, temporary_name
from rankwell.core.locks import lock
from rankwell.core.manifest import digest
from rankwell.corpus.datasets import Dataset
from rankwell.corpus.records import Document, Qrels, Query
from rankwell.corpus.searches import DAY, WEEK, judge_searches, read_searches
from rankwell.evaluation.compare import compare
from rankwell.rank.system import System
from rankwell.rank.texts import INDEX
from rankwell.training.fit.judge import LEVEL, p_value
from rankwell.training.fit.split import usual_split
from rankwell.training.fit.task import FitTask, K

LEAST_QUERIES = 50
"""Fewer queries with clicks in the last week do not tell which of two systems is better."""
TRAIN, LAST_WEEK = "train", "last-week"


class NotBetterError(RankwellError):
    """The old system stays: nothing is shown to be better on the last week."""


class LoggedDataset(Dataset):
    """Documents and a split of judged queries, if there is one, with those of a log: earlier weeks, and the last."""

    splits = (LAST_WEEK, TRAIN)

    def __init__(self, data: Dataset, log: Path, system: System, split: str | None):
        self.name, self.columns, self._data = data.name, data.columns, data
        searches = read_searches(log)
        searches.check_documents(system.index.__contains__, system.folder)
        # Whole days, so that a fit that was interrupted finds the same log when it is run again.
        end = min(time.time() // DAY, searches.end // DAY + 1) * DAY
        weeks = {TRAIN: searches.between(0, end - WEEK), LAST_WEEK: searches.between(end - WEEK, end)}
        clicks = {name: judge_searches(week, name) for name, week in weeks.items()}
        said = [f"{name}: {len(week):,} searches, {clicks[name][2]}" for name, week in weeks.items()]
        self.clicks = "; ".join([searches.describe(), *said])
        if (count := len(clicks[LAST_WEEK][0])) < LEAST_QUERIES:
            problem = f"the last week of {log} has {count} queries with enough clicks, expected {LEAST_QUERIES}"
            raise NotBetterError(f"{system.folder} stays: {problem}")
        self._judged = {name: (queries, qrels) for name, (queries, qrels, _) in clicks.items()}
        if (own := usual_split(data) if split is None else data.split(split)) is not None:
            queries, qrels = self._judged[TRAIN]
            self._judged[TRAIN] = [*data.queries(own), *queries], Qrels({**data.qrels(own), **qrels})
        if not self._judged[TRAIN][0]:
            raise NotBetterError(f"{system.folder} stays: {log} has no queries with enough clicks before the last week")

    @property
    def key(self) -> str:
        """Names the documents and judgments."""
        return digest(
            [self.digest(), [sorted((qid, dict(own)) for qid, own in q.items()) for _, q in self._judged.values()]]
        )

    def documents(self) -> Iterator[Document]:
        """Stream the collection."""
        return self._data.documents()

    def digest(self) -> str:
        """See :class:`Dataset`."""
        return self._data.digest()

    def queries(self, split: str | None = None) -> list[Query]:
        """The queries of a split."""
        return self._judged[self.split(split)][0]

    def qrels(self, split: str | None = None) -> Qrels:
        """The judgments of a split."""
        return self._judged[self.split(split)][1]


def compare_systems(task: FitTask, old: System, new: System) -> tuple[str, bool]:
    """The figures of two systems on the last week, and whether the new one is better.

    Both answer as users would have found them; documents that are gone from the data count for neither.
    """
    part = task.parts.report
    grades = {qid: {d: grade for d, grade in own.items() if d in new.index} for qid, own in part.qrels.items()}
    queries = [query for query in part.queries if any(grades[query.qid].values())]
    qrels = Qrels({query.qid: grades[query.qid] for query in queries})
    runs = {name: system.search(queries, K) for name, system in (("old", old), ("new", new))}
    compared = compare(qrels, runs, task.measure, baseline="old")
    [gap] = compared.contrasts
    means = " → ".join(f"{compared.mean[name][gap.measure]:.3f}" for name in ("old", "new"))
    low, high = gap.interval
    line = f"{gap.measure} {means} ({gap.difference:+.3f} [{low:+.3f}, {high:+.3f}], p {p_value(gap.p)})"
    return f"{line} on {len(queries):,} queries of the last week", gap.difference > 0 and gap.p < LEVEL


def check_exchange(out: Path) -> None:
    """Raise now, not after hours, where two folders cannot be exchanged."""
    folders = [temporary_name(out) for _ in range(2)]
    try:
        for folder in folders:
            folder.mkdir()
        exchange(*folders)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def put_in_place(made: Path, out: Path, *, replaces: bool) -> None:
    """Give a system its place. Whoever changes the old one's index has finished, and then finds the new one."""
    with disk_errors(out):
        if not replaces:
            made.rename(out)
            sync_folder(out.parent)
            return
        with lock(out / INDEX, wait=True):
            exchange(made, out)
