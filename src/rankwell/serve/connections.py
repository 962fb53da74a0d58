"""Connections: clients that connect and say nothing must not keep others out.

A connection must send the headers of a request within some seconds. Descriptors are limited (often to 1,024), so when
connections run out, the one that has been silent for longest is closed for a new one. A service that nobody attacks
never gets there.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
RESERVED = 32
"""Descriptors left for files that are opened later."""
MOST = 4096
LARGEST_BACKLOG = 128


def open_descriptors() -> int:
    """The descriptors this process has open."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # not Linux
        return 100


def descriptor_limit() -> int:
    """The descriptors this process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if limit == resource.RLIM_INFINITY else int(limit)


@dataclass(eq=False)
class Connections:
    """The open connections of a service: at most ``most``, and at most half of them of one address.

    ``backlog`` is how many connections are accepted at once, before any of them can be counted.
    """

    most: int
    backlog: int
    open: int = 0
    by_address: Counter[str] = field(default_factory=Counter)
    silent: dict[Connection, None] = field(default_factory=dict)
    """Those that have not sent all headers of a request, the oldest first."""

    @classmethod
    def within_limits(cls) -> Connections:
        """As many as this process's descriptors allow."""
        limit = descriptor_limit()
        backlog = max(8, min(LARGEST_BACKLOG, limit // 8))
        return cls(max(8, min(MOST, limit - open_descriptors() - backlog - RESERVED)), backlog)

    def add(self, connection: Connection) -> None:
        """Count a new connection; if there are too many, close a silent one, or this one if all others are busy."""
        self.open += 1
        self.by_address[connection.address] += 1
        self.silent[connection] = None
        crowded = self.by_address[connection.address] > max(8, self.most // 2)
        if self.open > self.most or crowded:
            oldest = (other for other in self.silent if not crowded or other.address == connection.address)
            closed = next(oldest, connection)
            self.silent.pop(closed, None)  # it is removed later: the next one must close another
            closed.abort()

    def remove(self, connection: Connection) -> None:
        """Forget a connection that was closed."""
        self.open -= 1
        self.silent.pop(connection, None)
        self.by_address[connection.address] -= 1
        if not self.by_address[connection.address]:
            del self.by_address[connection.address]


class Connection(H11Protocol):
    """uvicorn's protocol, with a deadline for headers and a limit of connections."""

    def __init__(self, *arguments: Any, pool: Connections, **options: Any):
        super().__init__(*arguments, **options)
        self.pool = pool
        self.address = ""
        self._timer: asyncio.TimerHandle | None = None
        self._counted = False

    def connection_made(self, transport: Any) -> None:
        """See :class:`asyncio.Protocol`."""
        super().connection_made(transport)
        self.address = str((transport.get_extra_info("peername") or [""])[0])
        self._counted = True
        self._timer = self.loop.call_later(HEADER_SECONDS, self.abort)
        self.pool.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        self._stop_timer()
        if self._counted:
            self._counted = False
            self.pool.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # it has sent all headers
            self._stop_timer()
            self.pool.silent.pop(self, None)
        elif self._timer is None and self._counted:  # it has begun another request
            self._timer = self.loop.call_later(HEADER_SECONDS, self.abort)
            self.pool.silent[self] = None

    def on_response_complete(self) -> None:
        """See :class:`H11Protocol`; the connection may now be closed for a new one."""
        super().on_response_complete()
        if self._counted and self.conn.their_state is h11.IDLE:
            self.pool.silent[self] = None

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
