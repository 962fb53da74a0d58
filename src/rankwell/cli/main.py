"""The command ``rankwell``. A verb is a module of this folder with a function of the same name."""

from __future__ import annotations

import codecs
import gc
import inspect
import io
import json
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from functools import partial, wraps
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rankwell import cli
from rankwell.cli.options import COMMANDS, Result
from rankwell.core import progress
from rankwell.core.errors import MissingExtraError, Notice, RankwellError, system_reason
from rankwell.core.files import DISK_ERRORS, is_stream, reading_pipes_once
from rankwell.core.registry import left_out_if_broken
from rankwell.core.stopping import interruptible
from rankwell.rank.defaults import UNFITTED

PACKAGE = Path(__file__).parents[1]
EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors"), "models"),
    **dict.fromkeys(("onnx", "onnxruntime"), "onnx"),
    **dict.fromkeys(("fastapi", "uvicorn", "prometheus_client"), "serve"),
    "mcp": "agents",
    "matplotlib": "plots",
}
"""The extra that installs a package, for the error message when it is missing."""

UsageError: Any = typer.BadParameter.__bases__[0]
"""The error for a command line that cannot be read, which typer itself does not export."""

GROUPS = {
    "Search": ("demo", "index", "search", "rerank", "evaluate", "explain", "analyse"),
    "Fit": ("fit", "tune", "train", "experiment"),
    "Serve": ("serve", "mcp", "check", "delete", "merge", "export"),
}
"""The commands of the help, in order; those that are not named here follow in alphabetical order."""
ORDER = [name for names in GROUPS.values() for name in names]


class Verbs(TyperGroup):
    """The commands in groups, each with its first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups; commands of papers and plugins are the last one."""
        groups = {**GROUPS, "Papers": tuple(name for name in self.list_commands(ctx) if name not in ORDER)}
        for title, names in groups.items():
            rows = [(name, self.commands[name].get_short_help_str(sys.maxsize)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)


class Verb(TyperCommand):
    """A command whose closed pipe is left to :func:`main`; typer would exit with the code of an error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise BrokenPipeError from None  # without the number that typer looks for


def with_json(verb: Callable[..., Result]) -> Callable[..., None]:
    """A verb that returns its result, with the option --json, which prints that instead of all else."""
    text = "Print the result as one JSON object, and everything else on standard error."

    @wraps(verb)
    def run(*, as_json: bool = False, **given: Any) -> None:
        if as_json and is_stream(out := given.get("out") or ""):
            raise RankwellError(f"--json does not go with --out {out}, which is standard output, too")
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            result = verb(**given)
        if as_json:
            print(json.dumps(result, ensure_ascii=False, default=str))
        if code := (result or {}).get("exit_code"):
            raise typer.Exit(code)

    signature = inspect.signature(verb, eval_str=True)
    kind = Annotated[bool, typer.Option("--json", help=text)]
    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
    parameters = [*signature.parameters.values(), option]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


app = typer.Typer(
    name="rankwell",
    help="""A search ranker fitted to your documents, and proof that it is better.

    Examples:

        rankwell demo

        rankwell index collection.csv --out my-index

        rankwell search my-index "how do bees keep warm"

        rankwell COMMAND --help
    """,
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain text, whatever reads it
    pretty_exceptions_enable=False,
)


def find_verbs() -> list[Callable[..., Any]]:
    """The function of every verb."""
    names = {module.name for module in pkgutil.iter_modules(cli.__path__)} - {"main", "options"}
    modules = {name: import_module(f"rankwell.cli.{name}") for name in names}
    verbs = {name: getattr(module, name) for name, module in modules.items() if callable(getattr(module, name, None))}
    for name in COMMANDS:
        with left_out_if_broken(f"the command {name}"):
            if name in modules:
                raise ValueError("rankwell has a command of this name")
            verbs[name] = COMMANDS[name]
    return [verbs[name] for name in sorted(verbs, key=lambda name: (*ORDER, name).index(name))]


def _takes_arguments(verb: Callable[..., Any]) -> bool:
    """Whether a verb cannot run without arguments."""
    parameters = inspect.signature(verb).parameters
    return any(name != "context" and parameter.default is parameter.empty for name, parameter in parameters.items())


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"rankwell {version('rankwell')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _show_warning(
    default: Callable[..., None], message: Warning | str, category: type[Warning], filename: str, *rest: Any
) -> None:
    """Print rankwell's own warnings as one line for the user; leave those of other packages as they are."""
    progress.clear()
    if Path(filename).is_relative_to(PACKAGE):
        kind = "" if issubclass(category, Notice) else "warning: "
        _complain(f"{kind}{message}")
    else:
        default(message, category, filename, *rest)


def _complain(message: str) -> None:
    """Print one line on standard error, whatever the names in it contain."""
    print("rankwell:", message.replace("\r", "\\r").replace("\n", "\\n"), file=sys.stderr)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Characters that the output's encoding lacks as JSON writes them, so that JSON stays readable."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


with warnings.catch_warnings():  # of plugins
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    for verb in find_verbs():
        prints = with_json(verb) if inspect.signature(verb).return_annotation == "Result" else verb
        app.command(cls=Verb, no_args_is_help=_takes_arguments(verb))(prints)


def _with_share(arguments: list[str]) -> list[str]:
    """The arguments, with the usual share after a ``--hybrid`` that has none."""
    if arguments[:1] == ["tune"]:  # which finds the share
        return arguments
    given = [*arguments, ""]
    for place, (name, value) in reversed([*enumerate(pairwise(given))]):
        if name == "--hybrid" and not _is_number(value):
            given.insert(place + 1, str(UNFITTED.share))
    return given[:-1]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def main() -> None:
    """Run the command line. A user's error prints one line on standard error and exits with code 2."""
    progress.show_in_log()
    # Imports and the compiler create many objects that stay; looking for garbage among them slows short commands.
    gc.set_threshold(50_000)
    codecs.register_error("escape", _escape)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="escape")
    try:
        with interruptible(), warnings.catch_warnings(), reading_pipes_once():
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            code = app(_with_share(sys.argv[1:]), prog_name="rankwell", standalone_mode=False)
            sys.stdout.flush()  # here, where a closed pipe is caught
            sys.exit(code if isinstance(code, int) else 0)
    except UsageError as error:
        message = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help
            print(message)
        else:
            command = error.ctx.command_path if error.ctx else "rankwell"
            message = f"{message[:1].lower()}{message[1:].rstrip('.')}"
            if message.startswith("got unexpected extra argument"):
                message = message.replace("(s)", "")
                given = message.partition("(")[2].rstrip(")")
                if command.endswith("rerank") and Path(given).exists():
                    message += f"; --collection {given} names the documents"
                else:
                    message += "; put a question in quotes" * command.endswith(("search", "rerank"))
            if message.startswith("missing option '--out'"):
                message += (
                    f", for example {command} {' '.join(sys.argv[2:3])} --out {(sys.argv[3:4] or ['my-output'])[0]}"
                )
            _complain(f"{message} (see {command} --help)")
        sys.exit(error.exit_code)
    except RankwellError as error:
        _complain(str(error))
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _complain(str(MissingExtraError(str(error.name), extra, "this command")))
        sys.exit(2)
    except BrokenPipeError:
        # The reader of the output (head, less) has closed it: not an error.
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:  # the disk failed
        if error.errno not in DISK_ERRORS or error.filename is None:
            raise
        _complain(f"{os.fsdecode(error.filename)}: {system_reason(error)}")
        sys.exit(2)
