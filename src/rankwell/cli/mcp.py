"""``rankwell mcp``: a system as tools of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwell.cli.options import Device, excludes


def mcp(
    context: typer.Context,
    system: Annotated[Path, typer.Argument(metavar="SYSTEM|INDEX", help="A system or an index.")],
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Serve over HTTP at /mcp of this port. Default: stdio."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 accepts other machines.")
    ] = "127.0.0.1",
    key: Annotated[
        str | None, typer.Option("--key", envvar="RANKWELL_KEY", help="Key that HTTP requests must send.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Host name, besides localhost, that requests may use."),
    ] = None,
    device: Device = None,
    timeout_ms: Annotated[int, typer.Option("--timeout-ms", min=1, help="Deadline of a call.")] = 30_000,
) -> None:
    """Give an agent two tools in the Model Context Protocol: search a system, and get a document.

    Agents start the command themselves and talk to it over stdio; with --port it serves them over HTTP, beside the API
    of `rankwell serve`, with the same rule for keys and the same limits.

    Examples:

        rankwell mcp my-system

        claude mcp add my-documents -- rankwell mcp my-system

        RANKWELL_KEY=… rankwell mcp my-system --port 8000 --host 0.0.0.0
    """
    from rankwell.models.devices import Computing
    from rankwell.rank.texts import is_system
    from rankwell.serve.engine import Batching
    from rankwell.serve.formats import Limits
    from rankwell.serve.listening import bind
    from rankwell.serve.server import ServerOptions, serve, serve_stdio
    from rankwell.serve.state import Sources, default_models

    fitted = is_system(system)
    models = () if fitted else default_models(system, "torch")
    sources = Sources(system, models, Computing(device), is_system=fitted, reranks=fitted)
    limits = Limits(default_timeout_ms=timeout_ms)
    if port is None:
        excludes(context, "stdio (add --port)", "host", "key", "allow_host")
        serve_stdio(sources, limits)
        return
    options = ServerOptions(key or None, hosts=tuple(allow_host or ()), agents=True)
    serve(
        sources, limits, Batching(), options, bind(host, port), lambda line: typer.echo(f"rankwell: {line}", err=True)
    )
