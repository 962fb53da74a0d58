"""Index and search in shards: one process, and workers on a local Ray cluster; and what a large job would cost.

    python bench/scale.py growth DATA/wiki --documents 20000 60000 241000 --repeat 3    time by size
    python bench/scale.py equal DATA/wiki                                   every dev query, sharded against one index
    python bench/scale.py cost                                              the projections of docs/scale.md

Points are added to those in ``--out``; of a point measured before, the better stays. A point is the best of
``--repeat`` runs, because other work on the machine only ever makes a run slower. Beside the time on the wall stands
the processors' time of all processes together, which a busy machine changes less. Starting Ray is timed by itself.

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

import argparse
import heapq
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

from harness import make_parser
from rankwell.core.manifest import machine
from rankwell.corpus.formats import read_queries, write_documents
from rankwell.corpus.records import Query, Run
from rankwell.corpus.sources import resolve_documents
from rankwell.retrieve.index import Index
from rankwell.scale.index import IndexJob, build_index
from rankwell.scale.search import ShardedIndex
from rankwell.scale.workers import Cluster

T = TypeVar("T")
PARTS = 4
"""The segments that a collection is cut into."""
FIGURES = ("seconds", "cpu", "load")
MEASURED = Path(__file__).parent / "scale.json"
PAIR = 1 / 22_489
"""Of BERT-base on one H200, 140 tokens (docs/performance.md)."""
LOSS = 1 / (7 * 24 * 3600)
"""A worker is lost once a week."""


class Points:
    """What was measured."""

    def __init__(self, repeat: int, out: Path):
        self.repeat, self.out = repeat, out
        self.found: list[dict[str, Any]] = json.loads(out.read_text())["points"] if out.exists() else []

    def time(self, work: Callable[[int], T], **labels: Any) -> T:
        """Time ``work(attempt)``, and keep the best."""
        seconds, cpu, result = float("inf"), float("inf"), None
        for attempt in range(self.repeat):
            begin, before = time.perf_counter(), processor_seconds()
            result = work(attempt)
            seconds = min(seconds, time.perf_counter() - begin)
            cpu = min(cpu, processor_seconds() - before)
        self.add(seconds=round(seconds, 3), cpu=round(cpu, 3), **labels)
        assert result is not None
        return result

    def add(self, **point: Any) -> None:
        """Keep a point, or the better of this and an earlier one; the file is written anew with each."""
        point["load"] = round(os.getloadavg()[0], 1)
        print(json.dumps(point), flush=True)
        labels = {name: value for name, value in point.items() if name not in FIGURES}
        for earlier in self.found:
            if labels == {name: value for name, value in earlier.items() if name not in FIGURES}:
                earlier.update({name: min(earlier[name], point[name]) for name in FIGURES if name in point})
                break
        else:
            self.found.append(point)
        self.out.write_text(json.dumps({"machine": machine(), "points": self.found}, indent=1) + "\n", encoding="utf-8")


def processor_seconds() -> float:
    """What this process and all below it (a local cluster too) have used; of those that ended, by their parents."""
    parents, used = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            columns = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(folder.name)
        parents[pid], used[pid] = int(columns[1]), sum(map(int, columns[11:15])) / os.sysconf("SC_CLK_TCK")

    def is_below(pid: int) -> bool:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = parents.get(pid, 0)
        return False

    # Of others the system tells hundredths of a second, of this process more.
    own = time.process_time() - sum(os.times()[:2])
    return own + sum(seconds for pid, seconds in used.items() if is_below(pid))


def same(one: Run, other: Run) -> bool:
    return list(one) == list(other) and all(one[qid] == other[qid] for qid in one)


def index_and_search(points: Points, folder: Path, size: int, queries: list[Query], clusters: list[Cluster]) -> None:
    """One size of the collection."""
    source, labels = str(folder / "collection.tsv"), {"documents": size}
    points.time(lambda n: sum(1 for _ in resolve_documents(source)), job="read", how="one", **labels)
    points.time(
        lambda n: Index.build(resolve_documents(source), folder / f"whole-{n}"), job="index", how="one", **labels
    )
    sizes = {file: file.stat().st_size for file in (folder / "whole-0").rglob("*") if file.is_file()}
    texts = sum(size for file, size in sizes.items() if file.parent.name == "documents")
    points.add(job="size", index_bytes=sum(sizes.values()) - texts, text_bytes=texts, **labels)
    part = -(-size // PARTS)
    for cluster in (None, *clusters):
        workers, how = (cluster.workers, "ray") if cluster else (1, "shards")
        name = f"cut-{how}-{workers}"

        def build(attempt: int, name: str = name, where: Cluster | None = cluster) -> Index:
            return build_index(IndexJob(source, folder / f"{name}-{attempt}", part), where)

        points.time(build, job="index", how=how, workers=workers, **labels)
    labels |= {"queries": len(queries), "k": 100}
    whole, cut = Index.open(folder / "whole-0"), Index.open(folder / "cut-shards-1-0")
    expected = whole.search(queries, k=100)
    points.time(lambda n: whole.search(queries, k=100), job="search", how="one", **labels)
    found = points.time(lambda n: cut.search(queries, k=100), job="search", how="segments", **labels)
    assert same(expected, found)
    for cluster in clusters:
        with ShardedIndex.on(cluster, cut.folder, shards=cluster.workers) as index:
            index.search(queries[:256], k=100)
            found = points.time(
                lambda n, index=index: index.search(queries, k=100),  # type: ignore[misc]
                job="search",
                how="ray",
                workers=cluster.workers,
                **labels,
            )
            assert same(expected, found), "a sharded search must find the same"
    points.add(job="equal", documents=size, queries=len(queries))


def growth(arguments: argparse.Namespace, points: Points, place: Path) -> None:
    """Time by size and by number of workers."""
    queries = read_queries(arguments.data / arguments.queries)
    clusters = [Cluster(workers=workers) for workers in arguments.workers]
    begin = time.perf_counter()
    with Cluster(workers=max(arguments.workers)).connected() if clusters else nullcontext():
        if clusters:
            points.add(job="start", seconds=round(time.perf_counter() - begin, 3))
        for size in arguments.documents:
            folder = place / str(size)
            folder.mkdir()
            write_documents(islice(resolve_documents(str(arguments.data)), size), folder / "collection.tsv")
            index_and_search(points, folder, size, list(queries), clusters)


def equal(arguments: argparse.Namespace, points: Points, place: Path) -> None:
    """All queries of ``queries*.dev.tsv``: what one index finds, the same in segments, and the segments in actors."""
    documents = resolve_documents(str(arguments.data))
    whole = Index.build(documents, place / "whole")
    cut = build_index(IndexJob(str(arguments.data), place / "cut", -(-len(whole) // PARTS)))
    with ShardedIndex.on(Cluster(workers=2), cut.folder, shards=2) as held:
        for path in sorted(arguments.data.glob("queries*.dev.tsv")):
            queries = read_queries(path)
            expected = whole.search(queries, k=arguments.k)
            for how, index in (("segments", cut), ("ray", held)):
                found = index.search(queries, k=arguments.k)
                if not same(expected, found):
                    sys.exit(f"{path.name}: {how} found something else")
                labels = {"documents": len(whole), "queries": len(queries), "k": arguments.k, "how": how}
                points.add(job="equal", name=path.name, rows=sum(map(len, found.values())), **labels)


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
    """Rates from what ``growth`` measured at two sizes or more, in seconds of processor time; ``pair``
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
    """Measure, or project."""
    parser = make_parser(__doc__)
    parser.add_argument("job", choices=["growth", "equal", "cost"])
    parser.add_argument("data", type=Path, nargs="?", help="a folder with a collection and queries")
    parser.add_argument("--queries", default="queries.headings.dev.tsv")
    parser.add_argument("--documents", type=int, nargs="+", default=[20_000], help="growth: sizes of the collection")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="growth: of Ray; none leaves Ray out")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--k", type=int, default=1000, help="equal: documents a query")
    parser.add_argument("--out", type=Path, default=Path("scale.json"))
    arguments = parser.parse_args()
    if arguments.job == "cost":
        print_costs()
        return
    if arguments.data is None:
        parser.error(f"{arguments.job} needs a folder of data")
    os.environ["OMP_NUM_THREADS"] = "1"
    measure = growth if arguments.job == "growth" else equal
    with tempfile.TemporaryDirectory() as place:
        measure(arguments, Points(arguments.repeat, arguments.out), Path(place))


if __name__ == "__main__":
    main()
