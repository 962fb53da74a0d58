"""The judged queries: all of them for settings, and three parts for what is trained.

Settings such as k1, b and shares are few, so they are tuned by cross-validation over all judged queries, and steps
that train nothing are compared on all of them. Training sees the queries to fit; a trained step is compared with others
on the queries to choose, and the figures of the report come from the third part: a dev split, if the data has one, or
training queries set aside. Few queries train and choose in turn: each fold of them is ranked by what was trained on the
others. Queries of the same text are in the same part. Beside them, what the user's engine returned.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from rankwell.core.errors import Notice, RankwellError
from rankwell.core.files import atomic_folder
from rankwell.corpus.datasets import ALL, Dataset, FolderDataset, NoDatasetError
from rankwell.corpus.formats import read_run, write_documents, write_qrels, write_queries
from rankwell.corpus.formats.tables import HF_PREFIX
from rankwell.corpus.records import Document, Qrels, Query, Run
from rankwell.corpus.sources import collection_digest, open_collection, resolve_documents
from rankwell.retrieve.index import Index
from rankwell.training.recipe import DEV_NAMES

LEAST_TO_FIT = 50
"""With fewer queries to fit, nothing is trained."""
LEAST_ASIDE, MOST_ASIDE = 50, 2000
"""Bounds of the parts that are set aside, which otherwise have a fifth of the queries each."""
FEW = 2000
"""With fewer queries to fit and to choose, these parts take turns: a fifth of them would show too few of the gains."""
TURNS = (5, 3, 2)
"""The numbers of folds for that, the best first."""
SET_ASIDE = "queries set aside"
FIT, CHOOSE = "fit", "choose"


@dataclass(frozen=True, eq=False)
class Part:
    """Judged queries."""

    queries: tuple[Query, ...]
    qrels: Qrels

    @classmethod
    def of(cls, queries: Sequence[Query], qrels: Mapping[str, Mapping[str, int]]) -> Part:
        """The queries with their own judgments."""
        return cls(tuple(queries), Qrels({query.qid: qrels[query.qid] for query in queries}))

    def head(self, count: int | None) -> Part:
        """The first ``count`` queries, which are in random order; None for all."""
        return Part.of(self.queries[:count], self.qrels)

    @property
    def pairs(self) -> int:
        """The number of relevant documents."""
        return sum(grade > 0 for grades in self.qrels.values() for grade in grades.values())

    def __len__(self) -> int:
        return len(self.queries)


Fold = tuple[str, Part, Part]
"""What the names of its trainings end in, the queries to fit, and those to choose."""


@dataclass(frozen=True, eq=False)
class Parts:
    """All judged queries and the three parts; ``source`` names where ``report`` is from.

    ``judged`` begins with those to choose, and has at most some thousand; where these take turns with those to fit,
    those come next. If ``fit`` is empty, ``choose`` has all.
    """

    judged: Part
    fit: Part
    choose: Part
    report: Part
    source: str
    split: str | None
    """The split that all but ``report`` are from."""

    @property
    def needed(self) -> int:
        """The number of judged queries from which on models are trained."""
        return LEAST_TO_FIT + LEAST_ASIDE * (2 if self.source == SET_ASIDE else 1)

    @property
    def turns(self) -> tuple[int, ...]:
        """The numbers of folds to train with, the best first; 1 is the plain split."""
        few = len(self.fit) + len(self.choose) < FEW
        return (*TURNS, 1) if len(self.fit) and few else (1,)

    def folds(self, count: int) -> list[Fold]:
        """Divisions by which each query to fit or to choose is chosen on once; the plain split if ``count`` is 1."""
        if count == 1:
            return [("", self.fit, self.choose)]
        groups = _groups((*self.choose.queries, *self.fit.queries))
        folds = list[Fold]()
        for number in range(count):
            own, rest = (
                [query for place, group in enumerate(groups) if (place % count == number) == chosen for query in group]
                for chosen in (True, False)
            )
            folds.append((f"-{number + 1}-of-{count}", self._trained(rest), Part.of(own, self.judged.qrels)))
        return folds

    @property
    def whole(self) -> Fold:
        """All queries of the folds to fit, for what is kept."""
        fit = self._trained([*self.choose.queries, *self.fit.queries])
        return ("-whole", fit, fit)

    def trainings(self, count: int) -> list[Part]:
        """The queries of each training with so many folds."""
        return [fit for _, fit, _ in (*self.folds(count), *([self.whole] if count > 1 else []))]

    def _trained(self, queries: Sequence[Query]) -> Part:
        """Those that there is something to learn from."""
        return Part.of([query for query in queries if _is_relevant(self.judged.qrels[query.qid])], self.judged.qrels)

    def reported(self, count: int) -> Part:
        """The queries of the report on a system measured on the first ``count`` judged ones.

        Where they are set aside, these are all judged ones if only settings were fitted, because none is kept out then.
        """
        return self.judged if self.source == SET_ASIDE and count == len(self.judged) else self.report

    def describe(self) -> str:
        """The sizes in one line."""
        if not len(self.choose):
            return "no judged queries"
        if not len(self.fit):
            return f"{len(self.choose):,} judged queries, too few to train with (from {self.needed} on)"
        aside = self.source == SET_ASIDE
        count = len(self.fit) + len(self.choose) + (len(self.report) if aside else 0)
        sizes = f"{len(self.fit):,} for training, {len(self.choose):,} for choosing between trained steps"
        if len(self.turns) > 1:
            sizes = (
                f"{len(self.fit) + len(self.choose):,} for training and, in turn, for choosing between trained steps"
            )
        report = f"{len(self.report):,}{' held out' if aside else f' of {self.source}'} for the report"
        return f"{count:,} judged queries of {self.split}: {sizes}; {report}"


def divide(dataset: Dataset, *, train: str | None, report: str | None, seed: int) -> Parts:
    """Divide the judged queries of a data set; ``train`` and ``report`` are splits, by default the usual ones."""
    splits = dataset.splits
    train = dataset.split(train) if train is not None else usual_split(dataset)
    if report is not None:
        dataset.split(report)
    else:
        report = next((name for name in (*DEV_NAMES, "test") if name in splits and name != train), None)
    if train is None:
        train, report = report, None
    none = Part((), Qrels({}))
    judged = none if train is None else _judged(dataset, train)
    groups = _shuffled(judged, seed)
    reported = _judged(dataset, report) if report is not None else None
    aside = min(MOST_ASIDE, max(LEAST_ASIDE, len(judged) // 5))
    if len(judged) < aside * (2 if reported is None else 1) + LEAST_TO_FIT:
        whole = Part.of(_take(groups, len(judged)), judged.qrels)
        return Parts(whole, none, whole, reported or whole, report or SET_ASIDE, train)
    choose = Part.of(_take(groups, aside), judged.qrels)
    apart = none if reported is not None else Part.of(_take(groups, aside), judged.qrels)
    rest = [query for query in _take(groups, len(judged)) if _is_relevant(judged.qrels[query.qid])]
    fit = Part.of(rest, judged.qrels)
    few = len(choose) + len(fit) < FEW
    queries = [query for part in ((choose, fit, apart) if few else (choose, apart, fit)) for query in part.queries]
    queries = queries if few else queries[: max(MOST_ASIDE, len(choose) + len(apart))]
    return Parts(Part.of(queries, judged.qrels), fit, choose, reported or apart, report or SET_ASIDE, train)


def usual_split(dataset: Dataset) -> str | None:
    """The split to train on: that of the usual name, or the only one; None if there is none."""
    splits = dataset.splits
    if "train" in splits:
        return "train"
    others = [name for name in splits if name not in (*DEV_NAMES, "test")]
    if len(others) > 1:
        problem = f"{dataset.name} has no split 'train'"
        raise RankwellError(f"{problem}; choose one with --train ({', '.join(splits)}) and one with --report")
    return others[0] if others else None


def _judged(dataset: Dataset, split: str) -> Part:
    """The queries that were judged, with or without a relevant document, as ``rankwell evaluate`` counts them."""
    try:
        qrels, queries = dataset.qrels(split), dataset.queries(split)
    except NoDatasetError as error:
        if split == ALL:  # queries without judgments, or judgments without queries
            warnings.warn(str(error), Notice, stacklevel=2)
            return Part((), Qrels({}))
        raise
    judged = [query for query in queries if query.qid in qrels]
    if lacking := len(qrels) - len(judged):
        problem = f"{dataset.name}: {lacking:,} of {len(qrels):,} judged queries of {split} are not among its queries"
        if not judged:
            raise RankwellError(f"{problem}; do the ids match?")
        warnings.warn(f"{problem}; `rankwell evaluate` counts them as 0", Notice, stacklevel=2)
    part = Part.of(judged, qrels)
    return part if part.pairs else Part.of([], qrels)


class Documents(Dataset):
    """A collection without queries: a file of any format, or ``hf:OWNER/NAME``."""

    splits = ()

    def __init__(self, name: str):
        self.name = name

    def documents(self) -> Iterator[Document]:
        """Stream the collection."""
        return iter(resolve_documents(self.name, self.columns))

    def digest(self) -> str:
        """See :class:`Dataset`."""
        return collection_digest(self.name, self.columns)


def open_data(name: str) -> Dataset:
    """A data set, or documents alone: a file or folder as ``rankwell index`` takes it."""
    if os.path.isfile(name) or name.startswith(HF_PREFIX):
        return Documents(name)
    dataset = open_collection(name)
    if isinstance(dataset, FolderDataset) and (unread := dataset.unread):
        known = "known names: queries.SPLIT.tsv, qrels.SPLIT.csv, and other formats"
        warnings.warn(f"{name}: not read: {', '.join(unread)} ({known})", Notice, stacklevel=2)
    if isinstance(dataset, FolderDataset) and dataset.has("clicks") and dataset.has("qrels"):
        warnings.warn(f"{name}: judgments are used where a split has them, clicks otherwise", Notice, stacklevel=2)
    return dataset


def check_judged(index: Index, parts: Parts) -> str | None:
    """How many relevant documents are not in the collection, in one line. Raises if none is."""
    grades = chain(parts.judged.qrels.values(), parts.report.qrels.values())
    _, problem = unknown_ids(
        index, (docid for own in grades for docid, grade in own.items() if grade > 0), "relevant documents"
    )
    return problem


def unknown_ids(index: Index, docids: Iterable[str], kind: str) -> tuple[set[str], str | None]:
    """The documents that are not in the collection, and how many they are in one line. Raises if none is there."""
    ids = sorted(set(docids))
    unknown = [ids[place] for place in np.flatnonzero(index.documents.find(ids) < 0)]
    if not unknown:
        return set(), None
    problem = f"{len(unknown):,} of {len(ids):,} {kind} are not in the collection, such as {unknown[0]}"
    if len(unknown) == len(ids):
        first = index.docids(np.zeros(1, np.int64))[0]
        raise RankwellError(f"{problem}; do the ids match? The first of {len(index):,} documents is {first}")
    return set(unknown), problem


def _is_relevant(grades: Mapping[str, int]) -> bool:
    """Whether a query has a relevant document, so that there is something to learn from it."""
    return any(grade > 0 for grade in grades.values())


def _shuffled(part: Part, seed: int) -> list[list[Query]]:
    """The queries in random order, those of the same text in one group."""
    groups = _groups(part.queries)
    return [groups[place] for place in np.random.default_rng([seed, len(groups)]).permutation(len(groups)).tolist()]


def _groups(queries: Iterable[Query]) -> list[list[Query]]:
    """The queries of each text."""
    alike: dict[str, list[Query]] = {}
    for query in queries:
        alike.setdefault(" ".join(query.text.lower().split()), []).append(query)
    return list(alike.values())


def _take(groups: list[list[Query]], count: int) -> list[Query]:
    """Remove groups from the end of the list until they have ``count`` queries."""
    taken: list[Query] = []
    while groups and len(taken) < count:
        taken += groups.pop()
    return taken


def write_parts(dataset: Dataset, parts: Parts, folder: Path) -> None:
    """Write documents and parts as a data set that recipes read: the splits ``fit`` and ``choose``, and their folds."""
    if folder.exists():
        return
    with atomic_folder(folder) as temporary:
        write_documents(dataset.documents(), temporary / "corpus.jsonl")
        folds = [fold for count in parts.turns for fold in parts.folds(count)]
        folds += [parts.whole] if len(parts.turns) > 1 else []
        splits = [
            (f"{name}{end}", part) for end, *both in folds for name, part in zip((FIT, CHOOSE), both, strict=True)
        ]
        for name, part in splits:
            if len(part):
                write_queries(part.queries, temporary / f"queries.{name}.jsonl")
                write_qrels(part.qrels, temporary / f"qrels.{name}.tsv", format="beir")


# What the user's engine returned


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
