"""``--ray``: its options, and the cluster they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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


def cluster_of(ray: str | None, workers: int, device: str | None = None, **refused: object) -> Cluster | None:
    """The cluster that --ray names, if any. ``refused`` are the options that do not go with it."""
    from rankwell.core.errors import RankwellError
    from rankwell.scale.workers import Cluster, import_ray

    if ray is None:
        if workers:
            raise RankwellError("--workers needs --ray; `--ray local --workers 2` starts two on this machine")
        return None
    named = next((name.replace("_", "-") for name, value in refused.items() if value), None)
    if named is not None:
        raise RankwellError(f"--{named} does not go with --ray")
    if device is not None and ":" in device:
        raise RankwellError(f"--device {device}: with --ray each worker gets its own GPU; use --device cuda")
    import_ray()
    return Cluster(ray, workers, gpus=1 if device == "cuda" else 0)


def for_workers(source: str) -> str:
    """An absolute path, which workers find from any folder; the name of a model or data set is left alone."""
    return str(Path(source).absolute()) if Path(source).exists() else source
