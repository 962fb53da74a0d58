"""Errors that are the user's business: one line that says what is wrong and where.

The command line prints them without a traceback and exits with code 2; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

from os import PathLike
from typing import Any


class RankwellError(Exception):
    """Something the user can mend. The message is one complete line."""

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is copied, also to another process, by a call with its message alone: others take more.
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[RankwellError], args: tuple[Any, ...], state: dict[str, Any]) -> RankwellError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InputError(RankwellError):
    """A file does not hold what it should; names the file and, where there is one, the line."""

    def __init__(self, path: str | PathLike[str], line: int | None, problem: str):
        self.path = str(path)
        self.line = line
        self.problem = problem
        place = self.path if line is None else f"{self.path}, line {line}"
        super().__init__(f"{place}: {problem}")


class MissingExtraError(RankwellError):
    """An optional package is not installed; the message holds the line that installs it."""

    def __init__(self, package: str, extra: str, purpose: str):
        super().__init__(f"{purpose} needs the package {package}: pip install 'rankwell[{extra}]'")


def excerpt(value: str, limit: int = 60) -> str:
    """Quote ``value`` for an error message, printable and short."""
    shown = value if len(value) <= limit else value[:limit] + "…"
    return repr(shown)
