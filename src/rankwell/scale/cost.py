"""What a job costs: from a few measured rates to machines, memory, traffic, hours and money.

    seconds of work   index: documents · index        search: queries · (query + postings of all documents · scan)
                      re-rank: pairs · pair
    makespan          simulated: workers claim shards one after the other; each first starts; a lost one begins anew
    memory            index: what a part holds while it is built; search: the share of the index that must be in memory
    traffic           what workers read and write, and what shards answer

The rates are one core's (or one GPU's). Everything a projection assumes is an argument; nothing is hidden in it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rates:
    """Measured on one core, in seconds and bytes.

    ==================  ====================================================================
    ``read``            seconds to read a document and put it in its part (one process)
    ``index``           seconds to turn a document into postings
    ``query``           seconds a query costs a shard whatever it holds
    ``scan``            seconds a query costs for each document of a shard
    ``join``            seconds to join one shard's list into a query's
    ``pair``            seconds to score a pair
    ``index_bytes``     of the index, texts apart, a document
    ``text_bytes``      of the texts, a document
    ==================  ====================================================================
    """

    read: float
    index: float
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
    work = makespan([size * rates.index for size in sizes], machines * machine.cores, start=machine.start, loss=loss)
    seconds = documents * rates.read / readers + work
    memory = min(machine.cores, len(sizes)) * part * rates.index_bytes
    # A part is written, read, and written again as a segment with its texts.
    traffic = documents * (3 * rates.text_bytes + rates.index_bytes)
    return _cost(seconds, machine, machines, memory, traffic)


def search_cost(
    documents: int, queries: int, rates: Rates, machine: Machine, machines: int, *, k: int = 1000, replicas: int = 1
) -> Cost:
    """Searching ``queries`` over an index in as many shards as the machines have cores."""
    shards = max(1, machines * machine.cores // replicas)
    seconds = machine.start + queries * query_seconds(documents, shards, rates) / replicas
    memory = documents * rates.index_bytes * replicas / machines
    traffic = queries * shards * k * 12.0
    return _cost(seconds, machine, machines, memory, traffic)


def query_seconds(documents: int, shards: int, rates: Rates) -> float:
    """A query's time: its slowest shard's, and the joining of their lists."""
    return rates.query + math.ceil(documents / shards) * rates.scan + (shards * rates.join if shards > 1 else 0.0)


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
    """Rates from what ``bench/scale.py`` measured at two sizes or more, in seconds of processor time; ``pair`` is the
    model's own (docs/performance.md).
    """

    def of(job: str, how: str | None = None) -> list[Mapping[str, Any]]:
        chosen = [point for point in points if point["job"] == job and how in (None, point.get("how"))]
        return sorted(chosen, key=lambda point: int(point["documents"]))

    largest, read, size = of("index", "shards")[-1], of("read")[-1], of("size")[-1]
    documents = float(size["documents"])
    small, large = of("search", "one")[0], of("search", "one")[-1]
    by_query = [point["cpu"] / point["queries"] for point in (small, large)]
    scan = max(0.0, (by_query[1] - by_query[0]) / (large["documents"] - small["documents"]))
    cut = of("search", "segments")[-1]
    parts = cut.get("parts", 4)
    return Rates(
        read=read["cpu"] / documents,
        index=(largest["cpu"] - read["cpu"]) / documents,
        query=max(0.0, by_query[0] - small["documents"] * scan),
        scan=scan,
        join=max(0.0, (cut["cpu"] - large["cpu"]) / cut["queries"] / parts),
        pair=pair,
        index_bytes=size["index_bytes"] / documents,
        text_bytes=size["text_bytes"] / documents,
    )
