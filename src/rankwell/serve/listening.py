"""Where a service listens, and under which host names it answers.

The port is bound before models are opened, and clients can connect afterwards. Host names are checked because a page
of another host can make its own name resolve to this machine (DNS rebinding): by ``Origin`` and ``Host`` it then looks
like the service's own page, and only the name gives it away.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rankwell.core.errors import RankwellError

ANY = "*"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:\d*)?")
# A name may resolve to addresses that this machine does not have.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, eq=False)
class Place:
    """The sockets of one port, one for each address of the host."""

    host: str
    port: int
    sockets: Sequence[socket.socket]

    @property
    def url(self) -> str:
        """The service's address for a browser."""
        return f"http://{_written(self.host, self.port)}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return all(is_loopback(bound.getsockname()[0]) for bound in self.sockets)

    def listen(self) -> None:
        """Accept connections; until then clients are refused."""
        try:
            for bound in self.sockets:
                bound.listen()
        except OSError as error:  # another process took the port first
            raise _cannot_listen(self.host, self.port, error) from None

    def close(self) -> None:
        """Release the port."""
        for bound in self.sockets:
            bound.close()


def is_loopback(address: str) -> bool:
    """Whether ``address`` is a loopback address; names are not looked up."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def bind(host: str, port: int) -> Place:
    """Bind a port; 0 takes any free one."""
    bound: list[socket.socket] = []
    absent: OSError | None = None
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((info[0], info[4]) for info in addresses):
            # All addresses use the port that was free on the first.
            same = bound[0].getsockname()[1] if bound else port
            try:
                bound.append(_bind(family, (address[0], same, *address[2:])))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
        if absent is not None and not bound:
            raise absent
    except OSError as error:
        for opened in bound:
            opened.close()
        raise _cannot_listen(host, port, error) from None
    return Place(host or "0.0.0.0", bound[0].getsockname()[1], bound)


def _bind(family: int, address: tuple[Any, ...]) -> socket.socket:
    # With the protocol, or asyncio leaves Nagle's algorithm on, which delays each answer by 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # the port of IPv4 gets its own socket
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _cannot_listen(host: str, port: int, error: OSError) -> RankwellError:
    return RankwellError(f"cannot listen at {_written(host, port)}: {error.strerror or error}")


def name_of(host: str) -> str | None:
    """The host name or address in a ``Host`` header, or after the scheme of an origin; None if malformed."""
    match = _HOST.fullmatch(host.lower())
    return _canonical(match[1].strip("[]")) if match else None


def _canonical(name: str) -> str:
    """One spelling per host: IPv6 addresses shortened as browsers do, names without a final dot."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name.lower().removesuffix(".")


def check_hosts(names: Sequence[str]) -> None:
    """Raise unless all are host names; ``*`` stands for any."""
    for name in names:
        match = _HOST.fullmatch(name.lower())
        if name != ANY and (match is None or match[2]):
            raise RankwellError(f"--allow-host {name}: not a host name; expected one without scheme and port")


@dataclass(frozen=True)
class Hosts:
    """The names of this service, besides ``localhost`` and loopback addresses."""

    names: frozenset[str]

    @classmethod
    def of(cls, place: Place, named: Sequence[str] = (), origins: Sequence[str] = ()) -> Hosts | None:
        """The names to check requests against; None accepts any name.

        How other machines call a service that they can reach is unknown: it accepts any name unless ``named`` lists
        them. Pages of ``origins`` may use the service in any case, so their hosts' names are accepted too.
        """
        if ANY in (*named, *origins) or not (named or place.is_loopback):
            return None
        others = (*named, *(origin.partition("://")[2] for origin in origins))
        return cls(frozenset(name for name in (_canonical(place.host), *map(name_of, others)) if name))

    def has(self, header: str) -> bool:
        """Whether a ``Host`` header names this service."""
        name = name_of(header)
        return name is not None and (name == "localhost" or name in self.names or is_loopback(name))


# Connections


HEADER_SECONDS = 10.0
RESERVED = 32
"""Descriptors left for files that are opened later."""
MOST = 4096
LARGEST_BACKLOG = 128
CROWDED = 64
"""Connections without a whole request from which on unfinished requests are held back."""
HELD_BYTES = 16 << 10
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n", re.IGNORECASE)


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

    Loopback addresses and that of ``proxy`` may have all: many clients can be behind them. ``backlog`` is how many
    connections are accepted at once, before any of them can be counted.
    """

    most: int
    backlog: int
    proxy: str | None = None
    open: int = 0
    by_address: Counter[str] = field(default_factory=Counter)
    silent: dict[Connection, None] = field(default_factory=dict)
    """Those that have not sent a whole request, the oldest first."""

    @classmethod
    def within_limits(cls, proxy: str | None = None) -> Connections:
        """As many as this process's descriptors allow."""
        limit = descriptor_limit()
        backlog = max(8, min(LARGEST_BACKLOG, limit // 8))
        return cls(max(8, min(MOST, limit - open_descriptors() - backlog - RESERVED)), backlog, proxy)

    def has_share(self, address: str) -> bool:
        """Whether an address may have only half of the connections."""
        return not is_loopback(address) and address != self.proxy

    def add(self, connection: Connection) -> None:
        """Count a new connection; if there are too many, close a silent one, or this one if all others are busy."""
        self.open += 1
        self.by_address[connection.address] += 1
        self.silent[connection] = None
        crowded = self.by_address[connection.address] > max(8, self.most // 2) and self.has_share(connection.address)
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


def is_begun(sent: bytearray) -> bool:
    """Whether so much of a request has come that it can be read: all of it, or 16 KiB."""
    end = sent.find(b"\r\n\r\n") + 4
    if end < 4 or len(sent) >= HELD_BYTES:
        return len(sent) >= HELD_BYTES
    head = bytes(sent[:end])
    if (length := _LENGTH.search(head)) is not None:
        return len(sent) >= end + int(length[1]) or b"\r\nexpect:" in head.lower()  # that one waits for an answer
    return b"\r\ntransfer-encoding:" not in head.lower() or sent.endswith(b"0\r\n\r\n")


class Connection(H11Protocol):
    """uvicorn's protocol, with a deadline for headers, and for bodies that nobody reads, and a limit of connections.

    Where many connections have not sent a whole request, what they send is held back until it is one, under the
    deadline for headers: a byte of a slow body then costs microseconds, and no request waits for it.
    """

    def __init__(self, *arguments: Any, pool: Connections, **options: Any):
        super().__init__(*arguments, **options)
        self.pool = pool
        self.address = ""
        self._timer: asyncio.TimerHandle | None = None
        self._counted = False
        self._held = bytearray()

    def connection_made(self, transport: Any) -> None:
        """See :class:`asyncio.Protocol`."""
        super().connection_made(transport)
        self.address = str((transport.get_extra_info("peername") or [""])[0])
        self._counted = True
        self._start_timer()
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
        between = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if self._held or (between and len(self.pool.silent) > CROWDED):
            self._held += data
            if not is_begun(self._held):
                self._unset_keepalive_if_required()
                self._begin()
                return
            data, self._held = bytes(self._held), bytearray()
        super().data_received(data)
        if self.conn.their_state is h11.SEND_BODY:
            if self.conn.our_state is not h11.DONE:  # who reads the body has a deadline for it
                self._stop_timer()
        elif self.conn.their_state is not h11.IDLE:  # it has sent a whole request
            self._stop_timer()
            self.pool.silent.pop(self, None)
        else:
            self._begin()

    def _begin(self) -> None:
        if self._timer is None and self._counted:  # it has begun another request
            self._start_timer()
            self.pool.silent[self] = None

    def on_response_complete(self) -> None:
        """See :class:`H11Protocol`; the connection may now be closed for a new one."""
        super().on_response_complete()
        if self._counted and self.conn.their_state is h11.IDLE:
            self.pool.silent[self] = None
        elif self._counted and self.conn.their_state is h11.SEND_BODY:  # it was refused before it had sent its body
            self._start_timer()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEADER_SECONDS, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
