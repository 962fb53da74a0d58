"""The HTTP API: paths, and what stands around them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Scope

from rankwell.serve.answers import Answer
from rankwell.serve.describe import RESPONSES, STYLE, describe_api, docs_page
from rankwell.serve.experiments import read_experiments
from rankwell.serve.hosts import Hosts
from rankwell.serve.requests import (
    ApiError,
    Bodies,
    Gate,
    about_to_stop,
    http_error,
    json_response,
    parse,
    validated,
    within,
)
from rankwell.serve.service import Service
from rankwell.serve.shapes import Asked, CohereRerank, Explain, Search, TeiRerank

PAGE = Path(__file__).parent / "page"
Shape = TypeVar("Shape", bound=BaseModel)
Work = Callable[[Any, float, Answer], Awaitable[Any]]


def create_app(
    service: Service,
    *,
    key: str | None = None,
    origins: tuple[str, ...] = (),
    hosts: Hosts | None = None,
    experiments: tuple[Path, ...] = (),
    page: Path | None = PAGE,
) -> FastAPI:
    """The application of a service.

    ``origins`` are other hosts' pages that may use it (CORS), by default none; ``hosts`` are the names under which it
    may be asked, by default any.
    """

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.stop)

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
    bodies = Bodies(service.limits, service.metrics)

    def about(request: Request) -> Answer:
        found: Answer = request.scope["state"]["about"]
        return found

    async def answer(request: Request, shape: type[Asked] | None, work: Work) -> Response:
        """Read a body, check it, and do the work within its deadline."""
        arrived = time.monotonic()
        if service.draining:
            raise about_to_stop()
        raw = await bodies.read(request)
        about(request)["bytes"] = len(raw)
        if shape is None and service.engine.full:  # quicker than looking at what cannot be taken
            raise service.overloaded(service.engine.refusal())
        found = parse(raw)
        chosen = shape or _rerank_shape(found)
        asked = validated(chosen, found)
        del raw, found
        deadline = arrived + _timeout(request, asked.timeout_ms, service) / 1000
        result = await within(
            request, _call(work, asked, deadline, about(request)), deadline - time.monotonic(), service.metrics
        )
        return json_response(result)

    @app.post("/rerank", tags=["ranking"])
    @app.post("/v1/rerank", include_in_schema=False)
    @app.post("/v2/rerank", include_in_schema=False)
    async def rerank(request: Request) -> Response:
        """Order given texts by their relevance to a query."""

        async def work(asked: CohereRerank | TeiRerank, deadline: float, noted: Answer) -> Any:
            found = await service.rerank(asked, deadline, noted)
            return {"id": request.scope["state"]["request_id"], **found} if isinstance(found, dict) else found

        return await answer(request, None, work)

    @app.post("/search", tags=["ranking"])
    async def search(request: Request) -> Response:
        """Search the index: the first stage (BM25, or hybrid search), the re-ranker, or both side by side."""
        return await answer(request, Search, service.search)

    @app.post("/explain", tags=["ranking"])
    async def explain(request: Request) -> Response:
        """Why a pair has its score."""

        async def work(asked: Explain, deadline: float, noted: Answer) -> Answer:
            return await service.explain(asked, noted)

        return await answer(request, Explain, work)

    @app.post("/reload", tags=["service"])
    async def reload(request: Request) -> Response:
        """Open index and models anew, beside the old ones."""
        if key is None:
            raise ApiError(403, "forbidden", "only a service with a key can be reloaded over HTTP; send it SIGHUP")
        return json_response({**await service.reload(), "key": True})

    @app.get("/models", tags=["service"])
    async def models() -> Response:
        """What is served."""
        return json_response(service.models())

    @app.get("/experiments", tags=["service"])
    async def shown_experiments() -> Response:
        """The results of the experiments this service was given, with their plots."""
        return json_response({"experiments": await asyncio.to_thread(read_experiments, experiments)})

    @app.get("/ready", tags=["service"])
    async def ready() -> Response:
        """Whether requests are taken, what is served, and the limits."""
        return json_response({**service.ready(), "key": key is not None}, 503 if service.draining else 200)

    @app.get("/health", tags=["service"])
    async def health() -> Response:
        """The process lives; what its models compute in."""
        return json_response({"status": "ok", "precision": service.precision()})

    @app.get("/metrics", tags=["service"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """The service's figures, for Prometheus."""
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
        # A file of its own: the service's policy allows no style within a page.
        return Response(STYLE, media_type="text/css")

    methods: dict[str, str] = {}
    for route in app.routes:
        if isinstance(route, APIRoute) and route.methods is not None:
            if "GET" in route.methods:  # only now, as it has no place in the description
                route.methods.add("HEAD")
            methods[route.path] = ", ".join(sorted(route.methods))

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return error.response(request.scope["state"]["request_id"])

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        # The page's files lie below every path, so what is refused there may be a path of the API asked wrongly, or no
        # path at all.
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
    app.add_middleware(Gate, key=key, origins=origins, hosts=hosts, metrics=service.metrics, open_paths=files | {"/"})
    if origins:  # outermost: a browser asks before it sends a key, and must be able to read refusals
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    return app


class PageFiles(StaticFiles):
    """The page's files, which a browser asks for anew each time, so that it never mixes those of two versions."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, or that it has not changed."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _call(work: Work, asked: Asked, deadline: float, noted: Answer) -> Any:
    return await work(asked, deadline, noted)


def _rerank_shape(found: dict[str, Any]) -> type[CohereRerank] | type[TeiRerank]:
    if ("documents" in found) == ("texts" in found):
        raise ApiError(422, "validation", "body: expected documents (Cohere's shape) or texts (TEI's), one of the two")
    return TeiRerank if "texts" in found else CohereRerank


def _timeout(request: Request, asked: int | None, service: Service) -> int:
    given = request.headers.get("x-timeout-ms")
    if asked is None and given is not None:
        if not given.isascii() or not given.isdigit() or not 0 < len(given) < 12 or int(given) < 1:
            raise ApiError(422, "validation", "X-Timeout-Ms: expected a whole number of milliseconds, 1 or more")
        asked = int(given)
    return min(asked or service.limits.default_timeout_ms, service.limits.most_timeout_ms)
