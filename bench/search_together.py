"""Hybrid search as the service does it, requests that wait searched together, beside one request after the other.

    PYTHONPATH=src python bench/search_together.py

As many clients as are said ask again as soon as they have their answer; both ways take turns. The documents are the
sample's, over and over, and their vectors random; the queries are the sample's and pass the bi-encoder.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness import make_parser
from rankwell import sample
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.records import Document
from rankwell.inputs.stored import TokenSource
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.rank.dense import DenseRanker
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.retrieve.index import Index
from rankwell.serve.search_queue import SearchQueue
from rankwell.serve.searcher import Searcher, SearchJob, search_together
from rankwell.serve.service import SEARCH_BATCH

DATA = open_dataset(sample.FOLDER)
QUERIES = [query.text for query in DATA.queries("dev")]


class RandomDocuments(BiEncoder):
    """A bi-encoder that takes no time for documents."""

    def encode_tokens(self, source: TokenSource, numbers: NDArray[np.int64]) -> Vectors:
        """Random vectors."""
        return np.random.default_rng(len(numbers)).standard_normal((len(numbers), self.width), np.float32)


def main() -> None:
    """Measure and print."""
    options = read_options()
    print(f"{'documents':>10}{'clients':>9}{'together':>10}{'queries/s':>11}{'p50, ms':>9}{'p99, ms':>9}{'ratio':>7}")
    for documents in options.documents:
        with tempfile.TemporaryDirectory() as folder:
            searcher = make_searcher(documents, Path(folder) / "index")
            for clients in options.clients:
                measure(searcher, clients, options)


def make_searcher(documents: int, folder: Path) -> Searcher:
    """What searches an index of so many documents."""
    index = Index.build(resampled(documents), folder)
    dense = DenseRanker(RandomDocuments.from_pretrained(DEFAULT))
    for segment in index.segments:
        dense.vectors(segment.store)  # found by their name when the bi-encoder itself is opened
    return Searcher(System(FirstStage(index, encoder=DEFAULT, share=0.7)))


def resampled(count: int) -> Iterator[Document]:
    """The sample's documents, over and over."""
    for number, document in zip(range(count), itertools.cycle(list(DATA.documents())), strict=False):
        yield Document(f"d{number}", document.contents)


def measure(searcher: Searcher, clients: int, options: argparse.Namespace) -> None:
    """Both ways in turns, and a line for each."""
    taken: dict[int, list[float]] = {1: [], SEARCH_BATCH: []}
    lasted = dict.fromkeys(taken, 0.0)
    for _ in range(options.rounds):
        for most in taken:
            begin = time.perf_counter()
            taken[most] += asyncio.run(ask(searcher, most, clients, options.seconds))
            lasted[most] += time.perf_counter() - begin
    for most, times in taken.items():
        rate = len(times) / lasted[most]
        ratio = rate / (len(taken[1]) / lasted[1])
        p50, p99 = 1000 * np.percentile(times, [50, 99])
        shown = f"{len(searcher.system):>10,}{clients:>9}{most:>10}{rate:>11.1f}{p50:>9.0f}{p99:>9.0f}{ratio:>7.2f}"
        print(shown, flush=True)


async def ask(searcher: Searcher, most: int, clients: int, lasting: float) -> list[float]:
    """The seconds of each request that ``clients`` made."""
    queries = itertools.cycle(QUERIES)
    seconds: list[float] = []
    with ThreadPoolExecutor(2) as pool:
        queue = SearchQueue(search_together, pool, most)
        end = time.perf_counter() + lasting

        async def client() -> None:
            while (begin := time.perf_counter()) < end:
                await queue.submit(SearchJob(searcher, "hybrid", next(queries), 100))
                seconds.append(time.perf_counter() - begin)

        await asyncio.gather(*(client() for _ in range(clients)))
    return seconds


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[27_413, 241_186])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
