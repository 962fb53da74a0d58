"""What is served: an index and models, which are opened and replaced together.

A :class:`State` never changes. A request uses the state that is current when it begins, so its answer comes from one
index and one model even if they are reloaded meanwhile; an old state is closed after its last request.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwell.core.arrays import Scores
from rankwell.core.errors import RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Document, Query, Ranking, Run
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import LaidOutPairs
from rankwell.inputs.stored import StoredTokens
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import DEFAULT, default_lacks, find_model, published_name
from rankwell.models.devices import EXACT, Computing
from rankwell.rank.defaults import UNFITTED
from rankwell.rank.engines.engine import load
from rankwell.rank.first_stage import EVERYTHING, FirstStage, Scope
from rankwell.rank.fusion import fuse
from rankwell.rank.models import Models
from rankwell.rank.ranker import Ranker
from rankwell.rank.relevance import signals_of, word_shares
from rankwell.rank.system import DEPTH, System
from rankwell.rank.texts import SYSTEM
from rankwell.retrieve.index import Index
from rankwell.serve.describe import example_queries

if TYPE_CHECKING:
    from rankwell.rank.dense import EncodedQueries

NO_MODEL = "no re-ranker is served; add one with --model"
QID = "query"
"""The id of a request's query in the runs that are fused."""
NOTHING = Ranking.of([], [])
WARM_UP = "how do bees keep warm in winter"
WARM_UP_TOKENS = 2048
SAMPLED = 16
"""How many documents of an index are laid out to learn how long they are for a model."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where index and models are, and how they compute; ``engine`` are further options of the backend's engine."""

    index: Path | None = None
    """An index, or a system if ``is_system``."""
    models: tuple[str, ...] = ()
    computing: Computing = EXACT
    engine: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    """Options of :meth:`System.of_index`."""
    is_system: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of models: clients that send a fixed name can use them."""
    reranks: bool = True
    """Whether re-ranking was asked for; else an index is searched as :data:`UNFITTED` says."""
    min_relevance: float | None = None
    """Answers of less relevance are left out, unless a request says otherwise."""

    def open_system(self) -> System | None:
        """Open what is searched, if anything is."""
        search = self.search
        if search.get("shares") is not None and (self.index is None or not self.models):
            raise RankwellError("fusing the scores of BM25 and a model needs an index and a model")
        if search.get("hybrid") is not None and self.index is None:
            raise RankwellError("hybrid search needs an index to search")
        if self.index is None:
            return None
        if self.is_system:
            return System.open(self.index, self.computing)
        ranker = self.models[0] if self.models else None
        system = System.of_index(self.index, ranker=ranker, computing=self.computing, **search)
        first = self.unfitted(system, most=UNFITTED.few)
        return system if first is None else replace(system, finder=first)

    def unfitted(self, system: System, *, most: int) -> FirstStage | None:
        """How an index is searched that nobody said how to search; None with BM25, until its vectors are stored.

        Those of up to ``most`` documents are made.
        """
        if self.is_system or self.reranks or self.search.get("hybrid") is not None or DEFAULT not in self.models:
            return None
        first, index = replace(system.first_stage, encoder=UNFITTED.encoder, share=UNFITTED.share), system.index
        few = len(index) <= most and all(store.writable for store in index.documents.stores)
        return first if few or first.dense.has_vectors(index) else None


def default_models(index: Path | None, backend: str) -> tuple[str, ...]:
    """What is served if no model is named: the default model, if it can be used and the index has texts to re-rank."""
    usable = backend == "torch" and default_lacks() is None and (index is None or Index.open(index).has_texts)
    return (DEFAULT,) if usable else ()


@dataclass(frozen=True, eq=False)
class Model:
    """A served model."""

    name: str
    folder: Path
    backend: str
    config: RankerConfig
    ranker: Ranker
    layers: int | None = None
    heads: int | None = None
    warm_up: tuple[int, float] = (0, 0.0)
    """The tokens of a batch that was computed when the model was opened, and the seconds it took."""
    pieces_of: dict[str, list[str]] = field(default_factory=dict, repr=False)
    """The pieces of words that were highlighted before; none of those that the tokenizer does not split."""

    def lay_out(
        self,
        query: str,
        documents: Pieces,
        type: str | None = None,
        instruction: str | None = None,
        *,
        truncate: bool = False,
    ) -> LaidOutPairs:
        """Lay out pairs of a query and documents; ``truncate`` truncates long ones instead of reading windows."""
        reader, rows = self.ranker.reader.asking(instruction), np.zeros(len(documents), np.int64)
        fields = {"query": reader.encode_queries([query]).take(rows), "document": documents}
        if type:
            fields["type"] = reader.encode([type.lower()]).take(rows)
        return (replace(reader, windows=None) if truncate else reader).lay_out(fields)

    def described(self) -> dict[str, Any]:
        """The model as ``/models`` shows it."""
        template = self.ranker.template
        return {
            "name": self.name,
            "backend": self.backend,
            "device": self.ranker.engine.device,
            "precision": self.ranker.engine.precision,
            "template": template.name,
            "max_length": template.max_length,
            "max_query": template.max_query,
            "attention": self.config.attention,
            "markers": template.markers,
            "typed": self.ranker.takes_types,
            "outputs": 2 if self.config.head == "two_logits" else 1,
            "explainable": self.ranker.engine.explainable,
            "layers": self.layers,
            "heads": self.heads,
            "figures": self.config.figures,
        }


@dataclass(frozen=True, eq=False)
class Found:
    """What a search finds for a query, and the query as the bi-encoder read it, if it did."""

    ranking: Ranking
    encoded: EncodedQueries | None


Place = tuple[int, int]
"""Tells a system from another one in the same folder: where its description is on the disk, and of when."""


def place_of(sources: Sources) -> Place | None:
    """The system that is in its folder now; None if there is none, or only an index is served."""
    with suppress(OSError):
        if sources.is_system and sources.index is not None:
            status = os.stat(sources.index / SYSTEM)
            return status.st_ino, status.st_mtime_ns
    return None


@dataclass(frozen=True, eq=False)
class State:
    """An index and models, ready to use."""

    system: System | None
    """What is searched."""
    models: Mapping[str, Model]
    generation: int = 1
    encoder: str | None = None
    """The name of the bi-encoder, if there is one."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    examples: Sequence[str] = ()
    """Queries that the page suggests."""
    reranks: bool = True
    """Whether a search re-ranks unless a request says otherwise."""
    min_relevance: float | None = None
    pair_tokens: Mapping[str, float] = field(default_factory=dict)
    """For each model, the tokens of a query and a document with all its windows: the mean of some of the index."""
    place: Place | None = None
    """Which system it was opened from, if it is one."""
    dense_lock: threading.Lock = field(default_factory=threading.Lock)
    """Of the bi-encoder, which two threads must not use at once. The index's analyser needs no lock: only the one
    search queue uses it."""

    @cached_property
    def first_stages(self) -> dict[str, FirstStage]:
        """The searches there are, as requests and answers call them; the default first."""
        if self.system is None:
            return {}
        first = self.system.first_stage
        return {"hybrid": first, "bm25": replace(first, share=0.0, words=0.0)} if first.encodes else {"bm25": first}

    @property
    def first(self) -> str:
        """The name of the default search."""
        return next(iter(self.first_stages))

    def search(self, name: str, queries: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Found]:
        """The best ``k`` documents for each query; vectors are read once for all of them."""
        first = self.first_stages[name]
        named = [Query(str(number), query) for number, query in enumerate(queries)]
        with self.dense_lock if first.encodes else nullcontext():
            encoded = first.encode(named, scope)
            run = first.search(named, k, scope, encoded=encoded)
        read = [None if encoded is None else encoded.of([query.qid]) for query in named]
        return [Found(run.get(query.qid, NOTHING), one) for query, one in zip(named, read, strict=True)]

    def fuse(self, query: str, found: Found, scores: Scores) -> Ranking:
        """The best of what was found by the model's ``scores``, fused with the other scores that have a share."""
        first = found.ranking.head(len(scores))
        model = Ranking.of(first.docids, scores)
        if self.system is None or self.system.shares is None or not len(scores):
            return model
        encoded = None if found.encoded is None else replace(found.encoded, qids=[QID])
        with self.dense_lock if self.system.shares.similarity else nullcontext():
            fused = self.system.fuse(Run({QID: first}), Run({QID: model}), [Query(QID, query)], encoded)
        return fused[QID]

    def can_rate(self, first: str | None = None, *, reranks: bool) -> bool:
        """Whether answers have relevance: those that are ranked as the fitted system does."""
        system = self.system
        if system is None or system.relevance is None or not self.has_texts:
            return False
        return first in (None, self.first) and reranks == (system.ranker is not None)

    def rate(self, query: str, found: Found, ranking: Ranking, scores: Scores | None) -> dict[str, float]:
        """The relevance of the documents of a ranking; ``scores`` are the model's, of the first that were found.

        Call it from one thread at a time, like what highlights.
        """
        assert self.system is not None
        assert self.system.relevance is not None
        encoded = None if found.encoded is None else replace(found.encoded, qids=[QID])
        scored = None if scores is None else Run({QID: Ranking.of(found.ranking.head(len(scores)).docids, scores)})
        if not len(ranking):
            return {}
        calibration, run = self.system.relevance, Run({QID: ranking})
        first = replace(self.system.first_stage, index=self.aside)
        with self.dense_lock if encoded is not None else nullcontext():
            signals = signals_of(calibration.signals, first, run, [Query(QID, query)], encoded, scored)[QID]
        return dict(zip(signals.docids, calibration.rate(signals.values).tolist(), strict=True))

    def rate_texts(self, query: str, texts: Sequence[str], scores: Scores) -> Scores:
        """The relevance of texts by the scores of the re-ranker, whose signals are those of any text."""
        assert self.system is not None
        assert self.system.relevance is not None
        values = np.stack([word_shares(self.aside, query, texts), scores.astype(np.float64)], axis=1)
        order, relevance = np.argsort(-scores, kind="stable"), np.empty(len(scores), np.float32)
        relevance[order] = self.system.relevance.rate(values[order])
        return relevance

    def fuse_given(self, query: str, texts: Sequence[str], given: Sequence[float], scores: Scores) -> Scores:
        """The scores of texts by a model, fused with those ``given`` by another engine in the first stage's place."""
        assert self.system is not None
        assert self.system.shares is not None
        names, parts = (
            [str(number) for number in range(len(texts))],
            {"first": np.array(given, np.float32), "model": scores},
        )
        if self.system.shares.similarity:
            encoder = self.system.first_stage.dense.encoder
            with self.dense_lock:
                parts["similarity"] = encoder.encode_documents(texts) @ encoder.encode_queries([query])[0]
        runs = {part: Run({QID: Ranking.of(names, values)}) for part, values in parts.items()}
        fused = dict(fuse(runs, self.system.shares)[QID])
        return np.array([fused[name] for name in names], np.float32)

    def describe_shares(self) -> dict[str, Any] | None:
        """The shares of re-ranking as ``/ready`` shows them."""
        shares = None if self.system is None else self.system.shares
        if shares is None:
            return None
        weights = {self.first: shares.first, "model": shares.model}
        if shares.similarity:
            weights = {"model": shares.model, "similarity": shares.similarity, self.first: shares.first}
        return {"weights": weights, "normalise": shares.normalise}

    @property
    def index(self) -> Index | None:
        """Its index."""
        return None if self.system is None else self.system.index

    @property
    def folder(self) -> Path | None:
        """The folder of its system or index."""
        return None if self.system is None else self.system.folder or self.system.index.folder

    @property
    def depth(self) -> int:
        """The number of candidates to re-rank, unless a request says otherwise.

        A fitted system has its own; else it is what the first model can read in about a second.
        """
        if self.system is not None and (self.system.folder is not None or not self.models):
            return self.system.depth
        tokens, seconds = next((model.warm_up for model in self.models.values()), (0, 0.0))
        seconds *= next(iter(self.pair_tokens.values()), 0.0)
        return next((depth for depth in (DEPTH, 50, 20, 10, 5) if depth * seconds <= tokens), 3)

    @property
    def hybrid(self) -> float | None:
        """The bi-encoder's share in the search, if it has one."""
        return None if self.system is None else self.system.first_stage.share or None

    @property
    def default(self) -> Model | None:
        """The model for requests that do not name one."""
        return next(iter(self.models.values()), None)

    @property
    def note(self) -> str | None:
        """A hint for the user if no model is served, unless a system was fitted without one."""
        if self.models or (self.system is not None and self.system.folder is not None):
            return None
        lacks = default_lacks()
        return f"{NO_MODEL} ({lacks})" if lacks else f"{NO_MODEL}, such as {DEFAULT}"

    @cached_property
    def aside(self) -> Index:
        """The index with an analyser of its own, so that highlighting and searching do not wait for each other."""
        assert self.index is not None
        analyzer = Analyzer(**self.index.analyzer.model_dump())
        return Index(self.index.folder, analyzer, self.index.segments, self.index.manifest)

    @cached_property
    def has_texts(self) -> bool:
        """Whether the index stores its documents' texts."""
        return self.index is not None and self.index.has_texts

    @cached_property
    def tokens(self) -> dict[str, StoredTokens | None]:
        """For each model the tokens of all documents, if the index has them."""
        if self.index is None:
            return {}
        return {
            name: StoredTokens.find(self.index.documents, model.ranker.tokenizer, stems=model.ranker.reader.stems)
            for name, model in self.models.items()
        }

    def measure_pairs(self) -> dict[str, float]:
        """:attr:`pair_tokens`, from documents spread evenly over the index."""
        if self.index is None or not len(self.index):
            return {}
        live = self.index.documents.live_numbers()
        docids = self.index.documents.docids(live[:: -(-len(live) // SAMPLED)])
        laid_out = {name: self.lay_out(model, WARM_UP, docids, None, None) for name, model in self.models.items()}
        return {name: len(pairs.sequences.tokens) / len(docids) for name, pairs in laid_out.items()}

    def lay_out(
        self, model: Model, query: str, docids: Sequence[str], type: str | None, instruction: str | None
    ) -> LaidOutPairs:
        """Lay out pairs of a query and documents of the index; an instruction is for models that take one."""
        assert self.index is not None
        tokens = self.tokens[model.name]
        if tokens is not None:
            documents = tokens.at(tokens.numbers(docids))
        else:
            documents = model.ranker.reader.encode(self.index.texts(docids))
        return model.lay_out(query, documents, type, instruction if model.ranker.reader.takes_instruction else None)


def open_state(sources: Sources, generation: int = 1) -> State:
    """Open everything and use it once, so that problems show now and the first request is fast."""
    if sources.index is None and not sources.models:
        raise RankwellError("nothing to serve: give an index, a model, or both")
    place = place_of(sources)
    system = sources.open_system()
    if sources.is_system and system is not None and system.ranker is not None:
        sources = replace(sources, models=(str(system.ranker),))
    models: dict[str, Model] = {}
    for source in sources.models:
        model = open_model(source, sources)
        if any(model.folder.samefile(other.folder) for other in models.values()):
            raise RankwellError(f"{source}: this model was given twice")
        if model.name in models:  # folders with the same name are distinguished by their paths
            model = replace(model, name=source)
        models[model.name] = model
    encoder = None
    if system is not None:
        if models and not system.index.has_texts:
            problem = "was built without texts, which a re-ranker needs; rebuild it without --no-store"
            raise RankwellError(f"{system.index.folder} {problem}")
        system.first_stage.prepare()
        if system.first_stage.encoder is not None:
            encoder = published_name(find_model(system.first_stage.encoder))
    for alias, name in sources.aliases.items():
        if name not in (*models, encoder):
            raise RankwellError(f"alias {alias}: no model called {name} is served; expected {', '.join(models)}")
    examples = example_queries(system.index) if system is not None else ()
    reranks = bool(models) and (sources.reranks or encoder is None)
    if (least := sources.min_relevance) is not None:
        if system is None:
            raise RankwellError("--min-relevance needs a system made by `rankwell fit`")
        system.rated(EVERYTHING, least)
    state = State(system, models, generation, encoder, sources.aliases, examples, reranks, least, place=place)
    state = replace(state, pair_tokens=state.measure_pairs())
    if system is not None:
        state.search(state.first, [WARM_UP], 1)
    state.tokens  # noqa: B018  (loaded now rather than at the first request)
    if place_of(sources) != place:  # replaced meanwhile: the parts may be of two systems
        return open_state(sources, generation)
    return state


def open_model(source: str, sources: Sources) -> Model:
    """Open a model, check it and run it once."""
    folder = find_model(source, code=sources.computing.trust_remote_code)
    loaded = load(folder, sources.computing.backend, {}, {**sources.computing.engine_options(), **sources.engine})
    config = loaded.config
    ranker = Ranker.from_loaded(loaded)
    try:
        ranker.template.require("query", "document")
    except RankwellError as error:
        raise RankwellError(f"{source}: {error}") from None
    # Read now: the folder may be changed while its model is served.
    checkpoint = describe(folder) if (folder / "config.json").is_file() else None
    encoder = checkpoint.encoder_config() if checkpoint is not None and checkpoint.is_own else None
    layers, heads = (encoder.num_hidden_layers, encoder.num_attention_heads) if encoder else (None, None)
    name = published_name(folder) or source
    model = Model(name, folder, sources.computing.backend, config, ranker, layers, heads)
    logits = ranker.engine.logits(model.lay_out(WARM_UP, ranker.reader.encode([WARM_UP])).sequences)
    if not np.isfinite(logits).all():
        raise RankwellError(f"{source}: the model's scores are not finite")
    return replace(model, warm_up=reading_time(model))


def reading_time(model: Model) -> tuple[int, float]:
    """A number of tokens and the seconds that a model reads them in: the shorter of two, as one may be disturbed."""
    ranker, seconds = model.ranker, []
    passages = [" ".join([WARM_UP] * 16)] * max(1, min(WARM_UP_TOKENS, ranker.engine.tokens_at_once) // 128)
    batch = model.lay_out(WARM_UP, ranker.reader.encode(passages)).sequences
    for _ in range(2):
        begin = time.perf_counter()
        ranker.engine.logits(batch)
        seconds.append(time.perf_counter() - begin)
    return len(batch.tokens), min(seconds)


TRIES = 3
"""How often the vectors of an index are completed: documents may be added meanwhile."""
WriteJob = Document | str
"""A document to add or replace, or the id of one to delete."""


def _give_memory_back() -> None:
    """Return to the system what an old state took, which glibc would keep for later."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class Holder:
    """Holds the current state, and replaces it by a new one of the same sources."""

    def __init__(self, sources: Sources):
        self.sources = sources
        self.state = open_state(sources)
        self._lock = threading.RLock()
        """Held by whatever changes the index or replaces the state."""
        self._written_by = Models()
        """What encodes new documents beside searches."""
        self._reloads: set[threading.Thread] = set()

    @property
    def lacking(self) -> FirstStage | None:
        """A search that only lacks vectors of documents, which take too long to wait for."""
        system = self.state.system
        if system is None or system.first_stage.encodes:
            return None
        return self.sources.unfitted(system, most=UNFITTED.many)

    def make_vectors(self) -> State:
        """Make the vectors that are missing beside searches, and reopen the sources, which then search with them."""
        for _ in range(TRIES):
            if (first := self.lacking) is not None:
                replace(first, models=Models()).prepare_stores(first.index.documents.stores)
                self.reload().result()
        return self.state

    @property
    def reloading(self) -> bool:
        """Whether a thread is reopening the sources."""
        return any(thread.is_alive() for thread in self._reloads)

    @property
    def replaced(self) -> bool:
        """Whether another system has taken the place of the one that is served."""
        return place_of(self.sources) not in (self.state.place, None)

    def refresh(self, written: Index | None = None) -> State:
        """Serve the index as it is now, if another process or :meth:`write`, which opened it, has changed it."""
        with self._lock:
            state = self.state
            index = None if state.index is None else (written or state.index).refreshed()
            if state.system is None or index is None or index is state.index or self.replaced:
                return state
            if state.models and not index.has_texts:
                raise RankwellError(f"{index.folder} was changed and has no texts now, which a re-ranker needs")
            first = state.system.first_stage
            if first.encoder is not None:
                # Another encoder computes what is missing, so that searches do not wait.
                self._writing(first, index).prepare_stores(index.documents.stores)
                with state.dense_lock:
                    first.prepare_stores(index.documents.stores)
            fresh = replace(state, system=state.system.with_index(index), generation=state.generation + 1)
            fresh.search(fresh.first, [WARM_UP], 1)
            fresh.tokens  # noqa: B018  (loaded now rather than at the next request)
            self.state = fresh
            return fresh

    def write(self, jobs: Sequence[Sequence[WriteJob]]) -> list[tuple[int, State]]:
        """Change the index; of each job how many documents are new, replaced or deleted, and the state that has them.

        All jobs are one update and one deletion, which are on the disk before this returns.
        """
        with self._lock:
            assert self.state.system is not None
            if self.replaced:
                raise RankwellError("the system is being replaced by another one; try again")
            writer = self._writing(self.state.system.first_stage, self.state.system.index.reopened())
            documents: dict[str, Document] = {}
            deleted: set[str] = set()
            counts = []
            for job in jobs:
                count = 0
                for item in job:
                    if isinstance(item, Document):
                        documents[item.docid], count = item, count + 1
                        deleted.discard(item.docid)
                    else:
                        count += item in documents or (item in writer.index and item not in deleted)
                        documents.pop(item, None)
                        deleted.add(item)
                counts.append(count)
            if documents:
                writer.index.update(documents.values(), prepare=writer.preparation)
            if deleted:
                writer.index.delete(deleted)
            fresh = self.refresh(writer.index)
        return [(count, fresh) for count in counts]

    def _writing(self, first: FirstStage, index: Index) -> FirstStage:
        """A first stage with a bi-encoder of its own, for what is computed beside searches."""
        return replace(first, index=index, models=self._written_by)

    def reload(self) -> Future[State]:
        """Reopen the sources in a thread that does not keep the process alive.

        The new state takes over only if that succeeds.
        """
        result: Future[State] = Future()
        result.set_running_or_notify_cancel()  # it can no longer be cancelled, so its result can always be set

        def reopen() -> None:
            try:
                with self._lock:
                    fresh = self.state = open_state(self.sources, self.state.generation + 1)
                    self._written_by = Models()
                _give_memory_back()
                result.set_result(fresh)
            except BaseException as error:
                result.set_exception(error)
            finally:
                self._reloads.discard(threading.current_thread())

        thread = threading.Thread(target=reopen, name="rankwell-reload", daemon=True)
        self._reloads.add(thread)
        thread.start()
        return result
