"""Where the milliseconds of one query go: in a process that has just started, and in one that is warm.

    python bench/query_path.py --index FOLDER --out FILE      # an index with rankwell-mini's vectors
    python bench/query_path.py --index FOLDER --exact         # compare all vectors, however many there are

Parts are measured alone, on the same 50 questions of InsuranceQA, one query at a time; medians. *Whole* is a search by
the system, with what lies between the parts, but without words, whose part is left out if they are not stored. The
re-ranker reads the best ten. The command is a process of its own, with everything compiled: its parts end when it has
imported what it needs, opened the index, and answered.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness import DATA, Table, clock_and_cpu, machine, make_parser, write_json
from rankwell import BiEncoder, Query, Ranker, System, open_dataset
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.rank.defaults import UNFITTED
from rankwell.rank.dense import search_hybrid

SHARE, DEEP, RERANKED, WORDS = UNFITTED.share, 1000, 10, 100
COMMAND = """
import sys, time
import rankwell, torch
torch.set_num_threads(2)
from rankwell import Query, System
times = [time.process_time()]
system = System.of_index(sys.argv[1], encoder="rankwell-mini", hybrid=0.7)
times.append(time.process_time())
for question in ("does life insurance pay for cancer", "what does renters insurance cover"):
    system.search([Query("1", question)], 10)
    times.append(time.process_time())
print(times)
"""


def median(work: Callable[[str], Any], questions: list[str]) -> dict[str, float]:
    """The median milliseconds of a part, on the clock and of CPU time."""
    for question in questions[:5]:
        work(question)
    times = [clock_and_cpu(partial(work, question)) for question in questions]
    clock, cpu = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    return {"ms": round(clock, 2), "cpu_ms": round(cpu, 2)}


def parts_of(folder: Path, questions: list[str], *, exact: bool) -> dict[str, dict[str, float]]:
    """Each part of a search in a warm process."""
    encoder = BiEncoder.from_pretrained(DEFAULT, device="cpu")
    ranker = Ranker.from_pretrained(DEFAULT, precision="auto")
    system = System.of_index(folder, encoder=DEFAULT, hybrid=SHARE)
    reranking = System.of_index(folder, encoder=DEFAULT, hybrid=SHARE, ranker=DEFAULT, depth=RERANKED, precision="auto")
    index, dense = system.index, system.first_stage.dense
    vectors = dict(zip(questions, encoder.encode_queries(questions), strict=True))
    found = {question: index.texts(index.rank(question, k=RERANKED).docids) for question in questions}
    (store,) = index.documents.stores
    best = {question: search_hybrid(index, dense, [Query("1", question)], SHARE, k=WORDS) for question in questions}
    whole = median(lambda question: system.search([Query("1", question)], 10), questions)
    words = {}
    if dense.has_words(index):  # else comparing would compute those of all documents
        read = {question: dense.encode([Query("1", question)], words=True) for question in questions}
        words[f"compare words of {WORDS}"] = median(
            lambda question: dense.compare_words(best[question], [Query("1", question)], index, read[question]),
            questions,
        )
    compressed = dense.compresses(len(index)) and not exact
    return {
        "encode the query": median(lambda question: encoder.encode_queries([question]), questions),
        f"BM25, the best {DEEP:,}": median(lambda question: index.rank(question, k=DEEP), questions),
        f"vectors, the best {DEEP:,}": median(
            lambda question: dense.nearest(vectors[question][None], store, DEEP, compressed=compressed), questions
        ),
        **words,
        "whole, hybrid search": whole,
        f"re-rank {RERANKED}": median(lambda question: ranker.rank(question, found[question]), questions),
        "whole, re-ranked": median(lambda question: reranking.search([Query("1", question)], 10), questions),
    }


def command_of(folder: Path) -> dict[str, float]:
    """Seconds of a process: importing, opening, the first answer and the second; CPU time, and all on the clock."""
    begin = time.perf_counter()
    printed = subprocess.run([sys.executable, "-c", COMMAND, str(folder)], stdout=subprocess.PIPE, check=True).stdout
    clock, (imported, opened, first, second) = time.perf_counter() - begin, json.loads(printed)
    parts = {"import": imported, "open": opened - imported, "first": first - opened, "second": second - first}
    return {name: round(value, 3) for name, value in {**parts, "clock": clock}.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--exact", action="store_true", help="compare all vectors")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    questions = [query.text for query in open_dataset(DATA / "insuranceqa").queries("valid")[:50]]
    parts = parts_of(chosen.index, questions, exact=chosen.exact)
    command = [command_of(chosen.index) for _ in range(3)][-1]
    table = Table("part", "ms", "CPU ms")
    for name, times in parts.items():
        table.row(name, *times.values())
    print("\na process, seconds:", command)
    load = round(os.getloadavg()[0], 1)
    write_json(chosen.out, {**machine("torch", "numba"), "load": load, "parts": parts, "command": command})


if __name__ == "__main__":
    main()
