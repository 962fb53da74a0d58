"""The HTTP API: its paths and middleware."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Scope

from rankwell.serve.describe import RESPONSES, SEARCH_PARAMETERS, STYLE, describe_api, docs_page
from rankwell.serve.formats import (
    Answer,
    Body,
    EmbeddingsRequest,
    Explain,
    MixedbreadRerank,
    Rerank,
    ScoreRequest,
    Search,
    TeiEmbed,
    embeddings_answer,
    rerank_format,
    search_fields,
)
from rankwell.serve.listening import Hosts
from rankwell.serve.requests import (
    ApiError,
    BodyReader,
    Gate,
    http_error,
    json_response,
    parse,
    parse_documents,
    sends_key,
    shutting_down,
    validated,
    within,
)
from rankwell.serve.service import Service
from rankwell.serve.tracing import trace

PAGE = Path(__file__).parent / "page"
Work = Callable[[Any, float, Answer], Coroutine[Any, Any, Any]]


def create_app(
    service: Service,
    *,
    key: str | None = None,
    writing_key: str | None = None,
    origins: tuple[str, ...] = (),
    hosts: Hosts | None = None,
    page: Path | None = PAGE,
    tracing: Any | None = None,
) -> FastAPI:
    """The application of a service.

    If there is a ``key``, all requests must send it. Requests that change the index must send ``writing_key``; without
    one they are refused. ``origins`` are the pages of other hosts that may use the service (CORS), by default none;
    ``hosts`` are the host names it answers to, by default any. ``tracing`` is the tracer provider of OpenTelemetry that
    gets the spans of requests, if any.
    """

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.stop)
        if tracing is not None:
            await asyncio.to_thread(tracing.shutdown)

    app = FastAPI(
        title="rankwell",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        responses=RESPONSES,
        redirect_slashes=False,
    )
    app.state.service = service
    reader = BodyReader(service.limits, service.metrics)

    def about(request: Request) -> Answer:
        details: Answer = request.scope["state"]["about"]
        return details

    async def answer(
        request: Request,
        shape: type[Body | EmbeddingsRequest] | None,
        work: Work,
        read: Callable[[bytes], dict[str, Any]] = parse,
    ) -> Response:
        """Read a body, check it, and do the work within its deadline."""
        arrived = time.monotonic()
        if service.draining:
            raise shutting_down()
        raw = await reader.read(request)
        about(request)["bytes"] = len(raw)
        fields = read(raw)
        body = validated(shape or rerank_shape(fields), fields)
        del raw, fields
        limits = service.limits
        deadline = arrived + min(body.timeout_ms or limits.default_timeout_ms, limits.most_timeout_ms) / 1000
        result = await within(
            request, work(body, deadline, about(request)), deadline - time.monotonic(), service.metrics
        )
        return json_response(result)

    @app.post("/rerank", tags=["ranking"])
    @app.post("/v1/rerank", include_in_schema=False)
    @app.post("/v2/rerank", include_in_schema=False)
    async def rerank(request: Request) -> Response:
        """Rank the given texts by their relevance to a query, in the format of Cohere, Jina, Voyage or TEI."""
        return await answer(request, None, partial(score, request))

    @app.post("/v1/reranking", tags=["ranking"])
    async def reranking(request: Request) -> Response:
        """Rank the given texts by their relevance to a query, in Mixedbread's format."""
        return await answer(request, MixedbreadRerank, partial(score, request))

    @app.post("/score", tags=["ranking"])
    @app.post("/v1/score", include_in_schema=False)
    async def scores(request: Request) -> Response:
        """Score texts for a query, in vLLM's format."""
        return await answer(request, ScoreRequest, partial(score, request))

    async def score(request: Request, body: Rerank, deadline: float, details: Answer) -> Any:
        return body.answer(await service.rerank(body, deadline, details, request.scope["state"]["request_id"]))

    @app.post("/v1/embeddings", tags=["ranking"])
    async def embeddings(request: Request) -> Response:
        """The vectors of texts, in OpenAI's format."""

        async def work(body: EmbeddingsRequest, deadline: float, details: Answer) -> Answer:
            return embeddings_answer(body, *await service.embed(body))

        return await answer(request, EmbeddingsRequest, work)

    @app.post("/embed", tags=["ranking"])
    async def embed(request: Request) -> Response:
        """The vectors of texts, in TEI's format."""

        async def work(body: TeiEmbed, deadline: float, details: Answer) -> list[list[float]]:
            vectors: list[list[float]] = (await service.embed(body))[1].tolist()
            return vectors

        return await answer(request, TeiEmbed, work)

    @app.get("/search", tags=["ranking"], openapi_extra={"parameters": SEARCH_PARAMETERS})
    async def search_by_address(request: Request) -> Response:
        """Search with the query in the address: ?q=…&k=10; other fields have the names they have in a body."""
        return await answer(request, Search, service.search, lambda raw: search_fields(dict(request.query_params)))

    @app.post("/search", tags=["ranking"])
    async def search(request: Request) -> Response:
        """Search the index: the first stage (BM25, or hybrid search), the re-ranker, or both side by side."""
        return await answer(request, Search, service.search)

    def check_writer(request: Request) -> None:
        if writing_key is None:
            line = "this service does not write; start it with a writing key (RANKWELL_WRITING_KEY)"
            raise ApiError(403, "forbidden", line)
        if not sends_key(dict(request.scope["headers"]), writing_key):
            raise ApiError(401, "unauthorized", "missing or wrong writing key", {"WWW-Authenticate": "Bearer"})
        if service.draining:
            raise shutting_down()

    @app.put("/documents", tags=["documents"])
    async def put_documents(request: Request) -> Response:
        """Add documents, replacing those with the same ids: a JSON object for each, one per line."""
        check_writer(request)
        raw = await reader.read(request)
        about(request)["bytes"] = len(raw)
        return json_response(await service.write(parse_documents(raw), about(request)))

    @app.delete("/documents/{docid:path}", tags=["documents"])
    async def delete_document(request: Request, docid: str) -> Response:
        """Delete a document; one that is not in the index is no error."""
        check_writer(request)
        return json_response(await service.write([docid], about(request)))

    @app.post("/explain", tags=["ranking"])
    async def explain(request: Request) -> Response:
        """Explain the score of a query and a document."""

        async def work(body: Explain, deadline: float, details: Answer) -> Answer:
            return await service.explain(body, details)

        return await answer(request, Explain, work)

    @app.post("/reload", tags=["service"])
    async def reload(request: Request) -> Response:
        """Reopen index and models; requests under way finish on the old ones."""
        if key is None:
            raise ApiError(403, "forbidden", "reloading over HTTP needs a service with a key; send SIGHUP instead")
        return json_response({**await service.reload(), "key": True})

    @app.get("/models", tags=["service"])
    async def models() -> Response:
        """The models served."""
        state = service.state
        default = state.default.name if state.default else None
        return json_response({"default": default, "models": [model.described() for model in state.models.values()]})

    @app.get("/v1/models", tags=["service"])
    async def listed() -> Response:
        """The models served and their aliases, in OpenAI's format."""
        state = service.state
        names = dict.fromkeys([*state.models, *filter(None, [state.encoder]), *state.aliases])
        facts = {"object": "model", "created": service.started, "owned_by": "rankwell"}
        return json_response({"object": "list", "data": [{"id": name, **facts} for name in names]})

    @app.get("/info", tags=["service"])
    async def info() -> Response:
        """The default model, in TEI's format."""
        model = service.model(service.state, None)
        labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        described = {
            "model_id": model.name,
            "model_dtype": model.ranker.engine.precision,
            "model_type": {"reranker": labels},
            "max_input_length": model.ranker.template.max_length,
            "max_batch_tokens": service.engine.limit,
            "max_client_batch_size": service.limits.documents,
            "max_concurrent_requests": service.limits.preparing,
            "version": version("rankwell"),
        }
        return json_response(described)

    @app.get("/ready", tags=["service"])
    async def ready() -> Response:
        """Whether the service accepts requests, what it serves, and its limits."""
        return json_response({**service.ready(), "key": key is not None}, 503 if service.draining else 200)

    @app.get("/health", tags=["service"])
    async def health() -> Response:
        """The process is alive; the precision of its models."""
        return json_response({"status": "ok", "precision": service.precision()})

    @app.get("/metrics", tags=["service"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    description = describe_api(app)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return json_response(description)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(description))

    @app.get("/docs.css", include_in_schema=False)
    async def style() -> Response:
        # A separate file: the content security policy allows no inline style.
        return Response(STYLE, media_type="text/css")

    methods: dict[str, str] = {}
    for route in app.routes:
        if isinstance(route, APIRoute) and route.methods is not None:
            if "GET" in route.methods:  # added last, to keep it out of the description
                route.methods.add("HEAD")
            known = methods[route.path].split(", ") if route.path in methods else []
            methods[route.path] = ", ".join(sorted({*route.methods, *known}))

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return error.response(request.scope["state"]["request_id"])

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        # The page's files are mounted at "/", so this may be an API path with the wrong method, or no path at all.
        allowed = methods.get(request.url.path)
        status = 405 if allowed else 404 if error.status_code == 405 else error.status_code
        refusal = http_error(status)
        refusal.headers.update({"Allow": allowed} if allowed else {})
        return refusal.response(request.scope["state"]["request_id"])

    files: frozenset[str] = frozenset()
    if page is not None and (page / "index.html").is_file():
        app.mount("/", PageFiles(directory=page, html=True), name="page")
        files = frozenset(f"/{file.relative_to(page).as_posix()}" for file in page.rglob("*") if file.is_file())
        methods |= dict.fromkeys(files | {"/"}, "GET, HEAD")
    app.add_middleware(
        Gate,
        keys=tuple(filter(None, (key, writing_key))) if key else (),
        origins=origins,
        hosts=hosts,
        metrics=service.metrics,
        busy=service.busy,
        open_paths=files | {"/"},
    )
    if origins:  # outermost: preflight requests bring no key, and pages must be able to read errors
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    if tracing is not None:
        trace(app, tracing)
    return app


class PageFiles(StaticFiles):
    """The page's files, revalidated on each load so that a browser never mixes two versions."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, or 304 if it has not changed."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def rerank_shape(fields: dict[str, Any]) -> type[Rerank]:
    """The format of a re-ranking request, by its fields."""
    shape = rerank_format(fields)
    if shape is None:
        raise ApiError(422, "validation", "body: expected either documents (Cohere's format) or texts (TEI's)")
    return shape
