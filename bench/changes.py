"""An index that is changed and filtered: what deletes and filters cost beside the same searches without them.

Usage::

    python bench/changes.py                    # 1M passages, resampled from wiki as for bench/first_stage.py
    python bench/changes.py --corpus 100k

Searches are top-10 and top-1000, one thread, CPU time of all queries, the best of ``--repeat`` runs; the runs of all
variants alternate. The results with deletions are held against a new index of what is left.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from first_stage_systems import prepare, read_texts, size
from harness import ROOT, Table, clock_and_cpu, machine, make_parser, write_json
from rankwell.corpus.records import Document, Query
from rankwell.retrieve.index import Index

SHARES = {"50 %": "percent < 500", "5 %": "percent < 50", ".1 %": "percent < 1"}
DEPTHS = (10, 1000)


def documents(path: Path) -> Iterator[Document]:
    """Passages with a number from 0 to 999 that is not in their order."""
    for number, text in enumerate(read_texts(path)):
        yield Document(f"D{number}", text, metadata={"percent": number * 7919 % 1000})


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--corpus", default="1M")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "bench")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    corpus, count = prepare(options.corpus, options.work), size(options.corpus)
    queries = [Query(str(n), text) for n, text in enumerate(islice(read_texts(corpus.queries), options.queries))]
    folder = options.work / "changes"
    shutil.rmtree(folder, ignore_errors=True)
    index = Index.build(documents(corpus.passages), folder / "whole")
    assert count is None or len(index) == count
    facts: dict[str, Any] = {"machine": machine(), "documents": len(index)}
    shutil.copytree(index.folder, folder / "changed")
    changed = Index.open(folder / "changed")
    first = [f"D{n * 97 % len(index)}" for n in range(10_000)]
    facts["delete of 10,000 ids, s"] = clock_and_cpu(lambda: changed.delete(first))
    changed.delete([f"D{n}" for n in range(0, len(index), 10)])
    begin = time.perf_counter()
    Index.open(folder / "changed")
    facts["open, ms"] = 1000 * (time.perf_counter() - begin)

    variants: dict[str, tuple[Index, str | None]] = {"unfiltered": (index, None)}
    variants |= {f"filter keeps {share}": (index, filter) for share, filter in SHARES.items()}
    variants |= {f"{1 - len(changed) / len(index):.1%} deleted": (changed, None)}
    table = Table("", *(f"top-{k}, ms per query" for k in DEPTHS), *("ratio" for _ in DEPTHS))
    best = {(name, k): float("inf") for name in variants for k in DEPTHS}
    for name, (searched, filter) in variants.items():
        begin = time.perf_counter()
        searched.search(queries[:1], k=10, filter=filter)
        facts[f"first search, {name}, ms"] = 1000 * (time.perf_counter() - begin)
    for _ in range(options.repeat):
        for name, k in best:
            searched, filter = variants[name]
            cpu = clock_and_cpu(lambda s=searched, k=k, f=filter: s.search(queries, k=k, filter=f))[1]  # type: ignore[misc]
            best[name, k] = min(best[name, k], 1000 * cpu / len(queries))
    for name in variants:
        cells = [f"{best[name, k]:.3f}" for k in DEPTHS]
        table.row(name, *cells, *(f"{best[name, k] / best['unfiltered', k]:.2f}" for k in DEPTHS))
    fresh = Index.build((d for d in documents(corpus.passages) if d.docid in changed), folder / "fresh")
    facts["equal to a new build"] = all(
        changed.search(queries, k=100, filter=filter) == fresh.search(queries, k=100, filter=filter)
        for filter in (None, *SHARES.values())
    )
    facts["update of 1,000 documents, s"] = clock_and_cpu(lambda: changed.update(index.read(first[:1000])))
    facts["merge, s"] = clock_and_cpu(changed.merge)
    print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n")
    write_json(options.out, {**facts, "ms per query": {f"{name}, top-{k}": ms for (name, k), ms in best.items()}})


if __name__ == "__main__":
    main()
