"""An index that is changed and filtered: what deletes and filters cost beside the same searches without them.

Usage::

    python bench/changes.py                    # 1M passages, resampled from wiki as for bench/first_stage.py
    python bench/changes.py --corpus 100k
    python bench/changes.py --serve --out served.json                 # searches of a service beside updates; 7 minutes
    python bench/changes.py --first --before ../old --out first.json  # opening, beside another version of rankwell

Searches are top-10 and top-1000, one thread, CPU time of all queries, the best of ``--repeat`` runs; the runs of all
variants alternate. The results with deletions are held against a new index of what is left. If tantivy is installed,
it does the same work on the same terms.

``--serve`` and ``--first`` need no data: their documents (``--corpus``, 1M) are of generated words, as frequent as
Zipf's law has it, which --work keeps. ``--serve`` starts a service with eight clients that search, in turns alone and
beside a writer that updates 10,000 documents a minute, 100 in a request. *Paced* clients search five times a second
each, *eager* ones again as soon as they have their answer. Every client is a process. ``--first`` opens the index and
searches once, in new processes that have searched a small index before, so that no kernel is loaded meanwhile.
``--before`` is the checkout of another version: it builds its own index of the same documents and takes turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from first_stage_systems import prepare, read_texts, size
from harness import ROOT, Table, clock_and_cpu, machine, make_parser, package_version, write_json
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Document, Query
from rankwell.retrieve.index import Index
from serve import free_port, percentile, running

BELOW = {"50 %": 500, "5 %": 50, ".1 %": 1}
SHARES = {share: f"percent < {bound}" for share, bound in BELOW.items()}
DEPTHS = (10, 1000)
Search = Callable[[int], object]
"""Searches all queries for so many documents each."""
WORDS, COMMON, LENGTH = 300_000, 40, 50
"""Generated texts: the words there are, the rank that the most frequent one has in Zipf's law, and the median length.
The first 40 ranks would be those of stop words."""
CLIENTS, WRITTEN, WRITE_SECONDS = 8, 100, 0.6
PACES = {"paced": (0.2, 40.0), "eager": (0.0, 15.0)}
"""The seconds from one search of a client to its next, and those of a turn."""
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer key"}
BUILD = """
import sys
from changes import generated
from rankwell.corpus.records import Document
from rankwell.retrieve.index import Index
texts = generated(int(sys.argv[2]))
Index.build((Document(f"D{number}", text) for number, text in enumerate(texts)), sys.argv[1], overwrite=True)
"""
OPEN = """
import json, sys, time
from rankwell.retrieve.index import Index
Index.open(sys.argv[1]).rank(sys.argv[3], k=10)
begin = time.perf_counter()
index = Index.open(sys.argv[2])
opened = time.perf_counter()
index.rank(sys.argv[3], k=10)
searched = time.perf_counter()
for _ in range(20):
    index.rank(sys.argv[3], k=10)
later = (time.perf_counter() - searched) / 20
print(json.dumps({"open": 1000 * (opened - begin), "first search": 1000 * (searched - opened), "later": 1000 * later}))
"""


def documents(path: Path) -> Iterator[Document]:
    """Passages with a number from 0 to 999 that is not in their order."""
    for number, text in enumerate(read_texts(path)):
        yield Document(f"D{number}", text, metadata={"percent": number * 7919 % 1000})


def measure(variants: dict[str, Search], queries: int, repeat: int) -> dict[str, dict[int, float]]:
    """The milliseconds per query of each variant and depth, as a table too; the first variant is 1."""
    best = {name: dict.fromkeys(DEPTHS, float("inf")) for name in variants}
    for _ in range(repeat):
        for name, search in variants.items():
            for k in DEPTHS:
                best[name][k] = min(best[name][k], 1000 * clock_and_cpu(partial(search, k))[1] / queries)
    table = Table("", *(f"top-{k}, ms per query" for k in DEPTHS), *(f"ratio, top-{k}" for k in DEPTHS))
    base = next(iter(best.values()))
    for name, ms in best.items():
        table.row(name, *(f"{ms[k]:.3f}" for k in DEPTHS), *(f"{ms[k] / base[k]:.2f}" for k in DEPTHS))
    return best


def tantivy_variants(passages: Path, queries: list[Query], folder: Path, facts: dict[str, Any]) -> dict[str, Search]:
    """The same searches by tantivy, over the terms of rankwell's analyser."""
    import tantivy
    from tantivy import Occur

    schema = tantivy.SchemaBuilder().add_text_field("text", tokenizer_name="whitespace", index_option="freq")
    schema = schema.add_unsigned_field("percent", indexed=True, fast=True).add_text_field("id", tokenizer_name="raw")
    built = schema.build()
    analyzer = Analyzer.english()

    def make(name: str) -> Any:
        (folder / name).mkdir()
        index = tantivy.Index(built, str(folder / name), reuse=False)
        writer = index.writer(heap_size=500_000_000, num_threads=1)
        for batch in batched(documents(passages), 1000):
            for document, terms in zip(batch, analyzer.terms_batch([d.text for d in batch]), strict=True):
                row = tantivy.Document(text=" ".join(terms), id=document.docid)
                row.add_unsigned("percent", (document.metadata or {})["percent"])
                writer.add_document(row)
        writer.commit()
        writer.wait_merging_threads()
        return index

    whole, changed = make("tantivy"), make("tantivy-changed")
    count = whole.searcher().num_docs
    writer = changed.writer(heap_size=500_000_000, num_threads=1)

    def delete(ids: list[str]) -> None:
        for docid in ids:
            writer.delete_documents("id", docid)
        writer.commit()

    facts["tantivy: delete of 10,000 ids, s"] = clock_and_cpu(lambda: delete(some_ids(count)))
    delete([f"D{n}" for n in range(0, count, 10)])
    terms = [list(dict.fromkeys(words)) for words in analyzer.terms_batch([query.text for query in queries])]
    term_query, both = tantivy.Query.term_query, tantivy.Query.boolean_query
    plain = [both([(Occur.Should, term_query(built, "text", term, "freq")) for term in words]) for words in terms]

    def search(index: Any, bound: int | None, k: int) -> None:
        searcher = index.searcher()
        kept = None
        if bound is not None:
            kept = tantivy.Query.range_query(built, "percent", tantivy.FieldType.Unsigned, 0, bound - 1)
            kept = tantivy.Query.const_score_query(kept, 0.0)
        for query in plain:
            wanted = query if kept is None else both([(Occur.Must, query), (Occur.Must, kept)])
            searcher.search(wanted, k, count=False)

    changed.reload()
    variants: dict[str, Search] = {"tantivy, unfiltered": partial(search, whole, None)}
    variants |= {f"tantivy, filter keeps {share}": partial(search, whole, bound) for share, bound in BELOW.items()}
    return variants | {
        f"tantivy, {1 - changed.searcher().num_docs / count:.1%} deleted": partial(search, changed, None)
    }


def batched(items: Iterator[Document], size: int) -> Iterator[list[Document]]:
    """Lists of ``size`` items."""
    while batch := list(islice(items, size)):
        yield batch


def vocabulary() -> list[str]:
    """Different words of 3 to 14 letters."""
    rng = np.random.default_rng(1)
    letters = np.array(list("aeioubcdfghklmnprst"))
    lengths = np.minimum(2 + rng.geometric(0.2, 2 * WORDS), 14)
    text, ends = "".join(letters[rng.integers(0, len(letters), lengths.sum())]), np.cumsum(lengths)
    pairs = zip(ends.tolist(), lengths.tolist(), strict=True)
    return list(dict.fromkeys(text[end - length : end] for end, length in pairs))[:WORDS]


def generated(count: int, seed: int = 2, length: float = LENGTH) -> Iterator[str]:
    """Texts of words drawn by Zipf's law."""
    rng, words = np.random.default_rng(seed), np.array(vocabulary(), object)
    shares = np.cumsum(1 / (COMMON + np.arange(len(words))))
    for first in range(0, count, 10_000):
        lengths = np.maximum(rng.lognormal(np.log(length), 0.5, min(10_000, count - first)).astype(int), 2).tolist()
        drawn = iter(words[np.searchsorted(shares, rng.random(sum(lengths)) * shares[-1])].tolist())
        for some in lengths:
            yield " ".join(islice(drawn, some))


def ask(port: int, seconds: float, pace: float, number: int, requests: list[tuple[str, str, str]]) -> list[float]:
    """Send requests drawn at random, every so often or as soon as the last is answered; how long each took, in ms."""
    drawn, connection, took = random.Random(number), HTTPConnection("127.0.0.1", port), list[float]()
    begin = time.perf_counter()
    due = begin + drawn.random() * pace
    while time.perf_counter() < begin + seconds:
        time.sleep(max(0.0, due - time.perf_counter()))
        method, path, body = drawn.choice(requests)
        sent = time.perf_counter()
        connection.request(method, path, body.encode(), HEADERS)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        took.append(1000 * (time.perf_counter() - sent))
        due += pace
    return took


def serve(index: Path, count: int, queries: list[str], scale: float) -> dict[str, Any]:
    """Latencies of searches without and with updates, in turns."""
    os.environ["RANKWELL_WRITING_KEY"] = "key"
    port, drawn, facts = free_port(), random.Random(5), dict[str, Any]()
    searches = [("POST", "/search", json.dumps({"query": q, "stages": "bm25", "highlight": False})) for q in queries]
    fresh = generated(20_000, seed=3)
    writes = [
        ("PUT", "/documents", "\n".join(json.dumps({"id": f"D{n}", "text": next(fresh)}) for n in numbers))
        for numbers in (drawn.sample(range(count), WRITTEN) for _ in range(200))
    ]
    columns = "searches", "median, ms", "p99, ms", "updates a minute", "median of a write, ms", "p99 of a write, ms"
    table = Table("", *columns, "load")
    command = ["-m", "rankwell", "serve", str(index), "--port", str(port)]
    with running(command, port), ProcessPoolExecutor(CLIENTS + 1, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(ask, [port] * 32, [1.0] * 32, [0.05] * 32, range(32), [searches] * 32))  # starts all processes
        for pace, (every, seconds) in PACES.items():
            turns, times, seconds = [], {"alone": list[float](), "updates": list[float]()}, scale * seconds
            updates = 0
            for name in ("alone", "updates", "alone", "updates"):
                writer = pool.submit(ask, port, seconds, WRITE_SECONDS, 99, writes) if name == "updates" else None
                clients = [pool.submit(ask, port, seconds, every, number, searches) for number in range(CLIENTS)]
                took = [ms for client in clients for ms in client.result()]
                written = writer.result() if writer else []
                done = WRITTEN * len(written) * 60 / max(seconds, sum(written) / 1000)
                of_writes = [percentile(written or [0.0], share) for share in (0.5, 0.99)]
                row = [len(took), statistics.median(took), percentile(took, 0.99), done, *of_writes]
                turns.append({"": name, **dict(zip(columns, row, strict=True)), "load": os.getloadavg()[0]})
                table.row(f"{pace}, {name}", *(f"{value:.1f}" for value in [*row, os.getloadavg()[0]]))
                times[name] += took
                updates += WRITTEN * len(written)
            both = {name: {"median": statistics.median(ms), "p99": percentile(ms, 0.99)} for name, ms in times.items()}
            ratio = {name: both["updates"][name] / both["alone"][name] for name in ("median", "p99")}
            facts[pace] = {"turns": turns, **both, "ratio": ratio, "documents updated": updates}
            print(f"{pace}: with updates, the median is {ratio['median']:.2f}× and p99 {ratio['p99']:.2f}×")
    return facts


def run(checkout: Path, code: str, *arguments: object) -> str:
    """Run Python code with the rankwell of a checkout; what it prints."""
    assert (checkout / "src" / "rankwell").is_dir(), checkout
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout / "src"), str(ROOT / "bench")])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def built(work: Path, count: int, version: str = "this version", checkout: Path = ROOT) -> Path:
    """The index of so many generated documents, as a version of rankwell builds it."""
    folder = work / version / str(count)
    if not (folder / "index.json").exists():
        run(checkout, BUILD, folder, count)
    return folder


def first(work: Path, count: int, before: Path | None, queries: list[str], starts: int) -> dict[str, Any]:
    """The milliseconds of opening an index and of its first search, by this version and perhaps another; medians."""
    versions = {"this version": ROOT, **({} if before is None else {"before": before.resolve()})}
    times: dict[str, list[dict[str, float]]] = {version: [] for version in versions}
    for number in range(starts + 1):
        for version, checkout in versions.items():
            folders = built(work, 100, version, checkout), built(work, count, version, checkout)
            times[version].append(json.loads(run(checkout, OPEN, *folders, queries[number])))
    facts = {
        version: {name: statistics.median(row[name] for row in rows[1:]) for name in rows[0]}
        for version, rows in times.items()
    }
    table = Table("ms", *facts["this version"])
    for version, row in facts.items():
        table.row(version, *(f"{value:.2f}" for value in row.values()))
    return {"medians, ms": facts, "all, ms": times}


def some_ids(count: int) -> list[str]:
    """Ten thousand ids of ``count`` documents, spread over all."""
    return [f"D{n * 97 % count}" for n in range(10_000)]


def generated_mode(options: argparse.Namespace) -> None:
    """What is measured on generated documents."""
    count, folder = size(options.corpus) or 0, options.work / f"generated-{options.corpus}"
    queries = list(generated(options.queries, seed=4, length=4))
    facts: dict[str, Any] = {"machine": machine("numpy", "numba", "fastapi", "uvicorn"), "documents": count}
    begin = time.perf_counter()
    if options.first:
        facts["first"] = first(folder, count, options.before, queries, options.starts)
    if options.serve:
        shutil.rmtree(folder / "served", ignore_errors=True)
        shutil.copytree(built(folder, count), folder / "served", copy_function=os.link)
        facts["build, s"] = time.perf_counter() - begin
        facts |= serve(folder / "served", count, queries, options.scale)
    write_json(options.out, {**facts, "seconds": time.perf_counter() - begin})


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--corpus", default="1M")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--scale", type=float, default=1.0, help="of the seconds of a turn (--serve)")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "bench")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.serve or options.first:
        generated_mode(options)
        return
    corpus, count = prepare(options.corpus, options.work), size(options.corpus)
    queries = [Query(str(n), text) for n, text in enumerate(islice(read_texts(corpus.queries), options.queries))]
    folder = options.work / "changes"
    shutil.rmtree(folder, ignore_errors=True)
    index = Index.build(documents(corpus.passages), folder / "whole")
    assert count is None or len(index) == count
    facts: dict[str, Any] = {"machine": machine(), "documents": len(index)}
    shutil.copytree(index.folder, folder / "changed")
    changed = Index.open(folder / "changed")
    first = some_ids(len(index))
    facts["delete of 10,000 ids, s"] = clock_and_cpu(lambda: changed.delete(first))
    changed.delete([f"D{n}" for n in range(0, len(index), 10)])
    begin = time.perf_counter()
    Index.open(folder / "changed")
    facts["open, ms"] = 1000 * (time.perf_counter() - begin)

    def search(searched: Index, filter: str | None, k: int) -> None:
        searched.search(queries, k=k, filter=filter)

    variants: dict[str, Search] = {"unfiltered": partial(search, index, None)}
    variants |= {f"filter keeps {share}": partial(search, index, filter) for share, filter in SHARES.items()}
    variants |= {f"{1 - len(changed) / len(index):.1%} deleted": partial(search, changed, None)}
    if package_version("tantivy"):
        tantivy = tantivy_variants(corpus.passages, queries, folder, facts)
        facts["tantivy, ms per query"] = measure(tantivy, len(queries), options.repeat)
    facts["ms per query"] = measure(variants, len(queries), options.repeat)
    fresh = Index.build((d for d in documents(corpus.passages) if d.docid in changed), folder / "fresh")
    facts["equal to a new build"] = all(
        changed.search(queries, k=100, filter=filter) == fresh.search(queries, k=100, filter=filter)
        for filter in (None, *SHARES.values())
    )
    facts["update of 1,000 documents, s"] = clock_and_cpu(lambda: changed.update(index.read(first[:1000])))
    facts["merge, s"] = clock_and_cpu(changed.merge)
    print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n")
    write_json(options.out, facts)


if __name__ == "__main__":
    main()
