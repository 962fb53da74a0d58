"""Running a service: uvicorn, signals, the log."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from rankwell.serve.api import create_app
from rankwell.serve.hosts import Hosts
from rankwell.serve.listening import Place
from rankwell.serve.requests import LOG, ApiError, JsonLines
from rankwell.serve.service import Service


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Who may use a service, what its page shows beside it, and how long it may take to end."""

    key: str | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    experiments: tuple[Path, ...] = ()
    drain_seconds: int = 30


class Server(uvicorn.Server):
    """A server that says when it listens, and from the moment it is told to stop that it is draining."""

    def __init__(self, config: uvicorn.Config, service: Service, announce: Callable[[], None]):
        super().__init__(config)
        self._service = service
        self._announce = announce
        self._reloading: asyncio.Future[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop taking requests; those that have begun are finished. A second signal does not wait for them."""
        self._service.draining = True
        LOG.info("draining", extra={"about": {"signal": signal.Signals(sig).name}})
        # Not uvicorn's own: that sends the signal once more in the end, and a good end would look like a bad one.
        self.should_exit, self.force_exit = True, self.should_exit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        self._announce()

    def _reload(self) -> None:
        async def reload() -> None:
            with suppress(ApiError):  # logged where it happened; the old ones go on
                await self._service.reload()

        self._reloading = asyncio.ensure_future(reload())


def run(service: Service, place: Place, options: ServerOptions, announce: Callable[[], None]) -> None:
    """Serve until told to stop; ``announce`` is called when clients can connect."""
    _log_as_json()
    hosts = Hosts.of(place, options.hosts, options.origins)
    config = uvicorn.Config(
        create_app(service, key=options.key, origins=options.origins, hosts=hosts, experiments=options.experiments),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=options.drain_seconds,
        timeout_keep_alive=30,
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
    for log, level in ((LOG, logging.INFO), (logging.getLogger("uvicorn.error"), logging.WARNING)):
        log.addHandler(handler)
        log.setLevel(level)
        log.propagate = False
