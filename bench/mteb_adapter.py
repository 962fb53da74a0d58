"""MTEB, the field's benchmark of embeddings, on a bi-encoder, a ranker or a whole system.

python bench/mteb_adapter.py encoder my-encoder NFCorpus SciFact
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mteb
import numpy as np
from mteb.models.model_meta import ModelMeta
from mteb.types import PromptType

from rankwell.core.arrays import Scores
from rankwell.corpus.records import Document, Query, Ranking, Run
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.names import find_model, published_name
from rankwell.rank.ranker import Ranker
from rankwell.rank.system import System
from rankwell.retrieve.index import Index

Row = Mapping[str, Any]
Batches = Iterable[Row]
"""What a data loader of MTEB gives: batches with a list of texts."""


def _described(model: str | Path) -> Any:
    """What MTEB writes beside the results."""
    name = published_name(find_model(model))
    return ModelMeta.create_empty({"name": name if "/" in name else f"rankwell/{name}"})


class RankwellEncoder:
    """A bi-encoder; ``options`` are those of :meth:`BiEncoder.from_pretrained`."""

    def __init__(self, model: str | Path, revision: str | None = None, **options: Any):
        self.encoder = BiEncoder.from_pretrained(model, **options)
        self.mteb_model_meta = _described(model)

    def encode(self, inputs: Batches, *, prompt_type: PromptType | None = None, **_: Any) -> Any:
        """The vectors of queries or documents (N, H), with their prompts; texts that are neither count as documents."""
        is_query = prompt_type == PromptType.query
        return (self.encoder.encode_queries if is_query else self.encoder.encode_documents)(_texts(inputs))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The similarity of each vector of the first with each of the second (N, M)."""
        return np.asarray(embeddings1) @ np.asarray(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The similarities of two lists of vectors of the same length (N,)."""
        return (np.asarray(embeddings1) * np.asarray(embeddings2)).sum(axis=1)


class RankwellReranker:
    """A cross-encoder; ``options`` are those of :class:`Ranker`."""

    def __init__(self, model: str | Path, revision: str | None = None, **options: Any):
        self.ranker = Ranker(model, **options)
        self.mteb_model_meta = _described(model)

    def predict(self, inputs1: Batches, inputs2: Batches, **_: Any) -> Scores:
        """The scores of pairs of queries and documents."""
        return self.ranker.predict(list(zip(_texts(inputs1), _texts(inputs2), strict=True)))


class RankwellSystem:
    """A system that `rankwell fit` made, on the corpus of a task: its models, shares and depth, but not its index."""

    def __init__(self, system: str | Path, revision: str | None = None, *, device: str | None = None):
        self.system = System.open(system, device=device)
        self.mteb_model_meta = _described(system)
        self._folder: TemporaryDirectory[str] | None = None

    def index(self, corpus: Iterable[Row], **_: Any) -> None:
        """Index a corpus."""
        self._folder = TemporaryDirectory(prefix="rankwell-mteb-")
        documents = (Document(str(row["id"]), row["text"], title=row.get("title") or "") for row in corpus)
        analyzer = self.system.index.analyzer
        self._index = Index.build(documents, Path(self._folder.name) / "index", analyzer=analyzer)

    def search(
        self,
        queries: Iterable[Row],
        *,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """The ``top_k`` documents of each query; with ``top_ranked`` only these documents are ranked."""
        asked = [Query(str(row["id"]), row["text"]) for row in queries]
        if top_ranked is None:
            run = self._on_corpus(self.system.depth).search(asked, top_k)
        else:
            run = self._rank(asked, {query.qid: top_ranked.get(query.qid, ()) for query in asked})
        found = {qid: dict(zip(ranking.docids, ranking.scores.tolist(), strict=True)) for qid, ranking in run.items()}
        return {query.qid: found.get(query.qid, {}) for query in asked}

    def _on_corpus(self, depth: int) -> System:
        system, here = self.system, replace(self.system.first_stage, index=self._index)
        return System(here, ranker=system.ranker, depth=depth, shares=system.shares)

    def _rank(self, queries: Sequence[Query], candidates: Mapping[str, Sequence[str]]) -> Run:
        """The candidates in the order of the re-ranker or, if there is none, of the first stage."""
        system = self._on_corpus(max(1, *map(len, candidates.values())))
        first = system.first_stage.search(queries, len(self._index))
        chosen = Run({qid: _restrict(first.get(qid), docids) for qid, docids in candidates.items() if docids})
        return chosen if system.ranker is None else system.rerank(chosen, queries)


def _restrict(ranking: Ranking | None, docids: Sequence[str]) -> Ranking:
    """Scores of given documents; those that were not found follow the others."""
    scores = {} if ranking is None else dict(zip(ranking.docids, ranking.scores.tolist(), strict=True))
    least = min(scores.values(), default=0.0) - 1
    return Ranking.of(docids, [scores.get(docid, least) for docid in docids])


def _texts(batches: Batches) -> list[str]:
    return [text for batch in batches for text in batch["text"]]


def main() -> None:
    """Evaluate a model on tasks and print what MTEB says."""
    kinds = {"encoder": RankwellEncoder, "ranker": RankwellReranker, "system": RankwellSystem}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("model")
    parser.add_argument("tasks", nargs="+")
    options = parser.parse_args()
    print(mteb.evaluate(kinds[options.kind](options.model), mteb.get_tasks(tasks=options.tasks)))


if __name__ == "__main__":
    main()
