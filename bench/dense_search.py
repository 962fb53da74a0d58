"""Exact search among vectors on this machine: one query at a time, and many together.

    PYTHONPATH=src python bench/dense_search.py

The vectors are random, in fp16 and in shards of the size that hybrid search keeps them in; MiniLM's width.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from harness import make_parser, median_seconds
from rankwell.models.devices import chosen_device
from rankwell.rank.dense import LARGEST_SHARD, search_vectors

WIDTH = 384
FOUND = 1000


def main() -> None:
    """Measure and print the median of several rounds."""
    options = read_options()
    device = chosen_device(options.device)
    random = np.random.default_rng(0)
    shard = random.standard_normal((LARGEST_SHARD, WIDTH)).astype(np.float16)
    print(f"{'documents':>10}{'queries':>9}{'ms/query':>12}   {device}, the best {FOUND:,}")
    for documents in options.documents:
        # Copies, because one shard would stay in the processor's cache.
        counts = [LARGEST_SHARD] * (documents // LARGEST_SHARD) + [documents % LARGEST_SHARD]
        blocks = [shard[:count].copy() for count in counts]
        for queries in options.queries:
            vectors = random.standard_normal((queries, WIDTH)).astype(np.float32)

            def search(vectors: Any = vectors, blocks: Any = blocks) -> None:
                search_vectors(vectors, iter(blocks), FOUND, device=device)

            seconds = median_seconds(search, options.rounds, warm=1)
            print(f"{documents:>10,}{queries:>9,}{1000 * seconds / queries:>12.2f}", flush=True)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[27_413, 241_186, 1_000_000])
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
