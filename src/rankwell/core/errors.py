"""Errors that the user can fix: one line that says what is wrong and where.

The command line prints them without a traceback and exits with code 2; any other exception is a bug.
"""

from __future__ import annotations

import copyreg
import os
from collections.abc import Callable
from typing import Any, NoReturn


class RankwellError(Exception):
    """A problem that the user can fix. The message is one complete line."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, copying or pickling an exception calls its class with the message alone, but subclasses take other
        # arguments.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InputError(RankwellError):
    """A file has the wrong contents. The message names the file and, if known, the line."""

    def __init__(self, path: str | os.PathLike[str], line: int | None, problem: str):
        self.path = "standard input" if str(path) == "-" else str(path)
        self.line = line
        self.problem = problem
        shown = self.path if self.path.isprintable() else repr(self.path)
        place = shown if line is None else f"{shown}, line {line}"
        super().__init__(f"{place}: {' '.join(problem.splitlines())}")


def folder_error(folder: str | os.PathLike[str], problem: str, make: str = "") -> InputError:
    """The error for a folder that lacks what it should have, or does not exist. ``make`` says how to get one."""
    if not os.path.exists(folder):
        problem = "no such folder"
    elif not os.path.isdir(folder):
        problem = "is a file, expected a folder"
    return InputError(folder, None, f"{problem}; {make}" if make else problem)


class WriteError(RankwellError):
    """A file or folder cannot be written: the disk is full, or permissions are missing."""


class MissingExtraError(RankwellError):
    """An optional package is not installed. The message includes the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str):
        purpose = " ".join(purpose.splitlines())
        super().__init__(f"{purpose} needs the package {package}: pip install 'rankwell[{extra}]'")


class Notice(UserWarning):
    """What rankwell decided by itself and the user may want to know, such as which column has the texts."""


def name_instead(**names: str) -> Callable[[object, str], NoReturn]:
    """A ``__getattr__`` whose error says what a class has in place of ``names``, which people expect of it."""

    def missing(self: object, name: str) -> NoReturn:
        hint = f": {names[name]}" if name in names else ""
        raise AttributeError(f"{type(self).__name__} has no {name!r}{hint}", name=name, obj=self)

    return missing


def system_reason(error: OSError) -> str:
    """The system's words for an error, for the end of a message.

    >>> system_reason(FileNotFoundError(2, "gone"))
    'no such file or directory'
    """
    return os.strerror(error.errno or 0).lower()


def wrong_version(path: str | os.PathLike[str], what: str, version: object, known: int, remedy: str) -> InputError:
    """The error for a file of another version: newer ones need a newer rankwell, older ones the ``remedy``."""
    newer = isinstance(version, int) and version > known
    advice = "upgrade rankwell" if newer else remedy
    return InputError(path, None, f"{what} of version {version}; this rankwell reads version {known}: {advice}")


def one_line(error: BaseException) -> str:
    """What another package says about an error, shortened to one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def excerpt(value: str, limit: int = 60) -> str:
    """``value`` quoted for an error message: printable and shortened."""
    shown = value if len(value) <= limit else value[:limit] + "…"
    return repr(shown)
