"""Sharded search beside one index, whose results must be equal; and what a large job would cost.

    python bench/scale.py equal DATA/wiki    every dev query, in segments and by workers on a local Ray cluster
    python bench/scale.py cost               the projections of docs/scale.md

The projections go from the rates that were measured (``bench/scale.json``) to machines, memory, traffic, hours and
money:

    seconds of work   index: documents · (read + index) + parts · part
                      search: queries · (query + shards · √(documents / shards) · scan + (shards − 1) · join)
                      re-rank: pairs · pair
    makespan          simulated: workers claim shards one after the other; each first starts; a lost one begins anew
    memory            index: what a part holds while it is built; search: the share of the index that must be in memory
    traffic           what workers read and write, and what shards answer

The rates are one core's (or one GPU's). Everything a projection assumes is an argument; nothing is hidden in it.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

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
MEASURED = Path(__file__).parent / "scale.json"
PAIR = 1 / 22_489
"""Of BERT-base on one H200, 140 tokens (docs/performance.md)."""
LOSS = 1 / (7 * 24 * 3600)
"""A worker is lost once a week."""


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


# What a job costs


@dataclass(frozen=True)
class Rates:
    """Measured on one core, in seconds and bytes.

    ==================  ====================================================================
    ``read``            seconds to read a document and put it in its part (one process)
    ``index``           seconds to turn a document into postings
    ``part``            seconds a part costs whatever it holds: making its files and folders
    ``query``           seconds a query costs whatever is searched: analysing it, naming what was found
    ``scan``            seconds a query costs a shard, for the square root of its documents: the rest is skipped
    ``join``            seconds a further shard adds to a query: being asked, and its list joined to the others
    ``pair``            seconds to score a pair
    ``index_bytes``     of the index, texts apart, a document
    ``text_bytes``      of the texts, a document
    ==================  ====================================================================
    """

    read: float
    index: float
    part: float
    query: float
    scan: float
    join: float
    pair: float
    index_bytes: float
    text_bytes: float

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 0:
            raise ValueError(f"negative rates: {self}")


@dataclass(frozen=True)
class Machine:
    """A kind of machine that can be hired."""

    cores: int
    memory: float
    hour: float
    """What an hour of it costs."""
    start: float = 10.0
    """Seconds until a worker on it begins with its first shard: processes, imports, the model."""


@dataclass(frozen=True)
class Cost:
    """What a job takes."""

    machines: int
    hours: float
    money: float
    memory: float
    """Bytes a machine."""
    traffic: float
    """Bytes over the network, all machines together."""


def makespan(shards: Sequence[float], workers: int, *, start: float = 0.0, loss: float = 0.0, seed: int = 0) -> float:
    """The seconds until all shards are done, each of so many seconds of work, by workers that claim them in order.

    With ``loss``, workers are lost at random, so many a second of work: the shard is begun anew, after a new start.
    """
    if workers < 1:
        raise ValueError(f"{workers} workers")
    chance = random.Random(seed)
    free = [start] * min(workers, max(len(shards), 1))
    heapq.heapify(free)
    last = 0.0
    for seconds in shards:
        now = heapq.heappop(free)
        while loss and (lived := chance.expovariate(loss)) < seconds:
            now += lived + start
        heapq.heappush(free, now + seconds)
        last = max(last, now + seconds)
    return last


def index_cost(
    documents: int,
    rates: Rates,
    machine: Machine,
    machines: int,
    *,
    part: int = 1_000_000,
    readers: int = 1,
    loss: float = 0.0,
) -> Cost:
    """Building an index of ``documents`` in parts. With one reader the collection is one stream; a collection that is
    in several files can be cut by as many ``readers``.
    """
    sizes = [min(part, documents - begin) for begin in range(0, documents, part)]
    shards = [rates.part + size * rates.index for size in sizes]
    work = makespan(shards, machines * machine.cores, start=machine.start, loss=loss)
    seconds = documents * rates.read / readers + work
    memory = min(machine.cores, len(sizes)) * part * rates.index_bytes
    # A part is written, read, and written again as a segment with its texts.
    traffic = documents * (3 * rates.text_bytes + rates.index_bytes)
    return _cost(seconds, machine, machines, memory, traffic)


def search_cost(documents: int, queries: int, rates: Rates, machine: Machine, machines: int, *, k: int = 1000) -> Cost:
    """Searching ``queries`` over an index in as many shards as the machines have cores."""
    shards = machines * machine.cores
    seconds = machine.start + queries * query_seconds(documents, shards, rates)
    memory = documents * rates.index_bytes / machines
    traffic = queries * shards * k * 12.0
    return _cost(seconds, machine, machines, memory, traffic)


def query_seconds(documents: int, shards: int, rates: Rates) -> float:
    """A query's time: its slowest shard's, and the joining of their lists by one process."""
    return rates.query + math.sqrt(documents / shards) * rates.scan + (shards - 1) * rates.join


def query_work(documents: int, shards: int, rates: Rates) -> float:
    """A query's processor time, of all shards together."""
    return query_seconds(documents, shards, rates) + (shards - 1) * math.sqrt(documents / shards) * rates.scan


def rerank_cost(
    pairs: int, rates: Rates, machine: Machine, machines: int, *, group: int = 16_384, loss: float = 0.0
) -> Cost:
    """Scoring ``pairs`` in shards of ``group``; for GPUs, ``cores`` are GPUs and ``rates.pair`` is one GPU's."""
    sizes = [min(group, pairs - begin) for begin in range(0, pairs, group)]
    seconds = makespan([size * rates.pair for size in sizes], machines * machine.cores, start=machine.start, loss=loss)
    return _cost(seconds, machine, machines, 0.0, pairs * (rates.text_bytes + 64.0))


def _cost(seconds: float, machine: Machine, machines: int, memory: float, traffic: float) -> Cost:
    hours = seconds / 3600
    return Cost(machines, hours, hours * machines * machine.hour, memory, traffic)


def fit_rates(points: Sequence[Mapping[str, Any]], pair: float) -> Rates:
    """Rates from what was measured at two sizes or more, in seconds of processor time; ``pair``
    is the model's own (docs/performance.md).

    Every size counts alike, so that one that was disturbed does not decide.
    """

    def of(job: str, how: str) -> dict[int, Mapping[str, Any]]:
        return {int(p["documents"]): p for p in points if (p["job"], p.get("how", how)) == (job, how)}

    read, built, one, cut = of("read", "one"), of("index", "shards"), of("search", "one"), of("search", "segments")
    sizes = of("size", "one")
    parts = {documents: int(point.get("parts", PARTS)) for documents, point in cut.items()}
    _, read_rate = fit_line({documents: point["cpu"] for documents, point in read.items()})
    part, index = fit_line({documents: point["cpu"] - documents * read_rate for documents, point in built.items()})
    query, scan = fit_line({math.sqrt(size): point["cpu"] / point["queries"] for size, point in one.items()})
    joins = [
        (point["cpu"] / point["queries"] - query - math.sqrt(documents * parts[documents]) * scan)
        / (parts[documents] - 1)
        for documents, point in cut.items()
    ]
    return Rates(
        read=read_rate,
        index=index,
        part=part / PARTS,
        query=query,
        scan=scan,
        join=max(0.0, median(joins)),
        pair=pair,
        # The vocabulary, which soon stops growing, is the constant that is left out.
        index_bytes=fit_line({documents: point["index_bytes"] for documents, point in sizes.items()})[1],
        text_bytes=fit_line({documents: point["text_bytes"] for documents, point in sizes.items()})[1],
    )


def fit_line(seconds: Mapping[float, float]) -> tuple[float, float]:
    """A constant and a slope, neither below 0, with the least squares of relative errors.

    >>> fit_line({10: 3.0, 20: 5.0})
    (1.0, 0.2)
    """
    if len(seconds) < 2:
        raise ValueError(f"{len(seconds)} sizes; a line needs two")
    sizes, values = (np.array(list(column), np.float64) for column in (seconds, seconds.values()))
    rows = np.stack([1 / values, sizes / values], axis=1)
    constant, slope = (float(part) for part in np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0])
    if constant < 0:
        constant, slope = 0.0, float(rows[:, 1].sum() / (rows[:, 1] ** 2).sum())
    if slope < 0:
        constant, slope = float(rows[:, 0].sum() / (rows[:, 0] ** 2).sum()), 0.0
    return round(constant, 12), round(slope, 15)


PROCESSORS = Machine(cores=16, memory=64e9, hour=0.70, start=30.0)
GPU = Machine(cores=1, memory=0.0, hour=3.50, start=60.0)


def projections(rates: Rates) -> str:
    """The table of docs/scale.md."""
    search = partial(search_cost, queries=6_980, rates=rates, machine=PROCESSORS, k=100)
    rows = {
        "index 8.8M, one reader": index_cost(8_800_000, rates, PROCESSORS, 1, loss=LOSS),
        "index 100M, one reader": index_cost(10**8, rates, PROCESSORS, 4, loss=LOSS),
        "index 100M, 64 files read at once": index_cost(10**8, rates, PROCESSORS, 4, readers=64, loss=LOSS),
        "index 10B, 1,600 files read at once": index_cost(10**10, rates, PROCESSORS, 100, readers=1_600, loss=LOSS),
        "search 6,980 queries in 100M": search(10**8, machines=1),
        "search 6,980 queries in 10B": search(10**10, machines=50),
        "re-rank 7M pairs (MS MARCO dev)": rerank_cost(7_000_000, rates, GPU, 1, loss=LOSS),
        "re-rank 7M pairs": rerank_cost(7_000_000, rates, GPU, 8, loss=LOSS),
        "re-rank 1B pairs": rerank_cost(10**9, rates, GPU, 32, loss=LOSS),
    }
    lines = ["| job | machines | time | memory per machine | traffic | cost |", "|---|---:|---:|---:|---:|---:|"]
    for job, cost in rows.items():
        memory = f"{cost.memory / 1e9:.1f} GB" if cost.memory else "–"
        traffic = f"{cost.traffic / 1e12:.2f} TB" if cost.traffic > 1e12 else f"{cost.traffic / 1e9:.1f} GB"
        numbers = (f"{cost.hours * 60:.1f} min", memory, traffic, f"{cost.money:.2f}")
        lines.append(f"| {job} | {cost.machines} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def print_costs() -> None:
    """Print the rates and the projections."""
    rates = fit_rates(json.loads(MEASURED.read_text(encoding="utf-8"))["points"], PAIR)
    print(f"{rates}\n\n{projections(rates)}")
    for documents, shards in ((10**8, 16), (10**10, 800)):
        print(f"a query in {documents:,}: {1000 * query_seconds(documents, shards, rates):.1f} ms")


def main() -> None:
    """Compare, or project."""
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    comparing = commands.add_parser("equal", help="compare sharded search with one index")
    comparing.add_argument("data", type=Path, help="a folder with a collection and queries")
    comparing.add_argument("--k", type=int, default=1000, help="documents a query")
    commands.add_parser("cost", help="print the projections")
    arguments = parser.parse_args()
    if arguments.command == "cost":
        print_costs()
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as place:
        equal(arguments.data, arguments.k, Path(place))


if __name__ == "__main__":
    main()
