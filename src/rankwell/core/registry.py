"""Named parts (measures, losses, templates, …): a decorator registers a part; a misspelt name gets a helpful error."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from rankwell.core.errors import RankwellError

T = TypeVar("T")


class UnknownNameError(RankwellError, KeyError):
    """A registry has no part of that name. It is also a KeyError, so that ``get`` works as in any mapping."""

    __str__ = Exception.__str__


class Registry(Mapping[str, T]):
    """A read-only mapping of names to parts, filled by a decorator.

    >>> losses: Registry[Callable[..., float]] = Registry("loss")
    >>> @losses.register("hinge")
    ... def hinge(margin: float) -> float:
    ...     return max(0.0, 1.0 - margin)
    >>> losses["hinge"](0.25)
    0.75
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._parts: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers a part under ``name``."""

        def add(part: T) -> T:
            if name in self._parts:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._parts[name] = part
            return part

        return add

    def __getitem__(self, name: str) -> T:
        try:
            return self._parts[name]
        except KeyError:
            names = {known.lower(): known for known in self._parts}
            close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
            hint = f"; did you mean {names[close[0]]}?" if close else ""
            known = ", ".join(sorted(self._parts))
            raise UnknownNameError(f"no {self.kind} is called {name!r}{hint} (known: {known})") from None

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)
