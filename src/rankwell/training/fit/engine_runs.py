"""What the user's engine returned for the judged queries."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from rankwell.core.errors import Notice, RankwellError
from rankwell.corpus.datasets import ALL, Dataset
from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Query, Run
from rankwell.retrieve.index import Index
from rankwell.training.fit.split import SET_ASIDE, Parts, unknown_ids


def engine_run(named: Sequence[str], dataset: Dataset, parts: Parts, index: Index) -> Run | None:
    """The runs of the splits that are fitted to and reported on, ``named`` as SPLIT=FILE or found; None without any."""
    given, found = dict(map(_split_of, named)), Run()
    for split in dict.fromkeys([parts.split or ALL, *([] if parts.source == SET_ASIDE else [parts.source])]):
        run = read_run(given.pop(split)) if split in given else dataset.run(split)
        if run is None and found:
            problem = f"your engine's run of {split} is missing; the report needs it"
            raise RankwellError(f"{problem}: add run.{split}.txt or --run {split}=FILE, or leave out that split")
        if run is None:
            break
        found = Run({**found, **run})
    if given:
        raise RankwellError(f"--run {next(iter(given))}=…: not a split that is fitted to or reported on")
    return _known(found, parts, index) if found else None


def _split_of(run: str) -> tuple[str, str]:
    split, equals, path = run.partition("=")
    if not (split and equals and path):
        raise RankwellError(f"--run {run}: expected SPLIT=FILE, as in train=run.txt")
    return split, path


def _known(run: Run, parts: Parts, index: Index) -> Run:
    """The documents of a run that are in the collection, which may be fewer. Raises if there are none."""
    docids = (docid for ranking in run.values() for docid in ranking.docids)
    unknown, problem = unknown_ids(index, docids, "documents of your engine's run")
    if problem:
        warnings.warn(problem, Notice, stacklevel=2)
    queries = {query.qid for part in (parts.judged, parts.fit, parts.report) for query in part.queries}
    if queries.isdisjoint(run):
        raise RankwellError("your engine's run has none of the judged queries; do the ids match?")
    return Run({qid: ranking.select(lambda docid: docid not in unknown) for qid, ranking in run.items()})


def only(run: Run, queries: Sequence[Query]) -> Run:
    """The part of a run that answers these queries."""
    return Run({query.qid: run[query.qid] for query in queries if query.qid in run})
