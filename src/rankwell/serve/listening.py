"""Where a service listens: a port is taken before models are opened, and opened to clients after."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from rankwell.core.errors import RankwellError

# A name may stand for addresses of which this machine has only some.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, eq=False)
class Place:
    """Sockets of one port, one for each address of the host."""

    host: str
    port: int
    sockets: Sequence[socket.socket]

    @property
    def url(self) -> str:
        """As a browser takes it."""
        return f"http://{_written(self.host, self.port)}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine itself can reach it."""
        return all(is_loopback(one.getsockname()[0]) for one in self.sockets)

    def listen(self) -> None:
        """Let clients connect; until then they are refused."""
        try:
            for one in self.sockets:
                one.listen()
        except OSError as error:  # another process was quicker
            raise _cannot_listen(self.host, self.port, error) from None

    def close(self) -> None:
        """Give the port back."""
        for one in self.sockets:
            one.close()


def is_loopback(address: str) -> bool:
    """Whether it is an address, not a name, and that of this machine alone."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def bind(host: str, port: int) -> Place:
    """Take a port, any free one where it is 0; an error that names it where that cannot be."""
    bound: list[socket.socket] = []
    absent: OSError | None = None
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((one[0], one[4]) for one in found):
            # All addresses have the port that was free at the first.
            chosen = bound[0].getsockname()[1] if bound else port
            try:
                bound.append(_bound(family, (address[0], chosen, *address[2:])))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
        if absent is not None and not bound:
            raise absent
    except OSError as error:
        for one in bound:
            one.close()
        raise _cannot_listen(host, port, error) from None
    return Place(host or "0.0.0.0", bound[0].getsockname()[1], bound)


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # else it takes the port of IPv4, too, which has a socket of its own
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _cannot_listen(host: str, port: int, error: OSError) -> RankwellError:
    return RankwellError(f"cannot listen at {_written(host, port)}: {error.strerror or error}")
