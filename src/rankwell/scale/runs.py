"""Runs in shards. Each shard is a run file with some of the queries; scores are read back exactly."""

from __future__ import annotations

from typing import IO

from rankwell.core.shards import Shards
from rankwell.corpus.formats import read_run
from rankwell.corpus.formats.runs import trec_lines
from rankwell.corpus.records import Ranking, Run


def write_part(run: Run, file: IO[bytes]) -> None:
    """Write the queries of one shard, which may have no results at all."""
    file.writelines(line.encode() for line in trec_lines(run, "a part of the run"))


def read_parts(shards: Shards) -> dict[str, Ranking]:
    """The queries of all shards, in order."""
    shards.check()
    rankings: dict[str, Ranking] = {}
    for path in shards.paths():
        if path.stat().st_size:
            rankings |= read_run(path)
    return rankings
