"""Sharded search beside one index, whose results must be equal.

python bench/scale.py DATA/wiki    every dev query, in segments and by workers on a local Ray cluster
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from harness import make_parser
from rankwell.corpus.formats import read_queries
from rankwell.corpus.records import Run
from rankwell.corpus.sources import resolve_documents
from rankwell.retrieve.index import Index
from rankwell.scale.index import IndexJob, build_index
from rankwell.scale.search import ShardedIndex
from rankwell.scale.workers import Cluster

PARTS = 4
"""The segments that a collection is cut into."""


def same(one: Run, other: Run) -> bool:
    return list(one) == list(other) and all(one[qid] == other[qid] for qid in one)


def equal(data: Path, k: int, place: Path) -> None:
    """All queries of ``queries*.dev.tsv``: what one index finds, the same in segments, and the segments in actors."""
    whole = Index.build(resolve_documents(str(data)), place / "whole")
    cut = build_index(IndexJob(str(data), place / "cut", -(-len(whole) // PARTS)))
    with ShardedIndex.on(Cluster(workers=2), cut.folder, shards=2) as held:
        for path in sorted(data.glob("queries*.dev.tsv")):
            queries = read_queries(path)
            expected = whole.search(queries, k=k)
            for how, index in (("segments", cut), ("ray", held)):
                found = index.search(queries, k=k)
                if not same(expected, found):
                    sys.exit(f"{path.name}: {how} found something else")
                rows = sum(map(len, found.values()))
                print(f"{path.name}, {how}: {len(queries):,} queries, {rows:,} rows, equal", flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, help="a folder with a collection and queries")
    parser.add_argument("--k", type=int, default=1000, help="documents a query")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as place:
        equal(arguments.data, arguments.k, Path(place))


if __name__ == "__main__":
    main()
