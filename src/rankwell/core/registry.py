"""Named parts (measures, losses, templates, stage kinds, …), found by name and imported when they are first used.

A decorator registers a part; a misspelt name gets a helpful error. A plugin is a module with a table ``PARTS`` that
says which module registers which part, as strings, so that nothing is imported before its name is used:

    PARTS = {"stage kind": {"warm-up": "my_package.warm_up"}, "command": {"translate": "my_package.translate"}}

:mod:`rankwell.papers` is the plugin that ships. An installed package names its own by an entry point of the group
``rankwell.plugins``, and ``--plugin MODULE`` names one that is on the path.
"""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal, TypeVar

from rankwell.core.errors import RankwellError

T = TypeVar("T")
Table = Mapping[str, Mapping[str, str]]

SHIPPED = "rankwell.papers"
ENTRY_POINTS = "rankwell.plugins"
_loaded: list[Table] = []


def load_plugin(module: str) -> None:
    """Import a module, from the current folder too: what it registers, or lists in ``PARTS``, can then be used."""
    if module.endswith(".py"):
        name = module.removesuffix(".py").replace("/", ".")
        raise RankwellError(f"--plugin {module}: a file, expected the name of a module: {name}")
    sys.path.insert(0, os.getcwd())
    try:
        _loaded.append(getattr(import_module(module), "PARTS", {}))
    except ModuleNotFoundError as error:
        raise RankwellError(f"--plugin {module}: no module called {error.name}") from None
    finally:
        sys.path.pop(0)


@cache
def _installed() -> tuple[Table, ...]:
    from importlib.metadata import entry_points

    tables: list[Table] = [import_module(SHIPPED).PARTS]
    for point in entry_points(group=ENTRY_POINTS):
        with left_out_if_broken(f"the plugin {point.name} of the package {point.dist.name if point.dist else '?'}"):
            tables.append(_checked(import_module(point.value).PARTS, tables[0]))
    return tuple(tables)


def _checked(parts: Table, shipped: Table) -> Table:
    """A plugin's table. Raises unless it names modules, for names that are not taken."""
    for kind, homes in parts.items():
        for name, module in homes.items():
            if not isinstance(module, str):
                raise TypeError(f"{kind} {name!r} is {module!r}, expected the name of a module")
            if name in shipped.get(kind, {}):
                raise ValueError(f"{kind} {name!r} exists already")
    return parts


@contextmanager
def left_out_if_broken(what: str) -> Iterator[None]:
    """Warn that something installed beside rankwell is left out if it cannot be imported."""
    try:
        yield
    except (Exception, SystemExit) as error:  # whatever a module does
        warnings.warn(f"{what} is left out ({type(error).__name__}: {error})", stacklevel=1)


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

    def __init__(self, kind: str, homes: Mapping[str, str] | None = None):
        """``homes`` are the modules of parts that are imported when they are first used."""
        self.kind = kind
        self._homes = homes or {}
        self._parts: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers a part under ``name``."""

        def add(part: T) -> T:
            if name in self._parts:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._parts[name] = part
            return part

        return add

    def registered(self) -> Mapping[str, T]:
        """The parts that need no import."""
        return self._parts

    def homes(self) -> dict[str, str]:
        """The modules that register parts of this kind, those of plugins too, by the names of the parts."""
        tables = (table.get(self.kind, {}) for table in (*_installed(), *_loaded))
        return {name: module for homes in (self._homes, *tables) for name, module in homes.items()}

    def __getitem__(self, name: str) -> T:
        if name not in self._parts and name in (homes := self.homes()):
            import_module(homes[name])
        try:
            return self._parts[name]
        except KeyError:
            names = {known.lower(): known for known in self}
            close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
            hint = f"; did you mean {names[close[0]]}?" if close else ""
            known = ", ".join(sorted(self))
            raise UnknownNameError(f"no {self.kind} is called {name!r}{hint} (known: {known})") from None

    def __contains__(self, name: object) -> bool:
        return name in self._parts or name in self.homes()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._parts, *self.homes())))

    def __len__(self) -> int:
        return sum(1 for _ in self)


# Values that a user writes for a named parameter, such as one of a measure or a loss


Value = int | float | str
Normalisation = Literal["none", "min-max", "z-score"]
"""How the scores of a query are normalised before they are added; :mod:`rankwell.rank.fusion` has the functions."""


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that a parameter may take; ``meaning`` describes them in error messages."""

    type: type[int] | type[float] | type[str]
    allows: Callable[..., bool]
    meaning: str
    example: Value

    def read(self, value: Value) -> Value | None:
        """``value``, converted to the domain's type if it is text; None if the domain does not allow it."""
        try:
            result = self.type(value)
        except ValueError:
            return None
        exact = isinstance(value, str) or result == value
        return result if exact and self.allows(result) else None
