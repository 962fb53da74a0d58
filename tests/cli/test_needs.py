"""Options that need another option."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer

from rankwell.cli.options import excludes, needs
from rankwell.core.errors import RankwellError


def command(
    context: typer.Context,
    windows: Annotated[str | None, typer.Option("--windows")] = None,
    stride: Annotated[int, typer.Option("--stride")] = 10,
    fuse: Annotated[float | None, typer.Option("--fuse")] = None,
    blend: Annotated[float | None, typer.Option("--blend")] = None,
    min_max: Annotated[bool, typer.Option("--min-max")] = False,
) -> str:
    needs(context, {"stride": "windows", "min_max": ("fuse", "blend")})
    if windows == "none":
        excludes(context, "--windows none", "fuse", "min_max")
    return "done"


def call(*arguments: str) -> object:
    app = typer.Typer()
    app.command()(command)
    return app(list(arguments), standalone_mode=False)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--windows", "a", "--stride", "3"], ["--blend", "0.0", "--min-max"], ["--fuse", "1", "--min-max"]],
)
def test_defaults_and_satisfied_needs_pass(arguments: list[str]) -> None:
    assert call(*arguments) == "done"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--stride", "10"], "^--stride needs --windows$"),
        (["--min-max"], "^--min-max needs --fuse or --blend$"),
        (["--windows", "none", "--blend", "1", "--min-max"], "^--min-max does not go with --windows none$"),
    ],
)
def test_an_option_without_what_it_needs_is_refused(arguments: list[str], problem: str) -> None:
    with pytest.raises(RankwellError, match=problem):
        call(*arguments)
