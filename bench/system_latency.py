"""Milliseconds a query of a fitted system, with and without a re-ranker: queries one at a time, as a service gets them.

    python bench/system_latency.py SYSTEM QUERIES --ranker rankwell-mini --depths 10 20 50 100

Without ``--ranker`` the system's own re-ranker is measured, if it has one. Prints the median and the 95th percentile of
the wall time and the mean CPU time, the rounds of all settings in turn.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from harness import Table, machine, make_parser, write_json
from rankwell import System
from rankwell.corpus.formats import read_queries


def main() -> None:
    """Search the same queries with each setting."""
    parser = make_parser(__doc__)
    parser.add_argument("system", type=Path, help="folder of the system")
    parser.add_argument("queries", type=Path, help="file of queries")
    parser.add_argument("--count", type=int, default=50, help="queries to search")
    parser.add_argument("--ranker", help="re-ranker to put on top of the system's first stage")
    parser.add_argument("--depths", type=int, nargs="*", default=[10, 20, 50, 100])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    opened = System.open(options.system, device="cpu")
    ranker = options.ranker or opened.ranker
    systems = {"first stage": System(opened.first_stage)}
    for depth in options.depths if ranker is not None else ():
        systems[f"the best {depth} re-ranked"] = System(
            opened.first_stage, ranker=ranker, depth=depth, shares=opened.shares
        )
    texts = [query.text for query in read_queries(options.queries)][: options.count]
    wall: dict[str, list[float]] = {name: [] for name in systems}
    cpu: dict[str, list[float]] = {name: [] for name in systems}
    for system in systems.values():
        system.search(texts[0], 10)  # opens the models
    for _ in range(options.rounds):
        for name, system in systems.items():
            for text in texts:
                begin, used = time.perf_counter(), time.process_time()
                system.search(text, 10)
                wall[name].append(1000 * (time.perf_counter() - begin))
                cpu[name].append(1000 * (time.process_time() - used))
    table = Table("system", "median ms", "p95 ms", "CPU ms")
    rows: dict[str, list[float]] = {}
    for name in systems:
        slowest = statistics.quantiles(wall[name], n=20)[-1]
        rows[name] = [statistics.median(wall[name]), slowest, statistics.fmean(cpu[name])]
        table.row(name, *(f"{value:.1f}" for value in rows[name]))
    load = os.getloadavg()[0]
    print(f"\n{len(opened):,} documents, {len(texts)} queries, {options.rounds} rounds, load {load:.1f}")
    write_json(options.out, {"median, p95 and CPU ms": rows, "machine": machine(), "load": load})


if __name__ == "__main__":
    main()
