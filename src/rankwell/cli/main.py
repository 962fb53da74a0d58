"""The command ``rankwell``: one module a verb, wired together here."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from rankwell.cli.analyse import analyse
from rankwell.cli.demo import demo
from rankwell.cli.evaluate import evaluate
from rankwell.cli.expand import expand
from rankwell.cli.experiment import experiment
from rankwell.cli.explain import explain
from rankwell.cli.export import export
from rankwell.cli.index import index
from rankwell.cli.rerank import rerank
from rankwell.cli.search import search
from rankwell.cli.serve import serve
from rankwell.cli.train import train
from rankwell.cli.tune import tune
from rankwell.cli.types import types
from rankwell.core.errors import MissingExtraError, RankwellError

OWN = Path(__file__).parents[1]
EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors"), "models"),
    **dict.fromkeys(("accelerate", "tensorboard"), "train"),
    **dict.fromkeys(("onnx", "onnxruntime", "openvino"), "onnx"),
    "matplotlib": "plots",
    "ray": "scale",
}
"""The extra that brings a package, for commands that need it from their first line on."""

app = typer.Typer(
    name="rankwell",
    help="Fit BERT rankers to your own documents, run them fast, and see whether they are better.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
VERBS = (index, expand, search, rerank, evaluate, analyse, tune, train, experiment, types, explain, export, serve, demo)
for verb in VERBS:
    app.command(no_args_is_help=verb not in (demo, serve))(verb)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"rankwell {version('rankwell')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _show_warning(
    usual: Callable[..., None], message: Warning | str, category: type[Warning], filename: str, *rest: Any
) -> None:
    """Our own are for the user, and are one line; others are about code, and stay as they are."""
    if Path(filename).is_relative_to(OWN):
        print(f"rankwell: warning: {message}", file=sys.stderr)
    else:
        usual(message, category, filename, *rest)


def main() -> None:
    """Run the command line; what the user can mend is one line on standard error and exit code 2."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            app()
    except RankwellError as error:
        print(f"rankwell: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(f"rankwell: {MissingExtraError(str(error.name), extra, 'this command')}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: that is not an error.
        sys.stderr.close()
        sys.exit(141)
