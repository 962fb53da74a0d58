"""Search among vectors on this machine, exact and compressed, beside faiss, usearch and hnswlib in the same run.

    PYTHONPATH=src python bench/vector_search.py --work FOLDER --documents 241186 1000000 8841823
    PYTHONPATH=src python bench/vector_search.py --work FOLDER --documents 1000000 --peers faiss usearch hnswlib

The vectors are like real ones: a vector of one of InsuranceQA's 27,413 answers (rankwell-mini), plus the difference of
two neighbours elsewhere, normalised. Neighbourhoods are as wide as real ones, and denser the more documents there are.
Queries are 100 of its questions. What is made is kept in FOLDER: vectors in fp16 and in shards, as hybrid search stores
them, and their codes. Approximate searches are measured at the cheapest of some settings that finds 99 % of the 100
nearest documents, or else at the last. Install peers with: pip install faiss-cpu usearch hnswlib.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness import DATA, Table, machine, make_parser, memory
from rankwell import BiEncoder, Index
from rankwell.core.shards import Shards, map_shards
from rankwell.corpus.datasets import open_dataset
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.rank.passage_vectors import LARGEST_SHARD, PassageVectors
from rankwell.rank.vector_codes import VectorCodes
from rankwell.rank.vector_search import search_vectors

FOUND, ENOUGH = 100, 0.99
NEIGHBOURS, PLACES = 32, 4096
Found = NDArray[np.int64]
Search = Callable[[NDArray[np.float32]], Found]
Setting = tuple[str, Callable[[], Any]]


def main() -> None:
    """Measure and print a table for each size."""
    options = read_options()
    torch.set_num_threads(options.threads)
    real, queries = source_vectors(options.work)
    print(machine("torch", "numba", "faiss-cpu", "usearch", "hnswlib"), flush=True)
    for documents in options.documents:
        vectors = like_real_ones(options.work, real, documents)
        print(
            f"\n{documents:,} documents, the best {FOUND}, {options.threads} threads, load {os.getloadavg()[0]:.1f}\n"
        )
        table = Table(
            "search",
            "one query: ms",
            "CPU ms",
            f"{len(queries)} together: CPU ms",
            "recall",
            "bytes",
            "made: CPU s",
        )
        nearest = exact(vectors, queries, options.work / f"exact-{documents}.npy")
        for name, make in systems(options.peers, options.threads).items():
            begin = time.process_time()
            bytes_each, search, settings = make(vectors)
            made = time.process_time() - begin
            recall, setting = 0.0, ""
            for label, apply in settings:
                if recall < ENOUGH:
                    apply()
                    recall, setting = recall_of(search(queries), nearest), label
            alone = [measure(partial(search, query[None])) for query in queries[: options.rounds]]
            clock, cpu = (1000 * statistics.median(column) for column in zip(*alone, strict=True))
            together = 1000 * measure(partial(search, queries))[1] / len(queries)
            table.row(
                f"{name}{setting}",
                f"{clock:.1f}",
                f"{cpu:.1f}",
                f"{together:.1f}",
                f"{recall:.4f}",
                bytes_each,
                f"{made:.0f}",
            )
        print(f"\npeak memory {memory():,.0f} MB, of which mapped files may be most")


def measure(work: Callable[[], Any]) -> tuple[float, float]:
    """The seconds on the clock and of CPU time; on a shared machine the latter say more."""
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - cpu


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


def source_vectors(work: Path) -> tuple[Any, Any]:
    """The vectors of real documents and queries."""
    if not (work / "queries.npy").exists():
        work.mkdir(parents=True, exist_ok=True)
        data, encoder = open_dataset(DATA / "insuranceqa"), BiEncoder.from_pretrained(DEFAULT, device="cpu")
        index = Index.build(data.documents(), work / "index")
        np.save(work / "real.npy", np.concatenate(list(PassageVectors.open(index.segments[0].store, encoder).blocks())))
        np.save(work / "queries.npy", encoder.encode_queries([query.text for query in data.queries("valid")[::20]]))
    return np.load(work / "real.npy"), np.load(work / "queries.npy")


def like_real_ones(work: Path, real: Any, documents: int) -> PassageVectors:
    """Vectors like real ones, stored as those of a collection."""
    shards = Shards(work / f"vectors-{documents}", documents, LARGEST_SHARD, {"like": "insuranceqa"}, suffix=".f16")
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
    return PassageVectors(shards, real.shape[1])


Made = tuple[int, Search, list[Setting]]


def systems(peers: list[str], threads: int) -> dict[str, Callable[[PassageVectors], Made]]:
    """Each system: the bytes it keeps of a vector, how it searches, and its settings, the fastest first."""
    made: dict[str, Callable[[PassageVectors], Made]] = {
        "rankwell, exact": make_exact,
        "rankwell, compressed": make_compressed,
    }
    if "faiss" in peers:
        for kind in ("SQfp16", "IVF1024,SQ8", "PQ96x4fs,Refine(SQfp16)"):
            made[f"faiss {kind}"] = partial(make_faiss, kind=kind, threads=threads)
    if "usearch" in peers:
        made["usearch HNSW, fp16"] = partial(make_usearch, threads=threads)
    if "hnswlib" in peers:
        made["hnswlib"] = partial(make_hnswlib, threads=threads)
    return made


def make_exact(vectors: PassageVectors) -> Made:
    return 2 * vectors.width, lambda queries: search_vectors(queries, vectors.blocks(), FOUND)[0], [("", int)]


def make_compressed(vectors: PassageVectors) -> Made:
    codes = VectorCodes.open(vectors)
    return vectors.width // 8, lambda queries: codes.search(queries, FOUND)[0], [("", int)]


def in_fp32(vectors: PassageVectors) -> Iterator[Any]:
    for block in vectors.blocks():
        yield block.astype(np.float32)


def make_faiss(vectors: PassageVectors, kind: str, threads: int) -> Made:
    import faiss

    faiss.omp_set_num_threads(threads)
    index = faiss.index_factory(vectors.width, kind, faiss.METRIC_INNER_PRODUCT)
    rows = np.linspace(0, len(vectors) - 1, 50_000).astype(np.int64)
    index.train(vectors.at(rows).astype(np.float32))
    for block in in_fp32(vectors):
        index.add(block)
    settings: list[Setting] = [("", int)]
    if kind.startswith("IVF"):
        settings = [(f", nprobe {n}", partial(setattr, index, "nprobe", n)) for n in (16, 32, 64, 128, 256)]
    if "Refine" in kind:
        settings = [(f", k_factor {n}", partial(setattr, index, "k_factor", n)) for n in (5, 10, 20, 40, 80)]
    size = {"SQfp16": 2 * vectors.width, "IVF1024,SQ8": vectors.width + 8}.get(
        kind, vectors.width // 8 + 2 * vectors.width
    )
    return size, lambda queries: index.search(queries, FOUND)[1], settings


def make_usearch(vectors: PassageVectors, threads: int) -> Made:
    from usearch.index import Index as Usearch

    index, first = Usearch(ndim=vectors.width, metric="ip", dtype="f16", connectivity=16, expansion_add=100), 0
    for block in vectors.blocks():
        index.add(np.arange(first, first + len(block)), block, threads=threads)
        first += len(block)

    def search(queries: Any) -> Found:
        found = index.search(queries.astype(np.float16), FOUND, threads=threads)
        keys: Found = np.asarray(found.keys, np.int64).reshape(len(queries), -1)
        return keys

    expand: list[Setting] = [
        (f", expansion {n}", partial(setattr, index, "expansion_search", n)) for n in (128, 256, 512, 1024)
    ]
    return index.memory_usage // len(vectors), search, expand


def make_hnswlib(vectors: PassageVectors, threads: int) -> Made:
    import hnswlib  # type: ignore[import-untyped]

    index = hnswlib.Index("ip", vectors.width)
    index.init_index(len(vectors), ef_construction=100, M=16)
    index.set_num_threads(threads)
    for block in in_fp32(vectors):
        index.add_items(block)
    settings: list[Setting] = [(f", ef {n}", partial(index.set_ef, n)) for n in (128, 256, 512, 1024)]
    return 4 * vectors.width + 8 * 16, lambda queries: index.knn_query(queries, FOUND)[0].astype(np.int64), settings


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--documents", type=int, nargs="+", default=[27_413, 241_186, 1_000_000])
    parser.add_argument("--peers", nargs="*", default=[], choices=["faiss", "usearch", "hnswlib"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


if __name__ == "__main__":
    main()
