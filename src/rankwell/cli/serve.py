"""``rankwell serve``: an index and models over HTTP, with a page."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from rankwell.cli.encoders import EncoderOption, check_encoder


def serve(
    index: Annotated[
        Path | None,
        typer.Option("--index", help="An index to search. Without one or a model: the bundled sample, and its model."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="A checkpoint folder or a name on the hub; an exported model. Twice: two models."),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where to listen.")] = 8000,
    host: Annotated[str, typer.Option("--host", help="0.0.0.0 to be reached from other machines.")] = "127.0.0.1",
    backend: Annotated[
        Literal["torch", "onnx", "openvino"], typer.Option("--backend", help="What computes the scores.")
    ] = "torch",
    device: Annotated[str | None, typer.Option("--device", help="A torch device: cpu, cuda, cuda:1.")] = None,
    precision: Annotated[
        Literal["auto", "fp32", "bf16"],
        typer.Option(
            "--precision",
            help="Of torch: fp32 is exact, bf16 nearly; auto is bf16 where that is much faster: on a GPU, and on a "
            "processor with AMX.",
        ),
    ] = "auto",
    fuse: Annotated[
        float | None,
        typer.Option("--fuse", metavar="SHARE", help="In /search, add SHARE of BM25's score to the model's."),
    ] = None,
    blend: Annotated[
        float | None,
        typer.Option(
            "--blend", metavar="SHARE", help="In /search, add SHARE of a bi-encoder's similarity, --encoder's."
        ),
    ] = None,
    hybrid: Annotated[
        float | None,
        typer.Option("--hybrid", metavar="SHARE", help="Candidates by meaning, too, as in search: --encoder's share."),
    ] = None,
    encoder: EncoderOption = None,
    normalise: Annotated[
        Literal["none", "min-max", "z-score"], typer.Option("--normalise", help="Before --fuse and --blend.")
    ] = "min-max",
    key: Annotated[
        str | None,
        typer.Option("--key", envvar="RANKWELL_KEY", help="A key that requests must bring; it allows /reload, too."),
    ] = None,
    origin: Annotated[
        list[str] | None, typer.Option("--origin", help="A page of another host that may use the API (CORS).")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="A name, beside localhost, that requests may be sent to (Host); at an address of this machine alone, "
            "such as the default, no other is taken.",
        ),
    ] = None,
    experiment: Annotated[
        list[Path] | None,
        typer.Option("--experiment", help="A folder that rankwell experiment wrote, for the page to show."),
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch-tokens", min=1, help="Tokens of a batch; the backend's own, if not given.")
    ] = None,
    wait_ms: Annotated[float, typer.Option("--wait-ms", min=0, help="Wait so long for a fuller batch.")] = 1.0,
    queue_tokens: Annotated[
        int | None,
        typer.Option("--queue-tokens", min=1, help="Tokens that may wait; beyond them requests are refused."),
    ] = None,
    timeout_ms: Annotated[int, typer.Option("--timeout-ms", min=1, help="The deadline of a request.")] = 30_000,
    max_documents: Annotated[int, typer.Option("--max-documents", min=1, help="Texts of one request.")] = 1000,
    max_body: Annotated[int, typer.Option("--max-body", min=1, help="Bytes of one request.")] = 8 << 20,
    drain_seconds: Annotated[
        int, typer.Option("--drain-seconds", min=0, help="When told to stop: finish requests for so long.")
    ] = 30,
) -> None:
    """Serve an index and a re-ranker over HTTP, with a page to search and compare.

    SIGTERM finishes what has begun and ends; SIGHUP opens index and models anew without dropping a request.

    **Examples**

        rankwell serve

        rankwell serve --index my-index --model my-model --port 8080

        rankwell serve --index my-index --model my-model --blend 0.3 --fuse 0.1 --normalise z-score

        rankwell serve --index my-index --model my-model --hybrid 0.7

        RANKWELL_KEY=… rankwell serve --model exported --backend onnx --host 0.0.0.0
    """
    _require_packages()
    from rankwell.core.errors import RankwellError
    from rankwell.models.checkpoints.names import BACKBONE, DEFAULT, default_lacks
    from rankwell.rank.engines.engine import engine_options
    from rankwell.rank.fusion import told_shares
    from rankwell.serve.beside import Beside
    from rankwell.serve.experiments import check_experiments
    from rankwell.serve.hosts import check_hosts
    from rankwell.serve.limits import Batching, Limits
    from rankwell.serve.listening import bind
    from rankwell.serve.server import ServerOptions, run
    from rankwell.serve.service import Service
    from rankwell.serve.state import Sources

    _check_key(key)
    check_hosts(allow_host or ())
    check_experiments(experiment or ())
    check_encoder({"--encoder": encoder}, {"--blend": blend, "--hybrid": hybrid})
    if blend is not None and hybrid is not None and encoder is None:
        raise RankwellError(
            f"--blend and --hybrid share one bi-encoder: say with --encoder which was tuned ({DEFAULT}, {BACKBONE}, …)"
        )
    shares = told_shares(fuse, blend, normalise)
    needed = blend is not None or hybrid is not None
    similar = encoder or (DEFAULT if blend is None else BACKBONE)
    computing = engine_options("torch", device, precision) if needed else {}
    beside = Beside(shares, similar if needed else None, computing, hybrid)
    models = tuple(model or ())
    if index is None and not models and backend == "torch" and default_lacks() is None:
        models = (DEFAULT,)
    options = engine_options(backend, device, precision) if models else {}
    usual = Limits()
    limits = replace(
        usual,
        body_bytes=max_body,
        bodies_bytes=max(max_body, usual.bodies_bytes),
        documents=max_documents,
        default_timeout_ms=timeout_ms,
        most_timeout_ms=max(timeout_ms, usual.most_timeout_ms),
    )
    batching = Batching(batch_tokens, wait_ms, queue_tokens)
    serving = ServerOptions(
        key or None, tuple(origin or ()), tuple(allow_host or ()), tuple(experiment or ()), drain_seconds
    )
    with _ended_by_signals(), closing(bind(host, port)) as place, _index(index, bool(model)) as folder:
        service = Service(Sources(folder, models, backend, options, beside=beside), limits, batching)
        if service.state.note:
            typer.echo(f"rankwell: {service.state.note}", err=True)
        used = sorted(set(service.precision().values()))
        how = f", scores in {' and '.join(used)}" if used else ""
        how += " (exact ones: --precision fp32)" if "bf16" in used else ""
        run(service, place, serving, lambda: typer.echo(f"rankwell: serving at {place.url}{how}", err=True))
    if service.unfinished:
        # The interpreter's own end would wait for threads, or end them in the midst of native code and abort.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _check_key(key: str | None) -> None:
    from rankwell.core.errors import RankwellError

    if key and not (key.isascii() and key.isprintable() and key == key.strip()):
        raise RankwellError(
            "--key (or RANKWELL_KEY): expected printable ASCII characters with no space at either end; "
            "browsers and proxies do not send others alike in a header"
        )


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the program as an exit does, temporary files removed, unless something else takes them."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
        sys.exit(128 + number)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}  # as nohup sets it
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _index(folder: Path | None, with_model: bool) -> Iterator[Path | None]:
    """The index to serve; where nothing is named, one of the bundled sample, for as long as it is served."""
    if folder is not None or with_model:
        yield folder
        return
    from tempfile import TemporaryDirectory

    from rankwell import sample
    from rankwell.corpus.datasets import open_dataset
    from rankwell.retrieve.index import Index

    with TemporaryDirectory(prefix="rankwell-sample-") as scratch:
        built = Index.build(open_dataset(sample.FOLDER).documents(), Path(scratch) / "sample")
        yield built.folder


def _require_packages() -> None:
    from importlib.util import find_spec

    from rankwell.core.errors import MissingExtraError

    for package in ("fastapi", "uvicorn", "prometheus_client"):
        if find_spec(package) is None:
            raise MissingExtraError(package.replace("_", "-"), "serve", "serving")
