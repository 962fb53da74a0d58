"""The service behind the API: what each request does, from its checked body to its answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Ranking
from rankwell.inputs.pieces import Pieces
from rankwell.serve.answers import (
    Answer,
    Reranked,
    documents_answer,
    explain_answer,
    query_type,
    rerank_answer,
    search_answer,
)
from rankwell.serve.beside import Wanted, find_all
from rankwell.serve.engine import OverloadedError, RequestEngine, Ticket
from rankwell.serve.limits import Batching, Limits
from rankwell.serve.metrics import Metrics
from rankwell.serve.requests import LOG, ApiError, too_late
from rankwell.serve.shapes import Asked, CohereRerank, Explain, Search, TeiRerank
from rankwell.serve.state import Holder, Laid, Model, Sources, State
from rankwell.serve.together import Together

Found = TypeVar("Found")
# A guess before anything is tokenised; what it is exactly shows soon enough.
CHARACTERS_A_TOKEN = 4
TOKENS_A_CANDIDATE = 150
PREPARING_THREADS = 2
SEARCHED_TOGETHER = 64  # by a bi-encoder; BM25 gains nothing by it


@dataclass(frozen=True, eq=False)
class Scored:
    """What the engine made of a request: scores and probabilities of its pairs, and figures for the log."""

    laid: Laid
    scores: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    queue_ms: float
    engine_ms: float


class Service:
    """Everything a service holds. :meth:`start` and :meth:`stop` frame its life."""

    def __init__(self, sources: Sources, limits: Limits | None = None, batching: Batching | None = None):
        self.limits = limits or Limits()
        self.metrics = Metrics()
        self.holder = Holder(sources)
        self.engine = RequestEngine(batching, self.metrics)
        for model in self.state.models.values():
            self.engine.make_room(model.ranker.engine)
        self.draining = False
        self._preparing = ThreadPoolExecutor(PREPARING_THREADS, "rankwell-prepare")
        # Explanations are slow and hold large arrays: one at a time, and few that wait.
        self._explaining = ThreadPoolExecutor(1, "rankwell-explain")
        self._reloads: set[threading.Thread] = set()
        self._searches = Together(find_all, self._preparing, SEARCHED_TOGETHER if sources.beside.hybrid else 1)
        self._waiting = self._explanations = 0
        self.metrics.generation.set(1)

    @property
    def state(self) -> State:
        """What is served now."""
        return self.holder.state

    def start(self) -> None:
        """Begin to work."""
        self.engine.start()

    def stop(self) -> None:
        """Finish what has begun, and end; a reload, which nobody waits for any more, is left alone."""
        self.draining = True
        for pool in (self._preparing, self._explaining):
            pool.shutdown(wait=True, cancel_futures=True)
        self.engine.stop()

    @property
    def unfinished(self) -> bool:
        """Whether a thread still works: on a reload, or for requests that were not waited for."""
        return self.engine.running or any(thread.is_alive() for thread in self._reloads)

    async def rerank(self, asked: CohereRerank | TeiRerank, deadline: float, about: Answer) -> Answer | list[Answer]:
        """Given texts, best first."""
        model = self._model(self.state, asked.model)
        texts = asked.texts_given()
        self._check_query(asked)
        field = "texts" if isinstance(asked, TeiRerank) else "documents"
        if len(texts) > self.limits.documents:
            raise _beyond(f"{field}: {len(texts):,} of them; at most {self.limits.documents:,} are taken")
        for number, text in enumerate(texts):
            self._check_text(f"{field}.{number}", text, self.limits.text_characters)
        label = self._type(asked, model)
        guess = sum(map(len, texts)) // CHARACTERS_A_TOKEN + len(texts) * (len(asked.query) // CHARACTERS_A_TOKEN + 3)

        def prepare() -> Laid:
            return model.lay_out(asked.query, model.pieces(texts), label, truncate=asked.truncate)

        scored = await self._score(model, prepare, guess, deadline, about)
        meta = {"type": label, "tokens": len(scored.laid.sequences.tokens), "truncated": scored.laid.cut}
        scores = scored.scores if asked.raw_scores else scored.probabilities
        return rerank_answer(asked, scores, {"model": model.name, "meta": meta})

    async def search(self, asked: Search, deadline: float, about: Answer) -> Answer:
        """The index's documents, by the first stage, by the re-ranker, or both."""
        begin = time.perf_counter()
        state = self.state
        finding = state.finding
        if finding is None:
            raise ApiError(409, "unavailable", "this service has no index; it re-ranks given texts only")
        self._check_query(asked)
        for name, value, most in (
            ("k", asked.k + asked.offset, self.limits.k),
            ("depth", asked.depth, self.limits.depth),
        ):
            if value > most:
                raise _beyond(f"{name}{' + offset' if name == 'k' else ''}: {value:,}; at most {most:,} are taken")
        stages = asked.stages or ("both" if state.models else finding.names[0])
        if stages == "hybrid" and stages not in finding.names:
            raise ApiError(409, "unavailable", "this service searches by BM25 alone; start it with --hybrid")
        reranks = stages not in finding.names
        model = self._model(state, asked.model) if reranks or asked.model else state.default
        label = self._type(asked, model if reranks else None)
        if self.engine.full and reranks:
            raise self.overloaded(self.engine.refusal())

        first = finding.names[0] if reranks else stages
        finder = finding if first == finding.names[0] else finding.words
        wanted = Wanted(finder, asked.query, max(asked.depth, asked.offset + asked.k))
        found, found_ms = await self._admitted(self._searches.ask(wanted))
        nothing = dict.fromkeys(finding.names)
        ms: dict[str, float | None] = {**nothing, first: round(found_ms, 3), "rerank": None, "queue": None}
        reranked = None
        if reranks and model is not None:
            candidates = found.head(asked.depth)
            reranked = await self._rerank_candidates(state, model, asked.query, candidates, label, deadline, about, ms)
        answer = {**nothing, **search_answer(asked, found, reranked, first=None if stages == "rerank" else first)}
        shown = dict.fromkeys(row["docid"] for name in (first, "rerank") for row in answer[name] or ())
        more = await self._prepare(lambda: documents_answer(state, model, asked, list(shown)))
        ms["total"] = round(1000 * (time.perf_counter() - begin), 3)
        about |= {"candidates": len(found), "generation": state.generation}
        echo = {"query": asked.query, "type": label, "stages": stages, "k": asked.k, "offset": asked.offset}
        echo |= {"depth": asked.depth, "model": model.name if reranked and model else None}
        return {**echo, "generation": state.generation, "ms": ms, **answer, **more}

    async def explain(self, asked: Explain, about: Answer) -> Answer:
        """Why a pair has its score."""
        state = self.state
        model = self._model(state, asked.model)
        if not model.explainable:
            problem = "only BERT rankers of the backend torch show their attention"
            raise ApiError(409, "unavailable", f"{model.name} cannot be explained: {problem}")
        self._check_query(asked)
        label = self._type(asked, model)
        if (asked.document is None) == (asked.docid is None):
            raise _beyond("document: expected this or docid, one of the two")
        document = asked.document if asked.document is not None else self._text(state, asked.docid or "")
        self._check_text("document", document, self.limits.explained_characters)
        if self._explanations >= self.limits.explanations:
            raise ApiError(429, "overloaded", "too many explanations are waiting", {"Retry-After": "2"})
        self._explanations += 1
        try:
            answer = await self._in(
                self._explaining, lambda: explain_answer(model, asked.query, document, label, asked)
            )
        except RankwellError as error:
            raise _beyond(str(error)) from None
        finally:
            self._explanations -= 1
        about["tokens"] = len(answer["tokens"])
        return {**answer, "docid": asked.docid, "model": model.name}

    async def reload(self) -> Answer:
        """Open index and models anew; while that lasts, and where it fails, the old ones serve."""
        try:
            fresh = await asyncio.wrap_future(self._begin_reload())
        except Exception as error:
            # Whatever is wrong with new files must not stop a service that works.
            self.metrics.reloads.labels("failed").inc()
            said = str(error) if isinstance(error, RankwellError) else f"{type(error).__name__}: {error}"
            LOG.error("reload", extra={"about": {"outcome": "failed", "error": said}})
            raise ApiError(409, "reload_failed", f"the old index and models go on: {said}") from None
        self.metrics.reloads.labels("done").inc()
        self.metrics.generation.set(fresh.generation)
        LOG.info("reload", extra={"about": {"outcome": "done", "generation": fresh.generation}})
        return self.ready()

    def _begin_reload(self) -> Future[State]:
        """Reload in a thread that the process does not wait for when it ends."""
        result: Future[State] = Future()
        result.set_running_or_notify_cancel()  # from here on nobody can cancel it, so it can always be set

        def reload() -> None:
            try:
                result.set_result(self.holder.reload())
            except BaseException as error:
                result.set_exception(error)
            finally:
                self._reloads.discard(threading.current_thread())

        thread = threading.Thread(target=reload, name="rankwell-reload", daemon=True)
        self._reloads.add(thread)
        thread.start()
        return result

    def ready(self) -> Answer:
        """What is served, and whether requests are taken."""
        state = self.state
        index = state.index
        first = state.finding.names if state.finding else ("bm25",)
        stages = [*first, "rerank", "both"] if state.models else list(first)
        about_index = index and {
            "name": index.folder.resolve().name,
            "documents": len(index),
            "segments": len(index.segments),
            "texts": state.has_texts,
        }
        return {
            "status": "draining" if self.draining else "ready",
            "version": version("rankwell"),
            "generation": state.generation,
            "reranker": bool(state.models),
            "note": state.note,
            "index": about_index,
            "models": list(state.models),
            "hybrid": state.finding.share if state.finding else None,
            "blend": state.blending.described(first[0]) if state.blending else None,
            "stages": stages if index else [],
            "queue": {"tokens": self.engine.queued, "limit": self.engine.limit},
            "limits": self.limits.shown(),
        }

    def precision(self) -> dict[str, str]:
        """What each model computes in."""
        return {name: model.ranker.engine.precision for name, model in self.state.models.items()}

    def models(self) -> Answer:
        """The models that are served."""
        state = self.state
        default = state.default.name if state.default else None
        return {"default": default, "models": [model.described() for model in state.models.values()]}

    def overloaded(self, error: OverloadedError) -> ApiError:
        """A refusal that says when to come back."""
        return ApiError(429, "overloaded", str(error), {"Retry-After": str(error.retry_after)})

    async def _rerank_candidates(
        self,
        state: State,
        model: Model,
        query: str,
        candidates: Ranking,
        label: str | None,
        deadline: float,
        about: Answer,
        ms: dict[str, float | None],
    ) -> Reranked:
        docids, blending = candidates.docids, state.blending

        def prepare() -> Laid:
            documents = state.documents(model, docids) if docids else _NO_PIECES
            return model.lay_out(query, documents, label)

        guess = len(docids) * min(TOKENS_A_CANDIDATE, model.ranker.template.max_length)
        scored = await self._score(model, prepare, guess, deadline, about)
        ms |= {"rerank": scored.engine_ms, "queue": scored.queue_ms}
        scores = scored.scores
        if blending is not None:
            scores = await self._in(self._preparing, lambda: blending.join(query, candidates, scored.scores))
        return Reranked.of(docids, scores, scored.probabilities)

    async def _score(
        self, model: Model, prepare: Callable[[], Laid], guess: int, deadline: float, about: Answer
    ) -> Scored:
        """Lay a request's pairs out and have them scored; whatever ends it early takes them out of the queue."""
        ticket = self._admit(guess, deadline)
        try:
            laid = await self._prepare(prepare)
            about |= {
                "pairs": int(laid.owners[-1]) + 1 if len(laid.owners) else 0,
                "tokens": len(laid.sequences.tokens),
            }
            logits = await asyncio.wrap_future(self.engine.submit(ticket, model.ranker.engine, laid.sequences))
        finally:
            self.engine.release(ticket)
        started = ticket.started or ticket.arrived
        queue_ms, engine_ms = 1000 * (started - ticket.arrived), 1000 * (time.monotonic() - started)
        about["queue_ms"] = round(queue_ms, 2)
        if not np.isfinite(logits).all():
            raise FloatingPointError("the model's scores are not numbers")
        if not len(logits):
            none = np.zeros(0, np.float32)
            return Scored(laid, none, none, 0.0, 0.0)
        scores, probabilities = laid.scores(logits, raw=True), laid.scores(logits, raw=False)
        return Scored(laid, scores, probabilities, round(queue_ms, 3), round(engine_ms, 3))

    def _admit(self, tokens: int, deadline: float) -> Ticket:
        left = deadline - time.monotonic()
        if left <= 0:
            raise too_late(self.metrics)
        try:
            return self.engine.admit(tokens, left)
        except OverloadedError as error:
            raise self.overloaded(error) from None

    async def _prepare(self, work: Callable[[], Found]) -> Found:
        return await self._admitted(self._in(self._preparing, work))

    async def _admitted(self, work: Coroutine[Any, Any, Found]) -> Found:
        """Do it, unless too many requests are waiting already."""
        if self._waiting >= self.limits.preparing:
            work.close()
            self.metrics.refused.inc()
            raise ApiError(429, "overloaded", "too many requests are waiting; try again in 1 s", {"Retry-After": "1"})
        self._waiting += 1
        try:
            return await work
        finally:
            self._waiting -= 1

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def _model(self, state: State, name: str | None) -> Model:
        if not state.models:
            raise ApiError(409, "unavailable", state.note or "")
        if name is None:
            return next(iter(state.models.values()))
        if name not in state.models:
            raise ApiError(404, "not_found", f"no model of this name is served; there are: {', '.join(state.models)}")
        return state.models[name]

    def _type(self, asked: Asked, model: Model | None) -> str | None:
        """The query's type; one that the client spells out must have a place."""
        if asked.type not in (None, "auto", "none") and model is not None and not model.typed:
            raise _beyond(f"type: the template of {model.name} has no place for one")
        return query_type(asked, model)

    def _text(self, state: State, docid: str) -> str:
        if state.index is None:
            raise ApiError(409, "unavailable", "this service has no index; give the document's text")
        if docid not in state.index:
            raise ApiError(404, "not_found", "no document of this id is in the index")
        return state.index.text(docid)

    def _check_query(self, asked: Asked) -> None:
        if len(asked.query) > self.limits.query_characters:
            most = self.limits.query_characters
            raise _beyond(f"query: {len(asked.query):,} characters; at most {most:,} are taken")

    def _check_text(self, field: str, text: str, most: int) -> None:
        if len(text) > most:
            raise _beyond(f"{field}: {len(text):,} characters; at most {most:,} are taken")


_NO_PIECES = Pieces.plain(np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.int64))


def _beyond(line: str) -> ApiError:
    return ApiError(422, "validation", line)
