"""An index that is changed and filtered: what deletes and filters cost beside the same searches without them.

Usage::

    python bench/changes.py                    # 1M passages, resampled from wiki as for bench/first_stage.py
    python bench/changes.py --corpus 100k
    python bench/changes.py --corpus 100k --serve 15   # searches of a service while documents are written to it

Searches are top-10 and top-1000, one thread, CPU time of all queries, the best of ``--repeat`` runs; the runs of all
variants alternate. The results with deletions are held against a new index of what is left. If tantivy is installed,
it does the same work on the same terms.

``--serve`` starts a service. Eight clients search five times a second each, for so many seconds, in turns alone and
beside a writer that updates 10,000 documents a minute, 100 in a request.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path
from typing import Any

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


def serve(index: Index, texts: list[str], queries: list[str], seconds: float) -> list[dict[str, float]]:
    """Latencies of searches without and with updates, in turns."""
    port = free_port()
    os.environ["RANKWELL_WRITING_KEY"] = "key"
    headers = {"Content-Type": "application/json", "Authorization": "Bearer key"}

    def ask(connection: HTTPConnection, method: str, path: str, body: str) -> float:
        begin = time.perf_counter()
        connection.request(method, path, body.encode(), headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
        return 1000 * (time.perf_counter() - begin)

    def repeat(number: int, seconds_each: float, make: Callable[[random.Random], tuple[str, str, str]]) -> list[float]:
        """Ask every so often, or as soon as the last answer is there; returns how long each took."""
        drawn, connection, took = random.Random(number), HTTPConnection("127.0.0.1", port), list[float]()
        begin = time.perf_counter()
        due = begin + drawn.random() * seconds_each
        while time.perf_counter() < begin + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            took.append(ask(connection, *make(drawn)))
            due += seconds_each
        return took

    def search(drawn: random.Random) -> tuple[str, str, str]:
        body = {"query": drawn.choice(queries), "stages": "bm25", "highlight": False}
        return "POST", "/search", json.dumps(body)

    def write(drawn: random.Random) -> tuple[str, str, str]:
        numbers = drawn.sample(range(len(texts)), 100)
        lines = [json.dumps({"id": f"D{number}", "text": f"{texts[number]} again"}) for number in numbers]
        return "PUT", "/documents", "\n".join(lines)

    records, table = [], Table("", "searches", "p50, ms", "p99, ms", "updates a minute", "p50 of a write, ms", "load")
    command = ["-m", "rankwell", "serve", "--index", str(index.folder), "--port", str(port)]
    with running(command, port), ThreadPoolExecutor(9) as pool:
        for name in ("alone", "updates", "alone", "updates"):
            asked = [pool.submit(repeat, number, 0.2, search) for number in range(8)]
            written = pool.submit(repeat, 8, 0.6, write).result() if name == "updates" else []
            times = [ms for future in asked for ms in future.result()]
            record = {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}
            record |= {
                "updates a minute": 6000 * len(written) / seconds,
                "write p50": percentile(written or [0.0], 0.5),
            }
            records.append({"searches": len(times), **record, "load": os.getloadavg()[0]})
            table.row(name, *(f"{value:.0f}" for value in records[-1].values()))
    return records


def some_ids(count: int) -> list[str]:
    """Ten thousand ids of ``count`` documents, spread over all."""
    return [f"D{n * 97 % count}" for n in range(10_000)]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--corpus", default="1M")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--serve", type=float, metavar="SECONDS")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "bench")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    corpus, count = prepare(options.corpus, options.work), size(options.corpus)
    queries = [Query(str(n), text) for n, text in enumerate(islice(read_texts(corpus.queries), options.queries))]
    folder = options.work / "changes"
    shutil.rmtree(folder, ignore_errors=True)
    index = Index.build(documents(corpus.passages), folder / "whole")
    assert count is None or len(index) == count
    if options.serve:
        asked = [query.text for query in queries]
        write_json(options.out, serve(index, list(read_texts(corpus.passages)), asked, options.serve))
        return
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
