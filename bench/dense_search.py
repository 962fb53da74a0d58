"""Exact search among vectors on this machine: one query at a time, and many together.

    PYTHONPATH=src python bench/dense_search.py

The vectors are random, in fp16 and in shards of the largest size that hybrid search keeps them in; MiniLM's width.
With ``--peers``, faiss and usearch (pip install faiss-cpu usearch) find the same documents in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from harness import make_parser
from rankwell.models.devices import chosen_device
from rankwell.rank.passage_vectors import LARGEST_SHARD
from rankwell.rank.vector_search import search_vectors

WIDTH = 384
FOUND = 1000


def main() -> None:
    """Measure and print the median of several rounds."""
    options = read_options()
    device = chosen_device(options.device)
    random = np.random.default_rng(0)
    shard = random.standard_normal((LARGEST_SHARD, WIDTH)).astype(np.float16)
    print(f"{'documents':>10}{'queries':>9}{'ms/query':>12}{'CPU ms':>10}   {device}, the best {FOUND:,}")
    for documents in options.documents:
        # Copies, because one shard would stay in the processor's cache.
        counts = [LARGEST_SHARD] * (documents // LARGEST_SHARD) + [documents % LARGEST_SHARD]
        blocks = [shard[:count].copy() for count in counts]
        for queries in options.queries:
            vectors = random.standard_normal((queries, WIDTH)).astype(np.float32)

            def search(vectors: Any = vectors, blocks: Any = blocks) -> None:
                search_vectors(vectors, iter(blocks), FOUND, device=device)

            ways: dict[str, Callable[[], Any]] = {"rankwell": search}
            if options.peers:
                ways |= peers(np.concatenate(blocks), vectors, torch.get_num_threads())
            for name, work in ways.items():
                times = [measure(work) for _ in range(1 + options.rounds)][1:]
                clock, cpu = (1000 * statistics.median(column) / queries for column in zip(*times, strict=True))
                print(f"{documents:>10,}{queries:>9,}{clock:>12.2f}{cpu:>10.2f}   {name}", flush=True)


def measure(work: Callable[[], Any]) -> tuple[float, float]:
    """The seconds on the clock and of CPU time; on a shared machine the latter say more."""
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - cpu


def peers(documents: Any, queries: Any, threads: int) -> dict[str, Callable[[], Any]]:
    """Exact search by others. Those in 8 bits compare every document too, but approximately."""
    import faiss
    from usearch.index import MetricKind, search

    faiss.omp_set_num_threads(threads)
    ways: dict[str, Callable[[], Any]] = {}
    for name, kind in {"faiss fp16": "SQfp16", "faiss int8": "SQ8"}.items():
        index = faiss.index_factory(WIDTH, kind, faiss.METRIC_INNER_PRODUCT)
        index.train(documents[:20_000].astype(np.float32))
        for begin in range(0, len(documents), LARGEST_SHARD):
            index.add(documents[begin : begin + LARGEST_SHARD].astype(np.float32))
        ways[name] = partial(index.search, queries, FOUND)
    halves = queries.astype(np.float16)
    ways["usearch fp16"] = lambda: search(documents, halves, FOUND, MetricKind.IP, exact=True, threads=threads)
    return ways


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[27_413, 241_186, 1_000_000])
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default=None)
    parser.add_argument("--peers", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
