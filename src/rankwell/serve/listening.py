"""Where a service listens, and under which host names it answers.

The port is bound before models are opened, and clients can connect afterwards. Host names are checked because a page
of another host can make its own name resolve to this machine (DNS rebinding): by ``Origin`` and ``Host`` it then looks
like the service's own page, and only the name gives it away.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

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
