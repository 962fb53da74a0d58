"""Requests: searching an index, re-ranking a run or the documents found for a question.

They read their files, ask a system or a model, in this process or on a cluster, and record what was done.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.progress import duration
from rankwell.corpus.filters import parse_filter
from rankwell.corpus.formats import read_run, read_types
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.corpus.sources import is_question, read_questions, resolve_documents
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.models.devices import DEFAULT_COMPUTING, Computing
from rankwell.rank.cache import ScoreCache
from rankwell.rank.first_stage import EVERYTHING, GivenRun, Scope
from rankwell.rank.fusion import Shares
from rankwell.rank.ranker import Ranker, open_ranker
from rankwell.rank.rankers import WORDS, AnyRanker, Reranker, VectorSearch, check_options, kind_of
from rankwell.rank.system import DEPTH, System, open_searchable
from rankwell.rank.texts import Texts, find_index, is_system, open_texts, worth_keeping
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.retrieve.index import Index

DEEP = 1000
"""The depth of the literature, for comparison."""
FEW = 1000
"""A collection of no more documents is re-ranked as a whole."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """The run of a request, a line for the user, and what it takes to read the answers."""

    run: Run
    report: str
    queries: Sequence[Query]
    texts: Texts
    relevance: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """That of the documents of each query, also of those that were left out for it."""


@dataclass(frozen=True)
class SearchRequest:
    """What to search, and how; ``queries`` is a question or a file of queries (``-``: standard input).

    ``hybrid`` is the share of the bi-encoder ``encoder``; without it BM25 searches alone. ``words`` weighs word
    vectors, which re-rank the best documents. ``computing`` and ``vectors`` are the bi-encoder's. With 0 ``threads`` a
    search uses all cores of this machine, or one of each worker. ``columns`` names the fields of the queries.
    ``ignore_identical_ids`` leaves out documents with a query's own id, and ``filter`` those whose metadata it does not
    select.
    """

    index: Path
    """An index, or a system, which is searched as it was fitted."""
    queries: str | Path
    k: int = 1000
    bm25: BM25 = DEFAULT_BM25
    threads: int = 0
    hybrid: float | None = None
    words: float | None = None
    encoder: str = DEFAULT
    computing: Computing = DEFAULT_COMPUTING
    vectors: VectorSearch = "auto"
    columns: Columns | None = None
    ignore_identical_ids: bool = False
    filter: str | None = None
    syntax: bool = False
    """Whether queries may have phrases in quotes, ``+word``, ``-word`` and ``prefix*``."""
    rated: bool = False
    """Whether the documents' relevance is returned, if a system has any."""
    min_relevance: float | None = None

    def check(self) -> None:
        """Raise for a wrong share or filter before anything is read."""
        parse_filter(self.filter)
        if self.hybrid is not None:
            Shares.hybrid(self.hybrid)
        if self.words is not None and not 0 < self.words <= 1:
            raise RankwellError(f"--words {self.words:g}: expected a weight of more than 0 and at most 1")

    def execute(self, *, name: str | None = None) -> RunResult:
        """Search. By default the run is called BM25, hybrid or dense."""
        self.check()
        system, queries = self.open(), read_questions(self.queries, self.columns)
        scope = system.rated(Scope(self.filter, self.syntax), self.min_relevance, always=self.rated)
        found = system.find(queries, self.depth, scope, self.threads)
        return replace(self.result(found.run, queries, system.index, name), relevance=found.relevance)

    @property
    def depth(self) -> int:
        """The documents to find for each query."""
        return self.k + self.ignore_identical_ids

    def result(self, run: Run, queries: Sequence[Query], index: Index, name: str | None) -> RunResult:
        """What was found, as it is written and reported."""
        run = Run(run, name=name or run.name)
        if self.ignore_identical_ids:
            run = run.without_identical_ids().head(self.k)
        report = f"{len(run):,} of {len(queries):,} queries, {sum(map(len, run.values())):,} documents"
        return RunResult(run, report, queries, index)

    def open(self) -> System:
        """Open what is searched."""
        return open_searchable(
            self.index,
            self.computing,
            bm25=self.bm25,
            hybrid=self.hybrid,
            words=self.words,
            encoder=self.encoder,
            vectors=self.vectors,
        )


@dataclass(frozen=True)
class RerankRequest:
    """What to re-rank, and how; options that are ``None`` are the model's.

    ``queries`` is a question or a file of queries. Without a ``run`` the candidates are what a search of the collection
    finds, if it is an index or a system, or all its documents if they are few.
    ``changes`` replace options of the checkpoint: ``attention``, and ``template`` with some of its fields.
    """

    run: Path | None
    queries: str | Path
    collection: str
    model: str = DEFAULT
    """The re-ranker; empty if a system without one re-ranks."""
    depth: int = DEPTH
    types: Path | None = None
    computing: Computing = DEFAULT_COMPUTING
    changes: Mapping[str, Any] = field(default_factory=dict)
    windows: int | None = None
    stride: int | None = None
    aggregate: str | None = None
    cache: Path | None = None
    fuse: float | None = None
    blend: float | None = None
    normalise: str = "min-max"
    encoder: str | None = None
    words: bool = False
    """Whether the model is a bi-encoder that compares texts word by word."""
    columns: Columns | None = None
    """The fields of the collection, if it is a file."""
    hybrid: float | None = None
    """For a question: the bi-encoder's weight in the search for candidates."""
    system: System | None = None
    """The system whose search this is, as :meth:`of_system` finds it."""
    rated: bool = False
    """Whether the documents' relevance is returned, if a system has any."""
    min_relevance: float | None = None

    def of_system(self, depth: int | None) -> RerankRequest:
        """The same request by the system ``model``, whose re-ranker, or else bi-encoder, re-ranks as it was fitted."""
        if any(value is not None for value in (self.fuse, self.blend, self.hybrid)):
            raise RankwellError("--fuse, --blend and --hybrid go with a model; a system has its own weights")
        system = System.open(self.model, self.computing)
        system = replace(system, depth=depth or system.depth)
        if system.ranker is None and (self.run is None or not (system.engine or system.first_stage.encodes)):
            raise RankwellError(f"{self.model} is a system without a re-ranker; `rankwell search` uses it")
        ranker, collection = str(system.ranker or ""), self.collection or self.model
        return replace(self, model=ranker, collection=collection, depth=system.depth, system=system)

    @property
    def shares(self) -> Shares | None:
        """The shares that ``fuse`` and ``blend`` give the first stage and the bi-encoder."""
        return Shares.from_options(self.fuse, self.blend, self.normalise)

    def check(self, **more: object) -> None:
        """Raise for wrong options before anything is read; ``more`` are other options the ranker's kind must take."""
        if self.computing.device is not None and self.computing.backend != "torch":
            raise RankwellError(f"--device needs --backend torch, not {self.computing.backend}")
        if self.hybrid is not None and self.run is not None:
            raise RankwellError("--hybrid finds the candidates for a question; a run has its own")
        self.shares  # noqa: B018  (raises)
        names = ("types", "cache", "windows", "stride", "aggregate")
        if self.model:
            kind = WORDS if self.words else kind_of(self.model)
            check_options(self.model, kind, **{name: getattr(self, name) for name in names}, **more)

    def read(self) -> tuple[Run, list[Query]]:
        """The run, and its queries in the same order."""
        assert self.run is not None
        run, listed = read_run(self.run), self._questions()
        if is_question(self.queries) and len(run) == 1:
            listed = [replace(listed[0], qid=next(iter(run)))]
        queries = {query.qid: query for query in listed}
        missing = next((qid for qid in run if qid not in queries), None)
        if missing is not None:
            raise InputError(self.queries, None, f"no query {missing!r}, for which {self.run} has results")
        asked = [queries[qid] for qid in run]
        return (run if self.system is None else self.system.join(run, asked)), asked

    def _questions(self) -> list[Query]:
        labels = read_types(self.types) if self.types else {}
        return [replace(query, type=labels.get(query.qid)) for query in read_questions(self.queries)]

    def open(self, run: Run | None, ranker: Reranker | None, device: str | None) -> System:
        """The system that answers with a ranker, for a run or from what it finds itself."""
        computing, encoder = replace(self.computing, device=device), self.encoder or DEFAULT
        reranks: dict[str, Any] = {"ranker": ranker, "depth": self.depth}
        if run is not None:
            texts = open_texts(self.collection, run.head(self.depth), self.columns)
            if self.system is not None:
                return replace(self.system, **reranks).given(run, texts)
            finder = GivenRun(run, texts, None if self.blend is None else encoder, computing=computing)
            return System(finder, shares=self.shares, **reranks)
        index = find_index(self.collection) or self.collection
        if self.system is not None:
            same = self.collection == str(self.system.folder)
            return replace(self.system if same else self.system.with_index(Index.open(index)), **reranks)
        if is_system(self.collection) and self.hybrid is None and self.encoder is None:
            return replace(System.open(self.collection, computing), shares=self.shares, **reranks)
        reranks |= {"shares": self.shares, "computing": computing}
        return System.of_index(index, hybrid=self.hybrid, encoder=encoder, **reranks)

    def _listed(self) -> tuple[Run, list[Query]]:
        """All documents of a small collection as candidates."""
        documents, queries = islice(resolve_documents(self.collection, self.columns), FEW + 1), self._questions()
        docids = tuple(document.docid for document in documents)
        if len(docids) > FEW:
            advice = "index it first, to re-rank what a search finds"
            raise RankwellError(f"{self.collection} has more than {FEW:,} documents; {advice}")
        return Run({query.qid: Ranking.of(docids, range(len(docids), 0, -1)) for query in queries}), queries

    def open_ranker(self, device: str | None, cache: ScoreCache | None = None) -> AnyRanker:
        """The model on a device, with this request's windows."""
        computing = replace(self.computing, device=device)
        ranker = open_ranker(self.model, computing, cache=cache, words=self.words, **self.changes)
        ranker.windows = self._windows(ranker.windows)
        if self.types and not ranker.takes_types:
            raise RankwellError(f"{self.model}: its template has no place for types; add --set template=typed")
        return ranker

    def resolved(self, ranker: AnyRanker) -> RerankRequest:
        """The same request with the precision that it has here, for workers that must all compute alike."""
        computing = self.computing
        on_cpu = computing.backend == "torch" and computing.device in (None, "cpu")
        if not on_cpu or not isinstance(ranker, Ranker):
            return self
        return replace(self, computing=replace(computing, precision=ranker.engine.precision))  # type: ignore[arg-type]

    def execute(
        self, workers: Callable[[RerankRequest], Reranker] | None = None, *, name: str = "rankwell"
    ) -> RunResult:
        """Re-rank. If ``workers`` score a request in the model's place, this process computes on the CPU."""
        listed: Run | None
        if self.run is not None:
            listed, queries = self.read()
        elif find_index(self.collection) is None:
            listed, queries = self._listed()
        else:  # the candidates are searched
            listed, queries = None, self._questions()
        cache = ScoreCache(self.cache) if self.cache else None
        computing = self.computing
        device = "cpu" if workers is not None and computing.backend == "torch" else computing.device
        ranker = self.open_ranker(device, cache) if self.model else None
        scorer: Reranker | None = ranker if workers is None or ranker is None else workers(self.resolved(ranker))
        system = self.open(listed, scorer, device)
        texts, k = system.finder.texts, self.depth if listed is None else max(map(len, listed.values()), default=1)
        if ranker is not None and listed is not None and worth_keeping(texts, listed.head(self.depth)):
            ranker.store_tokens(texts)
        begin = time.monotonic()
        found = system.find(queries, k, system.rated(EVERYTHING, self.min_relevance, always=self.rated))
        run = Run(found.run, name=name)
        seconds = time.monotonic() - begin
        report = f"{len(run):,} queries" if ranker is None else self._report(ranker, scorer, cache, run, seconds)
        return RunResult(run, report, queries, texts, found.relevance)

    def _report(
        self, ranker: AnyRanker, scorer: Reranker | None, cache: ScoreCache | None, run: Run, seconds: float
    ) -> str:
        """What was computed, in one line; what was cut is a warning."""
        truncation = (scorer or ranker).truncation
        if advice := truncation.advice():
            # Rankers without a template have neither of the options that the advice names.
            warnings.warn(str(truncation) if ranker.template is None else advice, stacklevel=3)
        pairs = sum(min(self.depth, len(ranking)) for ranking in run.values())
        report = [
            f"{pairs:,} pair{'s' * (pairs != 1)}, {seconds:.1f} s, {pairs / max(seconds, 1e-9):,.0f} pairs/s",
            f"{truncation}",
        ]
        if isinstance(ranker, Ranker) and (reduced := ranker.engine.precision) in ("bf16", "int8"):
            report.append(f"scores in {reduced} (exact: --precision fp32)")
        report += [f"{cache.hits:,} scores from {self.cache}"] if cache else []
        deepest = min(DEEP, max(map(len, run.values()), default=0))
        if deepest > self.depth and (computed := pairs - (cache.hits if cache else 0)):
            deeper = sum(map(len, run.head(deepest).values()))
            report.append(f"--depth {deepest} would take about {duration(seconds * deeper / computed)}")
        return "; ".join(report)

    def _windows(self, default: Windows | None) -> Windows | None:
        """The model's windows, changed as requested."""
        windows = default if self.windows is None else Windows(self.windows) if self.windows else None
        if self.windows == 0 and (self.stride is not None or self.aggregate is not None):
            raise RankwellError("--windows 0 truncates documents; a stride and an aggregate need windows")
        if self.stride is not None:
            if windows is None or windows.size is None:
                raise RankwellError("the stride needs --windows")
            windows = replace(windows, stride=self.stride)
        return replace(windows or Windows(), aggregate=self.aggregate) if self.aggregate else windows
