"""The ranker: scores pairs, ranks documents, re-ranks runs. Behaves like sentence-transformers' CrossEncoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from rankwell.core.errors import RankwellError, excerpt
from rankwell.core.manifest import digest
from rankwell.core.progress import track
from rankwell.core.types import Rows, Scores
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.inputs.batching import Sequences, row_blocks
from rankwell.inputs.fitting import Fitting, window_fields
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.stored import InMemoryTokens, TokenSource
from rankwell.inputs.templates import Template, TruncationReport, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows, aggregate_windows
from rankwell.models.checkpoints.names import DEFAULT, find_model
from rankwell.rank.cache import Keys, ScoreCache, join_hashes, text_hashes
from rankwell.rank.engines.engine import Engine, Logits, Precision, engine_options, load, probability, relevance
from rankwell.rank.rankers import best_first, check_cross_encoder
from rankwell.rank.texts import Texts as Texts
from rankwell.rank.texts import distinct, find_tokens, make_tokens

FITTING = Fitting()
PAIRS_AT_A_TIME = 4096
PIECES_AT_A_TIME = 512 * PAIRS_AT_A_TIME
Activation = Literal["probability"] | None
Pair = tuple[str, str]
Types = Sequence[str | None] | None


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs as rows of distinct texts: pair ``i`` is query ``query_of[i]``, of type … ("": none), with document …"""

    queries: list[str]
    query_of: Rows
    types: list[str]
    type_of: Rows
    document_of: Rows

    def __len__(self) -> int:
        return len(self.query_of)

    def keys(self, scope: str, documents: Sequence[str]) -> Keys:
        """The pairs' keys in a score cache; ``documents`` are the distinct documents' texts."""
        return join_hashes(
            text_hashes([scope], "model"),
            text_hashes(self.queries, "query")[self.query_of],
            text_hashes(self.types, "type")[self.type_of],
            text_hashes(documents, "document")[self.document_of],
        )


@dataclass(frozen=True, eq=False)
class Documents:
    """The distinct documents of some pairs: their texts, which only a cache needs, and their tokens."""

    texts: Callable[[], Sequence[str]]
    tokens: Callable[[Rows], tuple[TokenSource, Rows]]
    """A source that has those of these rows, and their numbers in it."""


@dataclass(frozen=True, eq=False)
class Group:
    """Some queries of a run: the documents of each, and all of them, query by query, as pairs."""

    qids: list[str]
    docids: list[tuple[str, ...]]
    pairs: Pairs
    documents: Documents


class Ranker:
    """A cross-encoder ready to score; ``Ranker()`` is the default model.

    >>> ranker = Ranker.from_pretrained("model")                                   # doctest: +SKIP
    >>> ranker.predict([("how do bees keep warm", "The cluster shivers.")])        # doctest: +SKIP
    >>> ranker.rank("how do bees keep warm", ["The cluster shivers.", "Tea."])     # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Engine | None = None,
        tokenizer: Tokenizer | None = None,
        template: Template | None = None,
        *,
        windows: Windows | None = FITTING,
        segments: int = 2,
        cache: ScoreCache | None = None,
        identity: str = "",
    ):
        if engine is None or tokenizer is None or template is None:
            if any(part is not None for part in (engine, tokenizer, template)):
                raise TypeError("a ranker is made of engine, tokenizer and template, or of nothing: the default model")
            shipped = load(find_model(), "torch", {}, {})
            engine, tokenizer, template = shipped.engine, shipped.tokenizer, shipped.config.template.build()
            segments = shipped.segments
            windows = shipped.config.reading() if windows is FITTING else windows
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
        folder: str | Path = DEFAULT,
        *,
        backend: str = "torch",
        device: str | None = None,
        precision: Precision | None = None,
        windows: Windows | Literal["default"] | None = "default",
        engine: Mapping[str, Any] | None = None,
        cache: ScoreCache | None = None,
        **changes: Any,
    ) -> Ranker:
        """Load a checkpoint folder: ours, a transformers classifier, a CrossEncoder, or a bare BERT; or the default.

        ``changes`` replace parts of its configuration, say ``attention="strm"`` or ``template={"max_length": 180}``;
        ``engine`` holds other options of the backend, say ``budget``. Scores in ``cache`` are not recomputed.
        Long documents are read in the checkpoint's windows, or else in as many as they need; with ``windows=None``
        they are cut.
        """
        folder = find_model(folder)
        check_cross_encoder(folder)
        engine = {**engine_options(backend, device, precision), **(engine or {})}
        loaded = load(folder, backend, changes, engine)
        if windows == "default":
            windows = loaded.config.reading()
        identity = ""
        if cache is not None:
            description = {
                "files": cache.model_digest(folder),
                "backend": backend,
                # Exported models run on the CPU only; their entries in existing caches name no device.
                "device": loaded.engine.device if backend == "torch" else "",
                "options": {name: value for name, value in engine.items() if name not in ("budget", "threads")},
                "config": loaded.config.model_dump(exclude={"template", "windows", "history", "figures"}),
            }
            identity = digest(description)
        return cls(
            loaded.engine,
            loaded.tokenizer,
            loaded.config.template.build(),
            windows=windows,
            segments=loaded.segments,
            cache=cache,
            identity=identity,
        )

    @overload
    def predict(self, pairs: Pair, *, types: Types = None, activation: Activation = None) -> np.float32: ...
    @overload
    def predict(self, pairs: Sequence[Pair], *, types: Types = None, activation: Activation = None) -> Scores: ...
    def predict(
        self, pairs: Pair | Sequence[Pair], *, types: Types = None, activation: Activation = None
    ) -> np.float32 | Scores:
        """Score (query, document) pairs, or one: raw scores, or probabilities on request. ``types`` are the queries'.

        One pair, two strings that are in no list, gets a score that is in none.
        """
        alone = _is_pair(pairs)
        given = _checked_pairs([pairs] if alone else pairs)
        (queries, query_of), (documents, document_of) = (distinct([pair[side] for pair in given]) for side in (0, 1))
        if types is not None and len(types) != len(given):
            raise RankwellError(f"{len(types)} types for {len(given)} pairs")
        if any(types or ()) and not self.takes_types:
            raise RankwellError(f"types are given, but the template {self.template.name} has no place for them")
        labels, label_of = distinct([(label or "").lower() for label in types or [None] * len(given)])

        def tokens(rows: Rows) -> tuple[TokenSource, Rows]:
            used = [documents[row] for row in rows.tolist()]
            return InMemoryTokens(list(map(str, range(len(used)))), used, self.tokenizer, self._stems), np.arange(
                len(used)
            )

        found = Pairs(queries, query_of, labels, label_of, document_of)
        scores = self._begin(found, Documents(lambda: documents, tokens), activation)()
        return np.float32(scores[0]) if alone else scores

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        *,
        type: str | None = None,
        return_documents: bool = False,
        activation: Activation = None,
    ) -> list[dict[str, Any]]:
        """The documents, best first, as CrossEncoder.rank gives them: ``corpus_id``, ``score``, on request ``text``."""
        pairs = [(query, document) for document in documents]
        scores = self.predict(pairs, types=None if type is None else [type] * len(pairs), activation=activation)
        return best_first(scores, documents if return_documents else None, top_k)

    def rerank(
        self,
        run: Run,
        queries: Sequence[Query],
        texts: Texts,
        *,
        depth: int = 1000,
        activation: Activation = None,
        name: str = "rankwell",
    ) -> Run:
        """A run of the same candidates, the first ``depth`` of each query, in the model's order."""
        rankings: dict[str, Ranking] = {}
        rest: Callable[[], dict[str, Ranking]] = dict
        for group in self.groups(run, queries, texts, depth=depth):
            finish = self._begin(group.pairs, group.documents, activation)
            # Only now that this group is begun are the scores of the one before it waited for.
            rankings |= rest()
            rest = partial(_rank_all, group.qids, group.docids, finish)
        return Run(rankings | rest(), name=name)

    @property
    def takes_types(self) -> bool:
        """Whether the template has a place for the query's type."""
        return any(field.name == "type" for field in self.template.fields)

    def store_tokens(self, texts: Texts) -> None:
        """Tokenise all documents of an index or store and save the tokens there."""
        make_tokens(texts, self.tokenizer, stems=self._stems)

    def groups(self, run: Run, queries: Sequence[Query], texts: Texts, *, depth: int = 1000) -> Iterator[Group]:
        """A run's first ``depth`` candidates of each query as pairs to score, some queries at a time."""
        if depth < 1:
            raise RankwellError(f"the depth must be at least 1, not {depth}")
        by_qid = {query.qid: query for query in queries}
        missing = next((qid for qid in run if qid not in by_qid), None)
        if missing is not None:
            raise RankwellError(f"the run has results for query {missing!r}, which is not among the queries")
        for qids in track(groups_of_queries(run, depth), "re-ranking", unit="groups of queries"):
            chosen = [run[qid].docids[:depth] for qid in qids]
            asked = [by_qid[qid] for qid in qids]
            query_of = np.repeat(np.arange(len(qids)), [len(docids) for docids in chosen])
            questions, labels = [query.text for query in asked], [(query.type or "").lower() for query in asked]
            documents, document_of = self.documents(list(chain.from_iterable(chosen)), texts)
            yield Group(qids, chosen, Pairs(questions, query_of, labels, query_of, document_of), documents)

    def documents(self, docids: list[str], texts: Texts) -> tuple[Documents, Rows]:
        """The distinct ones of these documents, and which of them each one is: as kept tokens where there are any."""
        # With a cache, perhaps no tokens are needed: then they are not looked for yet.
        found = find_tokens(texts, self.tokenizer, stems=self._stems) if self.cache is None else None
        if found is not None:
            source = found
            numbers, first, document_of = np.unique(source.numbers(docids), return_index=True, return_inverse=True)
            own = Documents(lambda: texts.texts([docids[i] for i in first]), lambda rows: (source, numbers[rows]))
            return own, document_of
        names, document_of = distinct(docids)

        def tokens(rows: Rows) -> tuple[TokenSource, Rows]:
            used = [names[row] for row in rows.tolist()]
            source = find_tokens(texts, self.tokenizer, stems=self._stems)
            source = source or InMemoryTokens(used, texts.texts(used), self.tokenizer, self._stems)
            return source, source.numbers(used)

        return Documents(lambda: texts.texts(names), tokens), document_of

    @property
    def _stems(self) -> bool:
        return self.template.markers

    def scope(self, activation: str | None = None) -> str:
        """What a score depends on beside the texts, in a few letters."""
        windows = None if self.windows is None else asdict(self.windows)
        return digest([self.identity, asdict(self.template), windows, activation])

    def _begin(self, pairs: Pairs, documents: Documents, activation: Activation = None) -> Callable[[], Scores]:
        """Begin to score pairs, except those the cache has; what is returned gives the scores, and waits for them."""
        if self.cache is None:
            return self._compute(pairs, documents, np.arange(len(pairs)), activation)
        keys = pairs.keys(self.scope(activation), documents.texts())
        scores = self.cache.complete(keys, lambda rows: self._compute(pairs, documents, rows, activation)())
        return lambda: scores

    def _compute(self, pairs: Pairs, documents: Documents, rows: Rows, activation: Activation) -> Callable[[], Scores]:
        """Begin to score some of the pairs."""
        finish = self.begin_windows(pairs, documents, rows, activation)
        how = "first" if self.windows is None else self.windows.aggregate
        return lambda: aggregate_windows(*finish(), how)

    def begin_windows(
        self, pairs: Pairs, documents: Documents, rows: Rows, activation: Activation = None
    ) -> Callable[[], tuple[Scores, Rows]]:
        """Begin to score the windows of some of the pairs; what is returned gives their scores and whose each is."""
        owners: list[Rows] = []
        finish = submit_all(self.engine, self._lay_out(pairs, documents, rows, owners))

        def scores() -> tuple[Scores, Rows]:
            if (logits := finish()) is None:
                return np.zeros(0, np.float32), np.zeros(0, np.int64)
            found = probability(logits) if activation == "probability" else relevance(logits)
            return found, np.concatenate(owners)

        return scores

    def _lay_out(self, pairs: Pairs, documents: Documents, rows: Rows, owners: list[Rows]) -> Iterator[Sequences]:
        """The sequences of some of the pairs, in parts of bounded size; whose each is goes to ``owners``."""
        if not len(rows):
            return
        special = self.tokenizer.special
        (queries, query_of), (types, type_of) = (
            self._encode(texts, which[rows])
            for texts, which in ((pairs.queries, pairs.query_of), (pairs.types, pairs.type_of))
        )
        used, document_of = np.unique(pairs.document_of[rows], return_inverse=True)
        source, numbers = documents.tokens(used)
        for begin, end in row_blocks(source.lengths(numbers)[document_of], PIECES_AT_A_TIME, PAIRS_AT_A_TIME):
            block = slice(begin, end)
            fields = {"query": queries.take(query_of[block]), "document": source.at(numbers[document_of[block]])}
            if len(types.ids):
                fields["type"] = types.take(type_of[block])
            fields, pair_of = window_fields(self.template, self.tokenizer, fields, self.windows)
            for part in _whole_pairs(pair_of):
                some = np.arange(part.start, part.stop)
                own = fields if len(some) == len(pair_of) else {name: rows.take(some) for name, rows in fields.items()}
                report = self.truncation.of_windows(pair_of[part])
                owners.append(pair_of[part] + begin)
                yield lay_out_pairs(self.template, special, own, report, segments=self.segments)

    def _encode(self, texts: Sequence[str], which: Rows) -> tuple[Pieces, Rows]:
        """The pieces of the texts that are used, and which of them each pair has."""
        used, fresh = np.unique(which, return_inverse=True)
        return self.tokenizer.encode([texts[i] for i in used.tolist()], stems=self._stems), fresh


def _is_pair(value: Any) -> bool:
    listed = isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str)
    return listed and len(value) == 2 and all(isinstance(text, str) for text in value)


def _checked_pairs(pairs: Iterable[Any]) -> list[Pair]:
    pairs = list(pairs)
    for place, pair in enumerate(pairs, 1):
        if not _is_pair(pair):
            found = f"pair {place} is {excerpt(repr(pair))}"
            raise RankwellError(f"{found}; expected (query, document), two strings, or a list of such pairs")
    return pairs


def submit_all(engine: Engine, parts: Iterable[Sequences]) -> Callable[[], Logits | None]:
    """Begin to score all parts; what is returned gives their logits, ``None`` of no parts.

    Each part is laid out while an engine that can computes the one before, so the last is all there is to wait for.
    """
    done: list[Logits] = []
    waiting: list[Callable[[], Logits]] = []
    for part in parts:
        waiting.append(engine.submit(part))
        if len(waiting) > 1:
            done.append(waiting.pop(0)())
    return lambda: np.concatenate([*done, *(wait() for wait in waiting)]) if done or waiting else None


def _rank_all(qids: list[str], docids: list[tuple[str, ...]], scores: Callable[[], Scores]) -> dict[str, Ranking]:
    parts = np.split(scores(), np.cumsum([len(own) for own in docids])[:-1])
    return {qid: Ranking.of(own, part) for qid, own, part in zip(qids, docids, parts, strict=True)}


def _whole_pairs(pair_of: Rows) -> Iterator[slice]:
    """Windows together as long as there are not too many of them; those of one pair stay together."""
    bounds = np.append(np.flatnonzero(np.diff(pair_of, prepend=-1)), len(pair_of))
    begin = 0
    while begin < len(pair_of):
        fitting = int(bounds[np.searchsorted(bounds, begin + PAIRS_AT_A_TIME, side="right") - 1])
        end = fitting if fitting > begin else int(bounds[np.searchsorted(bounds, begin, side="right")])
        yield slice(begin, end)
        begin = end


def groups_of_queries(run: Run, depth: int, most: int | None = None) -> list[list[str]]:
    """Consecutive queries with at most ``most`` candidates together, to bound memory."""
    groups: list[list[str]] = []
    room = 0
    for qid, ranking in run.items():
        size = min(depth, len(ranking))
        if not groups or size > room:
            groups.append([])
            room = most or 4 * PAIRS_AT_A_TIME
        groups[-1].append(qid)
        room -= size
    return groups
