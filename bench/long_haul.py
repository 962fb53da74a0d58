"""The long haul: whether a service's memory, descriptors, threads and disk stay flat over mixed requests and changes.

    python bench/long_haul.py                        # 200,000 requests
    python bench/long_haul.py --requests 2000        # a minute or two
    python bench/long_haul.py --reloads 50           # only reloads, five searches after each

The service has a system of the sample: hybrid with word vectors and a re-ranker, all by rankwell-mini. Clients send
plain, hybrid and filtered searches, search with re-ranking, read, replace, add and delete documents, ask for
explanations, and send what is refused. Meanwhile another process merges, and the service is told to reload.
Documents that were added are deleted again, so what is searched stays as large as it was.

Each of twenty rows has what the service takes once a part of the requests is answered: resident memory, open
descriptors, threads, the bytes of the system's folder and of the service's log, answers by status, and the slowest
plain search of the part. The last line compares the end with the state after the first twentieth. Statuses of 500 and
more but 503 and 504, or none at all, are errors, which end the script with 1.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from harness import Table, make_parser, memory, write_json
from rankwell import Document, Index, System, sample
from rankwell.core.files import folder_size
from rankwell.corpus.datasets import open_dataset
from rankwell.rank.first_stage import FirstStage
from serve import OURS, free_port, running

KEYS = {"RANKWELL_KEY": "reads", "RANKWELL_WRITING_KEY": "writes"}
PARTS, CLIENTS, ADDED, SEARCHES = 20, 8, 40, 5
MERGE = "import sys; from rankwell import System; System.open(sys.argv[1]).merge()"
KINDS = {
    "plain": 50,
    "hybrid": 15,
    "filter": 10,
    "syntax": 5,
    "read": 5,
    "refused": 4,
    "rerank": 4,
    "texts": 3,
    "explain": 1,
    "put": 2,
    "delete": 1,
}


def documents() -> list[Document]:
    """The sample's, each with a year."""
    found = enumerate(open_dataset(sample.FOLDER).documents())
    return [Document(one.docid, one.text, one.title, metadata={"year": 2000 + number % 20}) for number, one in found]


class Clients:
    """Requests of all kinds, at random, with their answers."""

    def __init__(self, port: int, seed: int):
        self.port, self.chance = port, random.Random(seed)
        self.documents = documents()
        data = open_dataset(sample.FOLDER)
        self.queries = [query.text for split in data.splits for query in data.queries(split)]
        self.statuses, self.slowest, self.wrong = Counter[int](), 0.0, Counter[str]()

    def request(self, kind: str) -> tuple[str, str, str, Any]:
        """Method, path, key and body of a request."""
        chance, query = self.chance, self.chance.choice(self.queries)
        one, added = chance.choice(self.documents), f"added-{chance.randrange(ADDED)}"
        fields = {"id": one.docid, "text": one.text, "title": one.title, **(one.metadata or {})}
        searches: dict[str, dict[str, Any]] = {
            "plain": {"stages": "bm25"},
            "hybrid": {"stages": "hybrid"},
            "filter": {"stages": "bm25", "filter": f"year >= {2000 + chance.randrange(20)}"},
            "syntax": {"stages": "bm25", "syntax": True, "query": f"{query.split()[0]}* -bees"},
            "refused": {"filter": "year >", "k": chance.choice((-1, 10))},
            "rerank": {"depth": 20},
        }
        if kind in searches:
            return "POST", "/search", "reads", {"query": query, "k": 10} | searches[kind]
        if kind == "read":
            return "GET", f"/documents/{one.docid}", "reads", None
        if kind == "texts":
            return "POST", "/rerank", "reads", {"query": query, "texts": [one.text, chance.choice(self.documents).text]}
        if kind == "explain":
            return "POST", "/explain", "reads", {"query": query, "docid": one.docid}
        if kind == "put":
            return "PUT", "/documents", "writes", chance.choice((fields, fields | {"id": added}))
        return "DELETE", f"/documents/{added}", "writes", None

    async def send(self, method: str, path: str, key: str, body: Any) -> int:
        """Ask over a new connection; returns the status, 0 without an answer."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        with suppress(OSError, EOFError, TimeoutError, IndexError):
            async with asyncio.timeout(300):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(head.encode() + content)
                answer = await reader.read()
                writer.close()
            return int(answer.split(maxsplit=2)[1])
        return 0

    async def run(self, count: int) -> None:
        """Send ``count`` requests from all clients together."""
        left = iter(range(count))

        async def client() -> None:
            for _ in left:
                (kind,) = self.chance.choices(list(KINDS), list(KINDS.values()))
                asked = time.perf_counter()
                status = await self.send(*self.request(kind))
                self.statuses[status] += 1
                if kind == "plain":
                    self.slowest = max(self.slowest, time.perf_counter() - asked)
                if status == 0 or (status >= 500 and status not in (503, 504)):
                    self.wrong[f"{kind}: {status}"] += 1

        await asyncio.gather(*(client() for _ in range(CLIENTS)))


def taken(process: int, folder: Path, log: Path) -> dict[str, float]:
    """What the service takes."""
    return {
        "memory, MB": memory("VmRSS", process),
        "descriptors": len(os.listdir(f"/proc/{process}/fd")),
        "threads": len(os.listdir(f"/proc/{process}/task")),
        "disk, kB": folder_size(folder) // 1000,
        "log, kB": log.stat().st_size // 1000,
    }


def haul(clients: Clients, process: int, folder: Path, log: Path, requests: int) -> list[dict[str, Any]]:
    """Send requests, merge and reload, and look at the service after each part."""
    rows: list[dict[str, Any]] = []
    table = Table("requests", *taken(process, folder, log), "slowest, s", "answers", labels=0)
    for number in range(1, PARTS + 1):
        clients.statuses, clients.slowest = Counter(), 0.0
        merge = [sys.executable, "-W", "ignore", "-c", MERGE, str(folder)]
        with subprocess.Popen(merge, stderr=subprocess.DEVNULL):
            asyncio.run(clients.run(requests // PARTS))
        subprocess.run(merge, check=True)  # so that each row has one segment
        if asyncio.run(clients.send("POST", "/reload", "reads", None)) != 200:
            clients.wrong["reload"] += 1
        found = taken(process, folder, log)
        answers = dict(sorted(clients.statuses.items()))
        table.row(requests // PARTS * number, *found.values(), round(clients.slowest, 2), answers)
        rows.append({"requests": requests // PARTS * number, **found, "slowest": clients.slowest, "answers": answers})
    return rows


def reloads(clients: Clients, process: int, folder: Path, log: Path, count: int) -> list[dict[str, Any]]:
    """Reload, search, and look at the service."""
    rows: list[dict[str, Any]] = []
    table = Table("reloads", *taken(process, folder, log), labels=0)
    for number in range(count + 1):
        if number:
            asyncio.run(clients.send("POST", "/reload", "reads", None))
        for _ in range(SEARCHES):
            asyncio.run(clients.send(*clients.request("hybrid")))
        rows.append({"reloads": number, **taken(process, folder, log)})
        if number % max(1, count // 10) == 0:
            table.row(*rows[-1].values())
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--reloads", type=int, help="only reload so often")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.update(KEYS)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder, log, port = Path(scratch) / "system", Path(scratch) / "log", free_port()
        index = Index.build(documents(), Path(scratch) / "index")
        System(FirstStage(index, encoder="rankwell-mini", share=0.6, words=0.5), ranker="rankwell-mini").save(folder)
        service = stack.enter_context(running(["-c", OURS, str(folder), "--port", str(port)], port, log))
        clients = Clients(port, options.seed)
        settings = clients, service.pid, folder, log
        rows = reloads(*settings, options.reloads) if options.reloads else haul(*settings, options.requests)
        last = {name: f"{rows[0][name]} → {rows[-1][name]}" for name in taken(service.pid, folder, log)}
        print(json.dumps({**last, "wrong": clients.wrong}, ensure_ascii=False))
        write_json(options.out, rows)
    sys.exit(1 if clients.wrong else 0)


if __name__ == "__main__":
    main()
