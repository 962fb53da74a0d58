"""A newcomer's first hour: some forty commands on own data in eight formats, with the mistakes people make.

    python bench/first_hour.py                      # with the rankwell beside this Python
    python bench/first_hour.py --rankwell PATH --out transcript.txt

Every command runs in one empty folder, in a shell. Its exit code must be the expected one, and its output must contain
the expected lines: an error is one line that names the cause. The transcript has each command, what it printed, its
exit code and its seconds. The exit status is 1 if something was unexpected.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness import make_parser

NOTES = {
    "b1": ("Bees in winter", "Honey bees form a tight cluster and shiver their flight muscles to keep warm."),
    "b2": ("The queen", "The queen bee lays up to two thousand eggs on a day in early summer."),
    "b3": ("Making honey", "Workers fan nectar with their wings until enough water has left it to be honey."),
    "t1": ("Black tea", "Black tea is rolled and left to oxidise before it is dried."),
    "t2": ("Green tea", "Green tea is steamed or pan-fired soon after picking, so that it stays green."),
    "t3": ("Water for tea", "Water that has just boiled suits black tea; green tea wants it cooler."),
    "s1": ("Wool socks", "Socks of merino wool stay warm when they are wet and dry slowly."),
    "s2": ("Down blankets", "A down blanket is warm and light, but loses its loft in the rain."),
    "r1": ("How rivers bend", "A river erodes the outer bank of a bend and leaves sand on the inner one."),
    "r2": ("Salmon", "Salmon return from the sea to the river where they hatched to spawn."),
    "c1": ("Café Zürich", "The café in Zürich serves tea from nine o'clock."),
    "c2": ("Lighthouses", "Keepers lit the lamp at dusk and trimmed the wick at midnight."),
}
QUESTIONS = {
    "q1": ("how do bees keep warm", "b1"),
    "q2": ("who lays the eggs in a hive", "b2"),
    "q3": ("how is honey made", "b3"),
    "q4": ("what happens to tea leaves before drying", "t1"),
    "q5": ("temperature of water for green tea", "t3"),
    "q6": ("warm socks when wet", "s1"),
    "q7": ("why do rivers bend", "r1"),
    "q8": ("where do salmon spawn", "r2"),
}


@dataclass(frozen=True)
class Step:
    """A command, the code it must exit with, and what its output must match."""

    command: str
    code: int = 0
    says: tuple[str, ...] = ()


def write_data() -> None:
    """The same notes as tsv, csv, jsonl, a JSON array, parquet, a folder of pages, and lines."""
    tabs = [f"{key}\t{title}: {text}" for key, (title, text) in NOTES.items()]
    Path("notes.tsv").write_text("\n".join(tabs) + "\n")
    with open("shop.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sku", "product", "description", "price"])
        rows.writerows((key, title, text, "9.90") for key, (title, text) in NOTES.items())
    records = [{"ref": key, "headline": title, "body": text, "year": 2024} for key, (title, text) in NOTES.items()]
    Path("odd.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    Path("array.json").write_text(
        json.dumps([{"id": r["ref"], "title": r["headline"], "text": r["body"]} for r in records])
    )
    Path("faq.txt").write_text("\n".join(text for _, text in NOTES.values()) + "\n")
    pages = Path("pages")
    pages.mkdir()
    for number, (key, (title, text)) in enumerate(NOTES.items()):
        if number % 2:
            (pages / f"{key}.html").write_text(
                f"<html><head><title>{title}</title></head><body><p>{text}</p></body></html>"
            )
        else:
            (pages / f"{key}.md").write_text(f"# {title}\n\n{text}\n\n{' '.join([text] * 8)}\n")
    Path("paper.pdf").write_bytes(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    data = Path("mine")
    data.mkdir()
    shutil.copy("notes.tsv", data / "collection.tsv")
    (data / "queries.tsv").write_text("".join(f"{key}\t{text}\n" for key, (text, _) in QUESTIONS.items()))
    (data / "qrels.txt").write_text("".join(f"{key} 0 {docid} 1\n" for key, (_, docid) in QUESTIONS.items()))
    Path("broken.txt").write_text("q1 0 b1 1\nq2 b2\n")
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        return
    columns = {name: [str(record[name]) for record in records] for name in ("ref", "headline", "body")}
    parquet.write_table(arrow.table(columns), "notes.parquet")


def steps(port: int) -> list[Step]:
    """What a newcomer types."""
    asked, fields = '"how do bees keep warm"', "--id sku --text description --title product"
    return [
        Step("rankwell", 2, ("Usage: rankwell", "search ")),
        Step("rankwell search --help | head -3", 0, ("Usage: rankwell search",)),
        # Own data in eight formats.
        Step("rankwell index notes.tsv --out my-index", 0, ("my-index: 12 documents",)),
        Step(f"rankwell search my-index {asked}", 0, (r"  1  \d+\.\d{3}  b1", "shiver")),
        Step("rankwell index shop.csv --out shop", 0, ("id: 'sku', text: 'description'", "12 documents")),
        Step(f"rankwell index shop.csv {fields} --out shop --overwrite", 0, ("12 documents",)),
        Step('rankwell search shop "warm when wet" -k 2', 0, ("Wool socks",)),
        Step("rankwell index odd.jsonl --out odd", 0, ("12 documents",)),
        Step(f"rankwell search odd {asked} -k 1 --json", 0, ('"title": "Bees in winter"', '"matches"')),
        Step("rankwell index array.json --out array", 0, ("12 documents",)),
        Step("rankwell index notes.parquet --out parquet --id ref", 0, ("12 documents",)),
        Step("rankwell index pages --out pages-index", 0, ("12 documents",)),
        Step("rankwell index pages --passages 40 --out passages", 0, (r"\d\d documents",)),
        Step(f"rankwell search pages-index {asked} -k 1", 0, ("Bees in winter",)),
        Step("rankwell index faq.txt --out lines", 0, ("12 documents",)),
        Step("cat notes.tsv | rankwell index - --out stdin", 0, ("12 documents",)),
        # Pipes, stdin, other characters.
        Step(f"echo {asked} | rankwell search my-index - --tsv | head -1", 0, ("\tb1\t",)),
        Step("rankwell search my-index mine/queries.tsv | head -2", 0, ("q1  how do bees",)),
        Step('rankwell search my-index "café zürich" -k 1', 0, ("c1",)),
        Step('rankwell search my-index "xylophone"', 0, ("Nothing found",)),
        # Runs and figures.
        Step("rankwell search my-index mine/queries.tsv --out bm25.run", 0, ("bm25.run: 8 of 8 queries",)),
        Step("rankwell evaluate mine/qrels.txt bm25.run", 0, (r"RR@10 +[01]\.\d{4}",)),
        Step("rankwell evaluate mine/qrels.txt bm25.run --json | head -c 60", 0, ("{",)),
        Step("rankwell tune my-index mine/queries.tsv mine/qrels.txt", 0, ("k1",)),
        # Models.
        Step(f"rankwell rerank {asked} --collection my-index --depth 4 -k 2", 0, ("b1",)),
        Step("rankwell search my-index mine/queries.tsv --hybrid 0.7 --k 10 --out hybrid.run", 0, ("8 of 8 queries",)),
        Step("rankwell evaluate mine/qrels.txt bm25.run hybrid.run", 0, ("hybrid.run", "differs from|Holm")),
        Step(f"rankwell explain --query {asked} --docid b1 --collection my-index", 0, ("score", "Same stem")),
        Step("rankwell fit mine --out my-system --minutes 1", 0, ("too few to train", "my-system: BM25")),
        Step(f"rankwell search my-system {asked} -k 1", 0, ("b1",)),
        Step("rankwell check my-index", 0, ("",)),
        Step(
            f"rankwell serve --index my-index --model none --port {port} > serve.log 2>&1 & server=$!; "
            f"for i in $(seq 600); do curl -sf localhost:{port}/ready > ready.json && break; sleep 0.2; done; "
            f'curl -s localhost:{port}/search -d \'{{"query": "bees warm", "k": 1}}\'; kill $server; wait $server',
            0,
            ('"id": ?"b1"',),
        ),
        # Mistakes.
        Step("rankwell index notes.tvs --out typo", 2, ("rankwell: notes.tvs: no such file",)),
        Step("rankwell index notes.tsv --out my-index", 2, ("holds an index already; .*--append.*--overwrite",)),
        Step("rankwell index notes.tsv", 2, ("rankwell: missing option .*--out",)),
        Step("rankwell indx notes.tsv --out x", 2, ("no such command 'indx'",)),
        Step("rankwell search notes.tsv bees", 2, ("rankwell: notes.tsv",)),
        Step("rankwell search my-index bees --kk 3", 2, ("no such option: --kk",)),
        Step("rankwell index paper.pdf --out pdf", 2, ("PDF.*pdftotext|pdftotext",)),
        Step("rankwell evaluate bm25.run mine/qrels.txt", 2, ("rankwell: bm25.run",)),
        Step("rankwell evaluate broken.txt bm25.run", 2, ("broken.txt, line 2|broken.txt:2",)),
        Step("rankwell index shop.csv --text blurb --out wrong", 2, ("no field 'blurb' for the text; found 'sku'",)),
        Step("rankwell search my-index queries-of-mine.tsv", 2, ("queries-of-mine.tsv: no such file",)),
        Step("rankwell train listwise --out model --check", 2, ("--set data=FOLDER",)),
        Step("rankwell rerank bm25.run --collection my-index", 2, ("needs --queries",)),
    ]


def problem_of(step: Step, code: int, output: str) -> str | None:
    """What was unexpected."""
    if code != step.code:
        return f"exit code {code}, expected {step.code}"
    if "Traceback" in output:
        return "a traceback"
    missing = [pattern for pattern in step.says if not re.search(pattern, output)]
    if missing:
        return f"nothing like {missing[0]!r}"
    if step.code == 2 and not output.startswith("Usage") and output.count("rankwell: ") != 1:
        return "not one line of error"
    return None


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rankwell", type=Path, default=Path(sys.executable).with_name("rankwell"))
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--only", help="run only commands that contain this text, and index")
    parser.add_argument("--out", type=Path, help="file of the transcript")
    chosen = parser.parse_args()
    lines, problems = [], 0
    out = chosen.out.absolute() if chosen.out else None
    environment = {**os.environ, "PATH": f"{chosen.rankwell.absolute().parent}:{os.environ['PATH']}", "COLUMNS": "80"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_data()
        for step in steps(chosen.port):
            if chosen.only and chosen.only not in step.command and " index " not in step.command:
                continue
            if "parquet" in step.command and not Path("notes.parquet").exists():
                continue
            begin = time.perf_counter()
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", step.command],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            seconds, output = time.perf_counter() - begin, done.stdout + done.stderr
            code = 0 if done.returncode == 141 else done.returncode  # head has closed the pipe
            problem = problem_of(step, code, output)
            problems += problem is not None
            told = f"[{code}, {seconds:.1f} s]" + (f"  UNEXPECTED: {problem}" if problem else "")
            lines.append(f"$ {step.command}\n{output.rstrip()}\n{told}\n")
            print(lines[-1], flush=True)
            if out is not None:
                out.write_text("\n".join(lines), encoding="utf-8")
        os.chdir("/")
    print(f"{len(lines)} commands, {problems} unexpected")
    sys.exit(problems > 0)


if __name__ == "__main__":
    main()
