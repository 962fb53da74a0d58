"""Values that a user writes for a named parameter, such as one of a measure or a loss. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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
