"""Searching an index with a question or the queries of a file, in this process or by the workers of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rankwell.core.manifest import Manifest
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.questions import questions_digest, read_questions
from rankwell.corpus.records import Query, Run
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.models.devices import Precision
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import Shares
from rankwell.rank.rankers import VectorSearch, open_encoder
from rankwell.rank.system import System, is_system
from rankwell.rank.texts import Texts
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.retrieve.index import Index

if TYPE_CHECKING:
    from rankwell.models.bi_encoder import BiEncoder


@dataclass(frozen=True, eq=False)
class RunResult:
    """The run of a request with its manifest, a line for the user, and what it takes to read the answers."""

    run: Run
    manifest: Manifest
    report: str
    queries: Sequence[Query]
    texts: Texts


class SearchWorkers(Protocol):
    """Workers that search in place of this process."""

    def search(self, request: SearchRequest, index: Index, queries: Sequence[Query], encoder: BiEncoder | None) -> Run:
        """The run of a request; ``encoder`` is the request's bi-encoder, if it has one, on the CPU."""
        ...


@dataclass(frozen=True)
class SearchRequest:
    """What to search, and how; ``queries`` is a question or a file of queries (``-``: standard input).

    ``hybrid`` is the share of the bi-encoder ``encoder``; without it BM25 searches alone. ``device``, ``precision`` and
    ``vectors`` are the bi-encoder's. With 0 ``threads`` a search uses all cores of this machine, or one of each worker.
    ``columns`` names the fields of the queries. ``ignore_identical_ids`` leaves out documents with a query's own id.
    Code that comes with the bi-encoder runs only with ``trust_remote_code``.
    """

    index: Path
    """An index, or a system, which is searched as it was fitted."""
    queries: str | Path
    k: int = 1000
    bm25: BM25 = DEFAULT_BM25
    threads: int = 0
    hybrid: float | None = None
    encoder: str = DEFAULT
    device: str | None = None
    precision: Precision = "auto"
    vectors: VectorSearch = "auto"
    columns: Columns | None = None
    ignore_identical_ids: bool = False
    trust_remote_code: bool = False

    def check(self) -> None:
        """Raise for a wrong share before anything is read."""
        if self.hybrid is not None:
            Shares.hybrid(self.hybrid)

    def open_encoder(self, device: str | None) -> BiEncoder:
        """The bi-encoder on a device."""
        return open_encoder(self.encoder, device, self.precision)

    def execute(self, workers: SearchWorkers | None = None, *, name: str | None = None) -> RunResult:
        """Search. By default the run is called BM25, hybrid or dense.

        If ``workers`` search, they have the GPUs, and this process opens the bi-encoder on the CPU.
        """
        self.check()
        if is_system(self.index):
            return self._search_system(name)
        index, queries = self.open(), read_questions(self.queries, self.columns)
        config = {"k": self.k, **asdict(self.bm25), "index": index.manifest["config_hash"]}
        data = {"index": index.manifest["data_hash"], "queries": questions_digest(self.queries)}
        device, encoder = self.device if workers is None else "cpu", None
        name_of_encoder = None if self.hybrid is None else self.encoder
        first = FirstStage(index, self.bm25, name_of_encoder, self.hybrid or 0.0, self.trust_remote_code)
        if self.hybrid is not None:
            # Workers with GPUs compute exact vectors, whatever this machine would choose.
            on_gpus = workers is not None and self.device not in (None, "cpu") and self.precision == "auto"
            encoder = first.dense(device, "fp32" if on_gpus else self.precision, self.vectors).encoder
            config |= {"hybrid": self.hybrid} | ({} if self.vectors == "auto" else {"vectors": self.vectors})
            data |= encoder.identity
        if self.ignore_identical_ids:
            config |= {"ignore_identical_ids": True}
        k = self.k + self.ignore_identical_ids
        if workers is None:
            threads = self.threads or os.cpu_count() or 1
            run = first.search(
                queries, k, threads=threads, device=device, precision=self.precision, vectors=self.vectors
            )
        else:
            run = workers.search(replace(self, k=k), index, queries, encoder)
        run = self._without_identical(Run(run, name=name or run.name))
        return _result(run, Manifest("run", config, data), queries, index)

    def _search_system(self, name: str | None) -> RunResult:
        system = System.open(self.index, device=self.device, precision=self.precision)
        queries = read_questions(self.queries, self.columns)
        run = system.search(queries, self.k + self.ignore_identical_ids, threads=self.threads)
        config = {"k": self.k, "system": system.manifest.get("config_hash")}
        if self.ignore_identical_ids:
            config |= {"ignore_identical_ids": True}
        data = {"system": str(system.manifest.get("data_hash")), "queries": questions_digest(self.queries)}
        run = self._without_identical(Run(run, name=name or run.name))
        return _result(run, Manifest("run", config, data), queries, system.index)

    def _without_identical(self, run: Run) -> Run:
        return run.without_identical_ids().head(self.k) if self.ignore_identical_ids else run

    def open(self) -> Index:
        """Open what is searched."""
        return Index.open(self.index)


def _result(run: Run, manifest: Manifest, queries: Sequence[Query], index: Index) -> RunResult:
    report = f"{len(run):,} of {len(queries):,} queries, {sum(map(len, run.values())):,} documents"
    return RunResult(run, manifest, report, queries, index)
