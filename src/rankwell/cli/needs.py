"""Options that need another option, or exclude one: refused in one place."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from rankwell.core.errors import RankwellError


def needs(
    context: typer.Context, table: Mapping[str, str | tuple[str, ...]], present: Mapping[str, object] | None = None
) -> None:
    """Raise if an option was given without the option, or one of the options, that ``table`` says it needs.

    Options are named as the command's parameters: ``{"stride": "windows", "normalise": ("fuse", "blend")}``. A need
    that is more than a parameter (``"weights MODEL"``) has its value in ``present``.
    """
    values = {**context.params, **(present or {})}
    flags = _flags(context)
    for option, needed in table.items():
        names = (needed,) if isinstance(needed, str) else needed
        if _is_given(context, option) and all(values[name] is None or values[name] is False for name in names):
            wanted = " or ".join(flags.get(name, f"--{name}") for name in names)
            raise RankwellError(f"{flags[option]} needs {wanted}")


def excludes(context: typer.Context, choice: str, *options: str) -> None:
    """Raise if one of ``options`` was given, since the user's ``choice`` (``"--ray"``) excludes them."""
    for option in options:
        if _is_given(context, option):
            raise RankwellError(f"{_flags(context)[option]} does not go with {choice}")


def _is_given(context: typer.Context, option: str) -> bool:
    """Whether the user wrote the option, rather than leaving it at its default."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _flags(context: typer.Context) -> dict[str | None, str]:
    return {parameter.name: parameter.opts[0] for parameter in context.command.params}
