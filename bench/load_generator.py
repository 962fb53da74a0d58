"""Clients of a service, in a process of their own, so that they do not share an interpreter with what measures them.

One thread and one event loop hold all connections. Two kinds of load:

``open_loop``     requests arrive at a given rate, whatever comes back; a latency counts from the planned arrival
``closed_loop``   clients that ask again when they have an answer; one that is refused comes back after some 1 s

The process asks for a high priority: on a machine of a few cores it stands for clients elsewhere.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PRIORITY = -10
WAIT = 1.0
"""How long a refused client waits, in seconds, on average."""
FEW = 16
GIVES_UP_AFTER = 120.0


@dataclass
class Result:
    """What came back: the seconds of all answers by status (0: no answer), and how late requests were sent."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    late: list[float] = field(default_factory=list)
    elapsed: float = 0.0
    in_time: int = 0
    """Answers of status 200 that came while requests were sent."""

    def add(self, status: int, seconds: float) -> None:
        self.seconds.setdefault(status, []).append(seconds)

    def count(self, status: int) -> int:
        return len(self.seconds.get(status, ()))

    @property
    def counts(self) -> dict[int, int]:
        return {status: len(times) for status, times in sorted(self.seconds.items())}


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def open_loop(port: int, path: str, bodies: Sequence[bytes], rate: float, seconds: float) -> Result:
    """Send requests at a steady rate, and wait for all answers."""
    return _in_process(partial(_open_loop, port, path, bodies, rate, seconds))


def closed_loop(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Result:
    """Let clients ask for some seconds, each over a connection of its own."""
    return _in_process(partial(_closed_loop, port, path, bodies, clients, seconds))


def _in_process(work: Callable[[], Result]) -> Result:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work).result()


def _open_loop(port: int, path: str, bodies: Sequence[bytes], rate: float, seconds: float) -> Result:
    async def run() -> Result:
        result, idle, tasks = Result(), list[Connection](), list[asyncio.Task[Any]]()

        async def one(number: int, planned: float) -> None:
            status = 0
            with suppress(OSError, EOFError, TimeoutError):
                connection = idle.pop() if idle else await _connect(port)
                status = await _ask(connection, path, bodies[number % len(bodies)])
                idle.append(connection)
            result.add(status, time.perf_counter() - planned)
            result.in_time += status == 200 and not result.elapsed

        begin = time.perf_counter()
        for number in range(int(rate * seconds)):
            planned = begin + number / rate
            await asyncio.sleep(max(0.0, planned - time.perf_counter()))
            result.late.append(time.perf_counter() - planned)
            tasks.append(asyncio.create_task(one(number, planned)))
        result.elapsed = time.perf_counter() - begin
        await asyncio.gather(*tasks)
        _close(idle)
        return result

    return _run(run())


def _closed_loop(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Result:
    async def run() -> Result:
        result, chance = Result(), random.Random(clients)
        begin = time.perf_counter()

        async def client(number: int) -> None:
            connection: Connection | None = None
            if clients > FEW:  # not all at the same moment
                await asyncio.sleep(chance.uniform(0, 2 * WAIT))
            while time.perf_counter() - begin < seconds:
                asked, status = time.perf_counter(), 0
                try:
                    connection = connection or await _connect(port)
                    status = await _ask(connection, path, bodies[chance.randrange(len(bodies))])
                except (OSError, EOFError, TimeoutError):
                    connection = None
                if (answered := time.perf_counter()) - begin < seconds:
                    result.add(status, answered - asked)
                if status != 200:
                    await asyncio.sleep(WAIT * chance.uniform(0.5, 1.5))
            _close([connection] if connection else [])

        waiting = [asyncio.create_task(client(number)) for number in range(clients)]
        await asyncio.sleep(seconds)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        result.elapsed, result.in_time = seconds, result.count(200)
        return result

    return _run(run())


def _run(work: Awaitable[Result]) -> Result:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)

    async def main() -> Result:
        return await work

    return asyncio.run(main())


async def _connect(port: int) -> Connection:
    return await asyncio.open_connection("127.0.0.1", port)


def _close(connections: Sequence[Connection]) -> None:
    for _, writer in connections:
        writer.close()


async def _ask(connection: Connection, path: str, body: bytes) -> int:
    """Send a request; returns the status of its answer."""
    reader, writer = connection
    async with asyncio.timeout(GIVES_UP_AFTER):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        await reader.readexactly(int(headers["content-length"]))
    return int(status.split()[1])
