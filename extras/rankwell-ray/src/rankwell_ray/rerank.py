"""Re-ranking a run in shards.

A score may change in its last bit with the pairs that are computed in the same batch. A shard therefore consists of the
groups of queries that :meth:`~rankwell.rank.ranker.Ranker.rerank` computes together, and the joined run equals that of
one process byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from rankwell.core.errors import RankwellError
from rankwell.core.manifest import file_digest
from rankwell.core.shards import Shards, do, map_shards, open_shards
from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.templates import TruncationReport
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import read_ranker_config
from rankwell.models.checkpoints.names import find_model, model_digest
from rankwell.rank.pairs import groups_of_queries
from rankwell.rank.requests import RerankRequest
from rankwell.rank.system import type_for
from rankwell.rank.texts import Texts, make_tokens, open_texts, worth_keeping
from rankwell.retrieve.index import Index
from rankwell_ray.search import read_parts, write_part
from rankwell_ray.workers import Cluster, for_workers

REPORT = "# "


@dataclass(frozen=True)
class RerankJob:
    """Re-ranks a run in shards. All workers must see ``folder``, which holds the shards until the run is written.

    A shard has ``groups`` groups of queries, of up to some 16,000 pairs each.
    """

    request: RerankRequest
    folder: Path
    groups: int = 1

    @classmethod
    def of(cls, request: RerankRequest, folder: Path) -> RerankJob:
        """The job of a request whose paths may be relative, which workers could not open."""
        if request.run is None:
            raise RankwellError("--ray re-ranks a run with --queries; a question needs no cluster")
        absolute = replace(
            request,
            run=request.run.absolute(),
            queries=Path(request.queries).absolute(),
            types=request.types.absolute() if request.types else None,
            collection=for_workers(request.collection),
            model=for_workers(request.model),
        )
        return cls(absolute, folder)

    def prepare(self) -> Shards:
        """Split the run into shards, and store the texts unless they can already be read by docid."""
        request, (candidates, _) = self.request, self._input
        texts = open_texts(request.collection, candidates, request.columns)
        assert request.run is not None
        data: dict[str, Any] = {"run": file_digest(request.run), "depth": request.depth}
        data |= {"texts": texts.manifest["data_hash"] if isinstance(texts, Index) else digest_texts(texts, candidates)}
        if isinstance(texts, DocumentStore) and texts.in_memory:
            texts = DocumentStore.build_once(texts, self._stored_texts(data["texts"]))
        groups = groups_of_queries(candidates, request.depth)
        parts = self._candidates(Shards(self.folder, len(groups), self.groups, data))

        def write(items: range, file: IO[bytes]) -> None:
            qids = [qid for group in groups[items.start : items.stop] for qid in group]
            write_part(Run({qid: candidates[qid] for qid in qids}), file)

        map_shards(parts, write, description="splitting the run")
        if worth_keeping(texts, candidates):
            make_tokens(texts, Tokenizer.open(find_model(request.model)), stems=self._markers())
        reading = ("changes", "windows", "stride", "aggregate")
        config = {
            **data,
            "queries": file_digest(request.queries),
            "types": file_digest(request.types) if request.types else None,
            "model": model_digest(find_model(request.model)),
            **{name: getattr(request, name) for name in reading},
            "computing": asdict(request.computing),
        }
        return Shards(self.folder / "scores", len(groups), self.groups, config, ".run")

    def work(self, shards: Shards) -> None:
        """Load the model and re-rank shards until none is left."""
        open_shards(shards)
        if not shards.pending():
            return
        request = self.request
        # A worker computes on the CPU unless the request names a GPU.
        device = request.computing.device or ("cpu" if request.computing.backend == "torch" else None)
        ranker = request.open_ranker(device)
        parts, (_, queries) = self._candidates(shards), self._input
        queries = [replace(query, type=type_for(query, ranker)) for query in queries]
        store = self._stored_texts(shards.config["texts"])
        source = store if store.exists() else request.collection

        def write(items: range, file: IO[bytes]) -> None:
            candidates = read_run(parts.path(items.start // shards.size))
            ranker.truncation.clear()
            run = ranker.rerank(candidates, queries, open_texts(source, candidates), depth=request.depth)
            report = {name: value for name, value in vars(ranker.truncation).items() if name != "_lock"}
            file.write(f"{REPORT}{json.dumps(report)}\n".encode())
            write_part(run, file)

        map_shards(shards, write, description="re-ranking")

    @cached_property
    def _input(self) -> tuple[Run, list[Query]]:
        """The candidates, and their queries in the same order."""
        run, queries = self.request.read()
        return run.head(self.request.depth), queries

    def _stored_texts(self, texts: str) -> Path:
        """The store of the run's documents; it exists if the collection is neither an index nor a store."""
        return self.folder / f"documents-{texts}"

    def _markers(self) -> bool:
        config = read_ranker_config(find_model(self.request.model))
        requested = self.request.changes.get("template", {}).get("markers")
        return bool(config is not None and config.template.markers) if requested is None else bool(requested)

    def _candidates(self, shards: Shards) -> Shards:
        """The candidates of each shard of scores."""
        config = {name: shards.config[name] for name in ("run", "depth", "texts")}
        return Shards(self.folder / "candidates", shards.count, shards.size, config, ".run")


@dataclass
class ClusterRanker:
    """A job in a ranker's place, done by the workers of a cluster."""

    job: RerankJob
    cluster: Cluster | None = None
    takes_types: bool = False
    """The workers find the types."""
    truncation: TruncationReport = field(default_factory=TruncationReport)

    def rerank(self, run: Run, queries: Sequence[Query], texts: Texts, *, depth: int = 1000) -> Run:
        """The job's run. The arguments must be the run, queries and texts that the job names."""
        reranked, self.truncation = join_scores(do(self.job, self.cluster, description="re-ranking"))
        if list(reranked) != list(run) or depth != self.job.request.depth:
            problem = f"the job re-ranks {self.job.request.depth} documents of {len(reranked)} queries, not these"
            raise RankwellError(problem)
        return reranked


def digest_texts(texts: Texts, run: Run) -> str:
    """A hash of the texts of a run's documents, independent of where they are stored."""
    whole = hashlib.blake2b(digest_size=12)
    docids = sorted({docid for ranking in run.values() for docid in ranking.docids})
    for begin in range(0, len(docids), 4096):
        some = docids[begin : begin + 4096]
        for docid, text in zip(some, texts.texts(some), strict=True):
            whole.update(f"{docid}\0{text}\0".encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


def join_scores(shards: Shards) -> tuple[Run, TruncationReport]:
    """The run of finished shards, and what was truncated in all of them."""
    rankings, total = read_parts(shards), TruncationReport()
    for path in shards.paths():
        with path.open(encoding="utf-8") as file:
            total.add(TruncationReport(**json.loads(file.readline().removeprefix(REPORT))))
    return Run(rankings), total
