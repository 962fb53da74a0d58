"""The ranker: scores pairs, ranks documents, re-ranks runs. Behaves like sentence-transformers' CrossEncoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.manifest import digest
from rankwell.core.progress import track
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.templates import Template, TruncationReport, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows, aggregate_windows, cut_windows
from rankwell.rank.cache import Keys, ScoreCache, join_hashes, text_hashes
from rankwell.rank.engine import Engine, load, probability, relevance

PAIRS_AT_A_TIME = 4096


class Texts(Protocol):
    """Where documents' texts come from: a document store, an index."""

    def texts(self, docids: Sequence[str]) -> list[str]:
        """The texts of several documents."""
        ...


@dataclass(frozen=True, eq=False)
class TextPairs:
    """Pairs as rows of distinct texts: pair ``i`` is ``queries[query_of[i]]``, of the type … ("": none), with …"""

    queries: list[str]
    query_of: NDArray[np.int64]
    types: list[str]
    type_of: NDArray[np.int64]
    documents: list[str]
    document_of: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.query_of)

    def take(self, rows: NDArray[np.int64]) -> TextPairs:
        """Some of the pairs, with the texts they need."""
        if len(rows) == len(self):
            return self
        parts: list[Any] = []
        for texts, which in (
            (self.queries, self.query_of),
            (self.types, self.type_of),
            (self.documents, self.document_of),
        ):
            used, fresh = np.unique(which[rows], return_inverse=True)
            parts += [[texts[i] for i in used], fresh]
        return TextPairs(*parts)

    def keys(self, scope: str) -> Keys:
        """The pairs' keys in a score cache."""
        return join_hashes(
            text_hashes([scope], "model"),
            text_hashes(self.queries, "query")[self.query_of],
            text_hashes(self.types, "type")[self.type_of],
            text_hashes(self.documents, "document")[self.document_of],
        )


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
        cache: ScoreCache | None = None,
        identity: str = "",
    ):
        if cache is not None and not identity:
            raise RankwellError("a score cache needs the model's identity: two models must not share scores")
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self.windows = windows
        self.truncation = TruncationReport()
        self.segments = segments
        self.cache = cache
        self.identity = identity

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        backend: str = "torch",
        windows: Windows | None = None,
        engine: Mapping[str, Any] | None = None,
        cache: ScoreCache | None = None,
        **changes: Any,
    ) -> Ranker:
        """Load a checkpoint folder: ours, a transformers classifier, a CrossEncoder, or a bare BERT.

        ``changes`` replace parts of its configuration, say ``attention="strm"`` or ``template={"max_length": 180}``;
        ``engine`` holds the backend's own options (device, dtype, budget). What ``cache`` holds is not computed.
        """
        loaded = load(Path(folder), backend, changes, engine or {})
        windows = windows or (loaded.config.windows.build() if loaded.config.windows else None)
        template = loaded.config.template.build()
        identity = ""
        if cache is not None:
            description = {
                "files": cache.model_digest(folder),
                "backend": backend,
                "device": str(getattr(loaded.engine, "device", "")),
                "options": {name: value for name, value in (engine or {}).items() if name not in ("budget", "threads")},
                "config": loaded.config.model_dump(exclude={"template", "windows", "history", "figures"}),
            }
            identity = digest(description)
        return cls(
            loaded.engine,
            loaded.tokenizer,
            template,
            windows=windows,
            segments=loaded.segments,
            cache=cache,
            identity=identity,
        )

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
        if types is not None and len(types) != len(pairs):
            raise RankwellError(f"{len(types)} types for {len(pairs)} pairs")
        if any(types or ()) and all(field.name != "type" for field in self.template.fields):
            raise RankwellError(f"types are given, but the template {self.template.name} has no place for them")
        labels, label_of = _distinct([(label or "").lower() for label in types or [None] * len(pairs)])
        return self._score_texts(TextPairs(queries, query_of, labels, label_of, documents, document_of), activation)

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
        if depth < 1:
            raise RankwellError(f"the depth must be at least 1, not {depth}")
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
            questions, labels = [query.text for query in asked], [(query.type or "").lower() for query in asked]
            pairs = TextPairs(questions, query_of, labels, query_of, texts.texts(docids), document_of)
            scores = self._score_texts(pairs, None)
            parts = np.split(scores, np.cumsum(sizes)[:-1])
            for (qid, found), own in zip(chosen.items(), parts, strict=True):
                rankings[qid] = Ranking.of(found, own)
        return Run(rankings, name=name)

    def _encode(self, texts: Sequence[str]) -> Pieces:
        return self.tokenizer.encode(texts, stems=self.template.markers)

    def _score_texts(self, pairs: TextPairs, activation: Literal["probability"] | None) -> NDArray[np.float32]:
        """Scores of pairs of texts: from the cache where it has them."""

        def compute(rows: NDArray[np.int64]) -> NDArray[np.float32]:
            own = pairs.take(rows)
            types = self._encode(own.types).take(own.type_of) if any(own.types) else None
            queries, documents = self._encode(own.queries), self._encode(own.documents)
            return self._score(queries, own.query_of, documents, own.document_of, types, activation)

        if self.cache is None:
            return compute(np.arange(len(pairs)))
        return self.cache.complete(pairs.keys(self.scope(activation)), compute)

    def scope(self, activation: str | None = None) -> str:
        """What a score depends on beside the texts, in a few letters."""
        windows = None if self.windows is None else asdict(self.windows)
        return digest([self.identity, asdict(self.template), windows, activation])

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
            sequences = lay_out_pairs(self.template, special, fields, self.truncation, segments=self.segments)
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
