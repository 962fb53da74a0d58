"""Options that do nothing without another option, refused in one place."""

from __future__ import annotations

from collections.abc import Mapping

import typer


def is_given(context: typer.Context, option: str) -> bool:
    """Whether the user wrote the option, rather than leaving it at its default."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def needs(
    context: typer.Context, table: Mapping[str, str | tuple[str, ...]], present: Mapping[str, object] | None = None
) -> None:
    """Raise if an option was given without the one, or one of those, that ``table`` says it needs.

    Options are named as the command's parameters: ``{"stride": "windows", "normalise": ("fuse", "blend")}``. A need
    that is more than a parameter (``"weights MODEL"``) has its value in ``present``.
    """
    from rankwell.core.errors import RankwellError

    values = {**context.params, **(present or {})}
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for option, needed in table.items():
        names = (needed,) if isinstance(needed, str) else needed
        if is_given(context, option) and all(values[name] is None or values[name] is False for name in names):
            wanted = " or ".join(flags.get(name, f"--{name}") for name in names)
            raise RankwellError(f"{flags[option]} needs {wanted}")
