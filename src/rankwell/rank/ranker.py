"""The ranker: scores pairs, ranks documents, re-ranks runs. Behaves like sentence-transformers' CrossEncoder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, overload

import numpy as np

from rankwell.core.arrays import Rows, Scores
from rankwell.core.errors import RankwellError, excerpt, name_instead
from rankwell.core.manifest import digest
from rankwell.core.progress import expect, progress
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.corpus.sources import Source
from rankwell.inputs.batching import Sequences, row_blocks
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import LaidOutPairs, Reader
from rankwell.inputs.templates import Template, TruncationReport
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows, aggregate_windows
from rankwell.models.checkpoints.config import ConfigChanges
from rankwell.models.checkpoints.names import DEFAULT, find_model
from rankwell.models.devices import EXACT, Computing, ComputingOptions, Precision
from rankwell.rank.cache import ScoreCache
from rankwell.rank.engines.engine import ACTIVATIONS, Engine, LoadedModel, Logits, load
from rankwell.rank.pairs import (
    PAIRS_AT_A_TIME,
    Pair,
    Pairs,
    PredictOptions,
    best_first,
    check_keywords,
    checked_name,
    checked_pairs,
    convert,
    documents_to_rank,
    groups_of_queries,
    is_pair,
    split_rankings,
)
from rankwell.rank.rankers import RANKERS, WORDS, AnyRanker, check_options, kind_of, queries_by_id
from rankwell.rank.texts import Documents, Texts, distinct, make_tokens

LAYOUT = 2
"""The version of how pairs are laid out: cached scores of another version are not used."""
PIECES_AT_A_TIME = 512 * PAIRS_AT_A_TIME
Activation = Literal["probability", "softmax"] | None
"""Raw scores, p(relevant), or the softmax of two logits, which leaves one score as it is."""
Types = Sequence[str | None] | None
WindowsChoice = Windows | Literal["default"] | None
"""Windows for long documents, ``"default"`` for the model's, or None to truncate."""
Key = TypeVar("Key")


class RankerOptions(ConfigChanges, ComputingOptions, total=False):
    """The keywords of :class:`Ranker`."""

    windows: WindowsChoice
    max_length: int | None
    instruction: str | None
    engine: Mapping[str, Any] | None
    cache: ScoreCache | None


class Ranker:
    """A cross-encoder ready to score; ``Ranker()`` is the default model.

    >>> ranker = Ranker("my-model")                                                # doctest: +SKIP
    >>> ranker.predict([("how do bees keep warm", "The cluster shivers.")])        # doctest: +SKIP
    >>> ranker.rank("how do bees keep warm", ["The cluster shivers.", "Tea."])     # doctest: +SKIP
    """

    if not TYPE_CHECKING:
        __getattr__ = name_instead(save_pretrained="a model is a folder; copy it, or use `rankwell export`")

    def __init__(
        self,
        model: str | Path = DEFAULT,
        *,
        backend: str = "torch",
        device: str | None = None,
        precision: Precision | None = None,
        windows: WindowsChoice = "default",
        engine: Mapping[str, Any] | None = None,
        cache: ScoreCache | None = None,
        max_length: int | None = None,
        instruction: str | None = None,
        trust_remote_code: bool = False,
        **changes: Unpack[ConfigChanges],
    ):
        """Load a model by name or folder: rankwell's own, a transformers classifier, or a CrossEncoder.

        ``changes`` replace parts of its configuration, say ``attention="strm"`` or ``template={"max_length": 180}``;
        ``max_length`` is short for the latter. ``engine`` holds other options of the backend, say ``budget``. Scores in
        ``cache`` are not recomputed. Long documents are read in the model's windows, by default as large as fits;
        ``windows=None`` truncates them. ``instruction`` tells a language model what to look for. Code that comes with a
        model runs only with ``trust_remote_code``.
        """
        folder = find_model(checked_name(model), code=trust_remote_code)
        if max_length is not None:
            template = changes.get("template", {})
            as_dict = asdict(template) if isinstance(template, Template) else template
            # A short sequence has no room for the longest query of the model and a document.
            query = {"max_query": max_length // 2} if max_length < 2 * Template().max_query else {}
            changes["template"] = {**query, **as_dict, "max_length": max_length}
        computing = Computing(device, precision, backend, trust_remote_code)
        options = {**computing.engine_options(), **(engine or {})}
        loaded = load(folder, backend, changes, options)
        identity = ""
        if cache is not None:
            computed = options | ({"dtype": loaded.engine.precision} if "dtype" in options else {})
            exact = loaded.engine.device == "cpu" and computed.get("dtype") == "fp32"  # as without a precision
            unnamed = ("budget", "threads", "dtype") if exact else ("budget", "threads")
            description = {
                "files": cache.model_digest(folder),
                "backend": backend,
                "device": loaded.engine.device,
                "options": {name: value for name, value in computed.items() if name not in unnamed},
                "config": loaded.config.model_dump(exclude={"template", "windows", "history", "figures"}),
                **({} if instruction is None else {"instruction": instruction}),
            }
            identity = digest(description)
        self.engine, self.reader = loaded.engine, _reader_of(loaded, windows).asking(instruction)
        self.cache, self.identity = cache, identity
        self.name = str(model)
        self._process = os.getpid()
        given: dict[str, Any] = {**asdict(computing), "windows": windows, "engine": engine, **changes}
        given["instruction"] = instruction
        self._made_of: tuple[Any, ...] | None = folder, given, getattr(cache, "path", None)

    def __reduce__(self) -> tuple[Any, ...]:
        # By its folder: another process loads the model anew.
        if self._made_of is None:
            raise RankwellError("a ranker made of loaded parts cannot be pickled; save the model and use its folder")
        return _reopen, self._made_of

    @classmethod
    def from_pretrained(cls, folder: str | Path = DEFAULT, **options: Unpack[RankerOptions]) -> Ranker:
        """Same as ``Ranker(folder, …)``, under the name that transformers uses."""
        return cls(folder, **options)

    @classmethod
    def from_loaded(cls, loaded: LoadedModel, windows: WindowsChoice = "default") -> Ranker:
        """Make a ranker from a model that a backend has loaded."""
        return cls.from_engine(loaded.engine, _reader_of(loaded, windows))

    @classmethod
    def from_engine(
        cls, engine: Engine, reader: Reader, *, cache: ScoreCache | None = None, identity: str = ""
    ) -> Ranker:
        """Make a ranker from loaded parts; ``identity`` names the model in the cache."""
        if cache is not None and not identity:
            raise RankwellError("a score cache needs the model's identity: two models must not share scores")
        ranker = cls.__new__(cls)
        ranker.engine, ranker.reader = engine, reader
        ranker.cache, ranker.identity = cache, identity
        ranker.name = type(engine).__name__
        ranker._process, ranker._made_of = os.getpid(), None
        return ranker

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.reader.tokenizer

    @property
    def template(self) -> Template:
        """How the model's sequences are made of query and document."""
        return self.reader.template

    @property
    def windows(self) -> Windows | None:
        """The windows long documents are read in; None if they are truncated."""
        return self.reader.windows

    @windows.setter
    def windows(self, windows: Windows | None) -> None:
        self.reader = replace(self.reader, windows=windows)

    @property
    def truncation(self) -> TruncationReport:
        """Counts of what was truncated and what was read in windows so far."""
        return self.reader.truncation

    @property
    def max_length(self) -> int:
        """Maximum sequence length in tokens."""
        return self.template.max_length

    @property
    def device(self) -> str:
        """Where the model runs, as torch names devices."""
        return self.engine.device

    def __repr__(self) -> str:
        where = f"{self.engine.device} {self.engine.precision}"
        return f"Ranker({self.name!r}, {where}, template {self.template.name}, max_length {self.max_length})"

    @overload
    def predict(
        self, pairs: Pair, *, types: Types = None, activation: Activation = None, **options: Unpack[PredictOptions]
    ) -> np.float32: ...
    @overload
    def predict(
        self,
        pairs: Sequence[Pair],
        *,
        types: Types = None,
        activation: Activation = None,
        **options: Unpack[PredictOptions],
    ) -> Scores: ...
    def predict(
        self,
        pairs: Pair | Sequence[Pair],
        *,
        types: Types = None,
        activation: Activation = None,
        **options: Unpack[PredictOptions],
    ) -> np.float32 | Scores:
        """Score one (query, document) pair or a list of them: raw scores, or probabilities on request.

        ``types`` are the queries' types. A single pair gets a single score. ``options`` are CrossEncoder's keywords.
        """
        check_keywords(options)
        self.template.require("query", "document")
        alone = is_pair(pairs)
        checked = checked_pairs([pairs] if alone else pairs)
        if types is not None and len(types) != len(checked):
            raise RankwellError(f"{len(types)} types for {len(checked)} pairs")
        if any(types or ()) and not self.takes_types:
            raise RankwellError(f"the template {self.template.name} has no place for types")
        if options.get("apply_softmax") and activation is None:
            activation = "softmax"
        if not checked:
            return cast("Scores", convert(np.zeros(0, np.float32), options))
        queries, query_of = distinct([query for query, _ in checked])
        texts, document_of = distinct([document for _, document in checked])
        labels, label_of = distinct([(label or "").lower() for label in types or [None] * len(checked)])
        documents = Documents.of(texts, self.reader)
        group = Pairs(queries, query_of, labels, label_of, documents, document_of)
        shown = (
            progress("scoring", total=len(checked), unit="pairs") if options.get("show_progress_bar") else nullcontext()
        )
        with shown:
            ((_, scores),) = self._score([group], activation)
        return cast("Scores", convert(np.float32(scores[0]) if alone else scores, options))

    def rank(
        self,
        query: str,
        documents: Source,
        top_k: int | None = None,
        *,
        type: str | None = None,
        return_documents: bool = False,
        activation: Activation = None,
        **options: Unpack[PredictOptions],
    ) -> list[dict[str, Any]]:
        """The documents, best first, like CrossEncoder.rank: ``corpus_id``, ``score`` and, on request, ``text``.

        ``documents`` are texts, whose ``corpus_id`` is their place in the list, or ``{id: text}``, records or a frame,
        which have ids of their own. ``options`` are CrossEncoder's keywords.
        """
        ids, texts = documents_to_rank(query, documents, top_k)
        types = None if type is None else [type] * len(texts)
        scores = self.predict([(query, text) for text in texts], types=types, activation=activation, **options)
        return best_first(np.asarray(scores), ids, texts if return_documents else None, top_k)

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
        rankings = {qid: Ranking.of((), ()) for qid in run}
        total = sum(min(depth, len(ranking)) for ranking in run.values())
        with progress("re-ranking", total=total, unit="pairs") as work:
            for pairs, scores in self._score(self.groups(run, queries, texts, depth=depth), activation):
                rankings |= split_rankings(pairs.docids, scores)
                work.finish(len(pairs))
        return Run(rankings, name=name)

    @property
    def takes_types(self) -> bool:
        """Whether the template has a place for the query's type."""
        return self.reader.typed

    def store_tokens(self, texts: Texts) -> None:
        """Tokenise all documents of an index or store and save the tokens there."""
        make_tokens(texts, self.tokenizer, stems=self.reader.stems)

    def groups(self, run: Run, queries: Sequence[Query], texts: Texts, *, depth: int = 1000) -> Iterator[Pairs]:
        """A run's first ``depth`` candidates of each query as pairs to score, some queries at a time."""
        self.template.require("query", "document")
        by_qid = queries_by_id(run, queries, depth)
        for qids in groups_of_queries(run, depth):
            candidates = {qid: run[qid].docids[:depth] for qid in qids}
            query_of = np.repeat(np.arange(len(qids)), [len(docids) for docids in candidates.values()])
            names, document_of = distinct(list(chain.from_iterable(candidates.values())))
            if names:
                yield Pairs(
                    [by_qid[qid].text for qid in qids],
                    query_of,
                    [(by_qid[qid].type or "").lower() for qid in qids],
                    query_of,
                    Documents(names, texts, self.reader),
                    document_of,
                    candidates,
                )

    def scope(self, activation: str | None = None) -> str:
        """A digest of what a score depends on besides the texts."""
        windows = None if self.windows is None else asdict(self.windows)
        return digest([self.identity, asdict(self.template), windows, activation, LAYOUT])

    def _score(self, groups: Iterable[Pairs], activation: Activation) -> Iterator[tuple[Pairs, Scores]]:
        """One score for each pair of each group, from the cache where it has them."""
        if self.cache is None:
            for pairs, scores, owners in self.score_windows(groups, activation):
                yield pairs, aggregate_windows(scores, owners, self.reader.aggregate)
            return
        scope = self.scope(activation)
        for pairs in groups:
            yield pairs, self.cache.complete(pairs.keys(scope), partial(self._score_rows, pairs, activation))

    def _score_rows(self, pairs: Pairs, activation: Activation, rows: Rows) -> Scores:
        ((_, scores, owners),) = self.score_windows([pairs.take(rows)], activation)
        return aggregate_windows(scores, owners, self.reader.aggregate)

    def score_windows(
        self, groups: Iterable[Pairs], activation: Activation = None
    ) -> Iterator[tuple[Pairs, Scores, Rows]]:
        """For each group of pairs (none empty) the scores of all windows, and the pair each window belongs to."""
        if os.getpid() != self._process:
            if not self.engine.continue_after_fork():
                problem = "this ranker was loaded before a fork; load it in each process, or start them by spawn"
                raise RankwellError(problem)
            self._process = os.getpid()
        activate = ACTIVATIONS[activation]
        parts = ((laid.sequences, (pairs, owners)) for pairs in groups for laid, owners in self._lay_out(pairs))
        for pairs, results in groupby(run_ahead(self.engine, parts), key=lambda result: result[1][0]):
            logits, keys = zip(*results, strict=True)
            raw, owners = np.concatenate(logits), np.concatenate([owners for _, owners in keys])
            if (wrong := ~np.isfinite(raw).all(axis=1)).any():
                query = pairs.queries[int(pairs.query_of[owners[wrong.argmax()]])]
                raise RankwellError(f"the model's score for the query {excerpt(query)} is not a finite number")
            yield pairs, activate(raw), owners

    def _lay_out(self, pairs: Pairs) -> Iterator[tuple[LaidOutPairs, Rows]]:
        """The pairs laid out in parts of bounded size, each with the pair every window belongs to."""
        queries, query_of = self._encode(pairs.queries, pairs.query_of, self.reader.encode_queries)
        types, type_of = self._encode(pairs.types, pairs.type_of, self.reader.encode)
        rows, document_of = np.unique(pairs.document_of, return_inverse=True)
        source, numbers = pairs.documents.tokens(rows)
        for begin, end in row_blocks(source.lengths(numbers)[document_of], PIECES_AT_A_TIME, PAIRS_AT_A_TIME):
            block = slice(begin, end)
            fields = {"query": queries.take(query_of[block]), "document": source.at(numbers[document_of[block]])}
            if len(types.ids):
                fields["type"] = types.take(type_of[block])
            for laid in self.reader.lay_out_parts(fields, PAIRS_AT_A_TIME):
                expect(len(np.unique(laid.owners)), len(laid.sequences))
                yield laid, laid.owners + begin

    def _encode(
        self, texts: Sequence[str], which: Rows, encode: Callable[[Sequence[str]], Pieces]
    ) -> tuple[Pieces, Rows]:
        """The pieces of the texts that are used, and which of them each pair has."""
        used, rows = np.unique(which, return_inverse=True)
        return encode([texts[i] for i in used.tolist()]), rows


def _reopen(folder: Path, options: Mapping[str, Any], cache: Path | None) -> Ranker:
    return Ranker(folder, cache=ScoreCache(cache) if cache else None, **options)


def _reader_of(loaded: LoadedModel, windows: WindowsChoice) -> Reader:
    config = loaded.config
    windows = config.inference_windows if windows == "default" else windows
    return Reader(loaded.tokenizer, config.template, windows, loaded.segments)


def run_ahead(engine: Engine, parts: Iterable[tuple[Sequences, Key]]) -> Iterator[tuple[Logits, Key]]:
    """The logits of each part, in order; the next part is laid out while the engine computes."""
    waiting = None
    for sequences, key in parts:
        submitted = engine.submit(sequences), key
        if waiting is not None:
            yield waiting[0](), waiting[1]
        waiting = submitted
    if waiting is not None:
        yield waiting[0](), waiting[1]


def open_ranker(
    model: str | Path = DEFAULT, computing: Computing = EXACT, *, words: bool = False, **options: Any
) -> AnyRanker:
    """Open a ranker of any kind; with ``words``, a bi-encoder that compares texts word by word.

    ``options`` are those of :meth:`Ranker.from_pretrained <rankwell.rank.ranker.Ranker.from_pretrained>`. Raises for
    options that the kind does not support.
    """
    options = {name: value for name, value in asdict(computing).items() if value != getattr(EXACT, name)} | options
    folder = find_model(model, code=options.get("trust_remote_code", False))
    kind = WORDS if words else kind_of(folder)
    check_options(folder, kind, **options)
    if kind is None:
        ranker = Ranker(folder, **options)
        ranker.template.require("query", "document")
        return ranker
    options = {name: value for name, value in options.items() if name in RANKERS[kind].options}
    other: AnyRanker = RANKERS[kind].from_pretrained(folder, **options)
    return other
