"""The judged queries: all of them for settings, and three parts for what is trained.

Settings such as k1, b and shares are few, so they are tuned by cross-validation over all judged queries, and steps
that train nothing are compared on all of them. Training sees the queries to fit; a trained step is compared with others
on the queries to choose, and the figures of the report come from the third part: a dev split, if the data has one, or
training queries set aside. Queries of the same text are in the same part.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from rankwell.core.errors import Notice, RankwellError
from rankwell.core.files import atomic_folder, link_tree
from rankwell.core.manifest import write_json
from rankwell.corpus.datasets import ALL, Dataset, FolderDataset, NoDatasetError
from rankwell.corpus.formats import read_run, write_documents, write_qrels, write_queries
from rankwell.corpus.formats.tables import HF_PREFIX
from rankwell.corpus.records import Document, Qrels, Query, Run
from rankwell.corpus.sources import collection_digest, open_collection, resolve_documents
from rankwell.evaluation.breakdowns import cut_candidates
from rankwell.evaluation.compare import compare
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model
from rankwell.models.devices import Computing, chosen_device, fast_float, is_fast_in_bf16
from rankwell.rank.ranker import open_ranker
from rankwell.rank.rankers import WORDS, open_encoder
from rankwell.retrieve.index import Index
from rankwell.training.recipe import DEV_NAMES
from rankwell.training.stage_options.first_stages import EncoderOptions

LEAST_TO_FIT = 50
"""With fewer queries to fit, nothing is trained."""
LEAST_ASIDE, MOST_ASIDE = 50, 2000
"""Bounds of the parts that are set aside, which otherwise have a fifth of the queries each."""
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

    def head(self, count: int) -> Part:
        """The first ``count`` queries, which are in random order."""
        return Part.of(self.queries[:count], self.qrels)

    @property
    def pairs(self) -> int:
        """The number of relevant documents."""
        return sum(grade > 0 for grades in self.qrels.values() for grade in grades.values())

    def __len__(self) -> int:
        return len(self.queries)


@dataclass(frozen=True, eq=False)
class Parts:
    """All judged queries and the three parts; ``source`` names where ``report`` is from.

    ``judged`` begins with those to choose, and has at most some thousand. If ``fit`` is empty, ``choose`` has all.
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

    def describe(self) -> str:
        """The sizes in one line."""
        if not len(self.choose):
            return "no judged queries"
        if not len(self.fit):
            return f"{len(self.choose):,} judged queries, too few to train with (from {self.needed} on)"
        aside = self.source == SET_ASIDE
        count = len(self.fit) + len(self.choose) + (len(self.report) if aside else 0)
        sizes = f"{len(self.fit):,} for training, {len(self.choose):,} for choosing between trained steps"
        report = f"{len(self.report):,}{' held out' if aside else f' of {self.source}'} for the report"
        return f"{count:,} judged queries of {self.split}: {sizes}; {report}"


def divide(dataset: Dataset, *, train: str | None, report: str | None, seed: int) -> Parts:
    """Divide the judged queries of a data set; ``train`` and ``report`` are splits, by default the usual ones."""
    splits = dataset.splits
    train = dataset.split(train) if train is not None else _usual(dataset)
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
    fit = Part.of(_take(groups, len(judged)), judged.qrels)
    queries = (*choose.queries, *apart.queries, *fit.queries)[: max(MOST_ASIDE, len(choose) + len(apart))]
    return Parts(Part.of(queries, judged.qrels), fit, choose, reported or apart, report or SET_ASIDE, train)


def _usual(dataset: Dataset) -> str | None:
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
    """The queries that have a relevant document."""
    try:
        qrels, queries = dataset.qrels(split), dataset.queries(split)
    except NoDatasetError as error:
        if split == ALL:  # queries without judgments, or judgments without queries
            warnings.warn(str(error), Notice, stacklevel=2)
            return Part((), Qrels({}))
        raise
    relevant = {qid for qid, grades in qrels.items() if any(grade > 0 for grade in grades.values())}
    judged = [query for query in queries if query.qid in relevant]
    if lacking := len(relevant) - len(judged):
        problem = (
            f"{dataset.name}: {lacking:,} of {len(relevant):,} judged queries of {split} are not among its queries"
        )
        if not judged:
            raise RankwellError(f"{problem}; do the ids match?")
        warnings.warn(problem, Notice, stacklevel=2)
    return Part.of(judged, qrels)


class Documents(Dataset):
    """A collection without queries: a file of any format, or ``hf:OWNER/NAME``."""

    splits = ()

    def __init__(self, name: str):
        self.name = name

    def documents(self) -> Iterator[Document]:
        """Stream the collection."""
        return iter(resolve_documents(self.name))

    def digest(self) -> str:
        """See :class:`Dataset`."""
        return collection_digest(self.name)


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


def _shuffled(part: Part, seed: int) -> list[list[Query]]:
    """The queries in random order, those of the same text in one group."""
    alike: dict[str, list[Query]] = {}
    for query in part.queries:
        alike.setdefault(" ".join(query.text.lower().split()), []).append(query)
    groups = list(alike.values())
    return [groups[place] for place in np.random.default_rng([seed, len(groups)]).permutation(len(groups)).tolist()]


def _take(groups: list[list[Query]], count: int) -> list[Query]:
    """Remove groups from the end of the list until they have ``count`` queries."""
    taken: list[Query] = []
    while groups and len(taken) < count:
        taken += groups.pop()
    return taken


def write_parts(dataset: Dataset, parts: Parts, folder: Path) -> None:
    """Write documents and parts as a data set that recipes read: the splits ``fit`` and ``choose``."""
    if folder.exists():
        return
    with atomic_folder(folder) as temporary:
        write_documents(dataset.documents(), temporary / "corpus.jsonl")
        for name, part in ((FIT, parts.fit), (CHOOSE, parts.choose)):
            if len(part):
                write_queries(part.queries, temporary / f"queries.{name}.jsonl")
                write_qrels(part.qrels, temporary / f"qrels.{name}.tsv", format="beir")


# How fast models read texts on this machine, measured on a few, to tell what fits into the time


SECONDS = 2.0
"""How long each rate is measured."""
AT_A_TIME = {"cuda": 512, "cpu": 32}
Text = TypeVar("Text")


@dataclass(frozen=True)
class Rates:
    """Vectors of documents and of queries a second."""

    documents: float
    queries: float

    @classmethod
    def measure(cls, index: Index, parts: Parts, encoder: str, device: str | None, *, training: bool = False) -> Rates:
        """Encode some of the documents and queries, in the precision of ``training`` or that of a search."""
        trained = training and chosen_device(device).type == "cpu"
        opened = open_encoder(encoder, Computing(device, fast_float() if trained else "auto"))
        texts, queries = _texts(index, parts)
        step = AT_A_TIME["cuda" if opened.device.type == "cuda" else "cpu"]
        return cls(_rate(opened.encode_documents, texts, step), _rate(opened.encode_queries, queries, step))

    @property
    def pairs(self) -> float:
        """Pairs of a query and a document a second."""
        return 1 / (1 / self.documents + 1 / self.queries)


def measure_ranker(index: Index, parts: Parts, model: str, device: str | None) -> float:
    """Pairs of query and document a second that a re-ranker scores."""
    texts, queries = _texts(index, parts)
    pairs = [(queries[place // 10 % len(queries)], text) for place, text in enumerate(texts)]  # as in lists of ten
    ranker = open_ranker(model, device=device)
    return _rate(lambda some: ranker.predict(some), pairs, AT_A_TIME[chosen_device(device).type])


def mean_words(index: Index, parts: Parts) -> float:
    """The mean number of words of some documents."""
    texts, _ = _texts(index, parts)
    return float(np.mean([len(text.split()) for text in texts]))


def _texts(index: Index, parts: Parts) -> tuple[list[str], list[str]]:
    """Some documents, evenly spread, and some queries."""
    docids = index.docids(np.linspace(0, len(index) - 1, min(len(index), 1024)).astype(np.int64))
    texts = index.texts(docids)
    queries = [query.text for part in (parts.judged, parts.report) for query in part.queries[:512]] or texts[:1]
    return texts, queries


def _rate(encode: Callable[[Sequence[Text]], object], texts: Sequence[Text], step: int) -> float:
    """Texts a second, after a warm-up."""
    encode(texts[:step])
    done, begin = 0, time.perf_counter()
    while done < len(texts) and time.perf_counter() - begin < SECONDS:
        batch = texts[done : done + step]
        encode(batch)
        done += len(batch)
    return done / max(1e-9, time.perf_counter() - begin)


LEAST_STEPS, LEAST_BATCH, CPU_EPOCHS = 20, 128, 3.0
"""The steps that a bi-encoder needs, in smaller batches if there is no other way, and its epochs on a CPU."""
WIDTH = 384
"""The width for which the learning rate was chosen; wider encoders train at a lower one."""


def schedule(fit: Part, encoder: str, device: str | None) -> dict[str, Any]:
    """Epochs, batch and rate of a bi-encoder: many documents in a batch, unless that leaves too few steps.

    On a CPU, comparing checkpoints would take about as long as training.
    """
    usual, cuda = EncoderOptions(), chosen_device(device).type == "cuda"
    epochs = usual.epochs if cuda else CPU_EPOCHS
    batch = max(LEAST_BATCH, min(usual.batch, int(epochs * fit.pairs) // LEAST_STEPS))
    checkpoint = describe(find_model(encoder))
    width = checkpoint.dimensions().hidden_size if checkpoint.settings else WIDTH  # a chain's encoder is further down
    rate = usual.learning_rate * min(1, WIDTH / width) ** 2
    last = {} if cuda else {"best": "last", "tune_queries": LEAST_TO_FIT}
    return {"epochs": epochs, "batch": batch, "learning_rate": rate, **last}


POINTWISE: Mapping[str, Any] = {"epochs": 1, "batch": 32, "negatives": 1, "learning_rate": 1e-4, "best": "last"}
LISTWISE: Mapping[str, Any] = {
    "epochs": 2,
    "batch": 16,
    "negatives": 15,
    "learning_rate": 5e-5,
    "head": "pointwise",
    "running_mean": 0.999,
    "best": "last",
}
"""How a re-ranker is trained: as in recipes/fit.yaml."""
TIMED_STEPS = {"cuda": (60, 16), "cpu": (1, 4)}
"""Steps, and lists in a step, that tell how fast a re-ranker is trained here: the last twenty count."""
ADAPTER_SECONDS = 5e-4
"""Training an adapter, for each pair and epoch: measured with vectors of width 384 on two ARM cores."""
BACKWARD, AUTOCAST = 3.5, 5.0
"""Training on a text costs about this many times as much as encoding it, also in bf16 on a CPU."""


def training_factor(device: str | None) -> float:
    """How many times as long training on a text takes as encoding it in the same precision."""
    return AUTOCAST if chosen_device(device).type == "cpu" and is_fast_in_bf16() else BACKWARD


def as_word_ranker(encoder: Path, folder: Path) -> Path:
    """A bi-encoder as a re-ranker, which makes word vectors of the texts it is given."""
    if not folder.exists():
        with atomic_folder(folder) as temporary:
            link_tree(encoder, temporary)
            write_json(temporary / f"{WORDS}.json", {})
    return folder


# Titles or headings as queries, for documents without judged queries


Kind = Literal["titles", "headings"]
MOST = 20_000
"""Queries that are drawn at most."""
_HEADING = re.compile(r"^#{1,6}\s+(\S.*?)\s*#*$", re.MULTILINE)


def headed(document: Document, kind: Kind) -> tuple[list[str], Document]:
    """A document's title, with ``headings`` also its Markdown headings, and the document without them.

    >>> headed(Document("d", "# Bees\\nThey shiver."), "headings")
    (['Bees'], Document(docid='d', text='They shiver.', title=''))
    """
    titles = [document.title] if document.title.strip() else []
    if kind == "titles":
        return titles, Document(document.docid, document.text)
    rest = " ".join(_HEADING.sub(" ", document.text).split())
    return titles + _HEADING.findall(document.text), Document(document.docid, rest)


def write_headed(dataset: Dataset, kind: Kind, folder: Path, seed: int) -> None:
    """Write documents without titles or headings, and these as judged queries of the split ``train``; made once."""
    if folder.exists():
        return
    queries: list[Query] = []
    grades: dict[str, dict[str, int]] = {}

    def documents() -> Iterator[Document]:
        for document in dataset.documents():
            texts, rest = headed(document, kind)
            for text in texts if rest.text.strip() else []:
                queries.append(Query(f"{kind}-{len(queries) + 1}", text))
                grades[queries[-1].qid] = {document.docid: 1}
            yield rest

    with atomic_folder(folder) as temporary:
        write_documents(documents(), temporary / "corpus.jsonl")
        if not queries:
            other = "`rankwell expand --queries` writes queries for documents, to train with"
            raise RankwellError(f"--queries-from {kind}: no document of {dataset.name} has any; {other}")
        order = np.random.default_rng([seed, len(queries)]).permutation(len(queries))[:MOST]
        drawn = [queries[place] for place in sorted(order.tolist())]
        write_queries(drawn, temporary / "queries.train.jsonl")
        write_qrels(
            Qrels({query.qid: grades[query.qid] for query in drawn}), temporary / "qrels.train.tsv", format="beir"
        )


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


def depth_that_pays(part: Part, first: Run, fused: Run, measure: str, depths: Sequence[int], device: str | None) -> int:
    """The best depth on a GPU; on a CPU, where depth is dear, the smallest that is not significantly worse."""
    longest = max(map(len, fused.values()), default=1)
    if chosen_device(device).type == "cuda":
        return longest
    possible = sorted({min(depth, longest) for depth in depths})
    runs = {f"{depth:,}": cut_candidates(fused, first, depth) for depth in possible}
    compared = compare(part.qrels, runs, measure, baseline=f"{possible[-1]:,}")
    return next(depth for depth in possible if depth == possible[-1] or not compared.significant(f"{depth:,}", measure))


def can_be_trained(model: str) -> bool:
    """Whether training can start from a bi-encoder: not one that writes, nor one with layers on top of its vectors."""
    checkpoint = describe(find_model(model))
    return not checkpoint.generates and all(kind != "Dense" for kind, _ in checkpoint.modules)
