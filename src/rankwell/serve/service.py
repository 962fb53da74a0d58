"""The service behind the API: from the checked body of a request to its answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np

from rankwell.core.checksums import verify_folder
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.truncation import run_whole
from rankwell.corpus.filters import FilterSource
from rankwell.corpus.query_types import rule_type
from rankwell.corpus.records import Document
from rankwell.corpus.sources import as_id
from rankwell.inputs.reader import LaidOutPairs
from rankwell.rank.engines.engine import Logits, probability, relevance
from rankwell.rank.first_stage import Scope
from rankwell.rank.system import System
from rankwell.retrieve.index import Index
from rankwell.retrieve.spelling import unknown_words
from rankwell.serve.answers import explain_answer, search_answer
from rankwell.serve.bodies import LOG, ApiError, too_late
from rankwell.serve.engine import Batching, Entry, Metrics, OverloadedError, RequestEngine, WorkQueue
from rankwell.serve.formats import (
    CHARACTERS_PER_TOKEN,
    Answer,
    Body,
    DocumentsRerank,
    EmbeddingsRequest,
    Event,
    Explain,
    Limits,
    Rerank,
    Scored,
    Search,
    Vectors,
)
from rankwell.serve.search_log import LogOptions, SearchLog
from rankwell.serve.state import Found, Holder, Model, Sources, State, WriteJob, place_of
from rankwell.serve.tracing import part

Result = TypeVar("Result")
PREPARING_THREADS = 2
TEXTS_AT_A_TIME = 32
SHARE_OF_DEADLINE = 0.75  # that the queue may take: texts are read and tokenised too, and other work may slow it down
SCRUB_RATE = 4 << 20  # bytes a second
SCRUB_PAUSE = 60.0
SCORING = frozenset({"/rerank", "/v1/rerank", "/v2/rerank", "/v1/reranking", "/score", "/v1/score"})
WRITE_BATCH = 64  # requests that are written together
WATCH_SECONDS = 1.0
SEARCH_BATCH = 64  # queries per hybrid search; BM25 gains nothing from batches


class Service:
    """Serves requests between :meth:`start` and :meth:`stop`."""

    def __init__(
        self,
        sources: Sources,
        limits: Limits | None = None,
        batching: Batching | None = None,
        log: LogOptions | None = None,
    ):
        self.limits = limits or Limits()
        self.metrics = Metrics()
        self.log = None if log is None else SearchLog(log, self.metrics)
        self.holder = Holder(sources)
        self.engine = RequestEngine(batching, self.metrics)
        self.draining = False
        self._preparing = ThreadPoolExecutor(PREPARING_THREADS, "rankwell-prepare")
        # Explanations are slow and need large arrays: one runs at a time, and few may wait.
        self._explaining = ThreadPoolExecutor(1, "rankwell-explain")
        # One thread, so that large answers wait for each other and not for searches.
        self._answering = ThreadPoolExecutor(1, "rankwell-answer")
        self._searches = WorkQueue(
            "rankwell-search", partial(run_whole, _search), lambda group: SEARCH_BATCH if group[0].hybrid else 1
        )
        self._writes = WorkQueue("rankwell-write", self._write, lambda _: WRITE_BATCH)
        self._queues: tuple[WorkQueue[Any, Any, Any], ...] = (self.engine, self._searches, self._writes)
        self._serve(self.state)
        self._waiting = self._explanations = 0
        self._stopping = threading.Event()
        self._scrubber = threading.Thread(target=self._scrub, name="rankwell-scrub", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="rankwell-watch", daemon=True)
        self._encoder = threading.Thread(target=self._encode, name="rankwell-encode", daemon=True)
        self.started = int(time.time())

    def _serve(self, state: State) -> None:
        """Set the length of the engine's queue, and its speed until batches are measured, by a new state."""
        self.metrics.generation.set(state.generation)
        self.engine.make_room(model.ranker.engine for model in state.models.values())
        for model in state.models.values():
            self.engine.measure(*model.warm_up)

    @property
    def state(self) -> State:
        """The index and models in use."""
        return self.holder.state

    def start(self) -> None:
        """Start the queues, and to look for damaged files and for changes of the index."""
        for queue in self._queues:
            queue.start()
        self._scrubber.start()
        self._watcher.start()
        if self.holder.lacking is not None:
            self._encoder.start()
        if self.log is not None:
            self.log.start()

    def stop(self) -> None:
        """Finish the requests under way. A reload under way is abandoned."""
        self.draining = True
        self._stopping.set()
        for pool in (self._preparing, self._explaining, self._answering):
            pool.shutdown(wait=True, cancel_futures=True)
        for queue in self._queues:
            queue.stop()
        if self.log is not None:
            self.log.stop()

    @property
    def unfinished(self) -> bool:
        """Whether a thread still runs: for a reload, or for requests that were not waited for."""
        busy = self.holder.reloading or self._encoder.is_alive()
        return busy or any(queue.running for queue in self._queues)

    def _scrub(self) -> None:
        """Read the served files again and again, slowly, so that damage is found before a request meets it."""

        def pace(size: float) -> None:
            if self._stopping.wait(size / SCRUB_RATE):
                raise CancelledError

        def damage() -> str | None:
            try:
                if (folder := self.state.folder) is not None and self.state.index is not None:
                    verify_folder(folder, skip=self.state.index.leftovers(), pace=pace)
            except (InputError, OSError) as error:
                return str(error)
            return None

        with suppress(CancelledError):
            while True:
                # Another process may replace files meanwhile, so damage counts when it is found twice, a second apart.
                if (problem := damage()) is not None and not self._stopping.wait(1.0) and damage() == problem:
                    self.metrics.damaged.inc()
                    LOG.error("damaged", extra={"about": {"damaged": problem}})
                pace(SCRUB_PAUSE * SCRUB_RATE)

    def _watch(self) -> None:
        """Serve the index as other processes change it, and the system that takes the place of another one."""
        problem, tried = "", self.state.place
        while not self._stopping.wait(WATCH_SECONDS):
            try:
                if self.holder.replaced:
                    if (found := place_of(self.holder.sources)) != tried:  # once, even if it cannot be opened
                        tried = found
                        self._reopened(self.holder.reload().result())
                    continue
                before, fresh = self.state.generation, self.holder.refresh()
                problem = ""
                if fresh.generation != before:
                    self.metrics.generation.set(fresh.generation)
                    LOG.info("refresh", extra={"about": {"generation": fresh.generation}})
            except Exception as error:  # what is served stays
                self.metrics.reloads.labels("failed").inc(int(self.holder.replaced))
                if str(error) != problem:
                    problem = str(error)
                    LOG.error("refresh", extra={"about": {"outcome": "failed", "error": problem}})

    def _encode(self) -> None:
        """Search by default with vectors, too, once they are made."""
        LOG.info("vectors", extra={"about": {"outcome": "begun", "documents": len(self.state.index or ())}})
        try:
            fresh = self.holder.make_vectors()
        except Exception as error:  # BM25 and the re-ranker stay
            LOG.error("vectors", extra={"about": {"outcome": "failed", "error": str(error)}})
            return
        self._serve(fresh)
        LOG.info("vectors", extra={"about": {"outcome": "done", "generation": fresh.generation}})

    async def write(self, job: Sequence[WriteJob], about: Answer) -> Answer:
        """Add, replace and delete documents. When this returns, they are on the disk, and searches find them."""
        if self.state.index is None:
            raise ApiError(409, "unavailable", "this service has no index; it only re-ranks texts")
        if len(job) > self.limits.documents:
            raise _invalid(f"documents: {len(job):,} items; the limit is {self.limits.documents:,}")
        for number, item in enumerate(job):
            if isinstance(item, Document):
                self._check_text(f"documents.{number}.text", item.contents, self.limits.text_characters)
        try:
            count, state = await self._admitted(self._writes.ask(Entry(), None, job))
        except RankwellError as error:
            LOG.error("write", extra={"about": {"outcome": "failed", "error": str(error)}})
            raise ApiError(409, "write_failed", f"could not write: {error}", {"Retry-After": "1"}) from None
        about |= {"documents": count, "generation": state.generation}
        self.metrics.generation.set(state.generation)
        return {"documents": count, "generation": state.generation}

    def _write(self, _: None, jobs: Sequence[Sequence[WriteJob]]) -> list[tuple[int, State]]:
        return self.holder.write(jobs)

    async def rerank(self, body: Rerank, deadline: float, about: Answer, request: str) -> Scored:
        """Score the given texts, by the model alone or together with another engine's scores."""
        state = self.state
        model = self.model(state, body.model)
        texts = body.document_texts()
        given = body.scores if isinstance(body, DocumentsRerank) else None
        if given is not None and len(given) != len(texts):
            raise _invalid(f"scores: {len(given):,} for {len(texts):,} documents; expected one for each")
        if given is not None and (state.system is None or state.system.shares is None or not state.system.shares.first):
            raise _invalid("scores: this service gives the scores of another engine no weight; leave them out")
        self._check_query(body)
        self._check_texts(body.texts_field, texts)
        label = self._type(body, model)
        self._instruct(state, body.instruction, model)
        guess = sum(map(len, texts)) // CHARACTERS_PER_TOKEN + len(texts) * (
            len(body.query) // CHARACTERS_PER_TOKEN + 3
        )

        def prepare() -> LaidOutPairs:
            return model.lay_out(
                body.query, model.ranker.reader.encode(texts), label, body.instruction, truncate=body.truncate
            )

        with self._room(guess, deadline) as entry:
            laid, logits = await self._score(model, prepare, entry, about)
        raw = laid.join(relevance(logits))
        scores = raw if body.raw_scores else laid.join(probability(logits))
        if given is not None:
            scores = await self._in(self._answering, partial(state.fuse_given, body.query, texts, given, raw))
        rate = partial(state.rate_texts, body.query, texts, raw)
        rated = await self._in(self._answering, rate) if state.can_rate(reranks=True) else None
        least = self._least(state, body.min_relevance, rated is not None) or 0.0
        return Scored(request, model.name, scores, len(laid.sequences.tokens), laid.truncated, label, rated, least)

    async def embed(self, body: EmbeddingsRequest) -> tuple[str, Vectors]:
        """The vectors of texts, and the name of the bi-encoder that makes them."""
        state = self.state
        if state.system is None or state.encoder is None:
            raise ApiError(409, "unavailable", "this service has no bi-encoder; start it with --hybrid or --blend")
        texts, lock = body.texts, state.dense_lock
        self._check_texts("input", texts)
        if body.instruction is not None and body.input_type == "document":
            raise _invalid("instruction: documents take none; expected the input_type (TEI: prompt_name) query")
        instruction = self._instruct(state, body.instruction, encodes=True)
        encoder = state.system.first_stage.dense.encoder
        of_queries = partial(encoder.encode_queries, instruction=instruction)
        encode = of_queries if body.input_type == "query" else encoder.encode_documents

        def encode_part(begin: int) -> Vectors:
            with lock:
                return encode(texts[begin : begin + TEXTS_AT_A_TIME])

        # In small parts, so that searches can use the bi-encoder in between.
        starts = range(0, len(texts), TEXTS_AT_A_TIME)
        with part("encode"):
            parts = [await self._prepare(partial(encode_part, start)) for start in starts]
        return state.encoder, np.concatenate(parts)

    async def search(self, body: Search, deadline: float, about: Answer) -> Answer:
        """Search the index with the first stage, the re-ranker, or both."""
        begin = time.perf_counter()
        state = self.state
        if state.system is None:
            raise ApiError(409, "unavailable", "this service has no index; it only re-ranks texts")
        filter, query = self._check_search(state.system, body)
        stages = body.stages or ("both" if state.reranks or body.model else state.first)
        if stages == "hybrid" and stages not in state.first_stages:
            raise ApiError(409, "unavailable", "this service searches with BM25 only; start it with --hybrid")
        if body.words and not (state.system.first_stage.words and state.has_texts):
            raise ApiError(409, "unavailable", "this service has no word vectors; serve a system that uses them")
        reranks = stages not in state.first_stages
        first = state.first if reranks else stages
        model = self.model(state, body.model) if reranks or body.model else state.default
        reranker = model if reranks else None
        least = self._least(state, body.min_relevance, state.can_rate(first, reranks=reranks))
        instruction = self._instruct(state, body.instruction, reranker, encodes=stages != "bm25")
        label = self._type(body, reranker)
        depth = body.depth or min(state.depth, self.limits.depth)
        k = max(depth, body.offset + body.k)
        group = state, first, k, Scope(filter, body.syntax, instruction)
        searching, scored = Entry(), None
        ms: dict[str, float | None] = dict.fromkeys((*state.first_stages, "rerank", "queue"))
        # Admitted before anything is searched: a refusal must not wait for other requests.
        expected = 0 if reranker is None else int(depth * state.pair_tokens.get(reranker.name, 0))
        with self._room(expected, deadline) as scoring:
            with part("search"):
                found = await self._admitted(self._searches.ask(searching, group, body.query))
            ms[first] = round(searching.work_ms, 3)
            if reranker is not None:
                docids = found.ranking.docids[:depth]
                prepare = partial(state.lay_out, reranker, query, docids, label, body.instruction)
                scored = await self._score(reranker, prepare, scoring, about)
                ms |= {"rerank": round(scoring.work_ms, 3), "queue": round(scoring.queue_ms, 3)}
        most = self.limits.highlighted
        log = self.log if body.log else None
        shown = partial(search_answer, state, model, body, query, found, scored, most=most, least=least)
        answer = await self._in(self._answering, shown)
        about |= {"candidates": len(found.ranking), "generation": state.generation}
        ms["total"] = round(1000 * (time.perf_counter() - begin), 3)
        echo = {"query": body.query, "type": label, "stages": stages, "k": body.k, "from": body.offset, "depth": depth}
        echo |= {"model": None if reranker is None else reranker.name, "generation": state.generation}
        if log is not None:
            aside = state.aside
            lacking = await self._in(self._answering, lambda: unknown_words(aside.segments, aside.analyzer, [query])[0])
            echo["query_id"] = log.search(body, answer, lacking=bool(lacking))
        return {**echo, "ms": ms, **answer}

    def _least(self, state: State, asked: float | None, rates: bool) -> float | None:
        """The least relevance of what is returned; None if answers have none, refused if one is asked for."""
        if asked and not rates:
            line = "answers have no relevance here: only those of a system fitted to 50 judged queries, ranked by it"
            raise ApiError(409, "unavailable", f"min_relevance: {line}")
        return (state.min_relevance or 0.0 if asked is None else asked) if rates else None

    def log_events(self, events: Sequence[Event], about: Answer) -> Answer:
        """Log what users did with the results of searches."""
        if self.log is None:
            raise ApiError(409, "unavailable", "this service keeps no log; start it with --log FOLDER")
        logged = sum([self.log.event(event) for event in events])
        about |= {"events": logged}
        if not logged:
            line = "query_id: no search of the last hours has this id and showed this document"
            raise ApiError(404, "not_found", line)
        return {"events": logged, "unknown": len(events) - logged}

    def _check_search(self, system: System, body: Search) -> tuple[FilterSource | None, str]:
        """Raise for fields of a search that are wrong or beyond a limit; returns its filter, and its query in plain."""
        self._check_query(body)
        self._check_text("filter", str(body.filter or ""), self.limits.text_characters)
        try:
            filter = system.index.documents.resolve_filter(body.filter)
            query = system.index.check_syntax(body.query) if body.syntax else body.query
        except RankwellError as error:
            raise _invalid(str(error)) from None
        known = system.index.documents.fields
        if unknown := [name for name in body.fields or () if name not in known]:
            raise _invalid(f"fields: no document has a field {unknown[0]!r}; fields: {', '.join(known) or 'none'}")
        for name, value, most in (
            ("k + from", body.k + body.offset, self.limits.k),
            ("depth", body.depth or 0, self.limits.depth),
        ):
            if value > most:
                raise _invalid(f"{name}: {value:,}; the limit is {most:,}")
        return filter, query

    async def explain(self, body: Explain, about: Answer) -> Answer:
        """Explain the score of a query and a document."""
        state = self.state
        model = self.model(state, body.model)
        if not model.ranker.engine.explainable:
            problem = "only BERT rankers of the backend torch show their attention"
            raise ApiError(409, "unavailable", f"{model.name} cannot be explained: {problem}")
        self._check_query(body)
        label = self._type(body, model)
        if (body.document is None) == (body.id is None):
            raise _invalid("document: expected either document or id")
        docid = as_id(body.id or "")
        document = body.document if body.document is not None else self._index_with(state, docid).text(docid)
        self._check_text("document", document, self.limits.explained_characters)
        if self._explanations >= self.limits.explanations:
            raise ApiError(429, "overloaded", "too many explanations are waiting", {"Retry-After": "2"})
        self._explanations += 1
        try:
            answer = await self._in(self._explaining, lambda: explain_answer(model, body.query, document, label, body))
        except InputError:  # a damaged file
            raise
        except RankwellError as error:
            raise _invalid(str(error)) from None
        finally:
            self._explanations -= 1
        about["tokens"] = len(answer["tokens"])
        return {**answer, "id": body.id, "model": model.name}

    async def reload(self) -> Answer:
        """Reopen index and models. The old ones are served until that succeeds."""
        try:
            fresh = await asyncio.wrap_future(self.holder.reload())
        except Exception as error:
            # New files, however broken, must not stop a working service.
            self.metrics.reloads.labels("failed").inc()
            problem = str(error) if isinstance(error, RankwellError) else f"{type(error).__name__}: {error}"
            LOG.error("reload", extra={"about": {"outcome": "failed", "error": problem}})
            raise ApiError(409, "reload_failed", f"the old index and models stay in use: {problem}") from None
        self._reopened(fresh)
        return self.ready()

    def _reopened(self, fresh: State) -> None:
        self._serve(fresh)
        self.metrics.reloads.labels("done").inc()
        LOG.info("reload", extra={"about": {"outcome": "done", "generation": fresh.generation}})

    def ready(self) -> Answer:
        """What is served, and whether the service accepts requests."""
        state = self.state
        index = state.index
        stages = [*state.first_stages, *(("rerank", "both") if state.models else ())]
        about_index = index and {
            "name": index.folder.resolve().name,
            "documents": len(index),
            "segments": len(index.segments),
            "texts": state.has_texts,
            "fields": index.documents.fields,
        }
        return {
            "status": "draining" if self.draining else "ready",
            "version": version("rankwell"),
            "generation": state.generation,
            "reranker": bool(state.models),
            "reranks": state.reranks,
            "note": state.note,
            "index": about_index,
            "examples": state.examples,
            "models": list(state.models),
            "hybrid": state.hybrid,
            "words": None if state.system is None else state.system.first_stage.words or None,
            "blend": state.describe_shares(),
            "depth": state.depth,
            "min_relevance": state.min_relevance,
            "stages": stages if index else [],
            "queue": {"tokens": self.engine.queued, "limit": self.engine.limit},
            "limits": self.limits.public(),
        }

    def precision(self) -> dict[str, str]:
        """The precision of each model."""
        return {name: model.ranker.engine.precision for name, model in self.state.models.items()}

    def overloaded(self, error: OverloadedError) -> ApiError:
        """The error for a full queue, with the time to retry."""
        return ApiError(429, "overloaded", str(error), {"Retry-After": str(error.retry_after)})

    def busy(self, path: str) -> ApiError | None:
        """The error for a request to score texts that no body can change: cheaper than to read and parse it."""
        if path in SCORING and self.engine.is_busy(SHARE_OF_DEADLINE * self.limits.default_timeout_ms / 1000):
            return self.overloaded(self.engine.refusal())
        return None

    async def _score(
        self, model: Model, prepare: Callable[[], LaidOutPairs], entry: Entry, about: Answer
    ) -> tuple[LaidOutPairs, Logits]:
        """Lay out an admitted request's pairs and score them."""
        entry.arrived = time.monotonic()
        with part("tokenise"):
            laid = await self._prepare(prepare)
        pairs = int(laid.owners[-1]) + 1 if len(laid.owners) else 0
        about |= {"pairs": pairs, "tokens": len(laid.sequences.tokens)}
        with part("rerank"):
            logits = await asyncio.wrap_future(self.engine.submit(entry, model.ranker.engine, laid.sequences))
        about["queue_ms"] = round(entry.queue_ms, 2)
        if not np.isfinite(logits).all():
            raise FloatingPointError("the model's scores are not numbers")
        return laid, logits

    @contextmanager
    def _room(self, tokens: int, deadline: float) -> Iterator[Entry]:
        """Hold room for about ``tokens`` tokens in the engine's queue; at the end, the request leaves the queue."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise too_late(self.metrics)
        try:
            entry = self.engine.admit(tokens, SHARE_OF_DEADLINE * left) if tokens else Entry()
        except OverloadedError as error:
            raise self.overloaded(error) from None
        try:
            yield entry
        finally:
            self.engine.release(entry)

    async def _prepare(self, work: Callable[[], Result]) -> Result:
        return await self._admitted(self._in(self._preparing, work))

    async def _admitted(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run ``work`` unless too many requests are waiting."""
        if self._waiting >= self.limits.preparing:
            work.close()
            self.metrics.refused.inc()
            raise ApiError(429, "overloaded", "too many requests are waiting; try again in 1 s", {"Retry-After": "1"})
        self._waiting += 1
        try:
            return await work
        finally:
            self._waiting -= 1

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(pool, run_whole, work)

    def model(self, state: State, name: str | None) -> Model:
        """The model of this name or alias; by default the first, and the only one by any name."""
        if not state.models:
            line = "this system has no re-ranker; `rankwell serve INDEX` has one"
            raise ApiError(409, "unavailable", state.note or line)
        if name is None or len(state.models) == 1:
            return next(iter(state.models.values()))
        name = state.aliases.get(name, name)
        if name not in state.models:
            raise ApiError(404, "not_found", f"unknown model; available: {', '.join(state.models)}")
        return state.models[name]

    def _type(self, body: Body, model: Model | None) -> str | None:
        """The query's type: as given, or by the rules if the request says auto or the model takes one."""
        takes = model is None or model.ranker.takes_types
        if body.type == "auto" or (body.type is None and model is not None):
            return rule_type(body.query) if takes else None
        if body.type in (None, "none"):
            return None
        if model is not None and not takes:
            raise _invalid(f"type: {model.name} takes no query type")
        return body.type

    def _instruct(
        self, state: State, instruction: str | None, model: Model | None = None, *, encodes: bool = False
    ) -> str | None:
        """The instruction for the bi-encoder, if it takes one. Refused if the re-ranker takes none either."""
        if instruction is None:
            return None
        self._check_text("instruction", instruction, self.limits.query_characters)
        system = state.system if encodes and state.encoder else None
        if system is not None and (encoder := system.first_stage.dense.encoder).takes_instruction:
            try:
                encoder.check_instruction(instruction)
            except RankwellError as error:
                raise _invalid(f"instruction: {error}") from None
            return instruction
        if model is None or not model.ranker.reader.takes_instruction:
            names = [name for name in (system and state.encoder, model and model.name) if name]
            raise _invalid(f"instruction: not taken by {' or '.join(names) or 'BM25'}")
        return None

    def document(self, docid: str) -> Answer:
        """A document of the index."""
        state, index = self.state, self._index_with(self.state, docid)
        [text] = index.read([docid]) if state.has_texts else [Document(docid, "")]
        [fields] = index.documents.metadata(index.documents.numbers([docid]))
        return {"id": docid, "title": text.title, "text": text.text if state.has_texts else None, "fields": fields}

    def _index_with(self, state: State, docid: str) -> Index:
        """The index, which must have a document."""
        if state.index is None:
            raise ApiError(409, "unavailable", "this service has no index; send the document's text")
        if docid not in state.index:
            raise ApiError(404, "not_found", "no document with this id is in the index")
        return state.index

    def _check_query(self, body: Body) -> None:
        self._check_text("query", body.query, self.limits.query_characters)

    def _check_texts(self, field: str, texts: Sequence[str]) -> None:
        if len(texts) > self.limits.documents:
            raise _invalid(f"{field}: {len(texts):,} items; the limit is {self.limits.documents:,}")
        for number, text in enumerate(texts):
            self._check_text(f"{field}.{number}", text, self.limits.text_characters)

    def _check_text(self, field: str, text: str, limit: int) -> None:
        if len(text) > limit:
            raise _invalid(f"{field}: {len(text):,} characters; the limit is {limit:,}")


def _invalid(line: str) -> ApiError:
    return ApiError(422, "validation", line)


SearchGroup = tuple[State, str, int, Scope]
"""What is searched, the name of its first stage, the number of documents, and their scope."""


def _search(group: SearchGroup, queries: Sequence[str]) -> list[Found]:
    state, first, k, scope = group
    return state.search(first, queries, k, scope)
