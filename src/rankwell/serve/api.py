"""The HTTP application: a service's paths, its errors, the page and middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Scope

from rankwell.serve.bodies import ApiError, BodyReader, Gate, http_error
from rankwell.serve.describe import RESPONSES, describe_api
from rankwell.serve.listening import Hosts
from rankwell.serve.paths import ROUTERS, methods_of_paths
from rankwell.serve.service import Service
from rankwell.serve.tracing import trace

PAGE = Path(__file__).parent / "page"


def create_app(
    service: Service,
    *,
    key: str | None = None,
    writing_key: str | None = None,
    origins: tuple[str, ...] = (),
    hosts: Hosts | None = None,
    page: Path | None = PAGE,
    tracing: Any | None = None,
    agents: bool = False,
) -> FastAPI:
    """The application of a service.

    If there is a ``key``, all requests must send it. Requests that change the index must send ``writing_key``; without
    one they are refused. ``origins`` are the pages of other hosts that may use the service (CORS), by default none;
    ``hosts`` are the host names it answers to, by default any. ``tracing`` is the tracer provider of OpenTelemetry that
    gets the spans of requests, if any. With ``agents``, the tools of :mod:`rankwell.serve.agents` are part of it.
    """
    tools = None
    if agents:
        from rankwell.serve.agents import application_of  # needs the extra agents

        tools = application_of(service)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        async with nullcontext() if tools is None else tools.router.lifespan_context(tools):
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
    app.state.service, app.state.key, app.state.writing_key = service, key, writing_key
    app.state.reader = BodyReader(service.limits, service.metrics)
    for router in ROUTERS:
        app.include_router(router)
    app.state.description = describe_api(app)
    app.router.routes += [] if tools is None else tools.routes
    methods = methods_of_paths()
    files: frozenset[str] = frozenset()
    if page is not None and (page / "index.html").is_file():
        app.mount("/", PageFiles(directory=page, html=True), name="page")
        files = frozenset(f"/{file.relative_to(page).as_posix()}" for file in page.rglob("*") if file.is_file())
        methods |= dict.fromkeys(files | {"/"}, "GET, HEAD")
    answer_errors(app, methods)
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


def answer_errors(app: FastAPI, methods: dict[str, str]) -> None:
    """Answer errors in the API's own format. ``methods`` are those of each path."""

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


class PageFiles(StaticFiles):
    """The page's files, revalidated on each load so that a browser never mixes two versions."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, or 304 if it has not changed."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response
