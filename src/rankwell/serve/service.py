"""The service behind the API: from the checked body of a request to its answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankwell.core.checksums import verify_folder
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.truncation import run_whole
from rankwell.corpus.query_types import rule_type
from rankwell.corpus.records import Document, Query
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import LaidOutPairs
from rankwell.rank.engines.engine import probability, relevance
from rankwell.rank.first_stage import Scope
from rankwell.rank.system import type_for
from rankwell.serve.answers import Reranked, add_words, documents_answer, explain_answer, highlight, search_answer
from rankwell.serve.bodies import LOG, ApiError, too_late
from rankwell.serve.engine import Batching, Entry, Metrics, OverloadedError, RequestEngine, SearchQueue
from rankwell.serve.formats import (
    CHARACTERS_PER_TOKEN,
    Answer,
    Body,
    EmbeddingsRequest,
    Explain,
    Limits,
    Rerank,
    Scored,
    Search,
    Vectors,
)
from rankwell.serve.state import (
    QID,
    TOKENS_PER_CANDIDATE,
    Found,
    Holder,
    Model,
    Sources,
    State,
    WriteJob,
    search_together,
)
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


@dataclass(frozen=True, eq=False)
class PairScores:
    """The scores and probabilities of a request's pairs, with timings."""

    laid: LaidOutPairs
    scores: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    queue_ms: float
    engine_ms: float


class Service:
    """Serves requests between :meth:`start` and :meth:`stop`."""

    def __init__(self, sources: Sources, limits: Limits | None = None, batching: Batching | None = None):
        self.limits = limits or Limits()
        self.metrics = Metrics()
        self.holder = Holder(sources)
        self.engine = RequestEngine(batching, self.metrics)
        self.draining = False
        self._preparing = ThreadPoolExecutor(PREPARING_THREADS, "rankwell-prepare")
        # Explanations are slow and need large arrays: one runs at a time, and few may wait.
        self._explaining = ThreadPoolExecutor(1, "rankwell-explain")
        # One thread, so that large answers wait for each other and not for searches.
        self._highlighting = ThreadPoolExecutor(1, "rankwell-highlight")
        self._writing = ThreadPoolExecutor(1, "rankwell-write")
        self._writes = SearchQueue(self.holder.write, self._writing, WRITE_BATCH)
        self._searches = SearchQueue(partial(run_whole, search_together), self._preparing, SEARCH_BATCH)
        self._suit(self.state)
        self._waiting = self._explanations = 0
        self._stopping = threading.Event()
        self._scrubber = threading.Thread(target=self._scrub, name="rankwell-scrub", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="rankwell-watch", daemon=True)
        self.started = int(time.time())
        self.metrics.generation.set(1)

    def _suit(self, state: State) -> None:
        """Set the length of the queue, its speed until batches are measured, and the size of batches by the state."""
        self.engine.make_room(model.ranker.engine for model in state.models.values())
        for model in state.models.values():
            self.engine.measure(*model.warm_up)
        self._searches.size = SEARCH_BATCH if state.hybrid else 1

    @property
    def state(self) -> State:
        """The index and models in use."""
        return self.holder.state

    def start(self) -> None:
        """Start the request engine, and to look for damaged files and for changes of the index."""
        self.engine.start()
        self._scrubber.start()
        self._watcher.start()

    def stop(self) -> None:
        """Finish the requests under way. A reload under way is abandoned."""
        self.draining = True
        self._stopping.set()
        for pool in (self._preparing, self._explaining, self._highlighting, self._writing):
            pool.shutdown(wait=True, cancel_futures=True)
        self.engine.stop()

    @property
    def unfinished(self) -> bool:
        """Whether a thread still runs: for a reload, or for requests that were not waited for."""
        return self.engine.running or self.holder.reloading

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
        """Serve the index as other processes change it."""
        problem = ""
        while not self._stopping.wait(WATCH_SECONDS):
            try:
                before, fresh = self.state.generation, self.holder.refresh()
                problem = ""
                if fresh.generation != before:
                    self.metrics.generation.set(fresh.generation)
                    LOG.info("refresh", extra={"about": {"generation": fresh.generation}})
            except Exception as error:  # what is served stays
                if str(error) != problem:
                    problem = str(error)
                    LOG.error("refresh", extra={"about": {"outcome": "failed", "error": problem}})

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
            count, state = await self._admitted(self._writes.submit(job))
        except RankwellError as error:
            LOG.error("write", extra={"about": {"outcome": "failed", "error": str(error)}})
            raise ApiError(409, "write_failed", f"could not write: {error}", {"Retry-After": "1"}) from None
        about |= {"documents": count, "generation": state.generation}
        self.metrics.generation.set(state.generation)
        return {"documents": count, "generation": state.generation}

    async def rerank(self, body: Rerank, deadline: float, about: Answer, request: str) -> Scored:
        """Score the given texts."""
        model = self.model(self.state, body.model)
        texts = body.document_texts()
        self._check_query(body)
        self._check_texts(body.texts_field, texts)
        label = self._type(body, model)
        self._instruct(self.state, body.instruction, model)
        guess = sum(map(len, texts)) // CHARACTERS_PER_TOKEN + len(texts) * (
            len(body.query) // CHARACTERS_PER_TOKEN + 3
        )

        def prepare() -> LaidOutPairs:
            return model.lay_out(
                body.query, model.ranker.reader.encode(texts), label, body.instruction, truncate=body.truncate
            )

        scored = await self._score(model, prepare, self._admit(guess, deadline), about)
        scores = scored.scores if body.raw_scores else scored.probabilities
        tokens = len(scored.laid.sequences.tokens)
        return Scored(request, model.name, scores, tokens, scored.laid.truncated, label)

    async def embed(self, body: EmbeddingsRequest) -> tuple[str, Vectors]:
        """The vectors of texts, and the name of the bi-encoder that makes them."""
        state = self.state
        if state.system is None or state.encoder is None:
            raise ApiError(409, "unavailable", "this service has no bi-encoder; start it with --hybrid or --blend")
        texts, lock = body.texts, state.dense_lock
        self._check_texts("input", texts)
        if body.instruction is not None and body.input_type == "document":
            raise _invalid("instruction: documents take none; expected the input_type (TEI: prompt_name) query")
        told, encoder = self._instruct(state, body.instruction, encodes=True), state.system.first_stage.dense.encoder
        of_queries = partial(encoder.encode_queries, instruction=told)
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
        self._check_query(body)
        self._check_text("filter", str(body.filter or ""), self.limits.text_characters)
        try:
            filter = state.system.index.documents.resolve_filter(body.filter)
            query = state.system.index.check_syntax(body.query) if body.syntax else body.query
        except RankwellError as error:
            raise _invalid(str(error)) from None
        known = state.system.index.documents.fields
        if unknown := [name for name in body.fields or () if name not in known]:
            raise _invalid(f"fields: no document has a field {unknown[0]!r}; fields: {', '.join(known) or 'none'}")
        depth = body.depth or min(state.depth, self.limits.depth)
        for name, value, most in (
            ("k", body.k + body.offset, self.limits.k),
            ("depth", depth, self.limits.depth),
        ):
            if value > most:
                raise _invalid(f"{name}{' + from' if name == 'k' else ''}: {value:,}; the limit is {most:,}")
        stages = body.stages or ("both" if state.models else state.first)
        if stages == "hybrid" and stages not in state.first_stages:
            raise ApiError(409, "unavailable", "this service searches with BM25 only; start it with --hybrid")
        if body.words and not (state.system.first_stage.words and state.has_texts):
            raise ApiError(409, "unavailable", "this service has no word vectors; serve a system that uses them")
        reranks = stages not in state.first_stages
        model = self.model(state, body.model) if reranks or body.model else state.default
        label = self._type(body, model if reranks else None)
        told = self._instruct(state, body.instruction, model if reranks else None, encodes=stages != "bm25")
        # Admitted before anything is searched: a refusal must not wait for other requests.
        guess = depth * min(TOKENS_PER_CANDIDATE, model.ranker.template.max_length) if reranks and model else 0
        entry = self._admit(guess, deadline) if guess else None
        try:
            first = state.first if reranks else stages
            scope = Scope(filter, body.syntax, told)
            job = state, first, body.query, max(depth, body.offset + body.k), scope
            with part("search"):
                found, first_ms = await self._admitted(self._searches.submit(job))
                candidates = found.ranking
            nothing = dict.fromkeys(state.first_stages)
            ms: dict[str, float | None] = {**nothing, first: round(first_ms, 3), "rerank": None, "queue": None}
            reranked = None
            if entry is not None and model is not None:
                how = label, body.instruction if model.ranker.reader.takes_instruction else None, entry, about, ms
                found = replace(found, ranking=candidates.head(depth))
                reranked = await self._rerank_candidates(state, model, query, found, *how)
            shown_first = None if stages == "rerank" else first
            answer = {**nothing, **search_answer(body, candidates, reranked, first=shown_first)}
            shown = dict.fromkeys(row["docid"] for name in (first, "rerank") for row in answer[name] or ())
            more = await self._prepare(lambda: documents_answer(state, list(shown), body.fields))
            most = self.limits.highlighted
            if body.words:
                await self._in(self._highlighting, lambda: add_words(state, body.query, found, more, most))
            if body.highlight:
                await self._in(self._highlighting, lambda: highlight(state, model, body.query, more, most))
            ms["total"] = round(1000 * (time.perf_counter() - begin), 3)
            about |= {"candidates": len(candidates), "generation": state.generation}
            echo = {"query": body.query, "type": label, "stages": stages, "k": body.k, "from": body.offset}
            echo |= {"depth": depth, "model": model.name if reranked and model else None}
            return {**echo, "generation": state.generation, "ms": ms, **answer, **more}
        finally:
            if entry is not None:
                self.engine.release(entry)

    async def explain(self, body: Explain, about: Answer) -> Answer:
        """Explain the score of a query and a document."""
        state = self.state
        model = self.model(state, body.model)
        if not model.explainable:
            problem = "only BERT rankers of the backend torch show their attention"
            raise ApiError(409, "unavailable", f"{model.name} cannot be explained: {problem}")
        self._check_query(body)
        label = self._type(body, model)
        if (body.document is None) == (body.docid is None):
            raise _invalid("document: expected either document or docid")
        document = body.document if body.document is not None else self._text(state, body.docid or "")
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
        return {**answer, "docid": body.docid, "model": model.name}

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
        self._suit(fresh)
        self.metrics.reloads.labels("done").inc()
        self.metrics.generation.set(fresh.generation)
        LOG.info("reload", extra={"about": {"outcome": "done", "generation": fresh.generation}})
        return self.ready()

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
            "note": state.note,
            "index": about_index,
            "examples": state.examples,
            "models": list(state.models),
            "hybrid": state.hybrid,
            "words": None if state.system is None else state.system.first_stage.words or None,
            "blend": state.describe_shares(),
            "depth": state.depth,
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

    async def _rerank_candidates(
        self,
        state: State,
        model: Model,
        query: str,
        found: Found,
        label: str | None,
        instruction: str | None,
        entry: Entry,
        about: Answer,
        ms: dict[str, float | None],
    ) -> Reranked:
        docids = found.ranking.docids

        def prepare() -> LaidOutPairs:
            documents = state.documents(model, docids) if docids else _NO_PIECES
            return model.lay_out(query, documents, label, instruction)

        scored = await self._score(model, prepare, entry, about)
        ms |= {"rerank": scored.engine_ms, "queue": scored.queue_ms}
        scores = scored.scores
        if state.system is not None and state.system.shares is not None:
            scores = await self._in(self._preparing, lambda: state.fuse(query, found, scored.scores))
        return Reranked.of(docids, scores, scored.probabilities)

    async def _score(
        self, model: Model, prepare: Callable[[], LaidOutPairs], entry: Entry, about: Answer
    ) -> PairScores:
        """Lay out an admitted request's pairs and score them; if it ends early, they leave the queue."""
        entry.arrived = time.monotonic()
        try:
            with part("tokenise"):
                laid = await self._prepare(prepare)
            about |= {
                "pairs": int(laid.owners[-1]) + 1 if len(laid.owners) else 0,
                "tokens": len(laid.sequences.tokens),
            }
            with part("rerank"):
                logits = await asyncio.wrap_future(self.engine.submit(entry, model.ranker.engine, laid.sequences))
        finally:
            self.engine.release(entry)
        started = entry.started or entry.arrived
        queue_ms, engine_ms = 1000 * (started - entry.arrived), 1000 * (time.monotonic() - started)
        about["queue_ms"] = round(queue_ms, 2)
        if not np.isfinite(logits).all():
            raise FloatingPointError("the model's scores are not numbers")
        if not len(logits):
            none = np.zeros(0, np.float32)
            return PairScores(laid, none, none, 0.0, 0.0)
        scores, probabilities = laid.join(relevance(logits)), laid.join(probability(logits))
        return PairScores(laid, scores, probabilities, round(queue_ms, 3), round(engine_ms, 3))

    def _admit(self, tokens: int, deadline: float) -> Entry:
        left = deadline - time.monotonic()
        if left <= 0:
            raise too_late(self.metrics)
        try:
            return self.engine.admit(tokens, SHARE_OF_DEADLINE * left)
        except OverloadedError as error:
            raise self.overloaded(error) from None

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
        if body.type is None:
            return None if model is None else type_for(Query(QID, body.query), model.ranker)
        takes = model is None or model.ranker.takes_types
        if body.type in ("auto", "none"):
            return rule_type(body.query) if body.type == "auto" and takes else None
        if not takes and model is not None:
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

    def _text(self, state: State, docid: str) -> str:
        if state.index is None:
            raise ApiError(409, "unavailable", "this service has no index; send the document's text")
        if docid not in state.index:
            raise ApiError(404, "not_found", "no document with this id is in the index")
        return state.index.text(docid)

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


_NO_PIECES = Pieces.plain(np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.int64))


def _invalid(line: str) -> ApiError:
    return ApiError(422, "validation", line)
