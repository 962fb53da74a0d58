"""Searching an index with a question or the queries of a file, in this process or by the workers of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rankwell.core.manifest import Manifest
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Query, Run
from rankwell.corpus.sources import questions_digest, read_questions
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.models.devices import Precision
from rankwell.rank.fusion import Shares
from rankwell.rank.rankers import VectorSearch, open_encoder
from rankwell.rank.system import System, open_searchable
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
        system, queries = self.open(workers is not None), read_questions(self.queries, self.columns)
        k = self.k + self.ignore_identical_ids
        if workers is None:
            run = system.search(queries, k, threads=self.threads)
        else:
            encoder = None if self.hybrid is None else system.first_stage.dense.encoder
            run = workers.search(replace(self, k=k), system.index, queries, encoder)
        run = Run(run, name=name or run.name)
        if self.ignore_identical_ids:
            run = run.without_identical_ids().head(self.k)
        report = f"{len(run):,} of {len(queries):,} queries, {sum(map(len, run.values())):,} documents"
        return RunResult(run, self._manifest(system), report, queries, system.index)

    def open(self, for_workers: bool = False) -> System:
        """Open what is searched; its bi-encoder is on the CPU if workers have the GPUs."""
        device, precision = self.device, self.precision
        if for_workers:
            # Workers with GPUs compute exact vectors, whatever this machine would choose.
            exact = device not in (None, "cpu") and precision == "auto"
            device, precision = "cpu", "fp32" if exact else precision
        return open_searchable(
            self.index,
            bm25=self.bm25,
            hybrid=self.hybrid,
            encoder=self.encoder,
            device=device,
            precision=precision,
            vectors=self.vectors,
            trust_remote_code=self.trust_remote_code,
        )

    def _manifest(self, system: System) -> Manifest:
        config: dict[str, Any] = {"k": self.k}
        if system.folder is not None:
            config |= {"system": system.manifest.get("config_hash")}
            data = {"system": str(system.manifest.get("data_hash"))}
        else:
            config |= {**asdict(self.bm25), "index": system.index.manifest["config_hash"]}
            data = {"index": system.index.manifest["data_hash"]}
        if self.hybrid is not None:
            config |= {"hybrid": self.hybrid} | ({} if self.vectors == "auto" else {"vectors": self.vectors})
            data |= system.first_stage.dense.encoder.identity
        if self.ignore_identical_ids:
            config |= {"ignore_identical_ids": True}
        return Manifest("run", config, {**data, "queries": questions_digest(self.queries)})
