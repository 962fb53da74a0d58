"""What several verbs share: options, which of them go together, outputs, and clusters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from rankwell.core import progress
from rankwell.core.errors import RankwellError
from rankwell.core.files import check_output, check_parent, is_stream
from rankwell.core.registry import Registry
from rankwell.core.stopping import interruptible
from rankwell.models.devices import Precision
from rankwell.rank.defaults import UNFITTED

if TYPE_CHECKING:
    from rankwell.rank.requests import RunResult
    from rankwell_ray.commands import CommandCluster


def output_file(path: Path | None) -> Path | None:
    """Check an option that names a file to write; ``-`` is standard output. Its folder must exist."""
    if path is not None:
        check_output(path)
    return path


def output_folder(path: Path | None) -> Path | None:
    """Check an option that names a folder to make or to fill; the folder around it must exist."""
    if path is not None:
        check_parent(path)
    return path


def check_run(path: Path | None, tag: str | None, cluster: CommandCluster | None) -> None:
    """Raise unless a run called ``tag`` can be written to ``path``. Work on a cluster needs a file to resume for."""
    if tag is not None:
        from rankwell.corpus.formats.lines import writable_id

        writable_id(path or "the run", "run name", tag)
    if cluster is not None:
        need_file(path, "--ray")


def need_file(path: Path | None, reason: str) -> None:
    """Raise unless ``path`` is a file, because only work for a file can be resumed."""
    if path is None or is_stream(path):
        raise RankwellError(f"{reason} needs --out with a file, by whose name interrupted work is resumed")


def write_result(result: RunResult, out: Path, format: Format) -> None:
    """Write a run, and print its report."""
    from rankwell.corpus.formats import write_run

    write_run(result.run, out, format=format)
    say(out, result.report)


def say(out: Path, report: str) -> None:
    """Print a line about an output file."""
    print(f"{out}: {report}", file=reports(out))


def reports(out: Path | None) -> TextIO:
    """Where to print reports on an output: standard error if the output itself goes to standard output."""
    return sys.stderr if out is not None and is_stream(out) else sys.stdout


@contextmanager
def resumable() -> Iterator[None]:
    """Say how to resume the work inside if it is interrupted with Ctrl-C."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        progress.clear()
        print("rankwell: interrupted; rerun the command to resume", file=sys.stderr)
        raise


Result = dict[str, Any]
"""What a verb found or made. A verb that returns it gets the option --json, which prints it and nothing else."""
COMMANDS: Registry[Callable[..., Any]] = Registry("command")
"""The verbs that plugins add; the others are the modules of this folder."""

Backend = Literal["torch", "onnx"]

RunOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        callback=output_file,
        help="Write a run to this file; - is standard output, a name ending in .gz is compressed. Default: print the "
        "answers.",
    ),
]
Format = Literal["trec", "msmarco"]
Threads = Annotated[int, typer.Option("--threads", help="Number of threads; 0 uses all cores.")]

IdField = Annotated[
    str | None,
    typer.Option("--id", metavar="FIELD", help="Field or column of the ids. Default: recognised by its name."),
]
TextField = Annotated[
    str | None,
    typer.Option("--text", metavar="FIELD", help="Field or column of the texts. Default: recognised by its name."),
]
TextFields = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        metavar="FIELD",
        help="Field or column of the texts. May be repeated: all are searched. Default: recognised by its name.",
    ),
]
TitleField = Annotated[
    str | None,
    typer.Option("--title", metavar="FIELD", help="Field or column of the titles. Default: recognised by its name."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="One of the settings listed above. May be repeated."),
]

Model = Annotated[
    str,
    typer.Option(
        "--model", metavar="MODEL", help="A checkpoint folder, a name on the Hugging Face hub, or an exported model."
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code that comes with a model. Without it, such models are refused."),
]
BackendOption = Annotated[Backend, typer.Option("--backend", help="Inference backend.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="DEVICE", help="Torch device: cpu, cuda, cuda:1 or mps. Default: a GPU if there is one."
    ),
]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        "--precision",
        help="Torch precision: fp32 is exact; auto is the fastest that ranks alike: 16 bits on a GPU; on a CPU "
        "int8, 16 bits or fp32, by what the processor has.",
    ),
]
EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="MODEL",
        help="Bi-encoder: a folder, PACKAGE:FOLDER, or a name on the Hugging Face hub. Default: rankwell-mini.",
    ),
]
MinRelevance = Annotated[
    float | None,
    typer.Option(
        "--min-relevance",
        metavar="P",
        min=0,
        max=1,
        help="Leave out documents whose probability of being relevant is lower. For systems made by `rankwell fit`.",
    ),
]
Hybrid = Annotated[
    float | None,
    typer.Option(
        "--hybrid",
        metavar="[WEIGHT]",
        help=f"Add dense search with this weight in the score, {UNFITTED.share} unless given; 1 uses it alone.",
    ),
]
VectorChoice = Literal["auto", "exact", "compressed"]


# Rarely used options: ``--set NAME=VALUE``


def read_settings(texts: Sequence[str] | None, kinds: Mapping[str, Any], option: str = "--set") -> dict[str, Any]:
    """The values of ``--set NAME=VALUE``, or of another option; ``kinds`` has the type of each by its name."""
    from pydantic import TypeAdapter, ValidationError

    settings = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or name not in kinds:
            raise RankwellError(f"{option} {text}: expected NAME=VALUE with one of the names {', '.join(kinds)}")
        try:
            settings[name] = TypeAdapter(kinds[name]).validate_strings(value)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise RankwellError(f"{option} {text}: {problem[0].lower()}{problem[1:]}") from None
    return settings


# Options that need another option, or exclude one


def needs(context: typer.Context, table: Mapping[str, str | tuple[str, ...]]) -> None:
    """Raise if an option was given without the option, or one of the options, that ``table`` says it needs.

    Options are named as the command's parameters: ``{"stride": "windows", "normalise": ("fuse", "blend")}``.
    """
    values, flags = context.params, _flags(context)
    for option, needed in table.items():
        names = (needed,) if isinstance(needed, str) else needed
        if _is_given(context, option) and all(values[name] is None or values[name] is False for name in names):
            wanted = " or ".join(flags.get(name, f"--{name}") for name in names)
            raise RankwellError(f"{flags.get(option, f'--set {option}')} needs {wanted}")


def excludes(context: typer.Context, choice: str, *options: str) -> None:
    """Raise if one of ``options`` was given, since the user's ``choice`` (``"--ray"``) excludes them."""
    for option in options:
        if _is_given(context, option):
            raise RankwellError(f"{_flags(context).get(option, f'--set {option}')} does not go with {choice}")


def _is_given(context: typer.Context, option: str) -> bool:
    """Whether the user wrote the option, also with ``--set``, rather than leaving it at its default."""
    if any(text.startswith(f"{option}=") for text in context.params.get("settings") or ()):
        return True
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _flags(context: typer.Context) -> dict[str | None, str]:
    return {parameter.name: parameter.opts[0] for parameter in context.command.params}


# ``--ray``


RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run on a Ray cluster: `local` starts one on this machine, `auto` or HOST:PORT connects to a running one; "
        "with a number of workers as in `local,4`, otherwise as many as there is room for. If interrupted, rerun the "
        "command to resume.",
    ),
]


def cluster_of(context: typer.Context, *excluded: str) -> CommandCluster | None:
    """The cluster that the command's --ray names, if any; it excludes the options ``excluded``."""
    if context.params["ray"] is None:
        return None
    (ray, comma, workers), device = context.params["ray"].partition(","), context.params.get("device")
    if comma and not (workers.isdecimal() and 0 < int(workers) < 10_000):
        raise RankwellError(f"--ray {ray},{workers}: expected a number of workers after the comma, as in local,4")
    excludes(context, "--ray", *excluded)
    if device is not None and ":" in device:
        raise RankwellError(f"--device {device}: with --ray each worker gets its own GPU; use --device cuda")
    try:
        from rankwell_ray.commands import CommandCluster
    except ModuleNotFoundError:
        raise RankwellError("--ray needs the package rankwell-ray: pip install rankwell-ray") from None
    return CommandCluster(ray, int(workers or 0), gpus=1 if device == "cuda" else 0)
