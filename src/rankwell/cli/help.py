"""The layout of ``--help``: what to write on the left, what it does on the right, in two columns."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

LABEL = 34
"""The widest left column; longer labels are wrapped."""
VALUES = {"str": "TEXT", "path": "PATH", "int": "N", "int range": "N", "float": "X", "float range": "X"}
"""What stands for the value of an option, by typer's name of its type; choices are listed."""
Rows = list[tuple[str, str]]


class Verb(TyperCommand):
    """A command with this help."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A closed pipe is left to the caller; typer would exit with the code of an error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise BrokenPipeError from None  # without the number that typer looks for

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, description, arguments and options."""
        parameters = [parameter for parameter in self.get_params(ctx) if not getattr(parameter, "hidden", False)]
        arguments = [parameter for parameter in parameters if isinstance(parameter, TyperArgument)]
        options = [parameter for parameter in parameters if not isinstance(parameter, TyperArgument)]
        tables = {
            "Arguments": [(_name(argument), str(argument.help)) for argument in arguments],
            "Options": [(_label(option, ctx), _about(option)) for option in options],
        }
        formatter.write(_format(self, ctx, tables))


class Verbs(TyperGroup):
    """All commands, with this help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, description, commands and options."""
        options = [(_label(option, ctx), _about(option)) for option in self.get_params(ctx)]
        commands = [(name, inspect.cleandoc(verb.help or "").split("\n\n")[0]) for name, verb in self.commands.items()]
        formatter.write(_format(self, ctx, {"Commands": commands, "Options": options}))


def _format(command: Any, ctx: Any, tables: Mapping[str, Rows]) -> str:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(re.sub(r"[{}]", "", command.get_usage(ctx)), markup=False, soft_wrap=True)
        _print_description(console, inspect.cleandoc(command.help or ""))
        for title, rows in tables.items():
            table = Table.grid(padding=(0, 2))
            table.add_column(max_width=LABEL, style="cyan")
            table.add_column()
            for label, text in rows:
                if len(label) > LABEL:
                    label = label.replace(" ", "\n  ", 1)
                table.add_row(_plain(label), _plain(" ".join(text.split())))
            if table.row_count:
                console.print(f"\n[bold]{title}[/bold]")
                console.print(Padding(table, (0, 0, 0, 2)))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _print_description(console: Console, text: str) -> None:
    """Print paragraphs; examples, which are indented, follow each other without blank lines."""
    example = False
    for paragraph in filter(None, text.split("\n\n")):
        heading = paragraph.strip("*:") in ("Example", "Examples")
        if not example or not paragraph.startswith(" "):
            console.print()
        example = heading or paragraph.startswith(" ")
        if heading:
            console.print(f"[bold]{paragraph.strip('*:')}[/bold]")
        elif example:
            command = "\n      ".join(line.strip() for line in paragraph.splitlines())
            console.print(f"  {command}", markup=False, soft_wrap=True)
        else:
            console.print(_plain(" ".join(paragraph.split())))


def _plain(text: str) -> str:
    """A text in which brackets are brackets, not markup."""
    return text.replace("[", r"\[")


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _label(option: Any, ctx: Any) -> str:
    """The option as one writes it: its names and, unless it is a flag, a word for its value."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    kind = str(option.display_type(ctx)).strip("<>") if hasattr(option, "display_type") else str(option.type.name)
    return f"{names} {option.metavar or VALUES.get(kind, kind)}"


def _about(option: Any) -> str:
    """What the option does, and its default unless the help says it."""
    text, default = option.help or "", option.default
    if option.required:
        return f"{text} Required."
    if default in (None, "", ()) or "Default" in text or option.show_default is False or callable(default):
        return str(text)
    if isinstance(default, bool):
        names = option.opts if default else option.secondary_opts
        return f"{text} Default: {names[0]}." if option.secondary_opts else str(text)
    shown = f"{default:g}" if isinstance(default, float) else default
    return f"{text} Default: {shown}."
