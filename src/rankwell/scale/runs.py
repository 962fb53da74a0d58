"""Runs in shards. Each shard is a run file with some of the queries; scores are read back exactly."""

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
        if path.stat().st_size:  # a shard may have no results at all
            rankings |= read_run(path)
    return rankings
