"""Four weeks after the launch: users search and click, documents come in, and the system is refitted each week, or not.

    python bench/launch.py --out docs/results/launch.json      # twenty minutes on two busy cores
    python bench/launch.py --weeks 2 --arms refits             # a part of it

Documents and questions are InsuranceQA's, and its judgments are what simulated users want. A user looks at position p
with the probability p ** -.7, and clicks with .7 on what is wanted, and with .08 on anything else. Each week, 220
questions of all weeks and 60 new ones about new documents are asked through ``rankwell serve --log``, new documents are
put into it while it runs, and the log is fitted to by ``rankwell fit --from SYSTEM --log FOLDER --out SYSTEM``. The
service stays up and takes over a better system by itself. Since the weeks take minutes, the script moves the lines of
each week's log to earlier days before a refit; nothing else is changed.

Systems are measured with the true judgments: on the questions of the week (*asked*), before they are asked, and on 200
that nobody asks (*others*). The first week's system is BM25 alone (--start bm25) or BM25 and a bi-encoder, unfitted
(--start hybrid). The first refit is after the second week, as one week fits and another reports; the last row is what
the week after would see. The arms see the same users, documents and questions.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from harness import DATA, Table, machine, make_parser, write_json
from rankwell import Index, System
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats import write_documents
from rankwell.corpus.records import Document, Qrels, Query
from rankwell.evaluation.evaluate import evaluate
from rankwell.rank.first_stage import FirstStage
from serve import free_port, running

ARMS = ("without", "refits")
STABLE, FRESH, OTHERS, DOCUMENTS, SEARCHES = 220, 60, 200, 1200, 3360
LOOKS, WANTED, NOISE = 0.7, 0.7, 0.08
CLIENTS, KEY, DAY, MEASURE = 8, "writes", 86_400, "RR@10"
COMMAND = [sys.executable, "-c", "import sys; from rankwell.cli.main import main; sys.argv[0] = 'rankwell'; main()"]


class World:
    """Questions by the week they first come up in, what they want, and the documents of the first day and each week."""

    def __init__(self, weeks: int, seed: int):
        data, chance = open_dataset(DATA / "insuranceqa"), random.Random(seed)
        self.qrels, texts = data.qrels("train"), {document.docid: document for document in data.documents()}
        queries = [query for query in data.queries("train") if query.qid in self.qrels]
        chance.shuffle(queries)
        self.stable, self.others, rest = queries[:STABLE], queries[STABLE : STABLE + OTHERS], queries[STABLE + OTHERS :]
        self.fresh = [rest[FRESH * week : FRESH * (week + 1)] for week in range(weeks)]
        first = [docid for query in (*self.stable, *self.others) for docid in self.qrels[query.qid]]
        first = list(dict.fromkeys([*first, *chance.sample(sorted(texts), DOCUMENTS)]))[:DOCUMENTS]
        later = [[docid for query in own for docid in self.qrels[query.qid]] for own in self.fresh]
        self.documents = [[texts[docid] for docid in first]]
        known = set(first)
        for docids in later:
            self.documents.append([texts[docid] for docid in dict.fromkeys(docids) if docid not in known])
            known.update(docids)

    def asked(self, week: int) -> list[Query]:
        """The questions of a week, from 0."""
        return [*self.stable, *self.fresh[week]]


def measure(system: System, queries: list[Query], qrels: Qrels) -> float:
    """The mean of the measure by the true judgments."""
    own = Qrels({query.qid: qrels[query.qid] for query in queries})
    return round(evaluate(own, system.search(queries, 10), [MEASURE]).mean[MEASURE], 4)


def post(port: int, path: str, body: Any, method: str = "POST") -> Any:
    """An answer of the service; anything but 200 ends the script."""
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    text = body if isinstance(body, str) else json.dumps(body)
    connection.request(method, path, text.encode(), {"Authorization": f"Bearer {KEY}"})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status == 200, (answer.status, content)
    return json.loads(content)


def user(port: int, query: Query, wanted: dict[str, int], seed: str) -> None:
    """Search, look from the top, and click."""
    chance = random.Random(seed)
    found = post(port, "/search", {"query": query.text, "k": 10, "highlight": False})
    for position, row in enumerate(found["results"], 1):
        if chance.random() < position**-LOOKS and chance.random() < (WANTED if row["id"] in wanted else NOISE):
            about = {"object": {"object_id": row["id"]}, "position": {"ordinal": position}}
            post(port, "/events", {"query_id": found["query_id"], "event_attributes": about})


def rankwell(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def take_log(live: Path, searches: int) -> dict[str, list[str]]:
    """The lines that the service wrote, by kind, once all are there; its files are removed."""
    lines: dict[str, list[str]] = {"queries": []}
    while len(lines["queries"]) < searches:
        time.sleep(1.5)  # the service writes twice a second
        for kind in ("queries", "events"):
            lines[kind] = [line for path in sorted(live.glob(f"{kind}-*")) for line in path.read_text().splitlines()]
    for path in live.glob("*.jsonl"):
        path.unlink()
    return lines


def write_weeks(folder: Path, weeks: list[dict[str, list[str]]]) -> None:
    """The log as it would be today: the last of the weeks ended yesterday, and each is spread over seven days."""
    folder.mkdir(exist_ok=True)
    today, times, files = time.time() // DAY * DAY, dict[str, float](), dict[str, list[dict[str, Any]]]()
    for ago, week in enumerate(reversed(weeks)):
        for kind, lines in week.items():
            for number, record in enumerate(map(json.loads, lines)):
                begin = today - 7 * DAY * (ago + 1) + (7 * DAY - 1) * number / len(lines)
                when = times.setdefault(record["query_id"], begin)  # a click has the time of its search
                record["timestamp"] = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")
                files.setdefault(f"{kind}-{record['timestamp'][:10]}.jsonl", []).append(record)
    for name, records in files.items():
        records.sort(key=lambda record: str(record["timestamp"]))
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def live_weeks(world: World, arm: str, start: Path, folder: Path, weeks: int, minutes: float) -> list[dict[str, Any]]:
    """The weeks of an arm."""
    system, live, log, data = (folder / name for name in ("system", "live", "log", "data"))
    System.open(start).save(system)
    data.mkdir()
    port, kept, rows = free_port(), list[dict[str, list[str]]](), list[dict[str, Any]]()
    command = [*COMMAND[1:], "serve", str(system), "--port", str(port), "--log", str(live)]
    with running(command, port, folder / "service.log"), ThreadPoolExecutor(CLIENTS) as pool:
        for week in range(weeks + 1):
            added = world.documents[week + 1]
            post(port, "/documents", "\n".join(json.dumps({"id": d.docid, "text": d.text}) for d in added), "PUT")
            opened, asked = System.open(system), world.asked(week)
            row: dict[str, Any] = {"week": week + 1, "asked": measure(opened, asked, world.qrels)}
            row["others"] = measure(opened, world.others, world.qrels)
            rows.append(row)
            if week == weeks:
                break
            turns = [asked[number % len(asked)] for number in range(SEARCHES)]
            seeds = (f"{week} {number}" for number in range(SEARCHES))
            list(pool.map(partial(user, port), turns, (dict(world.qrels[query.qid]) for query in turns), seeds))
            kept.append(take_log(live, SEARCHES))
            row["clicks"] = len(kept[-1]["events"])
            if arm != "without" and week:
                write_weeks(log, kept)
                documents: list[Document] = [document for own in world.documents[: week + 2] for document in own]
                write_documents(documents, data / "collection.jsonl")
                options = ["--from", str(system), "--log", str(log), "--out", str(system), "--device", "cpu"]
                done = rankwell("fit", str(data), *options, "--minutes", f"{minutes:g}")
                assert done.returncode in (0, 3), done.stderr
                lines = [line.strip().replace(str(folder), ".") for line in done.stdout.splitlines()]
                steps = [line for line in lines if line[:1] in "✓·–"]
                row["refit"] = {"exit": done.returncode, "said": lines[-1], "steps": steps}
                row["check"] = rankwell("check", str(system), "--log", str(log)).stdout.splitlines()[-5:]
            print(arm, json.dumps(row, ensure_ascii=False), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--weeks", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=2.0, help="of a refit")
    parser.add_argument("--start", choices=("bm25", "hybrid"), default="bm25")
    parser.add_argument("--arms", nargs="+", default=ARMS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["RANKWELL_WRITING_KEY"] = KEY
    world = World(options.weeks + 1, options.seed)
    arms: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        index = Index.build(world.documents[0], Path(scratch) / "index")
        hybrid = FirstStage(index, encoder="rankwell-mini", share=0.7)
        System(FirstStage(index) if options.start == "bm25" else hybrid).save(start := Path(scratch) / "start")
        for number, arm in enumerate(options.arms):
            (folder := Path(scratch) / str(number)).mkdir()
            arms[arm] = live_weeks(world, arm, start, folder, options.weeks, options.minutes)
    table = Table("week", *(f"{arm}: {on}" for arm in arms for on in ("asked", "others")), labels=0)
    for week in range(options.weeks + 1):
        table.row(week + 1, *(f"{rows[week][on]:.3f}" for rows in arms.values() for on in ("asked", "others")))
    settings = {"start": options.start, "minutes": options.minutes, "seed": options.seed, "measure": MEASURE}
    write_json(options.out, {**settings, "searches a week": SEARCHES, "machine": machine("torch"), "arms": arms})


if __name__ == "__main__":
    main()
