"""One measurement of the first-stage benchmark, in a process of its own; ``first_stage.py`` starts it.

Usage: ``python bench/first_stage_phase.py SYSTEM PHASE CORPUS CACHE RESULT REPEAT``; PHASE is ``tokens`` (rankwell's
analyser over the corpus, the peers' input), ``index_text``, ``index_tokens`` or ``query``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from first_stage_corpora import Corpus, read_texts, write_tokens
from first_stage_systems import SYSTEMS, System
from harness import ROOT, memory

WARM_PASSAGES = 200
WARM_QUERIES = 100
SAMPLE = 50
DEPTHS = (1000, 10)


def timed(action: Callable[[], Any]) -> tuple[Any, float, float]:
    """What ``action`` returns, its CPU seconds (with threads and finished children) and its wall seconds."""
    before, start = os.times(), time.perf_counter()
    result = action()
    wall, after = time.perf_counter() - start, os.times()
    return result, sum(after[:4]) - sum(before[:4]), wall


def disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def searched(system: str) -> str:
    """The phase whose index is searched: the peers' is the one made of rankwell's tokens."""
    return "index_text" if system == "rankwell" else "index_tokens"


def index_folder(cache: Path, corpus: str, system: str, phase: str) -> Path:
    return cache / "indexes" / f"{corpus}.{system}.{phase}"


def source() -> str:
    """A fingerprint of the parts of rankwell that are measured."""
    files = sorted(f for part in ("core", "corpus", "retrieve") for f in (ROOT / "src/rankwell" / part).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def tokens(corpus: Corpus) -> dict[str, Any]:
    """Write the tokens of the passages and queries, as rankwell's analyser sees them."""
    from rankwell.corpus.analyser import Analyzer

    analyse = Analyzer.english().terms_batch

    def batches(path: Path) -> Iterator[list[list[str]]]:
        texts = read_texts(path)
        while batch := list(islice(texts, 10_000)):
            yield [list(terms) for terms in analyse(batch)]

    queries = write_tokens(corpus.query_tokens, batches(corpus.queries))
    passages, cpu, wall = timed(lambda: write_tokens(corpus.passage_tokens, batches(corpus.passages)))
    return {"passage_tokens": passages, "query_tokens": queries, "cpu_s": cpu, "wall_s": wall}


def index(build: Callable[..., None], corpus: Corpus, folder: Path) -> dict[str, Any]:
    """Build into ``folder``, after a small build that compiles what there is to compile."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as warm:
        build(corpus, Path(warm) / "index", WARM_PASSAGES)
    shutil.rmtree(folder, ignore_errors=True)
    start = memory("VmRSS")
    _, cpu, wall = timed(lambda: build(corpus, folder))
    times = os.times()
    return {
        "cpu_s": cpu,
        "wall_s": wall,
        "peak_mb": memory("VmHWM"),
        "start_mb": start,
        "children_cpu_s": times.children_user + times.children_system,
        "disk_bytes": disk(folder),
    }


def query(system: System, corpus: Corpus, folder: Path, repeat: int) -> dict[str, Any]:
    """Search all queries to each depth, warm, ``repeat`` times over."""
    system.load_queries(corpus)
    count = sum(1 for _ in read_texts(corpus.queries))
    start = memory("VmRSS")
    _, open_cpu, open_wall = timed(lambda: system.open(folder))
    result: dict[str, Any] = {"queries": count, "open_cpu_s": open_cpu, "open_wall_s": open_wall, "start_mb": start}
    for k in DEPTHS:
        system.search(0, min(WARM_QUERIES, count), k)
        runs = [timed(lambda k=k: system.search(0, count, k)) for _ in range(repeat)]  # type: ignore[misc]
        result[f"cpu_ms_{k}"] = 1000 * statistics.median(cpu for _, cpu, _ in runs) / count
        result[f"wall_ms_{k}"] = 1000 * statistics.median(wall for _, _, wall in runs) / count
        result[f"spread_{k}"] = (max(r[1] for r in runs) - min(r[1] for r in runs)) * 1000 / count
    result["peak_mb"] = memory("VmHWM")
    sample = {str(k): system.hits(system.search(0, min(SAMPLE, count), k)) for k in DEPTHS}
    return result | {"sample": sample}


def main() -> None:
    name, phase, corpus_name, cache, out, repeat = sys.argv[1:]
    before = source()
    corpus = Corpus(corpus_name, Path(cache) / "corpora" / corpus_name)
    folder = index_folder(Path(cache), corpus_name, name, phase)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if phase == "tokens":
        result = tokens(corpus)
    elif phase == "query":
        folder = index_folder(Path(cache), corpus_name, name, searched(name))
        result = query(SYSTEMS[name](), corpus, folder, int(repeat))
    else:
        result = index(getattr(SYSTEMS[name](), phase), corpus, folder)
        if phase != searched(name):
            shutil.rmtree(folder)
    if name == "rankwell":
        if source() != before:
            sys.exit("rankwell's source was changed during the measurement")
        result["source"] = before
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
