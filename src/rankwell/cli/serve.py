"""``rankwell serve``: an index and models over HTTP, with a page."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Any

import typer
from annotated_types import Ge, Le

from rankwell.cli.options import (
    BackendOption,
    Device,
    EncoderOption,
    Hybrid,
    MinRelevance,
    PrecisionOption,
    Settings,
    TrustRemoteCode,
    VectorChoice,
    excludes,
    needs,
    read_settings,
)
from rankwell.core.errors import RankwellError
from rankwell.core.registry import Normalisation

SETTINGS: dict[str, Any] = {
    "normalise": Normalisation,
    "vectors": VectorChoice,
    "label": str,
    "batch_tokens": Annotated[int, Ge(1)],
    "wait_ms": Annotated[float, Ge(0)],
    "queue_tokens": Annotated[int, Ge(1)],
    "max_documents": Annotated[int, Ge(1)],
    "max_body": Annotated[int, Ge(1)],
    "timeout_ms": Annotated[int, Ge(1)],
    "drain_seconds": Annotated[int, Ge(0)],
    "proxy": IPv4Address | IPv6Address,
    "keep_days": Annotated[int, Ge(1), Le(36_500)],
    "log_mb": Annotated[int, Ge(1)],
    "log_texts": bool,
}


def serve(
    context: typer.Context,
    system: Annotated[
        Path | None,
        typer.Argument(
            metavar="SYSTEM|INDEX",
            help="A system made by `rankwell fit`, served as it was fitted, or an index. Default, unless --model is "
            "given: an index of the bundled sample.",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="A checkpoint folder, a name on the Hugging Face hub, an exported model, or none for no re-ranker. "
            "May be repeated. Default: rankwell-mini, which hybrid search uses only for requests that ask for it.",
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes any free one.")] = 8000,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 accepts other machines.")
    ] = "127.0.0.1",
    backend: BackendOption = "torch",
    device: Device = None,
    precision: PrecisionOption = "auto",
    trust_remote_code: TrustRemoteCode = False,
    fuse: Annotated[
        float | None, typer.Option("--fuse", metavar="WEIGHT", help="BM25's weight in the score in /search.")
    ] = None,
    blend: Annotated[
        float | None, typer.Option("--blend", metavar="WEIGHT", help="The bi-encoder's weight in the score in /search.")
    ] = None,
    hybrid: Hybrid = None,
    encoder: EncoderOption = None,
    min_relevance: MinRelevance = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(
            "--alias",
            metavar="NAME=MODEL",
            help="Another name of a model, for clients that send a fixed one. May be repeated.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", envvar="RANKWELL_KEY", help="API key that requests must send; also enables /reload."),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin",
            metavar="URL",
            help="Origin of a page on another host that may use the API (CORS). May be repeated.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="Host name, besides localhost, that requests may use. On a loopback address, such as the default, all "
            "other names are refused. May be repeated.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FOLDER",
            help="Log searches and clicks to daily files in this folder, for `rankwell fit --log` and `check --log`.",
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Serve a system, or an index and a re-ranker, over HTTP, with a page to search and compare.

    SIGTERM finishes the requests under way and exits; SIGHUP reloads index and models without dropping a request.
    Changes of the index are served within a second. If the variable RANKWELL_WRITING_KEY is set, requests that send
    this key can change the index, too: PUT /documents and DELETE /documents/ID.

    Without options an index is searched as with --hybrid. Until vectors of more than 1,000 documents are made, BM25's
    best are re-ranked; those of more than 300,000 have to be made before, by `rankwell index --encoder`.

    Settings, for --set NAME=VALUE:

    normalise: how scores are normalised before --fuse and --blend combine them: min-max (the default), z-score, none.

    vectors: how dense search compares them: all (exact), or codes of one bit per number and then the best (compressed).
    Default: auto, which is exact below 200,000 documents and on a GPU.

    label: for a classifier of several classes, the one that means relevant. Default: entailment.

    batch_tokens: tokens per batch (default: the backend's); wait_ms: how long to wait for a fuller batch (1);
    queue_tokens: tokens that may wait; requests beyond are refused.

    max_documents: texts per request (1000); max_body: bytes per request (8 MiB); timeout_ms: deadline of a request
    that sets none (30,000).

    drain_seconds: time to finish requests under way when stopping (30).

    proxy: IP address of a reverse proxy, which may have more than half of all connections.

    keep_days: days after which files of --log are removed (90); log_mb: megabytes of a day's file (256); log_texts:
    whether the queries' words are logged (true) or their hashes, from which nothing can be fitted (false).

    Examples:

        rankwell serve

        rankwell serve my-system

        rankwell serve my-index

        rankwell serve my-index --model my-model --port 8080

        rankwell serve my-index --model my-model --hybrid 0.7

        rankwell serve my-system --log searches --set keep_days=30

        RANKWELL_KEY=… rankwell serve --model exported --backend onnx --host 0.0.0.0
    """
    from rankwell.models.checkpoints.names import DEFAULT
    from rankwell.models.devices import Computing
    from rankwell.rank.fusion import Shares
    from rankwell.rank.texts import is_system
    from rankwell.serve.engine import Batching
    from rankwell.serve.formats import Limits
    from rankwell.serve.listening import bind
    from rankwell.serve.search_log import LogOptions
    from rankwell.serve.server import WRITING_KEY, ServerOptions, exit_on_signals
    from rankwell.serve.server import serve as serve_sources
    from rankwell.serve.state import Sources, default_models

    rare = read_settings(settings, SETTINGS)
    if is_fitted := system is not None and is_system(system):
        fitted = ("model", "backend", "label", "trust_remote_code", "fuse", "blend", "hybrid", "encoder")
        excludes(context, "a system", *fitted, "vectors", "normalise")
    logging = {"keep_days": "log", "log_mb": "log", "log_texts": "log"}
    needs(context, {**logging, "encoder": ("blend", "hybrid"), "vectors": "hybrid", "normalise": ("fuse", "blend")})
    search = {
        "shares": Shares.from_options(fuse, blend, rare.get("normalise", "min-max")),
        "hybrid": hybrid if hybrid is None else Shares.hybrid(hybrid).similarity,
        "encoder": encoder or DEFAULT,
        "vectors": rare.get("vectors", "auto"),
    }
    body, documents = rare.get("max_body", 8 << 20), rare.get("max_documents", 1000)
    limits = Limits(body_bytes=body, documents=documents, default_timeout_ms=rare.get("timeout_ms", 30_000))
    batching = Batching(rare.get("batch_tokens"), rare.get("wait_ms", 1.0), rare.get("queue_tokens"))
    hosts, drain_seconds, proxy = tuple(allow_host or ()), rare.get("drain_seconds", 30), rare.get("proxy")
    writing_key = os.environ.get(WRITING_KEY) or None
    options = ServerOptions(key or None, tuple(origin or ()), hosts, drain_seconds, proxy and str(proxy), writing_key)
    computing, given = Computing(device, precision, backend, trust_remote_code), is_fitted or bool(model)
    with exit_on_signals(), closing(bind(host, port)) as place, _index(system, given) as folder:
        models = tuple(name for name in model or () if name != "none")
        models = default_models(folder, backend) if model is None and not is_fitted else models
        engine = {"label": rare["label"]} if "label" in rare else {}
        reranks = any(option is not None for option in (model, fuse, blend))
        sources = Sources(folder, models, computing, engine, search, aliases=read_aliases(alias or ()), reranks=reranks)
        sources = replace(sources, min_relevance=min_relevance)
        if is_fitted:
            sources = replace(sources, search={}, is_system=True, reranks=True)
        days, megabytes = rare.get("keep_days", 90), rare.get("log_mb", 256)
        logs = None if log is None else LogOptions(log, rare.get("log_texts", True), days, megabytes)
        service = serve_sources(sources, limits, batching, options, place, _say, logs)
    if service.unfinished:
        # A normal exit would wait for threads, or abort if they are in native code.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def read_aliases(texts: Sequence[str]) -> dict[str, str]:
    """Aliases from texts like ``NAME=MODEL``."""
    aliases = {}
    for text in texts:
        alias, equals, name = text.partition("=")
        if not (alias and equals and name):
            raise RankwellError(f"--alias {text}: expected NAME=MODEL")
        aliases[alias] = name
    return aliases


def _say(line: str) -> None:
    typer.echo(f"rankwell: {line}", err=True)


@contextmanager
def _index(folder: Path | None, with_model: bool) -> Iterator[Path | None]:
    """The index to serve: the given one, or a temporary one of the bundled sample."""
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
