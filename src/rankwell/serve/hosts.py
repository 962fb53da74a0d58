"""Under which names a service is asked.

A page of another host can have its own name mean this machine for a moment (DNS rebinding): to the browser, and by the
request's ``Origin`` and ``Host`` to the service, it is then the service's own page. Only the name gives it away.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from rankwell.core.errors import RankwellError
from rankwell.serve.listening import Place, is_loopback

ANY = "*"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:\d*)?")


def name_of(host: str) -> str | None:
    """The name, or the address, in what stands in ``Host`` and after the scheme of an origin; None where none does."""
    found = _HOST.fullmatch(host.lower())
    return _one_spelling(found[1].strip("[]")) if found else None


def _one_spelling(name: str) -> str:
    """Browsers shorten addresses of IPv6; a dot at the end of a name says only that it is whole."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name.lower().removesuffix(".")


def check_hosts(names: Sequence[str]) -> None:
    """Whether all are names of hosts; ``*`` is any."""
    for name in names:
        found = _HOST.fullmatch(name.lower())
        if name != ANY and (found is None or found[2]):
            raise RankwellError(f"--allow-host {name}: expected a host's name, without scheme and port")


@dataclass(frozen=True)
class Hosts:
    """The names that are this service's, besides ``localhost`` and the addresses of this machine alone."""

    names: frozenset[str]

    @classmethod
    def of(cls, place: Place, named: Sequence[str] = (), origins: Sequence[str] = ()) -> Hosts | None:
        """Those to check requests by; None where any name will do.

        Of a service that other machines can reach it is not known how they call it: ``named`` says so, or any name
        does. Pages of ``origins`` may use the service anyhow, so it may bear their names.
        """
        if ANY in (*named, *origins) or not (named or place.is_loopback):
            return None
        own = {_one_spelling(place.host), *map(name_of, (*named, *(origin.partition("://")[2] for origin in origins)))}
        return cls(frozenset(name for name in own if name))

    def has(self, header: str) -> bool:
        """Whether a request's ``Host`` names this service."""
        name = name_of(header)
        return name is not None and (name == "localhost" or name in self.names or is_loopback(name))
