"""A run that is made in shards: each shard a run of some of its queries, as text; scores come back to the bit."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from rankwell.core.shards import Shards
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Ranking, Run


def write_part(run: Run, file: IO[bytes]) -> None:
    """Write the queries of one shard."""
    with TemporaryDirectory() as folder:
        write_run(run, path := Path(folder) / "part.run")
        file.write(path.read_bytes())


def read_parts(shards: Shards) -> dict[str, Ranking]:
    """The queries of all shards, in order."""
    shards.check()
    rankings: dict[str, Ranking] = {}
    for path in shards.paths():
        if path.stat().st_size:  # nothing may have been found for a whole shard
            rankings |= read_run(path)
    return rankings
