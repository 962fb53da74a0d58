"""Running a service: uvicorn, signals, the log."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from rankwell.serve.api import create_app
from rankwell.serve.requests import LOG, ApiError, JsonLines
from rankwell.serve.service import Service


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service listens, who may use it, what its page shows beside it, and how long it may take to end."""

    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    origins: tuple[str, ...] = ()
    experiments: tuple[Path, ...] = ()
    drain_seconds: int = 30


class Server(uvicorn.Server):
    """A server that says it is draining from the moment it is told to stop."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self._service = service
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

    def _reload(self) -> None:
        async def reload() -> None:
            with suppress(ApiError):  # logged where it happened; the old ones go on
                await self._service.reload()

        self._reloading = asyncio.ensure_future(reload())


def run(service: Service, address: Address) -> None:
    """Serve until told to stop."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    app = create_app(service, key=address.key, origins=address.origins, experiments=address.experiments)
    config = uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=address.drain_seconds,
        timeout_keep_alive=30,
    )
    about = {"host": address.host, "port": address.port, **{n: service.ready()[n] for n in ("models", "note")}}
    about |= {"precision": service.precision()}
    LOG.info("serving", extra={"about": about})
    Server(config, service).run()
