"""Hybrid search as the service does it, requests that wait searched together, beside one request after the other.

    PYTHONPATH=src python bench/search_together.py INDEX QUERIES --hybrid 0.7

As many clients as are said ask again as soon as they have their answer; both ways take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from rankwell.corpus.formats import read_queries
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.retrieve.index import Index
from rankwell.serve.beside import Beside, Finding, Wanted, find_all, open_beside
from rankwell.serve.service import SEARCHED_TOGETHER
from rankwell.serve.together import Together


def main() -> None:
    """Measure and print."""
    options = read_options()
    beside = Beside(encoder=options.encoder, hybrid=options.hybrid)
    finding, _ = open_beside(beside, Index.open(options.index), has_model=False)
    assert finding is not None
    queries = [query.text for query in read_queries(options.queries)]
    print(f"{len(finding.index):,} documents, {options.hybrid:g} of {options.encoder}, the best {options.k}")
    print(f"{'clients':>8}{'together':>10}{'queries/s':>11}{'p50, ms':>9}{'p99, ms':>9}{'ratio':>7}")
    for clients in options.clients:
        taken: dict[int, list[float]] = {1: [], SEARCHED_TOGETHER: []}
        begun: dict[int, float] = dict.fromkeys(taken, 0.0)
        for _ in range(options.rounds):
            for most in taken:
                begin = time.perf_counter()
                taken[most] += asyncio.run(ask(finding, queries, most, clients, options))
                begun[most] += time.perf_counter() - begin
        rates = {most: len(taken[most]) / begun[most] for most in taken}
        for most, times in taken.items():
            p50, p99 = 1000 * np.percentile(times, [50, 99])
            ratio = rates[most] / rates[1]
            print(f"{clients:>8}{most:>10}{rates[most]:>11.1f}{p50:>9.1f}{p99:>9.1f}{ratio:>7.2f}", flush=True)


async def ask(
    finding: Finding, queries: list[str], most: int, clients: int, options: argparse.Namespace
) -> list[float]:
    """The seconds of each request that ``clients`` made in ``options.seconds``."""
    endless = itertools.cycle(queries)
    seconds: list[float] = []
    with ThreadPoolExecutor(2) as pool:
        together = Together(find_all, pool, most)
        end = time.perf_counter() + options.seconds

        async def client() -> None:
            while (begin := time.perf_counter()) < end:
                await together.ask(Wanted(finding, next(endless), options.k))
                seconds.append(time.perf_counter() - begin)

        await asyncio.gather(*(client() for _ in range(clients)))
    return seconds


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--hybrid", type=float, default=0.7)
    parser.add_argument("--encoder", default=DEFAULT)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
