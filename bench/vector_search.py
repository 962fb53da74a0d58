"""Search among vectors on this machine, exact and compressed, beside faiss, rabitqlib, usearch and hnswlib in one run.

    PYTHONPATH=src python bench/vector_search.py --work FOLDER --documents 241186 1000000 8841823
    PYTHONPATH=src python bench/vector_search.py --work FOLDER --peers faiss rabitqlib usearch hnswlib

The vectors are like real ones: a vector of one of InsuranceQA's 27,413 answers (rankwell-mini), plus the difference of
two neighbours elsewhere, normalised. Neighbourhoods are as wide as real ones, and denser the more documents there are;
clusters are those of the 27,413. Queries are 100 of its questions. Each system has a process of its own. What is made
is kept in FOLDER, with the time and memory that making it took: vectors in fp16 and in shards, as hybrid search stores
them, their codes, and the indexes of peers (--build only makes them, so that a quiet hour can be spent on measuring).
Approximate searches are measured at the cheapest of some settings that finds 99 % of the 100 nearest documents, or else
at the last (--enough for other shares). One query's time is the median of --rounds queries; beside it stands the range
of --runs such medians. Install peers with: pip install faiss-cpu rabitqlib usearch hnswlib.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness import DATA, Table, clock_and_cpu, machine, make_parser, memory, write_json
from rankwell import BiEncoder, Index
from rankwell.core.shards import Shards, map_shards
from rankwell.corpus.datasets import open_dataset
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.rank.passage_vectors import LARGEST_SHARD, PassageVectors, merge_shards, stored_shards, vector_blocks
from rankwell.rank.vector_codes import VectorCodes
from rankwell.rank.vector_search import search_vectors

FOUND = 100
NEIGHBOURS, PLACES = 32, 4096
CONNECTIVITY, CONSTRUCTION, EXPANSIONS = 16, 200, (128, 192, 256, 384, 512, 1024)
Found = NDArray[np.int64]
Search = Callable[[NDArray[np.float32]], Found]
Setting = tuple[str, Callable[[], Any]]


def main() -> None:
    """Measure and print a table for each size."""
    options = read_options()
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(measure_system(options)))
        return
    real, queries = source_vectors(options.work, options.device)
    facts = machine("torch", "numba", "faiss-cpu", "rabitqlib", "usearch", "hnswlib")
    print(facts, flush=True)
    records = []
    for documents in options.documents:
        exact(like_real_ones(options.work, real, documents), queries, options.work / f"exact-{documents}.npy")
        how = f"the best {FOUND}, {options.threads} threads, load {os.getloadavg()[0]:.1f}"
        print(f"\n{documents:,} documents, {how}\n")
        together = f"{len(queries)} together: CPU ms"
        built = ("built: CPU s", "peak MB")
        table = Table(
            "search", "one query: ms", "range", "CPU ms", together, "recall", "bytes", "searching: MB", *built
        )
        for name in options.only or systems(options.peers):
            command = [sys.executable, *sys.argv, "--documents", str(documents), "--one", name]
            output = subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout.splitlines()
            for row in json.loads(output[-1]) if output else []:
                clocks = row["clocks"]
                times = (f"{row[column]:.1f}" for column in ("cpu", "together"))
                made = (f"{row[column]:,.0f}" for column in ("memory", "built_cpu", "built_memory"))
                ranged = f"{min(clocks):.1f} to {max(clocks):.1f}"
                clock = f"{statistics.median(clocks):.1f}"
                table.row(row["name"], clock, ranged, *times, f"{row['recall']:.4f}", row["bytes"], *made)
                records.append({"documents": documents, **row})
        write_json(options.out, {"machine": facts, "threads": options.threads, "rows": records})


def measure_system(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of one system, in this process, for each share of the nearest documents."""
    (documents,) = options.documents
    real, queries = source_vectors(options.work, options.device)
    vectors = like_real_ones(options.work, real, documents)
    nearest = exact(vectors, queries, options.work / f"exact-{documents}.npy")
    system = systems(options.peers)[options.one](vectors, options.threads)
    place = options.work / f"{options.one}-{documents}"
    record = place.with_name(place.name + ".json")
    if not record.exists():
        clock, cpu = clock_and_cpu(partial(system.build, place))
        figures = {"built_clock": clock, "built_cpu": cpu, "built_memory": memory(), "load": os.getloadavg()[0]}
        record.write_text(json.dumps(figures) + "\n", encoding="utf-8")
    elif not options.build:
        system.open(place)
    if options.build:
        return []
    rows: list[dict[str, Any]] = []
    built, recall, setting, settings = json.loads(record.read_text()), 0.0, "", iter(system.settings())
    for enough in sorted(options.enough):
        while recall < enough and (following := next(settings, None)):
            setting, apply = following
            apply()
            recall = recall_of(system.search(queries), nearest)
        if rows and rows[-1]["recall"] == recall:
            continue  # good enough for both shares, or the last setting
        runs = [
            [clock_and_cpu(partial(system.search, query[None])) for query in queries[: options.rounds]]
            for _ in range(options.runs)
        ]
        clocks, cpus = (1000 * np.median(runs, axis=1)).T.tolist()
        together = 1000 * clock_and_cpu(partial(system.search, queries))[1] / len(queries)
        figures = {"clocks": clocks, "cpu": statistics.median(cpus), "together": together, "recall": recall}
        figures |= {"enough": enough, "bytes": system.bytes_each, "memory": memory("RssAnon"), **built}
        rows.append({"name": options.one + setting, **figures})
    return rows


def recall_of(found: Found, nearest: Found) -> float:
    """The share of the nearest documents that were found."""
    return float(
        np.mean([len(np.intersect1d(left, right)) / FOUND for left, right in zip(found, nearest, strict=True)])
    )


def exact(vectors: PassageVectors, queries: Any, path: Path) -> Found:
    """What exact search finds; stored, because it takes long."""
    if not path.exists():
        np.save(path, search_vectors(queries, vectors.blocks(), FOUND)[0])
    nearest: Found = np.load(path)
    return nearest


def source_vectors(work: Path, device: str) -> tuple[Any, Any]:
    """The vectors of real documents and queries."""
    if not (work / "queries.npy").exists():
        work.mkdir(parents=True, exist_ok=True)
        data, encoder = open_dataset(DATA / "insuranceqa"), BiEncoder.from_pretrained(DEFAULT, device=device)
        index = Index.build(data.documents(), work / "index")
        np.save(work / "real.npy", np.concatenate(list(PassageVectors.open(index.segments[0].store, encoder).blocks())))
        np.save(work / "queries.npy", encoder.encode_queries([query.text for query in data.queries("valid")[::20]]))
    return np.load(work / "real.npy"), np.load(work / "queries.npy")


def like_real_ones(work: Path, real: Any, documents: int) -> PassageVectors:
    """Vectors like real ones, stored as those of a collection."""
    config = {"like": "insuranceqa"}
    shards = stored_shards(Shards(work / f"vectors-{documents}", documents, LARGEST_SHARD, config, suffix=".f16"))
    if shards.pending():
        wide, random = real.astype(np.float32), np.random.default_rng(0)
        places = random.choice(len(wide), min(PLACES, len(wide)), replace=False)
        similar = wide[places] @ wide.T
        similar[np.arange(len(places)), places] = -1
        near = np.argpartition(-similar, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        differences = (wide[near] - wide[places][:, None]).reshape(-1, wide.shape[1])

        def work_on(items: range, file: Any) -> None:
            chosen = np.random.default_rng(items.start)
            vectors = wide[chosen.integers(len(wide), size=len(items))]
            vectors = vectors + differences[chosen.integers(len(differences), size=len(items))]
            file.write((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16).data)

        map_shards(shards, work_on, description="making vectors")
    width = real.shape[1]
    return PassageVectors(merge_shards(shards, partial(vector_blocks, width=width)), width)


class System:
    """A way to search; a peer's index is built from the vectors once and then read from a file."""

    bytes_each = 0
    """What it stores of a vector."""

    def __init__(self, vectors: PassageVectors, threads: int):
        self.vectors, self.threads, self.index = vectors, threads, None  # type: PassageVectors, int, Any

    def build(self, place: Path) -> None:
        """Make what a search needs, and store it."""

    def open(self, place: Path) -> None:
        """Open what was made."""

    def search(self, queries: Any) -> Found:
        """The nearest documents of each query."""
        raise NotImplementedError

    def settings(self) -> list[Setting]:
        """How it can be set, the fastest setting first."""
        return [("", int)]

    def blocks(self) -> Iterator[Any]:
        """The vectors in fp32."""
        for block in self.vectors.blocks():
            yield block.astype(np.float32)


class Exact(System):
    def __init__(self, vectors: PassageVectors, threads: int):
        super().__init__(vectors, threads)
        self.bytes_each = 2 * vectors.width

    def search(self, queries: Any) -> Found:
        return search_vectors(queries, self.vectors.blocks(), FOUND)[0]


class Compressed(System):
    def build(self, place: Path) -> None:
        for folder in self.vectors.folder.glob("codes*"):
            shutil.rmtree(folder)
        self.open(place)

    def open(self, place: Path) -> None:
        self.index, self.bytes_each = VectorCodes.open(self.vectors), self.vectors.width // 8 + 12

    def search(self, queries: Any) -> Found:
        found: Found = self.index.search(queries, FOUND)[0]
        return found


class Faiss(System):
    def __init__(self, vectors: PassageVectors, threads: int, kind: str):
        super().__init__(vectors, threads)
        import faiss

        faiss.omp_set_num_threads(threads)
        self.faiss, self.kind, width = faiss, kind, vectors.width
        sizes = {"SQfp16": 2 * width, "IVF1024,SQ8": width + 8, "HNSW32_SQfp16": 2 * width + 2 * 32 * 4}
        self.bytes_each = sizes.get(kind, width // 8 + 2 * width)

    def build(self, place: Path) -> None:
        self.index = self.faiss.index_factory(self.vectors.width, self.kind, self.faiss.METRIC_INNER_PRODUCT)
        trained = 200_000 if self.kind.startswith("IVF4096") else 50_000
        rows = np.linspace(0, len(self.vectors) - 1, trained).astype(np.int64)
        self.index.train(self.vectors.at(rows).astype(np.float32))
        for block in self.blocks():
            self.index.add(block)
        self.faiss.write_index(self.index, str(place))

    def open(self, place: Path) -> None:
        self.index = self.faiss.read_index(str(place))

    def search(self, queries: Any) -> Found:
        found: Found = self.index.search(queries, FOUND)[1]
        return found

    def settings(self) -> list[Setting]:
        if "RaBitQ" in self.kind:

            def choose(lists: int, factor: int) -> None:
                self.faiss.extract_index_ivf(self.index).nprobe, self.index.k_factor = lists, factor

            pairs = (
                (64, 10),
                (96, 10),
                (128, 10),
                (128, 20),
                *((lists, 20) for lists in (192, 256, 320, 384, 512, 768)),
            )
            return [(f", nprobe {lists}, k_factor {factor}", partial(choose, lists, factor)) for lists, factor in pairs]
        if self.kind.startswith("IVF"):
            return [(f", nprobe {n}", partial(setattr, self.index, "nprobe", n)) for n in (16, 32, 64, 128, 256)]
        if self.kind.startswith("HNSW"):
            return [(f", ef {n}", partial(setattr, self.index.hnsw, "efSearch", n)) for n in EXPANSIONS]
        if "Refine" in self.kind:
            return [(f", k_factor {n}", partial(setattr, self.index, "k_factor", n)) for n in (5, 10, 20, 40, 80)]
        return [("", int)]


class Usearch(System):
    """usearch's graph of vectors in fp16."""

    def __init__(self, vectors: PassageVectors, threads: int):
        super().__init__(vectors, threads)
        import usearch.index

        options: dict[str, Any] = {"metric": "ip", "dtype": "f16", "connectivity": CONNECTIVITY}
        self.index = usearch.index.Index(ndim=vectors.width, **options)
        self.bytes_each = 2 * vectors.width + 2 * CONNECTIVITY * 5

    def build(self, place: Path) -> None:
        first = 0
        for block in self.vectors.blocks():
            self.index.add(np.arange(first, first + len(block)), np.asarray(block), threads=self.threads)
            first += len(block)
        self.index.save(str(place))

    def open(self, place: Path) -> None:
        self.index.load(str(place))

    def search(self, queries: Any) -> Found:
        found = self.index.search(queries, FOUND, threads=self.threads).keys
        return np.asarray(found, np.int64).reshape(len(queries), -1)

    def settings(self) -> list[Setting]:
        return [(f", expansion {n}", partial(setattr, self.index, "expansion_search", n)) for n in EXPANSIONS]


class Hnswlib(System):
    """hnswlib's graph of vectors in fp32."""

    def __init__(self, vectors: PassageVectors, threads: int):
        super().__init__(vectors, threads)
        import hnswlib

        self.index = hnswlib.Index(space="ip", dim=vectors.width)
        # The vector, its links in the lowest layer and how many there are, and its label.
        self.bytes_each = 4 * vectors.width + 2 * CONNECTIVITY * 4 + 4 + 8

    def build(self, place: Path) -> None:
        self.index.init_index(max_elements=len(self.vectors), M=CONNECTIVITY, ef_construction=CONSTRUCTION)
        self.index.set_num_threads(self.threads)
        for block in self.blocks():
            self.index.add_items(block)
        self.index.save_index(str(place))

    def open(self, place: Path) -> None:
        self.index.load_index(str(place))
        self.index.set_num_threads(self.threads)

    def search(self, queries: Any) -> Found:
        found: Found = self.index.knn_query(queries, FOUND)[0].astype(np.int64)
        return found

    def settings(self) -> list[Setting]:
        return [(f", ef {n}", partial(self.index.set_ef, n)) for n in EXPANSIONS]


class RaBitQ(System):
    """rabitqlib's index of lists: codes of some bits, or of one bit and the vectors in fp32."""

    def __init__(self, vectors: PassageVectors, threads: int, bits: int):
        super().__init__(vectors, threads)
        import rabitqlib

        self.library, self.bits, self.lists, self.probes = rabitqlib, bits, 1024, 0
        self.bytes_each = vectors.width // 8 + 4 * vectors.width if bits == 32 else vectors.width * bits // 8

    def build(self, place: Path) -> None:
        width, count = self.vectors.width, len(self.vectors)
        cells = self.library.RaBitQKMeans(width, self.lists, num_threads=self.threads)
        every = np.concatenate(list(self.blocks()))
        cells.train(every)
        self.index = self.library.IvfIndex(width, count, self.lists, self.bits, "ip")
        self.index.build(every, cells.centroids, cells.assignments, num_threads=self.threads)
        self.index.save(str(place))

    def open(self, place: Path) -> None:
        self.index = self.library.IvfIndex.load(str(place))

    def search(self, queries: Any) -> Found:
        found: Found = self.index.search(queries, FOUND, self.probes, num_threads=self.threads)[0].astype(np.int64)
        return found

    def settings(self) -> list[Setting]:
        return [(f", nprobe {n}", partial(setattr, self, "probes", n)) for n in (64, 96, 128, 192, 256, 384, 512)]


def systems(peers: list[str]) -> dict[str, Callable[[PassageVectors, int], System]]:
    """All systems by name."""
    made: dict[str, Callable[[PassageVectors, int], System]] = {
        "rankwell, exact": Exact,
        "rankwell, compressed": Compressed,
    }
    if "faiss" in peers:
        refined = "PQ96x4fs", "IVF1024,RaBitQfs", "IVF4096,RaBitQfs"  # the last for many millions
        for kind in ("SQfp16", "IVF1024,SQ8", *(f"{kind},Refine(SQfp16)" for kind in refined), "HNSW32_SQfp16"):
            made[f"faiss {kind}"] = partial(Faiss, kind=kind)
    if "rabitqlib" in peers:
        for bits, name in ((4, "4 bits"), (7, "7 bits"), (32, "1 bit and fp32")):
            made[f"rabitqlib, {name}"] = partial(RaBitQ, bits=bits)
    if "usearch" in peers:
        made["usearch"] = Usearch
    if "hnswlib" in peers:
        made["hnswlib"] = Hnswlib
    return made


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--documents", type=int, nargs="+", default=[27_413, 241_186, 1_000_000])
    parser.add_argument("--peers", nargs="*", default=[], choices=["faiss", "rabitqlib", "usearch", "hnswlib"])
    parser.add_argument("--only", nargs="*", default=[], metavar="SYSTEM", help="systems by their names in the table")
    parser.add_argument("--build", action="store_true", help="make what is missing and measure nothing")
    parser.add_argument("--enough", type=float, nargs="+", default=[0.99], help="recalls that a setting must have")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="where the real texts are encoded")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--one", help="measure only this system, in this process")
    return parser.parse_args()


if __name__ == "__main__":
    main()
