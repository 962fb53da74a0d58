"""rankwell's first stage beside bm25s and tantivy: one run, the same work, as ratios.

Usage::

    python bench/first_stage.py                                  # wiki and 1M passages, the three systems
    python bench/first_stage.py --corpus wiki --systems rankwell,bm25s
    python bench/first_stage.py --corpus 8.8M                    # as many passages as MS MARCO; rankwell only

It needs ``pip install -e '.[bench]'``, the public collections ($RANKWELL_DATA or ../shared/data) and Linux, and should
have the machine to itself. Every (system, phase, corpus) is measured in a process of its own, one after the other:

- *index*, from text: lower case, English stop words and stems, each with its own analyser, one writing thread. CPU is
  user and system time of all threads, without imports and compilation; memory is the process's peak (VmHWM), which
  includes the interpreter and libraries ("at start", after a warm-up on a few passages).
- *index*, from tokens (the peers only): rankwell's tokens, read from a file. This index is the one that is searched.
- *query*: all queries, one thread, warm; the median of ``--repeat`` runs. All systems score the same postings.

rankwell's results are held against bm25s's, and where they differ its query ratios are marked invalid. The Markdown
goes to the standard output, everything to ``first_stage.json`` in ``--out``. The exit status is 1 if a measurement
failed or the results differ; a missed target is only reported.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from first_stage_systems import (
    K1,
    MSMARCO_PASSAGES,
    SYSTEMS,
    B,
    Corpus,
    System,
    prepare,
    read_texts,
    size,
    write_tokens,
)
from harness import ROOT, machine, make_parser, memory

WARM_PASSAGES, WARM_QUERIES, SAMPLE = 200, 100, 50
DEPTHS = (1000, 10)
# (what, phase, field, peer, at most): rankwell's figure over the peer's.
TARGETS = [
    ("index CPU", "index_text", "cpu_s", "bm25s", 0.35),
    ("index CPU", "index_text", "cpu_s", "tantivy", 1.3),
    ("index peak memory", "index_text", "peak_mb", "bm25s", 0.3),
    ("index peak memory", "index_text", "peak_mb", "tantivy", None),
    ("top-1000 CPU", "query", "cpu_ms_1000", "bm25s", 1.0),
    ("top-1000 CPU", "query", "cpu_ms_1000", "tantivy", None),
    ("top-10 CPU", "query", "cpu_ms_10", "bm25s", 0.5),
    ("top-10 CPU", "query", "cpu_ms_10", "tantivy", None),
]
TOLERANCE = 1e-3  # of scores, as sums of 32-bit floats in another order differ a little
Results = dict[str, dict[str, dict[str, Any]]]  # system, phase, figures


def plan(systems: list[str]) -> list[tuple[str, str]]:
    """The measurements of one corpus, in order: (system, phase)."""
    peers = [name for name in systems if name != "rankwell"]
    steps = [("rankwell", "tokens")] if peers else []
    steps += [(name, "index_text") for name in systems]
    steps += [(name, "index_tokens") for name in peers]
    return steps + [(name, "query") for name in systems]


def measure(corpus: Corpus, steps: list[tuple[str, str]], out: Path, repeat: int) -> Results:
    """Run each step in a process of its own."""
    results: Results = {}
    environment = os.environ | {"DISABLE_TQDM": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    for name, phase in steps:
        print(f"{corpus.name}: {name} {phase}", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, "--phase", name, phase, corpus.name, str(out), str(repeat)]
        done = subprocess.run(command, env=environment, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{corpus.name}: {name} {phase} FAILED", file=sys.stderr)
        else:
            results.setdefault(name, {})[phase] = json.loads(done.stdout.splitlines()[-1])
    return results


# One measurement, in a process of its own


def timed(action: Callable[[], Any]) -> tuple[Any, float, float]:
    """What ``action`` returns, its CPU seconds (with threads and finished children) and its wall seconds."""
    before, start = os.times(), time.perf_counter()
    result = action()
    wall, after = time.perf_counter() - start, os.times()
    return result, sum(after[:4]) - sum(before[:4]), wall


def disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


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


def run_phase(name: str, phase: str, corpus_name: str, out: str, repeat: str) -> None:
    """Print the figures of one phase: ``tokens`` (the peers' input), ``index_text``, ``index_tokens`` or ``query``."""
    corpus = Corpus(corpus_name, Path(out) / "corpora" / corpus_name)
    # The peers' index that is searched is the one made of rankwell's tokens.
    searched = "index_text" if name == "rankwell" else "index_tokens"
    folder = Path(out) / "indexes" / f"{corpus_name}.{name}.{searched if phase == 'query' else phase}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    if phase == "tokens":
        result = tokens(corpus)
    elif phase == "query":
        result = query(SYSTEMS[name](), corpus, folder, int(repeat))
    else:
        result = index(getattr(SYSTEMS[name](), phase), corpus, folder)
        if phase != searched:
            shutil.rmtree(folder)
    print(json.dumps(result))


# What was found


def agreement(results: Results) -> dict[str, dict[str, float]]:
    """Each system's first results beside those of bm25s: the largest difference of scores, rank by rank, at every depth
    that is timed, and the share of the same documents among the first ten.
    """
    samples = {name: phases["query"]["sample"] for name, phases in results.items() if "query" in phases}
    reference = samples.pop("bm25s", None)
    if reference is None:
        return {}
    found = {}
    for name, sample in samples.items():
        gap = 0.0
        for depth in sample:
            for mine, theirs in zip(sample[depth], reference[depth], strict=True):
                # A shorter list counts as ended by scores of zero, with which bm25s fills its own.
                pairs = zip_longest((s for _, s in mine), (s for _, s in theirs), fillvalue=0.0)
                gap = max(gap, max((abs(a - b) for a, b in pairs), default=0.0))
        tens = list(zip(sample["10"], reference["10"], strict=True))
        shared = sum(len({n for n, _ in mine} & {n for n, _ in theirs}) for mine, theirs in tens)
        total = sum(len(theirs) for _, theirs in tens)
        found[name] = {"queries": len(tens), "max_score_difference": gap, "same_documents": shared / max(total, 1)}
    return found


def agrees(results: Results) -> bool | None:
    """Whether rankwell found what bm25s found; None where only one of them was asked."""
    same = agreement(results).get("rankwell")
    return None if same is None else same["max_score_difference"] <= TOLERANCE


def ratios(results: Results) -> list[dict[str, Any]]:
    """rankwell's figures over the peers', beside the targets. Speed at finding something else meets no target."""
    wrong = agrees(results) is False
    rows = []
    for what, phase, field, peer, target in TARGETS:
        try:
            ratio = results["rankwell"][phase][field] / results[peer][phase][field]
        except KeyError:
            continue
        valid = not (wrong and phase == "query")
        met = None if target is None else valid and ratio <= target
        rows.append(
            {"what": what, "peer": peer, "ratio": round(ratio, 3), "target": target, "met": met, "valid": valid}
        )
    return rows


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def report(corpus: Corpus, results: Results) -> str:
    """The Markdown of one corpus."""

    def cell(name: str, phase: str, field: str, form: str = "{:.1f}", scale: float = 1.0) -> str:
        value = results.get(name, {}).get(phase, {}).get(field)
        return "–" if value is None else form.format(value * scale)

    facts = corpus.facts
    parts = [f"## {corpus.name}: {facts['passages']:,} passages, {facts['mean_words']} words on average\n"]
    rows = []
    for phase, origin in (("index_text", "text"), ("index_tokens", "tokens")):
        for name in results:
            if phase in results[name]:
                row = [cell(name, phase, "cpu_s"), cell(name, phase, "wall_s"), cell(name, phase, "peak_mb", "{:.0f}")]
                row.append(cell(name, phase, "start_mb", "{:.0f}"))
                rows.append([f"{name}, from {origin}", *row, cell(name, phase, "disk_bytes", "{:.0f}", 1e-6)])
    parts.append(table(["index", "CPU s", "wall s", "peak MiB", "at start", "disk MB"], rows))
    fields = ("cpu_ms_1000", "wall_ms_1000", "cpu_ms_10", "wall_ms_10")
    rows = [
        [name, cell(name, "query", "open_wall_s", "{:.2f}")]
        + [cell(name, "query", field, "{:.3f}") for field in fields]
        + [cell(name, "query", "peak_mb", "{:.0f}")]
        for name in results
        if "query" in results[name]
    ]
    head = ["query", "open s", "top-1000 CPU ms", "wall ms", "top-10 CPU ms", "wall ms", "peak MiB"]
    parts.append(table(head, rows))
    if rows := [
        [r["what"], f"rankwell / {r['peer']}", f"{r['ratio']:.2f}" if r["valid"] else f"(invalid: {r['ratio']:.2f})"]
        + (["–", "–"] if r["target"] is None else [f"≤ {r['target']:.2f}", "yes" if r["met"] else "**no**"])
        for r in ratios(results)
    ]:
        parts.append(table(["ratio", "of", "measured", "target", "met"], rows))
    for name, same in agreement(results).items():
        share = f"{same['same_documents']:.1%} of the top-10 documents"
        line = f"{name} and bm25s agree on {share} of {same['queries']} queries"
        if name == "rankwell":
            line += f"; scores to rank 1000 differ by at most {same['max_score_difference']:.2g}"
            if not agrees(results):
                line = f"**The query ratios are invalid: rankwell found other results.** {line}"
        else:
            line += " (tantivy fixes k1, b and the precision of lengths)"
        parts.append(line + ".\n")
    return "\n".join(parts)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--corpus", default="wiki,1M", help="wiki, insuranceqa or sizes: 1M, 8.8M, 20k (%(default)s)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="of %(default)s")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "bench", help="folder of corpora and results")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of the queries (%(default)s)")
    options = parser.parse_args()
    systems = options.systems.split(",")
    if unknown := set(systems) - SYSTEMS.keys():
        parser.error(f"unknown system: {', '.join(sorted(unknown))}")
    for name in options.corpus.split(","):
        size(name)
    facts = machine("rankwell", "bm25s", "tantivy", "numba", "numpy", "PyStemmer")
    print(f"# First stages side by side (k1 = {K1}, b = {B})\n")
    packages = ", ".join(f"{package} {version}" for package, version in facts["packages"].items())
    print(f"{facts['cpu']} ({facts['architecture']}), {facts['cores']} cores, {facts['memory_gib']} GiB;", end=" ")
    print(f"Python {facts['python']}, {packages}.\n", flush=True)
    summary = options.out / "first_stage.json"
    everything: dict[str, Any] = json.loads(summary.read_text()) if summary.exists() else {}
    failed = False
    for name in options.corpus.split(","):
        corpus = prepare(name, options.out)
        wanted = [s for s in systems if s == "rankwell" or size(name) != MSMARCO_PASSAGES]
        steps = plan(wanted)
        results = measure(corpus, steps, options.out, options.repeat)
        failed |= sum(map(len, results.values())) < len(steps) or agrees(results) is False
        print(report(corpus, results), flush=True)
        figures = {
            system: {phase: {k: v for k, v in found.items() if k != "sample"} for phase, found in phases.items()}
            for system, phases in results.items()
        }
        everything[name] = {
            "machine": facts,
            "settings": {"k1": K1, "b": B, "repeat": options.repeat},
            "corpus": corpus.facts,
            "measured": figures,
            "ratios": ratios(results),
            "agreement": agreement(results),
        }
        summary.write_text(json.dumps(everything, indent=1))
    sys.exit(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--phase"]:
        run_phase(*sys.argv[2:])
    else:
        main()
