"""``--ray``: its options, and the cluster they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rankwell.cli.needs import excludes, needs

if TYPE_CHECKING:
    from rankwell.scale.workers import Cluster

RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run on a Ray cluster: `local` starts one on this machine, `auto` or HOST:PORT connects to a running one. "
        "If interrupted, rerun the command to resume.",
    ),
]
WorkersOption = Annotated[
    int, typer.Option("--workers", min=0, help="Number of Ray workers; 0 uses as many as the cluster has room for.")
]


def cluster_of(context: typer.Context, *excluded: str) -> Cluster | None:
    """The cluster that the command's --ray names, if any; it excludes the options ``excluded``."""
    from rankwell.core.errors import RankwellError
    from rankwell.scale.workers import Cluster, import_ray

    needs(context, {"workers": "ray"})
    ray, device = context.params["ray"], context.params["device"]
    if ray is None:
        return None
    excludes(context, "--ray", *excluded)
    if device is not None and ":" in device:
        raise RankwellError(f"--device {device}: with --ray each worker gets its own GPU; use --device cuda")
    import_ray()
    return Cluster(ray, context.params["workers"], gpus=1 if device == "cuda" else 0)
