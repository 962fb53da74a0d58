"""The ranker: scores pairs, ranks documents, re-ranks runs. Behaves like sentence-transformers' CrossEncoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.templates import Template, TruncationReport, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows, aggregate_windows, cut_windows
from rankwell.rank.engine import Engine, load, probability, relevance

PAIRS_AT_A_TIME = 4096


class Texts(Protocol):
    """Where documents' texts come from: a document store, an index."""

    def texts(self, docids: Sequence[str]) -> list[str]:
        """The texts of several documents."""
        ...


class Ranker:
    """A cross-encoder ready to score.

    >>> ranker = Ranker.from_pretrained("model")                                   # doctest: +SKIP
    >>> ranker.predict([("how do bees keep warm", "The cluster shivers.")])        # doctest: +SKIP
    >>> ranker.rank("how do bees keep warm", ["The cluster shivers.", "Tea."])     # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: Template,
        *,
        windows: Windows | None = None,
        segments: int = 2,
    ):
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self.windows = windows
        self.truncation = TruncationReport()
        self._segments = segments

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        backend: str = "torch",
        windows: Windows | None = None,
        engine: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Ranker:
        """Load a checkpoint folder: ours, a transformers classifier, a CrossEncoder, or a bare BERT.

        ``changes`` replace parts of its configuration, say ``attention="strm"`` or ``template={"max_length": 180}``;
        ``engine`` holds the backend's own options (device, dtype, budget).
        """
        loaded = load(Path(folder), backend, changes, engine or {})
        windows = windows or (loaded.config.windows.build() if loaded.config.windows else None)
        template = loaded.config.template.build()
        return cls(loaded.engine, loaded.tokenizer, template, windows=windows, segments=loaded.segments)

    def predict(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        types: Sequence[str | None] | None = None,
        activation: Literal["probability"] | None = None,
    ) -> NDArray[np.float32]:
        """Score (query, document) pairs: raw scores, or probabilities on request. ``types`` are the queries' types."""
        queries, query_of = _distinct([query for query, _ in pairs])
        documents, document_of = _distinct([document for _, document in pairs])
        labels = None
        if types is not None:
            if len(types) != len(pairs):
                raise RankwellError(f"{len(types)} types for {len(pairs)} pairs")
            names, label_of = _distinct([(label or "").lower() for label in types])
            labels = self._encode(names).take(label_of)
        return self._score(self._encode(queries), query_of, self._encode(documents), document_of, labels, activation)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        *,
        type: str | None = None,
        return_documents: bool = False,
        activation: Literal["probability"] | None = None,
    ) -> list[dict[str, Any]]:
        """The documents, best first, as CrossEncoder.rank gives them: ``corpus_id``, ``score``, on request ``text``."""
        pairs = [(query, document) for document in documents]
        scores = self.predict(pairs, types=None if type is None else [type] * len(pairs), activation=activation)
        order = np.argsort(-scores, kind="stable")[:top_k]
        found: list[dict[str, Any]] = [{"corpus_id": int(i), "score": float(scores[i])} for i in order]
        if return_documents:
            for entry in found:
                entry["text"] = documents[entry["corpus_id"]]
        return found

    def rerank(
        self, run: Run, queries: Sequence[Query], texts: Texts, *, depth: int = 1000, name: str = "rankwell"
    ) -> Run:
        """A run of the same candidates, the first ``depth`` of each query, in the model's order."""
        by_qid = {query.qid: query for query in queries}
        missing = next((qid for qid in run if qid not in by_qid), None)
        if missing is not None:
            raise RankwellError(f"the run has results for query {missing!r}, which is not among the queries")
        rankings: dict[str, Ranking] = {}
        for qids in track(_groups(run, depth), "re-ranking", unit="groups of queries"):
            chosen = {qid: run[qid].docids[:depth] for qid in qids}
            docids, document_of = _distinct([docid for found in chosen.values() for docid in found])
            asked = [by_qid[qid] for qid in qids]
            sizes = [len(found) for found in chosen.values()]
            query_of = np.repeat(np.arange(len(qids)), sizes)
            labels = None
            if any(query.type for query in asked):
                labels = self._encode([(query.type or "").lower() for query in asked]).take(query_of)
            encoded = self._encode([query.text for query in asked])
            scores = self._score(encoded, query_of, self._encode(texts.texts(docids)), document_of, labels, None)
            parts = np.split(scores, np.cumsum(sizes)[:-1])
            for (qid, found), own in zip(chosen.items(), parts, strict=True):
                rankings[qid] = Ranking.of(found, own)
        return Run(rankings, name=name)

    def _encode(self, texts: Sequence[str]) -> Pieces:
        return self.tokenizer.encode(texts, stems=self.template.markers)

    def _score(
        self,
        queries: Pieces,
        query_of: NDArray[np.int64],
        documents: Pieces,
        document_of: NDArray[np.int64],
        types: Pieces | None,
        activation: Literal["probability"] | None,
    ) -> NDArray[np.float32]:
        """Scores of pairs given by the rows of their query and document."""
        if self.windows is not None:
            documents, document_of_window = cut_windows(documents, self.windows)
            counts = np.bincount(document_of_window, minlength=int(document_of_window.max(initial=-1)) + 1)
            first = np.cumsum(counts) - counts
            owners = np.repeat(np.arange(len(document_of)), counts[document_of])
            order = np.arange(len(owners)) - np.repeat(
                np.cumsum(counts[document_of]) - counts[document_of], counts[document_of]
            )
            document_of, query_of = first[document_of][owners] + order, query_of[owners]
            types = None if types is None else types.take(owners)
        parts = []
        special = self.tokenizer.special
        for begin in range(0, len(query_of), PAIRS_AT_A_TIME):
            piece = slice(begin, begin + PAIRS_AT_A_TIME)
            fields = {"query": queries.take(query_of[piece]), "document": documents.take(document_of[piece])}
            if types is not None:
                fields["type"] = types.take(np.arange(len(types))[piece])
            sequences = lay_out_pairs(self.template, special, fields, self.truncation, segments=self._segments)
            parts.append(self.engine.logits(sequences))
        if not parts:
            return np.zeros(0, np.float32)
        logits = np.concatenate(parts)
        scores = probability(logits) if activation == "probability" else relevance(logits)
        return aggregate_windows(scores, owners, self.windows.aggregate) if self.windows is not None else scores


def _distinct(values: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct values in the order they come, and which of them each value is."""
    numbers: dict[str, int] = {}
    which = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.int64, len(values))
    return list(numbers), which


def _groups(run: Run, depth: int) -> list[list[str]]:
    """Queries together as long as they have at most some ten thousand candidates, so that memory is bounded."""
    groups: list[list[str]] = []
    room = 0
    for qid, ranking in run.items():
        size = min(depth, len(ranking))
        if not groups or size > room:
            groups.append([])
            room = 4 * PAIRS_AT_A_TIME
        groups[-1].append(qid)
        room -= size
    return groups
