"""Re-ranking a run in shards.

A score may change in its last bit with the pairs it is computed beside. A shard is therefore made of the very groups
of queries that :meth:`~rankwell.rank.ranker.Ranker.rerank` computes together, and the joined run is, byte for byte,
that of one process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.jobs import do
from rankwell.core.manifest import file_digest
from rankwell.core.shards import Shards, map_shards, open_shards
from rankwell.corpus.formats import read_queries, read_run, read_types
from rankwell.corpus.records import Document, Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.templates import TruncationReport
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.config import read_ranker_config
from rankwell.models.checkpoints.identity import model_digest
from rankwell.models.checkpoints.names import find_model
from rankwell.rank.ranker import Ranker, groups_of_queries
from rankwell.rank.texts import InMemoryTexts, Texts, digest_texts, make_tokens, open_texts, worth_keeping
from rankwell.retrieve.index import Index
from rankwell.scale.runs import read_parts, write_part
from rankwell.scale.workers import Cluster

REPORT = "# "


@dataclass(frozen=True)
class RerankJob:
    """``rankwell rerank`` in shards: ``folder``, which all workers must see, holds the shards while it is done.

    ``groups`` of queries, of up to some 16,000 pairs each, make a shard. ``ranker`` are options of
    :meth:`~rankwell.rank.ranker.Ranker.from_pretrained`. ``windows`` replaces the model's own unless it is "default".
    """

    run: Path
    queries: Path
    collection: str
    model: str
    folder: Path
    depth: int = 1000
    types: Path | None = None
    ranker: Mapping[str, Any] = field(default_factory=dict)
    windows: Windows | Literal["default"] | None = "default"
    keep_tokens: bool | None = None
    groups: int = 1

    def prepare(self) -> Shards:
        """Cut the run into the candidates of each shard, and see that all texts can be read by docid."""
        candidates = read_run(self.run).head(self.depth)
        lost = next((qid for qid in candidates if qid not in self._queries), None)
        if lost is not None:
            raise InputError(self.queries, None, f"no query {lost!r}, for which {self.run} has results")
        texts = open_texts(self.collection, candidates)
        data: dict[str, Any] = {"run": file_digest(self.run), "depth": self.depth}
        data |= {"texts": texts.manifest["data_hash"] if isinstance(texts, Index) else digest_texts(texts, candidates)}
        if isinstance(texts, InMemoryTexts):
            store = self._own_texts(data["texts"])
            if not store.exists():
                docids = list(dict.fromkeys(docid for ranking in candidates.values() for docid in ranking.docids))
                DocumentStore.build(map(Document, docids, texts.texts(docids)), store)
            texts = DocumentStore.open(store)
        groups = groups_of_queries(candidates, self.depth)
        parts = self._candidates(Shards(self.folder, len(groups), self.groups, data))

        def write(items: range, file: IO[bytes]) -> None:
            chosen = [qid for group in groups[items.start : items.stop] for qid in group]
            write_part(Run({qid: candidates[qid] for qid in chosen}), file)

        map_shards(parts, write, description="cutting the run")
        if worth_keeping(texts, candidates) if self.keep_tokens is None else self.keep_tokens:
            make_tokens(texts, Tokenizer.open(find_model(self.model)), stems=self._markers())
        config = {
            **data,
            "queries": file_digest(self.queries),
            "types": file_digest(self.types) if self.types else None,
            "model": model_digest(find_model(self.model)),
            "ranker": dict(self.ranker),
            "windows": asdict(self.windows) if isinstance(self.windows, Windows) else self.windows,
        }
        return Shards(self.folder / "scores", len(groups), self.groups, config, ".run")

    def work(self, shards: Shards) -> None:
        """Load the model and re-rank shards until none is left."""
        open_shards(shards)
        if not shards.pending():
            return
        ranker = Ranker.from_pretrained(self.model, windows=self.windows, **self.ranker)
        parts, queries = self._candidates(shards), list(self._queries.values())
        made = self._own_texts(shards.config["texts"])
        source = made if made.exists() else self.collection

        def write(items: range, file: IO[bytes]) -> None:
            own = read_run(parts.path(items.start // shards.size))
            ranker.reader = replace(ranker.reader, truncation=TruncationReport())
            found = ranker.rerank(own, queries, open_texts(source, own), depth=self.depth)
            report = {name: value for name, value in vars(ranker.truncation).items() if name != "_lock"}
            file.write(f"{REPORT}{json.dumps(report)}\n".encode())
            write_part(found, file)

        map_shards(shards, write, description="re-ranking")

    @cached_property
    def _queries(self) -> dict[str, Query]:
        labels = read_types(self.types) if self.types else {}
        return {query.qid: replace(query, type=labels.get(query.qid)) for query in read_queries(self.queries)}

    def _own_texts(self, texts: str) -> Path:
        """The store of the run's documents, made where the collection is neither an index nor a store."""
        return self.folder / f"documents-{texts}"

    def _markers(self) -> bool:
        own = read_ranker_config(find_model(self.model))
        asked = self.ranker.get("template", {}).get("markers")
        return bool(own is not None and own.template.markers) if asked is None else bool(asked)

    def _candidates(self, shards: Shards) -> Shards:
        """The candidates of each shard of scores."""
        config = {name: shards.config[name] for name in ("run", "depth", "texts")}
        return Shards(self.folder / "candidates", shards.count, shards.size, config, ".run")


@dataclass
class ClusterRanker:
    """A job in a ranker's place in a pipeline: ``Given(candidates) >> Rerank(ClusterRanker(job, cluster), texts)``."""

    job: RerankJob
    cluster: Cluster | None = None
    truncation: TruncationReport = field(default_factory=TruncationReport)

    def rerank(self, run: Run, queries: Sequence[Query], texts: Texts, *, depth: int = 1000) -> Run:
        """The job's run; the run, queries and texts that come in are those the job names."""
        found, self.truncation = join_scores(do(self.job, self.cluster, description="re-ranking"))
        if list(found) != list(run) or depth != self.job.depth:
            raise RankwellError(f"the job re-ranks {self.job.depth} documents of {len(found)} queries, not these")
        return found


def join_scores(shards: Shards, *, name: str = "rankwell") -> tuple[Run, TruncationReport]:
    """The run whose shards are done, and what was cut in all of them."""
    rankings, total = read_parts(shards), TruncationReport()
    for path in shards.paths():
        with path.open(encoding="utf-8") as file:
            report = json.loads(file.readline().removeprefix(REPORT))
        for key in ("pairs", "pairs_cut", "pairs_windowed", "windows"):
            setattr(total, key, getattr(total, key) + report[key])
        for key, count in report["pieces_cut"].items():
            total.pieces_cut[key] = total.pieces_cut.get(key, 0) + count
    return Run(rankings, name=name), total
