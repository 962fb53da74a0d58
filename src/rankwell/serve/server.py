"""Running a service: uvicorn, signals, the log."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.core.truncation import survive_truncation
from rankwell.serve.api import create_app
from rankwell.serve.bodies import LOG, ApiError, JsonLines, RateLimit
from rankwell.serve.engine import Batching
from rankwell.serve.formats import Limits
from rankwell.serve.listening import Connection, Connections, Hosts, Place, check_hosts
from rankwell.serve.search_log import LogOptions
from rankwell.serve.service import Service
from rankwell.serve.state import Sources
from rankwell.serve.tracing import provider_from_environment

WRITING_KEY = "RANKWELL_WRITING_KEY"
"""The variable of the environment with the key that requests must send to change the index."""
SWITCH_SECONDS = 0.0005
"""Python's own 5 ms are too long here: a request waits as long, several times, whenever the model's threads run."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Who may use a service, and how long it may take to shut down."""

    key: str | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    drain_seconds: int = 30
    proxy: str | None = None
    writing_key: str | None = None
    agents: bool = False

    def __post_init__(self) -> None:
        check_hosts(self.hosts)
        for name, key in (("--key (or RANKWELL_KEY)", self.key), (WRITING_KEY, self.writing_key)):
            if key and not (key.isascii() and key.isprintable() and key == key.strip()):
                raise RankwellError(
                    f"{name}: expected printable ASCII characters without spaces at either end, since browsers and "
                    "proxies encode others differently"
                )


class Server(uvicorn.Server):
    """A server that announces when it listens, and drains when told to stop."""

    def __init__(self, config: uvicorn.Config, service: Service, announce: Callable[[], None]):
        super().__init__(config)
        self._service = service
        self._announce = announce
        self._reloading: asyncio.Future[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Refuse new requests and finish those under way; a second signal does not wait for them."""
        self._service.draining = True
        LOG.info("draining", extra={"about": {"signal": signal.Signals(sig).name}})
        # Not uvicorn's handler: it raises the signal again at the end, so that a clean exit would look like a crash.
        self.should_exit, self.force_exit = True, self.should_exit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        self._announce()

    def _reload(self) -> None:
        async def reload() -> None:
            with suppress(ApiError):  # already logged; the old index and models stay in use
                await self._service.reload()

        self._reloading = asyncio.ensure_future(reload())


def serve(
    sources: Sources,
    limits: Limits,
    batching: Batching,
    options: ServerOptions,
    place: Place,
    say: Callable[[str], None],
    log: LogOptions | None = None,
) -> Service:
    """Open the sources and serve them until told to stop. ``say`` is given lines for the user."""
    tracing = None
    try:
        tracing = provider_from_environment()
    except MissingExtraError as error:  # the variable may be set for every program of a machine
        say(f"requests are not traced: {error}")
    service = Service(sources, limits, batching, log)
    if service.state.note:
        say(service.state.note)
    if (lacking := service.holder.lacking) is not None:
        say(f"BM25 and the re-ranker search until the vectors of {len(lacking.index):,} documents are made")
    precisions = sorted(set(service.precision().values()))
    scores = f", scores in {' and '.join(precisions)}" if precisions else ""
    scores += " (exact: --precision fp32)" if {"bf16", "int8"} & {*precisions} else ""
    run(service, place, options, lambda: say(f"serving at {place.url}{scores}"), tracing)
    return service


def serve_stdio(sources: Sources, limits: Limits) -> None:
    """Open the sources and serve the tools of agents over standard input and output until the former ends."""
    from rankwell.serve.agents import tools_of  # needs the extra agents

    _log_as_json()
    service = Service(sources, limits)
    service.start()
    try:
        asyncio.run(tools_of(service).run_stdio_async())
    finally:
        service.stop()


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP exit cleanly, removing temporary files, until the server installs its own handlers."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second signal kills it
        sys.exit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}  # as set by nohup
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    service: Service,
    place: Place,
    options: ServerOptions,
    announce: Callable[[], None],
    tracing: Any | None = None,
) -> None:
    """Serve until told to stop; ``announce`` is called when clients can connect."""
    _log_as_json()
    survive_truncation()
    sys.setswitchinterval(SWITCH_SECONDS)
    # Modules and models stay: looking for garbage among them would stop all threads for a third of a second.
    gc.collect()
    gc.freeze()
    hosts = Hosts.of(place, options.hosts, options.origins)
    connections = Connections.within_limits(options.proxy)
    config = uvicorn.Config(
        create_app(
            service,
            key=options.key,
            writing_key=options.writing_key,
            origins=options.origins,
            hosts=hosts,
            tracing=tracing,
            agents=options.agents,
        ),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=options.drain_seconds,
        timeout_keep_alive=30,
        http=partial(Connection, pool=connections),  # type: ignore[arg-type]
        backlog=connections.backlog,
        ws="none",
    )

    def started() -> None:
        about = {"host": place.host, "port": place.port, **{n: service.ready()[n] for n in ("models", "note")}}
        LOG.info("serving", extra={"about": {**about, "precision": service.precision()}})
        announce()

    place.listen()
    Server(config, service, started).run(list(place.sockets))


def _log_as_json() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(RateLimit())
    levels = {LOG.name: logging.INFO, "uvicorn.error": logging.WARNING, "asyncio": logging.ERROR}
    for name, level in levels.items():
        log = logging.getLogger(name)
        log.addHandler(handler)
        log.setLevel(level)
        log.propagate = False
