"""What happens around every request: its id, its body, its deadline, its client, its line in the log."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import pydantic_core
from fastapi import Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rankwell.serve.hosts import Hosts
from rankwell.serve.limits import Limits
from rankwell.serve.metrics import Metrics

LOG = logging.getLogger("rankwell.serve")
Body = TypeVar("Body", bound=BaseModel)
Result = TypeVar("Result")
LINGER_BYTES = 64 << 20
LINGER_SECONDS = 2.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# What the page needs before a user can type a key, and what watches over the process.
_OPEN_PATHS = frozenset({"/health", "/ready", "/docs", "/docs.css", "/openapi.json"})
_KINDS = {400: "malformed", 401: "unauthorized", 404: "not_found", 405: "method", 408: "deadline"}
_SAFE_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"content-security-policy": b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
}


class ApiError(Exception):
    """A refusal: its status, its kind and one line."""

    def __init__(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.kind, self.message, self.headers = status, kind, message, headers or {}

    def response(self, request_id: str) -> Response:
        """The answer, in a shape that clients of Cohere's API and of TEI's can read."""
        line = self.message
        content = {"error": line, "error_type": self.kind, "message": line, "request_id": request_id}
        return json_response(content, self.status, self.headers)


class GoneError(Exception):
    """The client has gone: nobody waits for an answer."""


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer."""
    try:
        body = pydantic_core.to_json(content, inf_nan_mode="null")
    except pydantic_core.PydanticSerializationError:
        # A document may hold half a surrogate pair, which UTF-8 cannot write; JSON can, as an escape.
        body = json.dumps(pydantic_core.to_jsonable_python(content, inf_nan_mode="null")).encode()
    return Response(body, status, headers, "application/json")


def http_error(status: int) -> ApiError:
    """What the framework refuses itself."""
    lines = {404: "there is nothing at this path", 405: "this path does not take this method"}
    return ApiError(status, _KINDS.get(status, "malformed"), lines.get(status, "this request cannot be understood"))


def about_to_stop() -> ApiError:
    """What a request is told that a stopping service does not begin, or cannot finish."""
    return ApiError(503, "draining", "the service is about to stop", {"Retry-After": "5", "Connection": "close"})


def too_late(metrics: Metrics) -> ApiError:
    """What a request is told whose deadline has passed, and counted as."""
    metrics.late.inc()
    return ApiError(504, "deadline", "the deadline has passed")


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of a body."""
    try:
        found = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, "malformed", f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ApiError(422, "validation", f"the body is a JSON {type(found).__name__}; expected an object")
    return found


def validated(shape: type[Body], found: dict[str, Any]) -> Body:
    """The body as a model; the first problem is named, the text that has it is not repeated."""
    try:
        return shape.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        raise ApiError(422, "validation", f"{place}: {first['msg']}") from None


class Bodies:
    """Reads bodies, and bounds each and all of them together."""

    def __init__(self, limits: Limits, metrics: Metrics):
        self._limits = limits
        self._metrics = metrics
        self._held = 0

    async def read(self, request: Request) -> bytes:
        """The whole body; one that is too large is refused as soon as that shows."""
        declared = request.headers.get("content-length", "0")
        parts: list[bytes] = []
        size = 0
        stream = request.stream()
        try:
            self._check(int(declared) if declared.isdigit() else 0, self._held)
            async with asyncio.timeout(self._limits.default_timeout_ms / 1000):
                async for part in stream:
                    size += len(part)
                    self._hold(len(part))
                    self._check(size, self._held - size)
                    parts.append(part)
        except TimeoutError:
            raise ApiError(408, "deadline", "the body took too long to come", {"Connection": "close"}) from None
        except ApiError:
            parts.clear()
            await self._discard(stream)
            raise
        except ClientDisconnect:
            self._metrics.gone.inc()
            raise GoneError from None
        finally:
            self._hold(-size)
        return b"".join(parts)

    async def _discard(self, stream: AsyncIterator[bytes]) -> None:
        """Read on for a while: a client that is still sending would not see the refusal if the connection closed."""
        left = LINGER_BYTES
        with suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(LINGER_SECONDS):
                async for part in stream:
                    left -= len(part)
                    if left < 0:
                        return

    def _hold(self, more: int) -> None:
        self._held += more
        self._metrics.bodies.set(self._held)

    def _check(self, size: int, others: int) -> None:
        if size > self._limits.body_bytes:
            most = self._limits.body_bytes
            raise ApiError(413, "too_large", f"a body of more than {most:,} bytes", {"Connection": "close"})
        if others + size > self._limits.bodies_bytes:
            raise ApiError(429, "overloaded", "too many large requests at once", {"Retry-After": "1"})


async def within(request: Request, work: Coroutine[Any, Any, Result], seconds: float, metrics: Metrics) -> Result:
    """The work's result, unless the deadline passes or the client goes first: then the work is cancelled."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watcher}, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watcher.done():
            metrics.gone.inc()
            raise GoneError
        raise too_late(metrics)
    finally:
        watcher.cancel()
        if not task.done():  # an error that is awaited twice loses its place
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Gate:
    """The outermost layer: ids, keys, hosts, origins, headers, the log. It never looks at a body."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        key: str | None,
        origins: tuple[str, ...],
        hosts: Hosts | None,
        metrics: Metrics,
        open_paths: frozenset[str],
    ):
        self.app = app
        self._hosts = hosts
        self._key = key.encode() if key else None
        self._origins = frozenset(origin.encode() for origin in origins)
        self._metrics = metrics
        self._open = _OPEN_PATHS | open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin = time.perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        about: dict[str, Any] = {}
        scope["state"] = {**scope.get("state", {}), "request_id": request_id, "about": about}
        status = 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {b"x-request-id": request_id.encode(), **_SAFE_HEADERS}
                message["headers"] = [*message.get("headers", ()), *own.items()]
            await send(message)

        try:
            if (refusal := self._refusal(scope, headers)) is not None:
                await refusal.response(request_id)(scope, receive, send_on)
            else:
                await self.app(scope, receive, send_on)
        except GoneError:
            status = 499  # as nginx logs it; nobody reads it
        except asyncio.CancelledError:
            # The server cancels what it cannot wait for any longer when it stops.
            if status:
                raise
            await about_to_stop().response(request_id)(scope, receive, send_on)
        except Exception as error:
            # Its message may hold a document's text, so only the kind of error and its place are logged.
            about["bug"] = place_of(error)
            if not status:
                await ApiError(500, "internal", "the service failed").response(request_id)(scope, receive, send_on)
        finally:
            self._note(scope, request_id, status, time.perf_counter() - begin, about)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> ApiError | None:
        if self._key is not None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._key):
                return None
            if scope["path"] not in self._open or scope["method"] not in ("GET", "HEAD"):
                challenge = {"WWW-Authenticate": "Bearer"}
                return ApiError(401, "unauthorized", "this service asks for its key", challenge)
        host = headers.get(b"host")  # every browser sends one
        if self._hosts is not None and host is not None and not self._hosts.has(host.decode("latin-1")):
            line = "this service is not for hosts of this name (Host); --allow-host lets them in"
            return ApiError(421, "misdirected", line)
        if self._foreign(headers):
            return ApiError(403, "forbidden", "this service is not for pages of other hosts; --origin lets them in")
        return None

    def _foreign(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a page of another host sent it: browsers send plain text there without asking first."""
        origin = headers.get(b"origin")
        if origin is None or origin in self._origins or b"*" in self._origins:
            return False
        # The scheme is not compared: behind a proxy it is the proxy's.
        _, _, host = origin.partition(b"://")
        return not host or host.lower() != headers.get(b"host", b"").lower()

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float, about: dict[str, Any]) -> None:
        # Only paths that exist name a figure: anything else a client can make up without end.
        path = getattr(scope.get("route"), "path", None) or "other"
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        level = logging.ERROR if "bug" in about else logging.DEBUG if path in _OPEN_PATHS else logging.INFO
        line = {"request_id": request_id, "method": scope["method"], "path": path, "status": status}
        LOG.log(level, "request", extra={"about": {**line, "ms": round(1000 * seconds, 2), **about}})


def place_of(error: BaseException) -> str:
    """The kind of an error and where it arose."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}{place}"


class JsonLines(logging.Formatter):
    """A log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        said = record.getMessage().strip().splitlines() or [""]
        line = {"time": when, "level": record.levelname.lower(), "event": said[-1]}  # of a traceback, what it ends with
        if record.exc_info and record.exc_info[1] is not None:
            line["bug"] = place_of(record.exc_info[1])
        return json.dumps({**line, **getattr(record, "about", {})}, ensure_ascii=True)
