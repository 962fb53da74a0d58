"""What surrounds every request: its id, body, deadline, client and log line."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import pydantic_core
from fastapi import Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rankwell.core.errors import InputError
from rankwell.corpus.records import Document
from rankwell.serve.engine import Metrics
from rankwell.serve.formats import Event, Limits, NewDocument
from rankwell.serve.listening import Hosts
from rankwell.serve.tracing import note

LOG = logging.getLogger("rankwell.serve")
Parsed = TypeVar("Parsed", bound=BaseModel)
Result = TypeVar("Result")
SLOW_SECONDS = 5.0
LEAST_RATE = 1 << 10
"""Bytes a second that a body must bring, besides the first ``SLOW_SECONDS``."""
LINGER_BYTES = 64 << 20
LINGER_SECONDS = 2.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Needed by the page before a user can type a key, and by health checks.
_OPEN_PATHS = frozenset({"/health", "/ready", "/docs", "/docs.css", "/openapi.json"})
_KINDS = {400: "malformed", 401: "unauthorized", 404: "not_found", 405: "method", 408: "deadline"}
# Proxies and services may read another one of two, or another end of the body.
_SINGLE_HEADERS = (b"host", b"origin", b"authorization")
_SAFE_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"content-security-policy": b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
}


class ApiError(Exception):
    """An error response: status, kind and a one-line message."""

    def __init__(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None):
        message = " ".join(message.splitlines())  # which may name a field of the client's
        super().__init__(message)
        self.status, self.kind, self.message, self.headers = status, kind, message, headers or {}

    def response(self, request_id: str) -> Response:
        """The response, in a shape that clients of Cohere's API and of TEI can read."""
        line = self.message
        content = {"error": line, "error_type": self.kind, "message": line, "request_id": request_id}
        return json_response(content, self.status, self.headers)


class GoneError(Exception):
    """The client has disconnected, so no answer is sent."""


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    try:
        body = pydantic_core.to_json(content, inf_nan_mode="null")
    except pydantic_core.PydanticSerializationError:
        # A document may hold half a surrogate pair, which UTF-8 cannot encode; JSON can escape it.
        body = json.dumps(pydantic_core.to_jsonable_python(content, inf_nan_mode="null")).encode()
    return Response(body, status, headers, "application/json")


def http_error(status: int) -> ApiError:
    """The error for a request that FastAPI itself rejects."""
    lines = {404: "no such path", 405: "method not allowed"}
    return ApiError(status, _KINDS.get(status, "malformed"), lines.get(status, "malformed request"))


def shutting_down() -> ApiError:
    """The error for a request that a stopping service does not begin, or cannot finish."""
    return ApiError(503, "draining", "the service is shutting down", {"Retry-After": "5", "Connection": "close"})


def too_late(metrics: Metrics) -> ApiError:
    """Count a request whose deadline has passed, and return its error."""
    metrics.late.inc()
    return ApiError(504, "deadline", "the deadline has passed")


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of a body."""
    try:
        fields = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, "malformed", f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(422, "validation", f"the body is a JSON {type(fields).__name__}; expected an object")
    return fields


def parse_documents(body: bytes) -> list[Document]:
    """The documents of a body, a line of JSON for each."""
    documents = []
    for number, line in enumerate(body.splitlines(), 1):
        try:
            documents += [validated(NewDocument, parse(line)).document] if line.strip() else []
        except ApiError as error:
            raise ApiError(error.status, error.kind, f"line {number}: {error.message}") from None
    if not documents:
        raise ApiError(422, "validation", "the body has no documents; expected a JSON object per line")
    return documents


def parse_events(body: bytes, most: int) -> list[Event]:
    """The events of a body, one or a list of them."""
    try:
        events = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, "malformed", f"the body is not JSON: {error}") from None
    if not isinstance(events, list):
        return [validated(Event, events)]
    if not 0 < len(events) <= most:
        raise ApiError(422, "validation", f"{len(events):,} events; expected 1 to {most:,}")
    return [validated(Event, event, f"{number}.") for number, event in enumerate(events)]


def sends_key(headers: dict[bytes, bytes], key: str) -> bool:
    """Whether a request's headers have this key."""
    scheme, _, sent = headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(sent.strip(), key.encode())


def validated(shape: type[Parsed], fields: dict[str, Any], item: str = "") -> Parsed:
    """A body, or an ``item`` of it, as a model; an error names the first problem without repeating its text."""
    try:
        return shape.model_validate(fields)
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")  # a field may be misnamed
        place, line = ".".join(map(str, first["loc"])) or "body", first["msg"]
        if first["type"] == "extra_forbidden":
            known = ", ".join(field.alias or name for name, field in shape.model_fields.items())
            line = f"there is no such field (known: {known})"
        raise ApiError(422, "validation", f"{item}{place}: {line}") from None


class BodyReader:
    """Reads bodies, within the limits on each and on all together."""

    def __init__(self, limits: Limits, metrics: Metrics):
        self._limits = limits
        self._metrics = metrics
        self._held = 0

    async def read(self, request: Request) -> bytes:
        """The whole body; one that is too large is refused as early as possible."""
        declared = request.headers.get("content-length", "0")
        parts: list[bytes] = []
        size = 0
        stream = request.stream()
        try:
            self._check(int(declared) if declared.isdigit() else 0, self._held)
            begin, most = asyncio.get_running_loop().time(), self._limits.default_timeout_ms / 1000
            async with asyncio.timeout(min(most, SLOW_SECONDS)) as deadline:
                async for part in stream:
                    size += len(part)
                    deadline.reschedule(begin + min(most, SLOW_SECONDS + size / LEAST_RATE))
                    self._hold(len(part))
                    self._check(size, self._held - size)
                    parts.append(part)
        except TimeoutError:
            raise ApiError(408, "deadline", "the body took too long to arrive", {"Connection": "close"}) from None
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
        """Read on for a while: a client that is still sending would not see the error if the connection closed."""
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
            line = f"the body is larger than {self._limits.body_bytes:,} bytes"
            raise ApiError(413, "too_large", line, {"Connection": "close"})
        if others + size > self._limits.bodies_bytes:
            raise ApiError(429, "overloaded", "too many large requests at once", {"Retry-After": "1"})


async def within(request: Request, work: Coroutine[Any, Any, Result], seconds: float, metrics: Metrics) -> Result:
    """The work's result; cancels it if the deadline passes or the client disconnects first."""
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
        if not task.done():  # awaiting an error twice would lose its traceback
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Gate:
    """The outermost layer: ids, keys, hosts, origins, headers, the log. It never reads a body."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: tuple[str, ...],
        origins: tuple[str, ...],
        hosts: Hosts | None,
        metrics: Metrics,
        busy: Callable[[str], ApiError | None],
        open_paths: frozenset[str],
    ):
        self.app = app
        self._busy = busy
        self._hosts = hosts
        self._keys = keys
        self._origins = frozenset(origin.encode() for origin in origins)
        self._metrics = metrics
        self._open = _OPEN_PATHS | open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, headers = time.perf_counter(), dict(scope["headers"])
        sent = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = sent if _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex
        about: dict[str, Any] = {}
        scope["state"] = {**scope.get("state", {}), "request_id": request_id, "about": about}
        status = 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                note({f"rankwell.{name}": value for name, value in {"request_id": request_id, **about}.items()})
                added = {b"x-request-id": request_id.encode(), **_SAFE_HEADERS}
                message["headers"] = [*message.get("headers", ()), *added.items()]
            await send(message)

        try:
            refusal = self._refusal(scope, headers) or self._busy(scope["path"])
            if refusal is not None:
                await refusal.response(request_id)(scope, receive, send_on)
            else:
                await self.app(scope, receive, send_on)
        except GoneError:
            status = 499  # as nginx logs it; never sent
        except asyncio.CancelledError:
            # A stopping server cancels the requests it can no longer wait for.
            if status:
                raise
            await shutting_down().response(request_id)(scope, receive, send_on)
        except InputError as error:
            self._metrics.damaged.inc()
            about["damaged"] = str(error)
            if not status:
                line = "the index is damaged; the service's log names the file"
                await ApiError(500, "damaged", line).response(request_id)(scope, receive, send_on)
        except Exception as error:
            # The message may hold a document's text, so only the error's type and location are logged.
            about["bug"] = place_of(error)
            if not status:
                await ApiError(500, "internal", "the service failed").response(request_id)(scope, receive, send_on)
        finally:
            self._note(scope, request_id, status, time.perf_counter() - begin, about)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> ApiError | None:
        names = [name for name, _ in scope["headers"]]
        if any(names.count(name) > 1 for name in _SINGLE_HEADERS):
            return ApiError(400, "malformed", "two headers Host, Origin or Authorization", {"Connection": "close"})
        if b"content-length" in headers and b"transfer-encoding" in headers:
            line = "both Content-Length and Transfer-Encoding; expected one"
            return ApiError(400, "malformed", line, {"Connection": "close"})
        if self._keys:
            if any(sends_key(headers, key) for key in self._keys):
                return None
            if scope["path"] not in self._open or scope["method"] not in ("GET", "HEAD"):
                challenge = {"WWW-Authenticate": "Bearer"}
                return ApiError(401, "unauthorized", "missing or wrong key", challenge)
        host = headers.get(b"host")  # every browser sends one
        if self._hosts is not None and host is not None and not self._hosts.has(host.decode("latin-1")):
            line = "unknown host name (Host); allow it with --allow-host"
            return ApiError(421, "misdirected", line)
        if self._foreign(headers):
            return ApiError(403, "forbidden", "pages of other hosts are not allowed; allow them with --origin")
        return None

    def _foreign(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a page of another host sent it: browsers send plain-text requests there without a preflight."""
        origin = headers.get(b"origin")
        if origin is None or origin in self._origins or b"*" in self._origins:
            return False
        # The scheme is not compared: behind a proxy it is the proxy's.
        _, _, host = origin.partition(b"://")
        return not host or host.lower() != headers.get(b"host", b"").lower()

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float, about: dict[str, Any]) -> None:
        # Only existing paths become labels: clients could make up any number of others.
        path = getattr(scope.get("route"), "path", None) or "other"
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        usual = logging.DEBUG if path in _OPEN_PATHS else logging.INFO
        level = logging.ERROR if "bug" in about or "damaged" in about else usual
        line = {"request_id": request_id, "method": scope["method"], "path": path, "status": status}
        LOG.log(level, "request", extra={"about": {**line, "ms": round(1000 * seconds, 2), **about}})


def place_of(error: BaseException) -> str:
    """The type of an error and where it was raised."""
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
        lines = record.getMessage().strip().splitlines() or [""]
        line = {"time": when, "level": record.levelname.lower(), "event": lines[-1]}  # the last line of a traceback
        if record.exc_info and record.exc_info[1] is not None:
            line["bug"] = place_of(record.exc_info[1])
        return json.dumps({**line, **getattr(record, "about", {})}, ensure_ascii=True)


class RateLimit(logging.Filter):
    """Lets each event through a limited number of times a second; the next one says how many were left out."""

    def __init__(self, requests: int = 1000, others: int = 5):
        super().__init__()
        self._limits = {logging.INFO: requests, logging.DEBUG: requests}
        self._others = others
        self._seconds: dict[tuple[str, int, str], tuple[int, int]] = {}
        """For each event the current second, and how often it was logged in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        event, second = (record.name, record.levelno, str(record.msg)[:80]), int(record.created)
        before, count = self._seconds.get(event, (second, 0))
        limit = self._limits.get(record.levelno, self._others)
        if before != second:
            if count > limit:
                record.about = {**getattr(record, "about", {}), "left_out": count - limit}
            count = 0
        self._seconds[event] = second, count + 1
        return count < limit
