"""``--ray``: the options of every verb whose work comes in shards, and the cluster they name."""

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
        help="Share the work among the workers of a Ray cluster: `local` starts one on this machine, `auto` or "
        "HOST:PORT joins one that runs. Killed, the same command goes on where it was.",
    ),
]
WorkersOption = Annotated[
    int, typer.Option("--workers", min=0, help="Of --ray; 0 takes as many as the cluster has room for.")
]


def cluster_of(ray: str | None, workers: int, device: str | None = None, **refused: object) -> Cluster | None:
    """The cluster the user asked for, or none. ``refused`` are the options given that do not go with --ray."""
    from rankwell.core.errors import RankwellError
    from rankwell.scale.workers import Cluster, import_ray

    if ray is None:
        if workers:
            raise RankwellError("--workers is for --ray; `--ray local --workers 2` starts two on this machine")
        return None
    named = next((name.replace("_", "-") for name, value in refused.items() if value), None)
    if named is not None:
        raise RankwellError(f"--{named} does not go with --ray")
    if device is not None and ":" in device:
        raise RankwellError(f"--device {device}: with --ray each worker gets a GPU of its own, --device cuda")
    import_ray()
    return Cluster(ray, workers, gpus=1 if device == "cuda" else 0)


def for_workers(source: str) -> str:
    """A path as workers in other folders find it; a name (of a model, of a data set) as it is."""
    return str(Path(source).absolute()) if Path(source).exists() else source
