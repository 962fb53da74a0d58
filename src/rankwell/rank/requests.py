"""Requests: searching an index, re-ranking a run or the documents found for a question, enriching a collection.

All read their files, ask a system or a model, in this process or on a cluster, and record what was done.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.locks import SharedFolder
from rankwell.core.manifest import digest
from rankwell.core.progress import duration
from rankwell.core.shards import Job, Workers, do, shards_folder
from rankwell.corpus.filters import parse_filter
from rankwell.corpus.formats import read_run, read_types
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.corpus.sources import (
    collection_digest,
    is_question,
    read_questions,
    resolve_documents,
)
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.models.devices import DEFAULT_COMPUTING, Computing, chosen_device
from rankwell.rank.cache import ScoreCache
from rankwell.rank.first_stage import WORDS_DEPTH
from rankwell.rank.fusion import Shares, before_rest
from rankwell.rank.ranker import Ranker, open_ranker
from rankwell.rank.rankers import WORDS, AnyRanker, Reranker, VectorSearch, check_options, kind_of, open_encoder
from rankwell.rank.system import System, add_shares, open_searchable
from rankwell.rank.texts import Texts, find_index, open_texts, worth_keeping
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.retrieve.index import Index

if TYPE_CHECKING:
    from rankwell.models.bi_encoder import BiEncoder

DEPTH = 100
"""Candidates to re-rank per query; more rarely pay for their time."""
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


SearchWorkers = Callable[["SearchRequest", Index, Sequence[Query], "BiEncoder | None"], Run]


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

    def check(self) -> None:
        """Raise for a wrong share or filter before anything is read."""
        parse_filter(self.filter)
        if self.hybrid is not None:
            Shares.hybrid(self.hybrid)
        if self.words is not None and not 0 < self.words <= 1:
            raise RankwellError(f"--words {self.words:g}: expected a weight of more than 0 and at most 1")

    def execute(self, workers: SearchWorkers | None = None, *, name: str | None = None) -> RunResult:
        """Search. By default the run is called BM25, hybrid or dense.

        If ``workers`` search in place of this process, they have the GPUs. They get the request, the index, the queries
        and the request's bi-encoder, if it has one, on the CPU.
        """
        self.check()
        system, queries = self.open(workers is not None), read_questions(self.queries, self.columns)
        k = self.k + self.ignore_identical_ids
        if workers is None:
            run = system.search(queries, k, threads=self.threads, filter=self.filter, syntax=self.syntax)
        else:
            encoder = None if self.hybrid is None else system.first_stage.dense.encoder
            deep = max(k, WORDS_DEPTH) if self.words else k
            run = workers(replace(self, k=deep), system.index, queries, encoder)
            run = system.first_stage.add_words(run, queries).head(k) if self.words else run
        run = Run(run, name=name or run.name)
        if self.ignore_identical_ids:
            run = run.without_identical_ids().head(self.k)
        report = f"{len(run):,} of {len(queries):,} queries, {sum(map(len, run.values())):,} documents"
        return RunResult(run, report, queries, system.index)

    def open(self, for_workers: bool = False) -> System:
        """Open what is searched; its bi-encoder is on the CPU if workers have the GPUs."""
        computing = self.computing
        if for_workers:
            # Workers with GPUs compute exact vectors, whatever this machine would choose.
            exact = computing.device not in (None, "cpu") and computing.precision == "auto"
            computing = replace(computing, device="cpu", precision="fp32" if exact else computing.precision)
        how: dict[str, Any] = {"bm25": self.bm25, "hybrid": self.hybrid, "words": self.words}
        how |= {"encoder": self.encoder, "vectors": self.vectors}
        return open_searchable(self.index, computing, **how)


@dataclass(frozen=True)
class RerankRequest:
    """What to re-rank, and how; options that are ``None`` are the model's.

    ``queries`` is a question or a file of queries. Without a ``run`` the candidates are what BM25 finds in the
    collection if it is an index or a system, or all its documents if they are few.
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
    joined: System | None = None
    """A system whose own results the run is joined with before, or whose bi-encoder re-ranks it."""

    def of_system(self, depth: int | None) -> RerankRequest:
        """The same request with what the system ``model`` has: re-ranker, shares, bi-encoder, depth, documents."""
        system = System.open(self.model)
        joined = system if self.run is not None and (system.engine or system.ranker is None) else None
        if system.ranker is None and (joined is None or not system.first_stage.encodes):
            raise RankwellError(f"{self.model} is a system without a re-ranker; `rankwell search` uses it")
        if self.fuse is not None or self.blend is not None:
            raise RankwellError("--fuse and --blend go with a model; a system has its own weights")
        shares = system.shares or Shares(model=1.0)
        return replace(
            self,
            model=str(system.ranker or ""),
            joined=joined,
            collection=self.collection or self.model,
            depth=depth or system.depth,
            fuse=shares.first or None,
            blend=shares.similarity or None,
            normalise=shares.normalise,
            encoder=str(system.first_stage.encoder) if shares.similarity else None,
        )

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
        """The candidates, and their queries in the same order."""
        run, queries = self._read()
        return run.head(self.depth), queries

    def _read(self) -> tuple[Run, list[Query]]:
        """The whole run, and its queries in the same order."""
        listed = read_questions(self.queries)
        run = self._find(listed) if self.run is None else read_run(self.run)
        if self.run is not None and is_question(self.queries) and len(run) == 1:
            listed = [replace(listed[0], qid=next(iter(run)))]
        labels = read_types(self.types) if self.types else {}
        queries = {query.qid: replace(query, type=labels.get(query.qid)) for query in listed}
        missing = next((qid for qid in run if qid not in queries), None)
        if missing is not None:
            raise InputError(self.queries, None, f"no query {missing!r}, for which {self.run} has results")
        asked = [queries[qid] for qid in run]
        return (run if self.joined is None else self.joined.join(run, asked)), asked

    def _find(self, queries: Sequence[Query]) -> Run:
        """Candidates without a run."""
        if (index := find_index(self.collection)) is not None:
            encoder, computing = self.encoder or DEFAULT, vars(self.computing)
            return System.of_index(index, hybrid=self.hybrid, encoder=encoder, **computing).search(queries, self.depth)
        documents = islice(resolve_documents(self.collection, self.columns), FEW + 1)
        docids = tuple(document.docid for document in documents)
        if len(docids) > FEW:
            advice = "index it first, to re-rank what a search finds"
            raise RankwellError(f"{self.collection} has more than {FEW:,} documents; {advice}")
        return Run({query.qid: Ranking.of(docids, range(len(docids), 0, -1)) for query in queries})

    def open_ranker(self, device: str | None, cache: ScoreCache | None = None) -> AnyRanker:
        """The model on a device, with this request's windows."""
        computing = replace(self.computing, device=device)
        ranker = open_ranker(self.model, cache=cache, words=self.words, **vars(computing), **self.changes)
        ranker.windows = self._windows(ranker.windows)
        if self.types and not ranker.takes_types:
            raise RankwellError(f"{self.model}: its template has no place for types; add --set template=typed")
        return ranker

    def resolved(self, ranker: AnyRanker) -> RerankRequest:
        """The same request with the precision that ``auto`` means here, for workers that must all compute alike."""
        computing = self.computing
        on_cpu = computing.backend == "torch" and computing.device in (None, "cpu")
        if computing.precision != "auto" or not on_cpu or not isinstance(ranker, Ranker):
            return self
        return replace(self, computing=replace(computing, precision=ranker.engine.precision))  # type: ignore[arg-type]

    def execute(
        self, workers: Callable[[RerankRequest], Reranker] | None = None, *, name: str = "rankwell"
    ) -> RunResult:
        """Re-rank. If ``workers`` score a request in the model's place, this process computes on the CPU."""
        run, queries = self._read()
        if not self.model and self.joined is not None:
            if not self.joined.engine:
                run = before_rest(self.joined.rerank(run, queries), run)
            return RunResult(Run(run, name=name), f"{len(run):,} queries", queries, self.joined.index)
        candidates = run.head(self.depth)
        cache = ScoreCache(self.cache) if self.cache else None
        computing = self.computing
        device = "cpu" if workers is not None and computing.backend == "torch" else computing.device
        ranker = self.open_ranker(device, cache)
        request = self if workers is None else self.resolved(ranker)
        dense = None
        if self.blend is not None:
            from rankwell.rank.dense import DenseRanker  # needs torch

            dense = DenseRanker(open_encoder(self.encoder or DEFAULT, replace(request.computing, device=device)))
        texts = open_texts(self.collection, candidates, self.columns)
        if worth_keeping(texts, candidates):
            ranker.store_tokens(texts)
        scorer = ranker if workers is None else workers(request)
        begin = time.monotonic()
        scored = scorer.rerank(candidates, queries, texts, depth=self.depth)
        reranked = add_shares(candidates, scored, self.shares, queries, texts, dense)
        reranked = Run(before_rest(reranked, run), name=name)
        seconds = time.monotonic() - begin
        if advice := scorer.truncation.advice():
            # Rankers without a template have neither of the options that the advice names.
            warnings.warn(str(scorer.truncation) if ranker.template is None else advice, stacklevel=2)
        pairs = sum(map(len, candidates.values()))
        report = [
            f"{pairs:,} pair{'s' * (pairs != 1)}, {seconds:.1f} s, {pairs / max(seconds, 1e-9):,.0f} pairs/s",
            f"{scorer.truncation}",
        ]
        if isinstance(ranker, Ranker) and (reduced := ranker.engine.precision) in ("bf16", "int8"):
            report.append(f"scores in {reduced} (exact: --precision fp32)")
        report += [f"{cache.hits:,} scores from {self.cache}"] if cache else []
        deepest = min(DEEP, max(map(len, run.values()), default=0))
        if deepest > self.depth and (computed := pairs - (cache.hits if cache else 0)):
            deeper = sum(map(len, run.head(deepest).values()))
            report.append(f"--depth {deepest} would take about {duration(seconds * deeper / computed)}")
        return RunResult(reranked, "; ".join(report), queries, texts)

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


# A model reads every passage of a collection, and what it writes becomes a file


def check_output(out: Path, device: str | None, workers: Workers | None) -> None:
    """Raise before anything is written: if the file exists, or if there is no such device here."""
    if out.exists():
        raise RankwellError(f"{out} exists already; remove it or choose another name")
    if workers is None:
        chosen_device(device)


def enrich(
    collection: str,
    columns: Columns | None,
    out: Path,
    job: Callable[[Path, Path], Job],
    *,
    shards: str,
    models: Mapping[str, str | None],
    settings: Mapping[str, Any],
    workers: Workers | None = None,
    description: str,
) -> int:
    """Write the file ``out`` and return the number of passages; ``workers``, if any, do the work.

    ``job`` is made of the folder of the texts and the folder of the shards. Until the file is complete, ``OUT.shards``
    holds the texts, their tokens and the finished shards. The same work resumes from them. Processes with the same
    work share the shards.
    """
    source = collection_digest(collection, columns)
    named = {f"setting of {name}": value for name, value in settings.items()}
    made_by = {name: str(value) for name, value in {"collection": source, **models, **named}.items()}
    with SharedFolder.enter(shards_folder(out), made_by) as shared:
        documents = resolve_documents(collection, columns)
        texts = DocumentStore.build_once(documents, shared.path / f"documents-{source}")
        folder = shared.path / f"{shards}-{digest(made_by)}"
        do(job(texts.folder, folder), workers, description=description).join(out)
        if shared.alone(wait=False):  # every process joins the same bytes; the last removes the folder
            shared.remove()
        return len(texts)
